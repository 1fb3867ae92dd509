"""Who may wait at a port before it has proved anything: few, not for long, and the quiet ones leave first.

A newcomer costs a descriptor and no thread until it has said something. When too many wait, one has to leave: of the
host that has most waiting the oldest that is silent, and only when nobody is silent the oldest that has begun to speak.
Nodes prove themselves within milliseconds, so whoever holds hundreds of connections open mostly pushes out their own.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tidegate.errors import InvalidUseError

log = logging.getLogger("tidegate.wire")

LISTEN_BACKLOG = 1024
ACCEPTS_AT_ONCE = 16
PAUSE_S = 0.02
LOOK_S = 0.25
TELL_EVERY_S = 10.0


class LogBudget:
    """Warnings that strangers can cause: some of each span are logged, so that a crowd can't fill the disk. Any thread."""

    def __init__(self, logger: logging.Logger, lines: int = 20) -> None:
        self._logger = logger
        self._lines = lines
        self._since = float("-inf")
        self._count = 0

    def warning(self, text: str, *details: object) -> None:
        """Log it, unless there were too many of late."""
        now = time.monotonic()
        if now - self._since > TELL_EVERY_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= self._lines:
            self._logger.warning(text, *details)
        elif self._count == self._lines + 1:
            self._logger.warning("more of these are not logged for %g s", TELL_EVERY_S)


class Newcomer:
    """A connection that has not proved itself."""

    __slots__ = ("greeting", "host", "peer", "since", "sock")

    def __init__(self, sock: socket.socket, address: tuple[str, int], greeting: bytes) -> None:
        self.sock = sock
        self.host = address[0]
        self.peer = f"[{self.host}]:{address[1]}" if ":" in self.host else f"{self.host}:{address[1]}"
        self.greeting = greeting
        self.since = time.monotonic()


class _Crowd:
    """Newcomers by host, each host's in the order in which they came."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[Newcomer, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    def add(self, newcomer: Newcomer) -> None:
        self._hosts.setdefault(newcomer.host, {})[newcomer] = None

    def discard(self, newcomer: Newcomer) -> bool:
        """True when it was here."""
        waiting = self._hosts.get(newcomer.host, {})
        if newcomer not in waiting:
            return False
        del waiting[newcomer]
        if not waiting:
            del self._hosts[newcomer.host]
        return True

    def first_to_leave(self) -> Newcomer | None:
        """The oldest of the host that has most; ``None`` when nobody is here."""
        if not self._hosts:
            return None
        most = max(self._hosts, key=lambda host: len(self._hosts[host]))
        return next(iter(self._hosts[most]))

    def since_before(self, moment: float) -> list[Newcomer]:
        return [newcomer for waiting in self._hosts.values() for newcomer in waiting if newcomer.since < moment]


class Gate:
    """Accepts connections. ``serve`` is called in the gate's thread for each that speaks: it takes the socket over, and must
    call ``leave`` BEFORE it closes the socket, and as soon as the peer has proved itself.
    """

    def __init__(
        self,
        bind: str,
        what: str,
        serve: Callable[[Newcomer], None],
        *,
        waiting_max: int,
        patience_s: float,
        greet: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._what = what
        self._serve = serve
        self._waiting_max = waiting_max
        self._patience_s = patience_s
        self._greet = greet
        self._listener = _listen(bind, what)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._silent = _Crowd()
        self._speaking = _Crowd()
        self._closing = False
        self._turned_away = 0
        self._told = float("-inf")
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Accept until ``close``. Blocks."""
        try:
            while not self._closing:
                self._step()
        finally:
            self._let_go()

    def leave(self, newcomer: Newcomer) -> None:
        """It has proved itself or is about to be closed: it no longer waits here. Any thread; idempotent."""
        with self._lock:
            self._speaking.discard(newcomer)

    def close(self) -> None:
        """Let ``run`` end soon. Any thread; idempotent."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    # -- the gate's thread ---------------------------------------------------------------------------------------------

    def _step(self) -> None:
        ready = [key for key, _ in self._selector.select(LOOK_S)]
        for key in ready:  # who has spoken is safe from those that only now come in
            if key.data is not None:
                self._speaks(key.data)
        if any(key.data is None for key in ready):
            self._accept()
        self._drop_late(time.monotonic() - self._patience_s)
        self._tell(time.monotonic())

    def _speaks(self, newcomer: Newcomer) -> None:
        self._selector.unregister(newcomer.sock)
        with self._lock:
            self._silent.discard(newcomer)
        if not _has_spoken(newcomer.sock):
            newcomer.sock.close()
            return
        newcomer.sock.setblocking(True)
        with self._lock:
            self._speaking.add(newcomer)
        try:
            self._serve(newcomer)
        except RuntimeError as error:  # no thread for it: the gate must go on
            self._tell(time.monotonic(), error)
            self.leave(newcomer)
            newcomer.sock.close()

    def _accept(self) -> None:
        self._listener.setblocking(False)
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._accept_failed(error)
                return
            self._let_in(Newcomer(sock, address, self._greet()))

    def _accept_failed(self, error: OSError) -> None:
        if self._closing or error.errno == errno.ECONNABORTED:
            return
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._turn_one_away()
        self._tell(time.monotonic(), error)
        time.sleep(PAUSE_S)

    def _let_in(self, newcomer: Newcomer) -> None:
        newcomer.sock.setblocking(False)
        try:
            if newcomer.greeting:
                newcomer.sock.send(newcomer.greeting)
        except OSError:
            newcomer.sock.close()
            return
        with self._lock:
            crowded = len(self._silent) + len(self._speaking) >= self._waiting_max
        if crowded:
            self._turn_one_away()
        with self._lock:
            self._silent.add(newcomer)
        self._selector.register(newcomer.sock, selectors.EVENT_READ, newcomer)

    def _turn_one_away(self) -> None:
        with self._lock:
            victim = self._silent.first_to_leave() or self._speaking.first_to_leave()
        if victim is not None:
            self._turn_away(victim)

    def _drop_late(self, moment: float) -> None:
        with self._lock:
            late = self._silent.since_before(moment) + self._speaking.since_before(moment)
        for newcomer in late:
            self._turn_away(newcomer)

    def _turn_away(self, newcomer: Newcomer) -> None:
        self._turned_away += 1
        with self._lock:
            silent = self._silent.discard(newcomer)
            if not silent and self._speaking.discard(newcomer):
                with suppress(OSError):
                    newcomer.sock.shutdown(socket.SHUT_RDWR)  # whoever serves it closes it
        if silent:
            self._selector.unregister(newcomer.sock)
            newcomer.sock.close()

    def _tell(self, now: float, error: Exception | None = None) -> None:
        """One line for many, however fast they come."""
        if (not self._turned_away and error is None) or now - self._told < TELL_EVERY_S:
            return
        self._told = now
        if error is not None:
            log.warning("cannot accept a %s connection: %s", self._what, error)
        if self._turned_away:
            log.warning(
                "closed %s connections that proved nothing: too many at once or too slow count=%d waiting_max=%d patience_s=%g",
                self._what, self._turned_away, self._waiting_max, self._patience_s,
            )  # fmt: skip
            self._turned_away = 0

    def _let_go(self) -> None:
        with self._lock:
            silent = self._silent.since_before(float("inf"))
        for newcomer in silent:
            newcomer.sock.close()
        self._selector.close()
        self._listener.close()


def _has_spoken(sock: socket.socket) -> bool:
    """False when it hung up without a word."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _listen(bind: str, what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((bind.strip("[]"), 0))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidUseError(f"cannot listen for {what}: {error} bind={bind}") from error
    return listener
