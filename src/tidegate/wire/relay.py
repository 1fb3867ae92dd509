"""From the gate to gRPC: grpc accepts whoever comes and never asks why they are silent, so it listens where only we can dial.

Bytes pass unchanged, encrypted or not, in both directions. Until the server says that a connection has proved itself
(``admit``) it may send little. One thread moves all bytes: a control line carries few.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial

from tidegate.supervise import Died, supervised
from tidegate.wire.gate import Gate, LogBudget, Newcomer

log = logging.getLogger("tidegate.control")

BUFFER_BYTES_MAX = 1 << 20
CHUNK_BYTES = 64 << 10
UNPROVED_BYTES_MAX = 64 << 10
UNIX_PATH_BYTES_MAX = 90
LINGER_S = 5.0
CLOSE_S = 1.0
LOOK_S = 1.0


class _Pair:
    """A peer's connection and ours to grpc. ``unsent`` is by the socket that it goes to."""

    def __init__(self, newcomer: Newcomer, inner: socket.socket) -> None:
        self.newcomer = newcomer
        self.outer = newcomer.sock
        self.inner = inner
        self.unsent = {self.outer: bytearray(), inner: bytearray()}
        self.received = 0
        self.proved = False
        self.ended: socket.socket | None = None
        self.deadline = float("inf")

    def other(self, sock: socket.socket) -> socket.socket:
        return self.inner if sock is self.outer else self.outer

    def interest(self, sock: socket.socket) -> int:
        """What the loop has to wait for on this socket."""
        reads = self.ended is None and len(self.unsent[self.other(sock)]) < BUFFER_BYTES_MAX
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self.unsent[sock] else 0)

    @property
    def is_over(self) -> bool:
        return self.ended is not None and not self.unsent[self.other(self.ended)]


