"""What a node is doing, said with every heartbeat: if it stands still, the driver knows where.

A function that merely runs long, on its own thread, does not stop heartbeats. One that holds the interpreter stops them, so what
it is must have been said before it was entered for the first time; later calls are what was entered last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegate.wire._gen import control_pb2 as pb

LAST_SAID = 3
WORDS = {"map": "map_batches", "process": "process", "sink": "sink", "upload": "upload"}


class Activity:
    """Of one node. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._known: set[str] = set()
        self._last: dict[str, float] = {}
        self.on_first: Callable[[], None] = lambda: None
        """Called in the thread that enters something for the first time, before it does. May block for a moment."""

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """While this lasts the node does that."""
        self.entered(what)
        try:
            yield
        finally:
            self.left(what)

    def entered(self, what: str) -> None:
        """From now on."""
        with self._lock:
            self._running[what] = time.monotonic()
            first = what not in self._known
            self._known.add(what)
        if first:
            self.on_first()

    def left(self, what: str, *, worked: bool = True) -> None:
        """It has returned. Not worth a word later if it had nothing to do."""
        with self._lock:
            since = self._running.pop(what, 0.0)
            if worked:
                self._last.pop(what, None)
                self._last[what] = since  # the newest is the last

    def heartbeat(self) -> pb.Heartbeat:
        """What runs now, longest first, and what ran last, newest first."""
        now = time.monotonic()
        with self._lock:
            running = sorted(self._running.items(), key=lambda item: item[1])
            ran = [item for item in reversed(self._last.items()) if item[0] not in self._running][:LAST_SAID]
        said = [pb.Doing(what=what, for_ms=_ms(now - since), running=True) for what, since in running]
        return pb.Heartbeat(doing=said + [pb.Doing(what=what, for_ms=_ms(now - since)) for what, since in ran])


def name_of(executor: str) -> str:
    """The operator whose work an executor of this name does, for people."""
    kind, _, name = executor.partition("-")
    return f"{WORDS.get(kind, kind)} {name!r}" if name else WORDS.get(kind, kind)


def told(heartbeat: pb.Heartbeat) -> str | None:
    """What a heartbeat says, for people; ``None``: nothing."""
    if running := [f"{one.what} for {one.for_ms / 1000:.1f} s" for one in heartbeat.doing if one.running]:
        return f"in {' and '.join(running)}"
    ran = [one.what for one in heartbeat.doing]
    return f"between calls, the last of {', '.join(ran)}" if ran else None


def _ms(seconds: float) -> int:
    return max(0, int(1000 * seconds))
