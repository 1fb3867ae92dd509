"""Is our entry still the last of the log? Asked until there is a definite answer. It knows slots, not what entries mean.

A takeover counts only if a listing made after it landed shows no higher slot: a slot that was trimmed can be created again,
by a candidate that slept. And whoever has lost its nodes asks before it does anything about it.
"""

from __future__ import annotations

from tidegate.core.checkpoint.effects import CheckLog
from tidegate.core.checkpoint.events import LogChecked, Unknown
from tidegate.core.log.append import BACKOFF_DOUBLINGS_MAX
from tidegate.ids import Slot


class LogConfirmer:
    """Holds the open question, if there is one."""

    __slots__ = ("_asked_ms", "_retry_at", "_retry_ms", "_storage_timeout_ms", "_tries", "slot", "why")

    def __init__(self, retry_ms: int, storage_timeout_ms: int) -> None:
        self._retry_ms, self._storage_timeout_ms = retry_ms, storage_timeout_ms
        self.slot: Slot | None = None
        self.why = ""
        self._tries = self._asked_ms = 0
        self._retry_at: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        """When ``due`` or ``gave_up`` has something to say."""
        if self.slot is None:
            return None
        give_up_at = self._asked_ms + self._storage_timeout_ms
        return give_up_at if self._retry_at is None else min(self._retry_at, give_up_at)

    def ask(self, slot: Slot, now_ms: int) -> CheckLog:
        """Is this slot the last?"""
        self.slot, self.why, self._tries, self._asked_ms, self._retry_at = slot, "", 1, now_ms, None
        return CheckLog(slot)

    def answered(self, event: LogChecked, now_ms: int) -> bool:
        """True when this is the definite answer to the open question."""
        if event.slot != self.slot:
            return False
        if isinstance(event.answer, Unknown):
            self.why = event.answer.reason
            self._retry_at = now_ms + (self._retry_ms << min(self._tries - 1, BACKOFF_DOUBLINGS_MAX))
            return False
        self.slot = None
        return True

    def due(self, now_ms: int) -> CheckLog | None:
        """The question to ask again now, if it is time."""
        if self.slot is None or self._retry_at is None or now_ms < self._retry_at:
            return None
        self._tries += 1
        self._retry_at = None
        return CheckLog(self.slot)

    def waited_ms(self, now_ms: int) -> int:
        """How long the open question has had no answer."""
        return now_ms - self._asked_ms

    def gave_up(self, now_ms: int) -> bool:
        """True when it has had none for too long."""
        return self.slot is not None and self.waited_ms(now_ms) >= self._storage_timeout_ms
