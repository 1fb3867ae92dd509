"""One put into the log at a time, followed to a definite answer. It knows slots and write ids, not what
entries mean.

A put whose fate is unknown is put again, the same bytes with the same write id, until the slot is known to
hold it or something else. Reading an empty slot proves nothing: the first put may still be on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tidegate.core.checkpoint.effects import PutEntry
from tidegate.core.checkpoint.events import Conflict, PutAnswered, Unknown, Written
from tidegate.core.log.view import Damaged, LogEntry, LogRecord

BACKOFF_DOUBLINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class Landed:
    """Our entry is in its slot."""

    entry: LogEntry


@dataclass(frozen=True, slots=True)
class Taken:
    """The slot holds somebody else's entry, or one that can't be read. ``ours`` is not, or no longer, in the
    log."""

    entry: LogRecord
    ours: LogEntry


@dataclass(frozen=True, slots=True)
class StillOpen:
    """No definite answer yet: it is put again when it is ``due``."""


@dataclass(frozen=True, slots=True)
class NotAsked:
    """An answer to nothing that is open."""


PutOutcome: TypeAlias = Landed | Taken | StillOpen | NotAsked


class LogAppender:
    """Holds the open put, if there is one."""

    __slots__ = ("_opened_ms", "_retry_at", "_retry_ms", "_storage_timeout_ms", "_tries", "entry", "why")

    def __init__(self, retry_ms: int, storage_timeout_ms: int) -> None:
        self._retry_ms, self._storage_timeout_ms = retry_ms, storage_timeout_ms
        self.entry: LogEntry | None = None
        self._tries = 0
        self._opened_ms = 0
        self._retry_at: int | None = None
        self.why = ""

    @property
    def is_open(self) -> bool:
        """True between a put and its definite answer."""
        return self.entry is not None

    @property
    def deadline_ms(self) -> int | None:
        """When ``due`` has something to do."""
        if self.entry is None:
            return None
        give_up_at = self._opened_ms + self._storage_timeout_ms
        return give_up_at if self._retry_at is None else min(self._retry_at, give_up_at)

    def put(self, entry: LogEntry, now_ms: int) -> PutEntry:
        """Open a put. The one before it must have had its answer."""
        assert self.entry is None, "a put is open"
        self.entry, self._tries, self._opened_ms = entry, 1, now_ms
        self._retry_at, self.why = None, ""
        return PutEntry(entry.slot, entry.write_id, entry)

    def answered(self, event: PutAnswered, now_ms: int) -> PutOutcome:
        """Take the answer to the open put."""
        entry = self.entry
        if entry is None or (event.slot, event.write_id) != (entry.slot, entry.write_id):
            return NotAsked()
        match event.answer:
            case Unknown(why):
                return self._again_later(now_ms, why)
            case Conflict(found):
                if found is None:
                    return self._again_later(now_ms, f"slot {entry.slot} is taken and can't be read")
                return self._found(entry, found)
            case Written():
                self.entry = None
                return Landed(entry)
            case _:  # pragma: no cover  (mypy proves it)
                assert_never(event.answer)

    def due(self, now_ms: int) -> PutEntry | None:
        """The put to try again now, if it is time."""
        if self.entry is None or self._retry_at is None or now_ms < self._retry_at:
            return None
        self._tries += 1
        self._retry_at = None
        return PutEntry(self.entry.slot, self.entry.write_id, self.entry)

    def waited_ms(self, now_ms: int) -> int:
        """How long the open put has had no answer."""
        return now_ms - self._opened_ms

    def gave_up(self, now_ms: int) -> bool:
        """True when the open put has gone unanswered for too long."""
        return self.entry is not None and now_ms >= self._opened_ms + self._storage_timeout_ms

    def _found(self, ours: LogEntry, found: LogRecord) -> PutOutcome:
        self.entry = None
        is_ours = not isinstance(found, Damaged) and found.write_id == ours.write_id
        return Landed(ours) if is_ours else Taken(found, ours)

    def _again_later(self, now_ms: int, why: str) -> StillOpen:
        self.why = why
        self._retry_at = now_ms + (self._retry_ms << min(self._tries - 1, BACKOFF_DOUBLINGS_MAX))
        return StillOpen()
