"""One TCP connection, plain or encrypted, as the transport's threads use it: few verbs, each saying what it
blocks on.

Only the thread that owns a connection closes it; any other thread may ``cut`` it, which wakes whoever is
blocked. So a file descriptor is never reused under a running call.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import RetryableError
from tidegate.wire.frames import Bytes

KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 4
USER_TIMEOUT_MS = 30_000
TLS_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The two sides' TLS settings: a node accepts and opens connections. Pass the client side a CA to verify
    peers.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    name: str | None = None
    """What peers' certificates are made out to, where that is not the address that was dialled."""


class Connection(Protocol):
    """A connected stream. One thread receives and one sends; ``send_now`` and ``cut`` may come from any
    thread.
    """

    def receive_into(self, view: memoryview, fully: bool) -> int:
        """Blocks for some bytes, or for all of ``view`` when ``fully`` (fewer may still come). 0: the peer
        ended.
        """

    def send(self, *parts: Bytes) -> None:
        """Blocks until the kernel has taken every byte of every part."""

    def send_now(self, data: bytes) -> bool:
        """Never blocks. False when the kernel had no room: the stream is then broken for good."""

    def set_deadline(self, deadline: float | None) -> None:
        """Blocking calls end with ``TimeoutError`` at this monotonic time; ``None`` for never."""

    def finish(self) -> None:
        """Nothing more will be sent; the peer sees the end."""

    def cut(self) -> None:
        """Break the connection: blocked calls return. Idempotent."""

    def close(self) -> None:
        """Let go of the socket. Only by the owner, after the other threads are done. Idempotent."""


def tune(sock: socket.socket) -> None:
    """No delay for small frames; a dead peer is noticed within half a minute even when nothing is sent."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_S,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": USER_TIMEOUT_MS,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class PlainConnection:
    """A connection in the clear."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._deadline: float | None = None
        self._alive = threading.Lock()
        tune(sock)

    def receive_into(self, view: memoryview, fully: bool) -> int:
        """One system call for a complete payload: fewer fights for the interpreter lock."""
        self._arm()
        return self._socket.recv_into(view, 0, socket.MSG_WAITALL if fully else 0)

    def send(self, *parts: Bytes) -> None:
        """Gathers the parts into one system call, where the kernel lets it."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        while views:
            self._arm()
            sent = self._socket.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views and sent:
                views[0] = views[0][sent:]

    def send_now(self, data: bytes) -> bool:
        """A small frame, complete or the connection is lost."""
        with self._alive:
            try:
                return self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
            except BlockingIOError:
                return False

    def set_deadline(self, deadline: float | None) -> None:
        """Used for the handshake; afterwards reads wait for as long as the peer lives."""
        self._deadline = deadline
        if deadline is None:
            self._socket.settimeout(None)

    def finish(self) -> None:
        """Half close."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Shut both directions down; the descriptor stays valid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor, not while a credit is being sent."""
        with self._alive:
            self._socket.close()

    def _arm(self) -> None:
        if self._deadline is not None:
            self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))


class TlsConnection:
    """A connection under TLS. The cipher works on buffers in memory under a lock, so that one thread can wait
    for bytes while another sends: OpenSSL itself must not be entered by two.
    """

    def __init__(self, plain: PlainConnection, context: ssl.SSLContext, *, server: bool, host: str) -> None:
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=None if server else host)
        self._cipher = threading.Lock()
        self._sending = threading.Lock()
        self._encrypted = memoryview(bytearray(TLS_CHUNK_BYTES))

    def handshake(self) -> None:
        """Agree on keys. Blocks until the deadline; ``RetryableError`` when the peer cannot be trusted."""
        while True:
            try:
                self._tls.do_handshake()
                self._plain.send(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                self._plain.send(self._outgoing.read())
                self._receive_encrypted()
            except ssl.SSLError as error:
                with suppress(OSError):
                    self._plain.send(self._outgoing.read())
                raise RetryableError(f"no trusted connection with the peer: {error.reason}") from error

    def receive_into(self, view: memoryview, fully: bool) -> int:
        """Some decrypted bytes; never waits for all of them."""
        while True:
            with self._cipher:
                try:
                    return int(self._tls.read(len(view), view))
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
            self._receive_encrypted()

    def send(self, *parts: Bytes) -> None:
        """Encrypts and sends piece by piece."""
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), TLS_CHUNK_BYTES):
                with self._sending:
                    self._plain.send(self._encrypt(view[start : start + TLS_CHUNK_BYTES]))

    def send_now(self, data: bytes) -> bool:
        """Encrypts and sends a small frame, complete or the connection is lost."""
        if not self._sending.acquire(blocking=False):
            return True  # the reader says its last words on this connection: no credit matters any more
        try:
            return self._plain.send_now(self._encrypt(memoryview(data)))
        finally:
            self._sending.release()

    def set_deadline(self, deadline: float | None) -> None:
        """The deadline of the connection below."""
        self._plain.set_deadline(deadline)

    def finish(self) -> None:
        """Half close below; the stream's own last frame says that the end is regular."""
        self._plain.finish()

    def cut(self) -> None:
        """Cut the connection below."""
        self._plain.cut()

    def close(self) -> None:
        """Close the connection below."""
        self._plain.close()

    def _encrypt(self, data: memoryview) -> bytes:
        with self._cipher:
            self._tls.write(data)
            return self._outgoing.read()

    def _receive_encrypted(self) -> None:
        count = self._plain.receive_into(self._encrypted, False)
        with self._cipher:
            if count:
                self._incoming.write(self._encrypted[:count])
            else:
                self._incoming.write_eof()
