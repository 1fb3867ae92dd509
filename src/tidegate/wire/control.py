"""The control plane over gRPC: a server in the coordinator, a client in every node, one stream between them.

Both prove the job's secret to each other before anything else is said (``prove``), and seal every message (``seal``).
Otherwise they only carry messages and notice silence; what a message means is the caller's business. Import this module
late, inside the process that needs it: grpc starts threads, and a daemon that forks workers must not have
loaded it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

# Spark's driver and workers fork; grpc's own fork handlers then only print warnings about threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from tidegate.core.failure.silence import Silence
from tidegate.errors import (
    ChannelFull,
    FencedError,
    InvalidUseError,
    NodeStalled,
    NodeUnreachable,
    ProtocolError,
    RetryableError,
    ThreadDied,
    TidegateError,
)
from tidegate.supervise import supervised
from tidegate.wire._gen.control_pb2 import CoordinatorMessage, Heartbeat, Hello, NodeMessage
from tidegate.wire.gate import LogBudget
from tidegate.wire.line import ControlSettings, Line, opened, sealed
from tidegate.wire.outbox import LOOKS, Outbox, SilenceWatch
from tidegate.wire.prove import DriverProof
from tidegate.wire.relay import ControlPort
from tidegate.wire.seal import NONCE_BYTES, TAG_BYTES, SealPair, check_secret

log = logging.getLogger("tidegate.control")

SERVICE = "tidegate.control.Control"
METHOD = "Attend"
BEAT_WAIT_S = 0.05
RETRY_PAUSES_S = (0.1, 0.3, 0.9)
"""A node whose line breaks before the proof tries again: it may have been pushed out by a crowd of strangers."""


class Handler(Protocol):
    """What the coordinator does with its nodes. Called from network threads: be quick and thread-safe.

    Per connection: ``joined`` once, then ``message``s in order, then ``left`` once; never two at the same
    time.
    """

    def joined(self, connection: NodeConnection) -> None:
        """A node has said hello: see ``connection.hello``."""

    def message(self, connection: NodeConnection, message: NodeMessage) -> None:
        """A node said something else than hello and heartbeat."""

    def left(self, connection: NodeConnection, error: Exception | None) -> None:
        """The stream is over: ``None`` when the node ended it in order. Not called for what ``close``
        ends.
        """

    def broken(self, death: ThreadDied) -> None:
        """The server itself can't go on."""


def _outbox(settings: ControlSettings) -> dict[str, Any]:
    limits = {"max_message_bytes": settings.max_message_bytes, "outbox_max": settings.outbox_max}
    return {"heartbeat_s": settings.heartbeat_s, **limits}


def _silence(settings: ControlSettings) -> Silence:
    limit_ms = 1000 * settings.silence_s
    return Silence(limit_ms, limit_ms / LOOKS, 1000 * time.monotonic())


