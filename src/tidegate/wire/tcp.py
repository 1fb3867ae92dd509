"""Channels over TCP: one connection each, opened by the sender, proved by the job's secret and the gang
number.

Network threads only move and decode bytes. All of them are daemon threads and end with ``close``.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import pyarrow as pa

from tidegate.errors import (
    FencedError,
    InvalidUseError,
    NodeUnreachable,
    ProtocolError,
    RetryableError,
    ThreadDied,
    TidegateError,
)
from tidegate.ids import GangNumber
from tidegate.supervise import supervised
from tidegate.wire.arrow import Message, check_schema
from tidegate.wire.channel import InboundChannel, TcpOutbound
from tidegate.wire.connection import Connection, PlainConnection, TlsConnection, TlsContexts
from tidegate.wire.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    FrameDecoder,
    FrameType,
    pack_frame,
    pack_reason,
    unpack_reason,
)
from tidegate.wire.gate import Gate, LogBudget, Newcomer
from tidegate.wire.handshake import (
    Answer,
    HandshakeVerdict,
    PeerClaim,
    check_challenge,
    data_session,
    open_claim,
    open_verdict,
    pack_challenge,
    pack_claim,
    pack_verdict,
)
from tidegate.wire.seal import NONCE_BYTES, check_secret
from tidegate.wire.sealed import SealedConnection
from tidegate.wire.transport import (
    CONNECT_TIMEOUT_S,
    ChannelId,
    Events,
    InProcessHub,
    InProcessTransport,
    Outbound,
)

log = logging.getLogger("tidegate.wire")

RETRY_FIRST_S = 0.02
RETRY_MOST_S = 0.5


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """The limits of the data channels."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    handshake_timeout_s: float = 5.0
    close_timeout_s: float = 5.0
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_newcomers: int = 256
    """Connections that have not proved themselves; more push one another out, and nodes among them try again."""