class Relay:
    """Carries connections from a gate to the socket at ``target``, which is in a directory that only this user can enter."""

    def __init__(self) -> None:
        self._directory = _private_directory()
        self.target = os.path.join(self._directory, "grpc")
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._arrived: deque[Newcomer] = deque()
        self._pairs: dict[int, _Pair] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._until = float("inf")
        self._next_look = 0.0
        self._gate: Gate | None = None
        self._failures = LogBudget(log)

    def run(self, gate: Gate) -> None:
        """Move bytes until ``close``. Blocks."""
        self._gate = gate
        try:
            while (now := time.monotonic()) < self._until and (self._pairs or self._until == float("inf")):
                self._step(now)
        finally:
            self._let_go()

    def take(self, newcomer: Newcomer) -> None:
        """Carry this connection. Any thread; never blocks."""
        self._arrived.append(newcomer)
        self._rouse()

    def admit(self, peer: str) -> None:
        """The connection that grpc calls so has proved itself. Any thread."""
        pair = self._found(peer)
        if pair is not None and self._gate is not None:
            pair.proved = True
            self._gate.leave(pair.newcomer)

    def peer(self, peer: str) -> str:
        """The address in what grpc calls so."""
        pair = self._found(peer)
        return peer if pair is None else pair.newcomer.peer

    def close(self) -> None:
        """Let ``run`` end as soon as grpc has ended every connection and the last bytes are out. Any thread; idempotent."""
        self._until = min(self._until, time.monotonic() + CLOSE_S)
        self._rouse()

    def _found(self, peer: str) -> _Pair | None:
        number = peer.rpartition("/")[2]
        with self._lock:
            return self._pairs.get(int(number)) if number.isdecimal() else None

    def _rouse(self) -> None:
        with suppress(OSError):
            self._wake.send(b"!")

    # -- the relay's thread --------------------------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        for key, events in self._selector.select(LOOK_S):
            if key.data is None:
                with suppress(OSError):
                    self._woken.recv(4096)
            else:
                number, pair, sock = key.data
                self._move(number, pair, sock, events)
        while self._arrived:
            self._join(self._arrived.popleft())
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            for number, pair in [each for each in self._pairs.items() if each[1].deadline < now]:
                self._end(number, pair)

    def _join(self, newcomer: Newcomer) -> None:
        number, self._count = self._count, self._count + 1
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = os.path.join(self._directory, str(number))
        try:
            inner.bind(name)  # grpc tells us who speaks by this name
            os.unlink(name)
            inner.connect(self.target)
            newcomer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            self._failures.warning("cannot pass a node on to grpc: %s peer=%s", error, newcomer.peer)
            inner.close()
            self._dismiss(newcomer)
            return
        pair = _Pair(newcomer, inner)
        with self._lock:
            self._pairs[number] = pair
        for sock in (pair.outer, pair.inner):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, (number, pair, sock))

    def _move(self, number: int, pair: _Pair, sock: socket.socket, events: int) -> None:
        if number not in self._pairs:
            return  # it ended with the other socket, in the same round
        try:
            if events & selectors.EVENT_READ and pair.ended is None:
                self._read(pair, sock)
            for each in (pair.outer, pair.inner):
                self._write(pair, each)
        except OSError:
            self._end(number, pair)
            return
        if pair.is_over:
            self._end(number, pair)
            return
        for each in (pair.outer, pair.inner):
            self._watch(number, pair, each)

    def _read(self, pair: _Pair, sock: socket.socket) -> None:
        try:
            data = sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            pair.ended = sock
            pair.deadline = time.monotonic() + LINGER_S
        if sock is pair.outer and not pair.proved:
            pair.received += len(data)
            if pair.received > UNPROVED_BYTES_MAX:
                raise ConnectionAbortedError("too much before the proof")
        pair.unsent[pair.other(sock)] += data

    def _write(self, pair: _Pair, sock: socket.socket) -> None:
        unsent = pair.unsent[sock]
        if unsent:
            with suppress(BlockingIOError):
                del unsent[: sock.send(unsent)]

    def _watch(self, number: int, pair: _Pair, sock: socket.socket) -> None:
        wanted = pair.interest(sock)
        watched = self._selector.get_map().get(sock)
        if not wanted and watched is not None:
            self._selector.unregister(sock)
        elif wanted and watched is None:
            self._selector.register(sock, wanted, (number, pair, sock))
        elif watched is not None and watched.events != wanted:
            self._selector.modify(sock, wanted, (number, pair, sock))

    def _end(self, number: int, pair: _Pair) -> None:
        with self._lock:
            del self._pairs[number]
        for sock in (pair.outer, pair.inner):
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
        pair.inner.close()
        self._dismiss(pair.newcomer)

    def _dismiss(self, newcomer: Newcomer) -> None:
        if self._gate is not None:
            self._gate.leave(newcomer)
        newcomer.sock.close()

    def _let_go(self) -> None:
        try:
            for number, pair in list(self._pairs.items()):
                self._end(number, pair)
            while self._arrived:
                self._dismiss(self._arrived.popleft())
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go of everything of a relay that does not run."""
        self._selector.close()
        self._wake.close()
        self._woken.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class ControlPort:
    """The port that nodes dial: a gate, and after it a relay to grpc at ``target``."""

    def __init__(self, bind: str, *, waiting_max: int, patience_s: float) -> None:
        self._relay = Relay()
        try:
            self._gate = Gate(bind, "nodes", self._relay.take, waiting_max=waiting_max, patience_s=patience_s)
        except BaseException:
            self._relay.discard()
            raise
        self.port = self._gate.port
        self.target = self._relay.target
        self._threads: list[threading.Thread] = []

    def start(self, died: Died) -> None:
        """Accept from now on. AFTER grpc listens at ``target``."""
        relay = partial(self._relay.run, self._gate)
        self._threads = [
            supervised("tidegate-control-relay", relay, died),
            supervised("tidegate-control-gate", self._gate.run, died),
        ]
        for thread in self._threads:
            thread.start()

    def admit(self, peer: str) -> str:
        """What grpc calls ``peer`` has proved itself: its address."""
        self._relay.admit(peer)
        return self._relay.peer(peer)

    def address_of(self, peer: str) -> str:
        """The address of what grpc calls ``peer``."""
        return self._relay.peer(peer)

    def refuse(self) -> None:
        """Accept nobody any more; connections go on."""
        self._gate.close()

    def close(self, timeout_s: float) -> None:
        """End every connection and thread. AFTER grpc has stopped. Idempotent."""
        self._gate.close()
        self._relay.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)
            else:
                self._relay.discard()


def _private_directory() -> str:
    """A directory for sockets, whose names must be short."""
    directory = tempfile.mkdtemp(prefix="tidegate-")
    if len(os.fsencode(directory)) <= UNIX_PATH_BYTES_MAX:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="tidegate-", dir="/tmp")