class NodeConnection:
    """The coordinator's end of one node's stream."""

    def __init__(self, settings: ControlSettings, context: Any, peer: str) -> None:
        self._context = context
        self._peer = peer
        self._settings = settings
        self._outbox: Outbox[CoordinatorMessage] = Outbox(lambda: CoordinatorMessage(heartbeat=Heartbeat()), **_outbox(settings))
        self._silence = _silence(settings)
        self._error: Exception | None = None
        self._joined = False
        self._done = False
        self.hello = Hello()
        self.heartbeat = Heartbeat()
        """The node's last: what it was doing then."""
        context.add_callback(self._outbox.finish)

    def __str__(self) -> str:
        return f"node={self.hello.node} gang={self.hello.gang} peer={self._peer}"

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message; never blocks. A node that does not keep up is dropped: ``left`` says so."""
        if not self._outbox.put(message):
            self.drop(ChannelFull(f"the node does not take its messages {self}"))

    def finish(self) -> None:
        """End the stream after what is queued."""
        self._done = True
        self._outbox.finish()

    def drop(self, error: Exception) -> None:
        """End the stream at once, for this reason."""
        self._error = self._error or error
        self._context.cancel()

    # -- used by the server --------------------------------------------------------------------------

    def serve(self, requests: Iterator[NodeMessage], handler: Handler) -> None:
        """Read until the stream is over. Blocks until the stream's end."""
        # To grpc a killed peer may look like one that is done: only the node's own last word makes an orderly end.
        why = "the node left without a word"
        try:
            self._read(requests, handler)
        except TidegateError as failure:
            self.drop(failure)
        except Exception as failure:  # grpc raises bare exceptions when a stream is cancelled
            why = f"the node's stream broke: {_brief(failure)}"
        finally:
            self._outbox.finish()
        if self._joined:
            handler.left(self, self._error or (None if self._done else RetryableError(f"{why} {self}")))

    def _read(self, requests: Iterator[NodeMessage], handler: Handler) -> None:
        for message in requests:
            self._silence.heard(1000 * time.monotonic())
            body = message.WhichOneof("body")
            if body == "heartbeat":
                self.heartbeat = message.heartbeat
                continue
            if (body == "hello") is self._joined or body is None:
                raise ProtocolError(f"a node says hello first and once body={body} {self}")
            if body == "hello":
                self.hello = message.hello
                self._joined = True
                handler.joined(self)
            else:
                self._done = self._done or body in ("stopped", "failed")
                handler.message(self, message)

    def outgoing(self) -> Iterator[CoordinatorMessage]:
        """What grpc sends."""
        return iter(self._outbox)

    def look(self, now: float) -> None:
        """Drop the node when it has been silent for too long."""
        if self._silence.look(1000 * now):
            self.drop(NodeStalled(f"it has said nothing for {self._silence.lasted_ms(1000 * now) / 1000:.1f} s"))


class ControlServer:
    """Listens for nodes. ``address`` is ``host:port``."""

    def __init__(
        self,
        handler: Handler,
        secret: bytes,
        bind: str = "127.0.0.1",
        *,
        advertise: str | None = None,
        settings: ControlSettings | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        check_secret(secret)
        self._handler = handler
        self._secret = secret
        self._settings = settings or ControlSettings()
        self._connections: set[NodeConnection] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._refusals = LogBudget(log)
        self._port = ControlPort(bind, waiting_max=self._settings.max_newcomers, patience_s=self._settings.handshake_s)
        self.address = f"{advertise or bind}:{self._port.port}"
        streams = self._settings.max_nodes + self._settings.max_newcomers + 1
        self._pool = ThreadPoolExecutor(streams, thread_name_prefix="tidegate-control")
        self._server = self._make_server(streams)
        self._listen(credentials)
        self._server.start()
        self._port.start(self._broken)
        self._watch = SilenceWatch("tidegate-control-watch", self._settings.silence_s, self._look, self._broken)

    def close(self, grace_s: float = 2.0) -> None:
        """Send what is queued, end every stream and thread. Blocks for about ``grace_s`` at most.
        Idempotent.
        """
        with self._lock:
            self._closing = True
            connections = list(self._connections)
        self._port.refuse()
        for connection in connections:
            connection.finish()
        self._server.stop(grace_s).wait()
        self._port.close(grace_s)
        self._watch.close(grace_s)
        self._pool.shutdown(wait=True)

    def _make_server(self, streams: int) -> Any:
        attend = grpc.stream_stream_rpc_method_handler(self._attend)
        return grpc.server(
            self._pool,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {METHOD: attend})],
            options=[*_options(self._settings), ("grpc.max_concurrent_streams", 1)],
            maximum_concurrent_rpcs=streams,
        )

    def _listen(self, credentials: grpc.ServerCredentials | None) -> None:
        target = f"unix:{self._port.target}"
        try:
            if credentials is None:
                self._server.add_insecure_port(target)
            else:
                self._server.add_secure_port(target, credentials)
        except RuntimeError as error:
            self._pool.shutdown()
            self._port.close(0.0)
            raise InvalidUseError(f"cannot listen for nodes: {error} address={self.address}") from error

    def _attend(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            session = yield from self._prove(requests)
        except ProtocolError as error:
            self._refusals.warning("refused a node: %s peer=%s", error, self._port.address_of(context.peer()))
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the secret is wrong")
        except grpc.RpcError:
            return  # it left, or was too slow
        connection = NodeConnection(self._settings, context, self._port.admit(context.peer()))
        with self._lock:
            if self._closing:
                return
            taken = len(self._connections) < self._settings.max_nodes
            if taken:
                self._connections.add(connection)
        if not taken:
            limit = f"it takes no more than {self._settings.max_nodes} nodes at once"
            self._refusals.warning("refused a node: %s %s", limit, connection)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, limit)
        messages = opened(requests, session, NodeMessage)
        serve = partial(self._serve, connection, messages)
        supervised("tidegate-control-read", serve, partial(self._reader_died, connection)).start()
        yield from sealed(connection.outgoing(), session)

    def _prove(self, requests: Iterator[bytes]) -> Generator[bytes, None, SealPair]:
        """Blocks for two messages; the port closes who lets it wait."""
        proof = DriverProof(self._secret, secrets.token_bytes(NONCE_BYTES), next(requests, b""))
        yield proof.answer
        return proof.proved(next(requests, b""))

    def _serve(self, connection: NodeConnection, requests: Iterator[NodeMessage]) -> None:
        try:
            connection.serve(requests, _Muted(self._handler, self))
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _broken(self, death: ThreadDied) -> None:
        _Muted(self._handler, self).broken(death)

    def _reader_died(self, connection: NodeConnection, death: ThreadDied) -> None:
        connection.drop(death)
        _Muted(self._handler, self).left(connection, death)

    @property
    def closing(self) -> bool:
        """True once ``close`` was called."""
        return self._closing

    def _look(self, now: float) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.look(now)