class _Reports:
    """Passes reports on until the transport closes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.muted = False

    def received(self, channel: ChannelId, message: Message, size_bytes: int) -> None:
        if not self.muted:
            self._events.received(channel, message, size_bytes)

    def credited(self, channel: ChannelId, size_bytes: int) -> None:
        if not self.muted:
            self._events.credited(channel, size_bytes)

    def sendable(self, channel: ChannelId) -> None:
        if not self.muted:
            self._events.sendable(channel)

    def closed(self, channel: ChannelId, error: Exception | None) -> None:
        if not self.muted:
            self._events.closed(channel, error)

    def broken(self, death: ThreadDied) -> None:
        if not self.muted:
            self._events.broken(death)


class TcpTransport:
    """The channels of one node over TCP. Channels to its own address never touch a socket."""

    def __init__(
        self,
        events: Events,
        *,
        secret: bytes,
        gang: GangNumber,
        bind: str = "127.0.0.1",
        advertise: str | None = None,
        tls: TlsContexts | None = None,
        sealed: bool = False,
        settings: TcpSettings | None = None,
    ) -> None:
        check_secret(secret)
        self._secret = secret
        self._sealed = sealed
        self._gang = gang
        self._tls = tls
        self._settings = settings or TcpSettings()
        self._reports = _Reports(events)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._expected: dict[ChannelId, pa.Schema] = {}
        self._known: set[ChannelId] = set()
        self._inbound: dict[ChannelId, InboundChannel] = {}
        self._connections: set[Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._refusals = LogBudget(log)
        self._hub = InProcessHub()
        self._local = InProcessTransport(self._hub, self._reports)
        self._gate = Gate(
            bind,
            "data channels",
            self._greeted,
            waiting_max=self._settings.max_newcomers,
            patience_s=self._settings.handshake_timeout_s,
            greet=self._greeting,
        )
        self._address = f"{advertise or bind}:{self._gate.port}"
        self._spawn("tidegate-accept", self._gate.run)

    @property
    def address(self) -> str:
        """Where peers open channels to this node."""
        return self._address

    def expect(self, channel: ChannelId, schema: pa.Schema) -> None:
        """Let one peer open this channel; a peer that came too early is waiting for this."""
        check_schema(schema)
        with self._changed:
            if channel in self._known:
                raise InvalidUseError(f"this channel is expected already channel={channel}")
            self._known.add(channel)
            self._expected[channel] = schema
            self._changed.notify_all()

    def connect(self, channel: ChannelId, address: str) -> Outbound:
        """Open a channel. Tries again until the connect timeout while the peer is not there or not ready
        yet.
        """
        deadline = time.monotonic() + self._settings.connect_timeout_s
        if address == self._address:
            return self._connect_local(channel, deadline)
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return self._connect_once(channel, address, deadline)
            except OSError as error:
                cause = error
            if time.monotonic() + pause_s >= deadline or self._closing.wait(pause_s):
                raise NodeUnreachable(f"cannot open a channel: {cause} channel={channel} address={address}") from cause
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    def credit(self, channel: ChannelId, size_bytes: int) -> None:
        """Return credit to the sender of an inbound channel."""
        inbound = self._inbound.get(channel)
        if inbound is not None:
            inbound.credit(size_bytes)
        elif self._hub.inbound(channel) is not None:
            self._local.credit(channel, size_bytes)
        elif channel not in self._known:
            raise InvalidUseError(f"not an inbound channel of this node channel={channel}")

    def give_up(self) -> None:
        """Let a ``connect`` that waits for its peer fail soon."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Cut every connection and wait for the threads, at most the close timeout."""
        self._reports.muted = True
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            connections = list(self._connections)
        self._gate.close()
        for connection in connections:
            connection.cut()
        self._local.close()
        self._join_threads()

    # -- connecting --------------------------------------------------------------------------

    def _connect_local(self, channel: ChannelId, deadline: float) -> Outbound:
        if isinstance(self._take_expected(channel, deadline), Answer):
            raise NodeUnreachable(f"this node does not expect its own channel channel={channel}")
        self._hub.expect(channel, self._local)
        return self._local.connect(channel)

    def _connect_once(self, channel: ChannelId, address: str, deadline: float) -> Outbound:
        host, port = _split_address(address)
        deadline = min(deadline, time.monotonic() + 2 * self._settings.handshake_timeout_s)
        sock = socket.create_connection((host, port), timeout=max(0.001, deadline - time.monotonic()))
        connection = self._open(sock, deadline, server=False, host=host)
        try:
            _agree_on_keys(connection)
            speaking = self._claim(connection, channel)
            connection.set_deadline(None)
        except BaseException:
            self._release(connection)
            raise
        outbound = TcpOutbound(channel, speaking, self._reports, lambda: self._release(connection))
        outbound.start(self._spawn)
        return outbound

    def _claim(self, connection: Connection, channel: ChannelId) -> Connection:
        try:
            challenge = check_challenge(_read_hello(connection))
            claim = pack_claim(self._secret, challenge, secrets.token_bytes(NONCE_BYTES), PeerClaim(self._gang, channel))
            connection.send(pack_frame(FrameType.HELLO, claim))
            verdict = open_verdict(self._secret, challenge, claim, _read_hello(connection))
        except ProtocolError as error:
            raise RetryableError(f"the peer was refused: {error} channel={channel}") from error
        self._obey(verdict, channel)
        return self._speaking(connection, challenge, claim, dialled=True)

    def _obey(self, verdict: HandshakeVerdict, channel: ChannelId) -> None:
        match verdict.answer:
            case Answer.ACCEPTED:
                return
            case Answer.NOT_EXPECTED:
                raise ConnectionRefusedError("the peer does not expect this channel yet")
            case Answer.TAKEN:
                raise RetryableError(f"the channel was opened before channel={channel}")
            case Answer.WRONG_GANG if verdict.gang > self._gang:
                raise FencedError(f"a newer gang runs at the peer gang={self._gang} newer={verdict.gang}")
            case Answer.WRONG_GANG:
                raise RetryableError(f"an older gang runs at the peer gang={self._gang} older={verdict.gang}")
            case _:
                assert_never(verdict.answer)

    # -- accepting --------------------------------------------------------------------------

    def _greeting(self) -> bytes:
        """What a newcomer hears first. Under TLS the dialler speaks first, and the challenge comes after the keys."""
        return b"" if self._tls is not None else _hello(pack_challenge(secrets.token_bytes(NONCE_BYTES)))

    def _greeted(self, newcomer: Newcomer) -> None:
        self._spawn(f"tidegate-read-{newcomer.peer}", partial(self._serve, newcomer))

    def _serve(self, newcomer: Newcomer) -> None:
        try:
            admitted = self._admit(newcomer)
        finally:
            self._gate.leave(newcomer)
        if admitted is None:
            return
        channel, connection, inbound = admitted
        error = inbound.run()
        self._inbound.pop(channel, None)
        self._release(connection)
        self._reports.closed(channel, error)

    def _admit(self, newcomer: Newcomer) -> tuple[ChannelId, Connection, InboundChannel] | None:
        connection: Connection | None = None
        try:
            deadline = time.monotonic() + self._settings.handshake_timeout_s
            connection = self._open(newcomer.sock, deadline, server=True, host="")
            _agree_on_keys(connection)
            channel, schema, speaking = self._judge(connection, newcomer)
        except Exception as error:  # whatever a stranger's bytes do, they cost a connection and not the node
            self._refusals.warning(
                "refused a data connection: %s peer=%s gang=%d", error or repr(error), newcomer.peer, self._gang
            )
            self._gate.leave(newcomer)
            self._release(connection)
            newcomer.sock.close()
            return None
        limit = self._settings.max_frame_bytes
        inbound = InboundChannel(channel, schema, speaking, self._reports, limit)
        self._inbound[channel] = inbound
        return channel, connection, inbound

    def _judge(self, connection: Connection, newcomer: Newcomer) -> tuple[ChannelId, pa.Schema, Connection]:
        greeting = newcomer.greeting
        if not greeting:
            greeting = _hello(pack_challenge(secrets.token_bytes(NONCE_BYTES)))
            connection.send(greeting)
        challenge = greeting[HEADER_BYTES:]
        packed = _read_hello(connection)
        try:
            claim = open_claim(self._secret, challenge, packed)
        except TidegateError:
            connection.send(pack_frame(FrameType.ABORT, pack_reason("the secret is wrong")))
            raise
        self._gate.leave(newcomer)
        decision = self._decide(claim)
        answer = decision if isinstance(decision, Answer) else Answer.ACCEPTED
        verdict = pack_verdict(self._secret, challenge, packed, HandshakeVerdict(answer, self._gang))
        connection.set_deadline(None)
        connection.send(pack_frame(FrameType.HELLO, verdict))
        if isinstance(decision, Answer):
            raise ProtocolError(f"{decision.name} channel={claim.channel} claimed_gang={claim.gang}")
        return claim.channel, decision, self._speaking(connection, challenge, packed, dialled=False)

    def _speaking(self, connection: Connection, challenge: bytes, claim: bytes, *, dialled: bool) -> Connection:
        """What carries the channel's frames, now that both ends know each other."""
        if not self._sealed:
            return connection
        return SealedConnection(connection, data_session(self._secret, challenge, claim, dialled=dialled))

    def _decide(self, claim: PeerClaim) -> pa.Schema | Answer:
        if claim.gang != self._gang:
            return Answer.WRONG_GANG
        return self._take_expected(claim.channel, time.monotonic() + self._settings.handshake_timeout_s)

    def _take_expected(self, channel: ChannelId, deadline: float) -> pa.Schema | Answer:
        """The schema of a channel that nobody has opened yet. Waits until it is expected."""
        with self._changed:
            while channel not in self._known:
                if self._closing.is_set() or not self._changed.wait(deadline - time.monotonic()):
                    return Answer.NOT_EXPECTED
            return self._expected.pop(channel, Answer.TAKEN)

    # -- connections and threads --------------------------------------------------------------------------

    def _open(self, sock: socket.socket, deadline: float, *, server: bool, host: str) -> Connection:
        try:
            plain = PlainConnection(sock)
        except OSError:
            sock.close()
            raise
        connection: Connection = plain
        if self._tls is not None:
            context = self._tls.server if server else self._tls.client
            connection = TlsConnection(plain, context, server=server, host=self._tls.name or host)
        with self._changed:
            self._connections.add(connection)
            if self._closing.is_set():
                connection.cut()
        connection.set_deadline(deadline)
        return connection

    def _release(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.close()
            with self._changed:
                self._connections.discard(connection)

    def _spawn(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = supervised(name, partial(self._run, target), self._reports.broken)
        with self._changed:  # started under the lock: close() must not find one that it can't wait for yet
            thread.start()
            self._threads.add(thread)
        return thread

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _join_threads(self) -> None:
        deadline = time.monotonic() + self._settings.close_timeout_s
        with self._changed:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if late := [thread.name for thread in threads if thread.is_alive()]:
            log.warning("network threads did not end in time threads=%s", ",".join(late))


def _hello(payload: bytes) -> bytes:
    return pack_frame(FrameType.HELLO, payload)


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidUseError(f"a node's address is host:port address={address}")
    return host.strip("[]"), int(port)


def _agree_on_keys(connection: Connection) -> None:
    if isinstance(connection, TlsConnection):
        connection.handshake()


def _read_hello(connection: Connection) -> bytes:
    """The next hello frame. An abort or anything else is a ``ProtocolError``, the end of the stream an
    ``OSError``.
    """
    decoder = FrameDecoder(max_frame_bytes=MAX_HELLO_BYTES)
    while True:
        count = connection.receive_into(decoder.space(), False)
        if count == 0:
            raise ConnectionResetError("the peer hung up during the handshake")
        for frame in decoder.filled(count):
            if frame.kind is FrameType.ABORT:
                raise ProtocolError(unpack_reason(frame.payload))
            # Each side speaks only after the other has: more bytes than one hello come from no node of ours.
            if frame.kind is not FrameType.HELLO or not decoder.at_boundary:
                raise ProtocolError(f"expected a single hello frame kind={frame.kind.name}")
            return bytes(frame.payload)
