"""The event time of a fan-in: that of its slowest input that is not idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.core.barrier.effects import AdvanceWatermark, SubtaskEffect
from tidegate.core.barrier.input import BEGINNING_OF_TIME, InputChannel
from tidegate.core.barrier.messages import AWAKE, IDLE


class MergedWatermark:
    """Over the inputs that have not ended: ``inputs`` is kept up to date by whoever owns it. Never goes back."""

    __slots__ = ("_inputs", "watermark")

    def __init__(self, inputs: Mapping[int, InputChannel[Any]]) -> None:
        self._inputs = inputs
        self.watermark = BEGINNING_OF_TIME

    def turn(self, channel: InputChannel[Any], timestamp: int) -> list[SubtaskEffect]:
        """An input's watermark had its turn. When no input counts any more, this fan-in is idle itself and says so."""
        was_idle = self._is_idle()
        channel.idle = timestamp == IDLE
        channel.watermark = max(channel.watermark, timestamp)
        effects = self.advance()
        if self._is_idle():
            return effects if was_idle else [*self._catch_up(), AdvanceWatermark(IDLE)]
        return effects or ([AdvanceWatermark(max(self.watermark, AWAKE))] if was_idle else [])

    def ended(self) -> list[SubtaskEffect]:
        """An input has ended: it holds nothing back any more."""
        return self.advance() or ([*self._catch_up(), AdvanceWatermark(IDLE)] if self._is_idle() else [])

    def _catch_up(self) -> list[SubtaskEffect]:
        """Nobody holds anything back: go on to the furthest input, whatever the order in which they went idle."""
        furthest = max(channel.watermark for channel in self._inputs.values())
        if furthest <= self.watermark:
            return []
        self.watermark = furthest
        return [AdvanceWatermark(furthest)]

    def advance(self) -> list[SubtaskEffect]:
        """Go on to where the slowest input is, if that is further."""
        lowest = min((c.watermark for c in self._inputs.values() if not c.idle), default=self.watermark)
        if lowest <= self.watermark:
            return []
        self.watermark = lowest
        return [AdvanceWatermark(lowest)]

    def _is_idle(self) -> bool:
        return bool(self._inputs) and all(channel.idle for channel in self._inputs.values())