class _Muted:
    """Passes calls on until the server closes."""

    def __init__(self, handler: Handler, server: ControlServer) -> None:
        self._handler = handler
        self._server = server

    def joined(self, connection: NodeConnection) -> None:
        if not self._server.closing:
            self._handler.joined(connection)

    def message(self, connection: NodeConnection, message: NodeMessage) -> None:
        if not self._server.closing:
            self._handler.message(connection, message)

    def left(self, connection: NodeConnection, error: Exception | None) -> None:
        if not self._server.closing:
            self._handler.left(connection, error)

    def broken(self, death: ThreadDied) -> None:
        if not self._server.closing:
            self._handler.broken(death)


class ControlClient:
    """A node's end of the stream. ``on_message`` and ``on_lost`` are called from one network thread, in
    order; ``on_lost`` at most once, last, and not after ``close``.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        on_message: Callable[[CoordinatorMessage], None],
        on_lost: Callable[[Exception], None],
        *,
        settings: ControlSettings | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str | None = None,
        heartbeat: Callable[[], Heartbeat] = Heartbeat,
    ) -> None:
        self._address = address
        self._settings = settings or ControlSettings()
        self._on_message = on_message
        self._on_lost = on_lost
        self._outbox: Outbox[NodeMessage] = Outbox(lambda: NodeMessage(heartbeat=heartbeat()), **_outbox(self._settings))
        self._silence = _silence(self._settings)
        self._error: Exception | None = None
        self._closing = False
        check_secret(secret)
        self._secret = secret
        self._over = threading.Event()
        self._channel = _channel(address, self._settings, credentials, server_name)
        self._attend = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._line = Line(secret, self._outbox)
        self._call = self._attend(self._line.outgoing())
        self._watch = SilenceWatch("tidegate-control-watch", self._settings.silence_s, self._look, self._died)
        self._reader = supervised("tidegate-control-read", self._read, self._died)
        self._reader.start()

    def send(self, message: NodeMessage) -> None:
        """Queue a message; never blocks. A coordinator that does not keep up is dropped: ``on_lost`` says
        so.
        """
        if not self._outbox.put(message):
            self._lose(ChannelFull(f"the coordinator does not take its messages address={self._address}"))

    @property
    def silent_s(self) -> float:
        """How long nothing has been heard."""
        return self._silence.lasted_ms(1000 * time.monotonic()) / 1000

    def beat(self) -> None:
        """Say now what this node does, before something that may hold the interpreter. Blocks for a moment."""
        self._outbox.beat(BEAT_WAIT_S)

    def close(self, grace_s: float = 2.0) -> None:
        """Send what is queued, then end the stream and every thread. Blocks for about ``grace_s`` at most."""
        self._closing = True
        self._outbox.finish()
        if self._reader is not threading.current_thread():
            self._reader.join(grace_s)
        self._over.set()
        self._call.cancel()
        self._channel.close()
        self._watch.close(grace_s)
        if self._reader is not threading.current_thread():
            self._reader.join(grace_s)

    def _read(self) -> None:
        error = self._read_line()
        for pause_s in RETRY_PAUSES_S:
            known = self._line.session is not None or self._error is not None
            if known or not isinstance(error, NodeUnreachable) or self._closing or self._over.wait(pause_s):
                break
            self._line = Line(self._secret, self._outbox)
            self._call = self._attend(self._line.outgoing())
            error = self._read_line()
        self._outbox.finish()
        if not self._closing:
            self._on_lost(self._error or error)

    def _read_line(self) -> Exception:
        """Read one try to its end: why it ended."""
        try:
            session = self._line.answered(next(self._call))
            for message in opened(self._call, session, CoordinatorMessage):
                self._silence.heard(1000 * time.monotonic())
                if message.WhichOneof("body") not in ("heartbeat", None) and not self._closing:
                    self._on_message(message)
            return RetryableError(f"the coordinator ended the stream address={self._address}")
        except grpc.RpcError as failure:
            return _translate(failure, self._address)
        except StopIteration:
            return NodeUnreachable(f"the coordinator says nothing address={self._address}")
        except TidegateError as failure:
            self._call.cancel()
            return RetryableError(f"the line to the coordinator can't be used: {failure} address={self._address}")
        finally:
            self._line.over()

    def _look(self, now: float) -> None:
        if self._silence.look(1000 * now):
            self._lose(NodeUnreachable(f"the coordinator is silent address={self._address}"))

    def _died(self, death: ThreadDied) -> None:
        """Nobody would read or watch from now on. ``on_lost`` comes here: the reader may be the one that died."""
        self._outbox.finish()
        self._call.cancel()
        if not self._closing:
            self._closing = True
            self._on_lost(death)

    def _lose(self, error: Exception) -> None:
        self._error = self._error or error
        self._call.cancel()


def _options(settings: ControlSettings) -> list[tuple[str, int | str]]:
    return [
        ("grpc.max_send_message_length", settings.max_message_bytes + TAG_BYTES),
        ("grpc.max_receive_message_length", settings.max_message_bytes + TAG_BYTES),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.use_local_subchannel_pool", 1),  # a line of its own for each of several nodes in one process
    ]


def _channel(
    address: str, settings: ControlSettings, credentials: grpc.ChannelCredentials | None, server_name: str | None
) -> Any:
    options = _options(settings)
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.secure_channel(address, credentials, options=options)


def _translate(error: grpc.RpcError, address: str) -> Exception:
    code, details = error.code(), error.details()
    match code:
        case grpc.StatusCode.UNAUTHENTICATED:
            return FencedError(f"the coordinator refused this node: {details} address={address}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return RetryableError(f"the coordinator refused this node: {details} address={address}")
        case grpc.StatusCode.UNAVAILABLE:
            return NodeUnreachable(f"the coordinator cannot be reached: {details} address={address}")
        case _:
            return RetryableError(f"the stream broke: {details} code={code.name} address={address}")


def _brief(error: Exception) -> str:
    return str(error) or type(error).__name__
