"""What the wire's tests share: a mailbox that records what a transport reports."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidegate.wire.arrow import Message
from tidegate.wire.connection import TlsContexts
from tidegate.wire.transport import ChannelId

WAIT_S = 20.0


@dataclass
class Mailbox:
    """Collects reports, and waits for them."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    received_: list[tuple[ChannelId, Message, int]] = field(default_factory=list)
    credited_: list[tuple[ChannelId, int]] = field(default_factory=list)
    sendable_: list[ChannelId] = field(default_factory=list)
    closed_: list[tuple[ChannelId, Exception | None]] = field(default_factory=list)

    def received(self, channel: ChannelId, message: Message, size_bytes: int) -> None:
        self._add(self.received_, (channel, message, size_bytes))

    def credited(self, channel: ChannelId, size_bytes: int) -> None:
        self._add(self.credited_, (channel, size_bytes))

    def sendable(self, channel: ChannelId) -> None:
        self._add(self.sendable_, channel)

    def closed(self, channel: ChannelId, error: Exception | None) -> None:
        self._add(self.closed_, (channel, error))

    def _add(self, reports: list, report: object) -> None:
        with self.changed:
            reports.append(report)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), self

    @property
    def messages(self) -> list[Message]:
        return [message for _, message, _ in self.received_]

    def wait_messages(self, count: int) -> list[Message]:
        self.wait(lambda: len(self.received_) >= count)
        return self.messages

    def wait_closed(self) -> Exception | None:
        self.wait(lambda: bool(self.closed_))
        return self.closed_[0][1]


@pytest.fixture
def mailboxes() -> tuple[Mailbox, Mailbox]:
    return Mailbox(), Mailbox()


@pytest.fixture
def batch() -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(range(1000)), "name": pa.array([f"n{i}" for i in range(1000)])})


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Every thread that a test starts must have ended a moment after it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        for thread in left:
            thread.join(0.05)
    assert not left


@pytest.fixture(scope="session")
def tls_contexts(tmp_path_factory: pytest.TempPathFactory) -> TlsContexts:
    """Contexts for 127.0.0.1 from a certificate made on the spot."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tidegate test")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    return TlsContexts(server, client)
