"""The job's log on an object store: read it, put one entry, trim it, look whether a checkpoint's objects are sound.

A reader lists the log, reads backwards from the newest slot to a base, then what that base needs. A leader trims meanwhile, and
a slot that was trimmed may be filled again by a takeover that does not count. So a reader lists once more, and begins again
unless the log still ends where it did: while nothing is added, nothing that it has read can have been trimmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidegate.core.checkpoint.events import Followed, Last, LogAnswer, LogRead, Unknown
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.base import Base
from tidegate.core.log.entries import OPENING_BYTES, missing_entry
from tidegate.core.log.paths import JobPaths, LogObject
from tidegate.core.log.retain import may_be_trimmed, trim_bound, trimmable
from tidegate.core.log.view import (
    Damaged,
    LogEntry,
    LogRecord,
    LogView,
    Takeover,
    decode_entry,
    encode_entry,
    newest_base,
    read_entry,
)
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.ids import Slot
from tidegate.runtime.snapshotfile import crc32c
from tidegate.store.interface import Store

log = logging.getLogger("tidegate")
T = TypeVar("T")

AT_ONCE = 8
"""Slots that are asked for at the same time."""
LOOKS_MAX = 20
"""How often a reader begins again because the log has gone on meanwhile."""
TRIM_AT_ONCE = 500
"""Slots that are deleted by one request."""


class LogStore:
    """One job's log. Calls block; any thread."""

    def __init__(self, store: Store, job: str) -> None:
        self.store = store
        self.paths = JobPaths(job)
        self._takeovers: set[int] = set()

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> list[LogRecord]:
        """Every entry that is left, in order, damaged ones as such: history as far as it goes.

        One that was not written by this version is an error: fail closed.
        """
        return self._stable(lambda slots: [self._record(slot) for slot in slots])

    def view(self) -> LogView:
        """What the log adds up to."""
        return self.recent().view()

    def recent(self) -> LogRead:
        """As much of the log as its view needs: a number of requests that does not grow with it."""
        return LogRead(tuple(self._stable(self._newest)))

    def slots(self) -> list[int]:
        """The slots that are taken, in order, by listings until two in a row end alike.

        Object stores list in ascending order, so that a base that replaces another is seen. A directory has no order: there a
        listing misses all that is newer than some slot only if two bases are put while it is made.
        """
        before = self._listed()
        while (now := self._listed())[-1:] != before[-1:]:
            before = now
        return now

    def _listed(self) -> list[int]:
        names = (self.paths.parse(info.path) for info in self.store.list(self.paths.log_prefix))
        return sorted(name.slot for name in names if isinstance(name, LogObject))

    def _stable(self, read: Callable[[list[int]], list[LogRecord]]) -> list[LogRecord]:
        """Read while the log stands still."""
        for _ in range(LOOKS_MAX):
            slots = self._listed()
            try:
                found = read(slots)
            except FileNotFoundError:
                continue
            if self._listed()[-1:] == slots[-1:]:
                return self._with_missing(found)
        raise RetryableError(f"the log goes on faster than it can be read: a driver is at work job={self.paths.job}")

    def _newest(self, slots: list[int]) -> list[LogRecord]:
        """The newest base, what it needs, and all after it."""
        found: dict[int, LogRecord] = {}
        taken = set(slots)
        for window in _parts(slots[::-1], AT_ONCE):
            found |= zip(window, self._each(self._record, window), strict=True)
            if (base := newest_base(found.values())) is not None:
                needed = [slot for slot in base.needed if slot in taken and slot not in found]
                found |= zip(needed, self._each(self._record, needed), strict=True)
                break
        return [found[slot] for slot in sorted(found)]

    def _with_missing(self, records: list[LogRecord]) -> list[LogRecord]:
        """What the newest base needs and is gone counts as damaged: the base says what it was."""
        base = newest_base(records)
        there = {record.slot for record in records}
        gone = [] if base is None else [slot for slot in base.needed if slot not in there]
        lost: list[LogRecord] = [missing_entry(self.paths.log_entry(slot), slot) for slot in gone]
        return sorted([*records, *lost], key=lambda record: record.slot)

    def begun(self) -> bool:
        """True when there is any entry. The first is a takeover, and stays."""
        return self._probe(0) is not None

    def identity(self) -> str | None:
        """What tells this log from all others: the write id of its first entry. ``None``: none is there, or it can't be read."""
        try:
            return self.entry(0).write_id
        except (FileNotFoundError, CorruptDataError):
            return None

    def latest(self) -> int:
        """The newest epoch that the hint knows; 0: it knows none."""
        try:
            text = self.store.get(self.paths.latest)
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0

    def check(self, slot: Slot) -> LogAnswer:
        """Is this slot the last that is taken? Not known while a listing does not show it."""
        try:
            newest = max(self.slots(), default=-1)
            if newest > slot:
                return Followed(self.in_force())
        except RetryableError as error:
            return Unknown(str(error))
        return Last() if newest == slot else Unknown(f"slot {slot} of the log is not listed")

    def in_force(self) -> Takeover | None:
        """The takeover of whoever leads, as far as it can be read."""
        try:
            term = self.view().term
            entry = None if term is None else self._record(term)
        except (CorruptDataError, FileNotFoundError):
            return None
        return entry if isinstance(entry, Takeover) else None

    # -- trimming --------------------------------------------------------------------------------------------------

    def trim(self, below: int, keep: frozenset[int]) -> int:
        """Delete the slots below this one that are no takeovers and not kept, a few hundred at a time; how many.

        May be broken off anywhere, by a crash too: what is left has no effect, and goes the next time.
        """
        doomed = list(self._trimmable(below, keep))
        for part in _parts(doomed, TRIM_AT_ONCE):
            self.store.delete([self.paths.log_entry(slot) for slot in part])
        return len(doomed)

    def trim_as_allowed(self, *, dry_run: bool = False) -> int:
        """Trim as the newest two bases allow. Safe beside a leader: what they allow stays allowed."""
        bases = [entry for entry in self.read() if isinstance(entry, Base)]
        bound = trim_bound(bases)
        if bound is None:
            return 0
        return sum(1 for _ in self._trimmable(*bound)) if dry_run else self.trim(*bound)

    def _trimmable(self, below: int, keep: frozenset[int]) -> Iterator[int]:
        for slot in trimmable(self._listed(), below, keep):
            if slot not in self._takeovers and self._may_go(slot):
                yield slot

    def _may_go(self, slot: Slot) -> bool:
        """Nothing is deleted unseen: whether it is a takeover, only its bytes tell."""
        try:
            opening = self.store.get_range(self.paths.log_entry(slot), 0, OPENING_BYTES)
        except (FileNotFoundError, CorruptDataError):  # gone, or too short to tell
            return False
        may_go = may_be_trimmed(opening)
        if not may_go:
            self._takeovers.add(slot)
        return may_go

    # -- single entries --------------------------------------------------------------------------------------------

    def entry(self, slot: Slot) -> LogEntry:
        """The entry in one slot. A damaged one is an error."""
        path = self.paths.log_entry(slot)
        return decode_entry(self.store.get(path), path, slot)

    def _record(self, slot: Slot) -> LogRecord:
        path = self.paths.log_entry(slot)
        return read_entry(self.store.get(path), path, slot)

    def _probe(self, slot: Slot) -> LogRecord | None:
        try:
            return self._record(slot)
        except FileNotFoundError:
            return None

    def _each(self, read: Callable[[int], T], slots: Sequence[int]) -> list[T]:
        """Read these slots, a few at once, in this order."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tidegate-log") as readers:
            return list(readers.map(read, slots))

    def create(self, entry: LogEntry) -> LogRecord | None:
        """Put an entry into its slot: ``None`` when it is there by us, else the entry that was there before.

        ``RetryableError`` means that nobody knows: put the same entry again until there is an answer.
        """
        if self.store.create(self.paths.log_entry(entry.slot), encode_entry(entry)):
            return None
        try:
            found = self._record(entry.slot)
        except FileNotFoundError as error:
            raise RetryableError(f"the slot is taken and can't be read yet slot={entry.slot}") from error
        # A put that was reported lost may have landed: then the conflict is with ourselves.
        return None if not isinstance(found, Damaged) and found.write_id == entry.write_id else found

    def warn_of(self, damage: Iterable[Damaged]) -> None:
        """Nothing that can't be read is passed over in silence."""
        for each in damage:
            log.warning("%s kind=%s effect=%s job=%s", each.why, each.kind, each.effect, self.paths.job)

    def fault(self, manifest: CheckpointManifest) -> str | None:
        """What is wrong with a checkpoint's objects; ``None``: nothing."""
        return objects_fault(self.store, manifest)


def _parts(slots: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    return (slots[start : start + length] for start in range(0, len(slots), length))


def objects_fault(store: Store, manifest: CheckpointManifest) -> str | None:
    """What is wrong with a checkpoint's objects, reading all of their bytes; ``None``: nothing.

    A store that does not answer or refuses us says nothing about them: that is raised, because whoever takes it for damage goes
    back to an older checkpoint for good.
    """
    for entry in manifest.objects:
        try:
            data = store.get(entry.path)
        except FileNotFoundError:
            return f"an object is missing path={entry.path}"
        except CorruptDataError as error:
            return f"an object can't be read: {error} path={entry.path}"
        if len(data) != entry.size_bytes or crc32c(data) != entry.crc32c:
            return f"an object is damaged path={entry.path} size={len(data)} expected={entry.size_bytes}"
    return None
