"""The outermost layer of a node: the real clock, real threads and real sockets around it. Runs inside a Spark task."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from tidegate.clock import Clock, SystemClock
from tidegate.errors import FencedError, NodeUnreachable
from tidegate.runtime.address import LOOPBACK, node_listening
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.node import Node
from tidegate.runtime.security import Tls
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.threads import ThreadPools
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.tcp import TcpTransport


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a node's process is told at its start. The secret travels with the code, never in a log."""

    setup: NodeSetup
    coordinator: str
    secret: bytes
    store_url: str | None
    restore_url: str | None = None
    """Where the state to start from is, when it is not in the job's own store: a savepoint."""
    bind: str = LOOPBACK
    tls: Tls | None = None
    sealed: bool = False
    """Data channels are in the clear and leave the machine: every byte is tagged."""

    def __repr__(self) -> str:
        return f"Launch(job={self.setup.plan.job!r}, gang={self.setup.gang}, coordinator={self.coordinator!r})"


class FirstContact:
    """Passes the control line's words on to the node, and knows whether there ever were any."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._heard = False
        self._unreachable: Exception | None = None

    def message(self, message: pb.CoordinatorMessage) -> None:
        self._heard = True
        self._node.control_message(message)

    def lost(self, reason: Exception) -> None:
        if not self._heard and not isinstance(reason, FencedError):
            self._unreachable = reason
        self._node.control_lost(reason)

    def check(self, index: int, host: str) -> None:
        """A node that never reached the driver can tell it nothing: raised here, its reason gets there through Spark."""
        if self._unreachable is not None:
            raise NodeUnreachable(f"node {index} on {host} never heard from the driver: {self._unreachable}")


def run_node(launch: Launch, index: int, clock: Clock | None = None, host: str | None = None) -> str:
    """Run node ``index`` of the gang to its end; gives why it ended. ``host`` is how peers call this machine. Blocks.

    ``NodeUnreachable`` when the driver never answered.
    """
    # grpc is imported here and not above: a daemon that forks workers must not have grpc's threads.
    from tidegate.wire.control import ControlClient

    pa.set_cpu_count(1)
    keep_freed_memory()
    mailbox: Mailbox[Callable[[], None]] = Mailbox()
    store = open_store(launch.store_url) if launch.store_url else None
    setup = replace(launch.setup, node=index)
    node = Node(
        setup,
        clock=clock or SystemClock(),
        mailbox=mailbox,
        store=store,
        threads=ThreadPools(f"node{index}"),
        origin=open_store(launch.restore_url) if launch.restore_url else None,
    )
    contact = FirstContact(node)
    with ExitStack() as undo:
        undo.callback(node.abandon)
        control = ControlClient(
            launch.coordinator,
            launch.secret,
            on_message=contact.message,
            on_lost=contact.lost,
            credentials=None if launch.tls is None else launch.tls.channel_credentials(),
            server_name=None if launch.tls is None else launch.tls.name,
        )
        undo.callback(control.close)
        transport = _transport(launch, node, host)
        undo.pop_all()  # from here on the node lets go of everything by itself
    name = socket.gethostname()
    try:
        outcome = node.run(transport, control, pid=os.getpid(), host=name)
    finally:
        control.close()
    contact.check(index, host or name)
    return outcome


def _transport(launch: Launch, node: Node, host: str | None) -> TcpTransport:
    listening = node_listening(launch.bind, host)
    return TcpTransport(
        node,
        secret=launch.secret,
        gang=launch.setup.gang,
        bind=listening.bind,
        advertise=listening.advertise,
        tls=None if launch.tls is None else launch.tls.contexts(),
        sealed=launch.sealed,
    )
