"""Where a job listens, and by what name others reach it: loopback, all interfaces, or one address of the driver's machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"
WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listening:
    """``bind`` is for sockets; ``advertise`` is what peers dial, in brackets if IPv6, or ``None`` for the same."""

    bind: str
    advertise: str | None


def node_listening(bind: str, host: str | None) -> Listening:
    """Where a node listens for data. ``bind`` is the driver's choice, ``host`` what Spark calls the node's machine.

    An address that was chosen for the driver is of no use on other machines: there a node listens at its own.
    """
    if is_loopback(bind):
        return Listening(bind, bracketed(bind))
    if bind in WILDCARDS:
        return Listening(bind, bracketed(host or socket.gethostname()))
    own = host or bind
    return Listening(own, bracketed(own))


def bracketed(host: str) -> str:
    """The host as it stands before a colon and a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """True when only this machine can reach it. A name is looked up."""
    addresses = _addresses(host)
    return bool(addresses) and all(ip_address(address).is_loopback for address in addresses)


def is_this_machine(host: str) -> bool:
    """True when a socket can listen at this host's address, that is when it is one of ours. Looks a name up."""
    return any(_can_listen(address) for address in _addresses(host))


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(each[4][0]).partition("%")[0] for each in found]


def _can_listen(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True
