"""Where the terminal points of a node come together: a signal has passed when all of them have seen it.

The same alignment as at a fan-in, over sinks instead of channels. Sinks can't be held back, so what comes early waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidegate.core.barrier.align import Complete, KeyAligner, Waiting
from tidegate.core.control.signals import ControlSignal
from tidegate.errors import InvalidUseError


class ResultCollectProcessor:
    """Aligns signals over the sinks of one node."""

    def __init__(self, sinks: Iterable[int]) -> None:
        self._early: dict[int, deque[ControlSignal]] = {sink: deque() for sink in sinks}
        if not self._early:
            raise InvalidUseError("a plan has a sink")
        self._aligner = KeyAligner(self._early)
        self._open = set(self._early)
        self._ending: set[int] = set()
        self._pending = self._passed = 0

    def has_passed(self, barrier_id: int) -> bool:
        """No sink is still to see this signal: all have seen it, or ended without it."""
        return not self._open or barrier_id <= self._passed

    def seen(self, sink: int, signal: ControlSignal) -> None:
        """A signal came to a sink."""
        self._early[sink].append(signal)
        self._settle()

    def ended(self, sink: int) -> None:
        """A sink's input has ended: nothing more comes to it. Idempotent."""
        self._ending.add(sink)
        self._settle()

    def _settle(self) -> None:
        while any(self._count(sink) for sink in self._early):
            pass

    def _count(self, sink: int) -> bool:
        """Let the next signal of a sink count, or its end. False: there is none, or one that was counted is pending."""
        if sink in self._aligner.held or not (self._early[sink] or sink in self._ending & self._open):
            return False
        answer: Waiting | Complete | None
        if self._early[sink]:
            signal = self._early[sink].popleft()
            answer = self._aligner.arrive(sink, signal.key)
            self._pending = signal.barrier_id
        else:
            self._open.discard(sink)
            answer = self._aligner.ended(sink)
        if isinstance(answer, Complete):
            self._passed = self._pending
        return True
