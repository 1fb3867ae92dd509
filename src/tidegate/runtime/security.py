"""TLS for a job's channels: every side shows a certificate of one authority and wants to see one."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

from tidegate.core.options import strict_fields
from tidegate.errors import InvalidUseError
from tidegate.runtime.address import is_loopback
from tidegate.wire.connection import TlsContexts

if TYPE_CHECKING:
    import grpc

Pem: TypeAlias = str | os.PathLike[str] | bytes


@strict_fields
@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Certificates for the channels between nodes and to the driver.

    Each of the three is PEM. A path is read on the driver and on every executor, so each machine can have its own; bytes
    travel with the code. Certificates must be made out to the address that is dialled or, where ``name`` is given, all of
    them to that name. They must be good for servers and for clients.
    """

    certificate: Pem
    key: Pem
    authority: Pem
    name: str | None = None

    def __repr__(self) -> str:
        parts = (f"{each.name}={_shown(getattr(self, each.name))}" for each in fields(self))
        return f"Tls({', '.join(parts)})"

    def contexts(self) -> TlsContexts:
        """For data channels. Reads the files; what can't be used is an ``InvalidUseError``."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load(context)
        return TlsContexts(server, client, self.name)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the driver's end of the control lines."""
        import grpc

        pair = (_bytes("key", self.key), _bytes("certificate", self.certificate))
        return grpc.ssl_server_credentials(
            [pair], root_certificates=_bytes("authority", self.authority), require_client_auth=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a node's end of its control line."""
        import grpc

        return grpc.ssl_channel_credentials(
            _bytes("authority", self.authority), _bytes("key", self.key), _bytes("certificate", self.certificate)
        )

    def _load(self, context: ssl.SSLContext) -> None:
        authority = _bytes("authority", self.authority).decode("ascii", "replace")
        _bytes("certificate", self.certificate), _bytes("key", self.key)  # says which of the files is not there
        with _file(self.certificate) as certificate, _file(self.key) as key:
            try:
                context.load_verify_locations(cadata=authority)
                # Without a password of ours OpenSSL would ask for one on the terminal.
                context.load_cert_chain(certificate, key, password="")
            except (ssl.SSLError, ValueError) as error:
                reason = (error.reason if isinstance(error, ssl.SSLError) else "") or str(error)
                raise InvalidUseError(
                    f"these can't be used together for TLS, give a PEM certificate, its key without a password and the authority "
                    f"that signed it: {reason} tls={self!r}"
                ) from error


def needs_seal(bind: str, tls: Tls | None, allow_plaintext: bool) -> bool:
    """True when rows leave the machine in the clear, so that every byte must be tagged. Refuses that without a yes."""
    if tls is not None or is_loopback(bind):
        return False
    if not allow_plaintext:
        raise InvalidUseError(
            "the job would listen on the network without encryption, where others can read its rows: give tls=tg.Tls(...), "
            f"or allow_plaintext=True if everybody on that network may read them bind={bind}"
        )
    return True


@contextmanager
def _file(pem: Pem) -> Iterator[str]:
    """OpenSSL reads keys from files only. Ours can be read by this user alone and is gone afterwards."""
    if not isinstance(pem, bytes):
        yield os.fspath(pem)
        return
    with tempfile.NamedTemporaryFile(prefix="tidegate-") as file:
        file.write(pem)
        file.flush()
        yield file.name


def _bytes(what: str, pem: Pem) -> bytes:
    if isinstance(pem, bytes):
        return pem
    try:
        with open(pem, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidUseError(f"cannot read the {what} for TLS: {error.strerror} path={os.fspath(pem)}") from error
    except TypeError:
        raise InvalidUseError(f"the {what} for TLS is a path or PEM bytes given={type(pem).__name__}") from None


def _shown(value: object) -> str:
    return "PEM" if isinstance(value, bytes) else repr(value)
