"""The job's log on an object store: read it, put one entry, look whether a checkpoint's objects are sound.

A start needs what the log adds up to, not its history: it reads the summary, the few slots that this names, and what came
behind it. Whoever wants history reads everything. The summary is a cache: one that is old makes a start slower, and one that is
missing, damaged or of another log makes it read everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import TypeVar

from tidegate.core.events import LogRead
from tidegate.core.lead import SUMMARY_EVERY
from tidegate.core.log import Damaged, LogEntry, LogRecord, LogView, decode_entry, encode_entry, read_entry
from tidegate.core.manifest import CheckpointManifest
from tidegate.core.paths import JobPaths, LogObject
from tidegate.core.summary import LogSummary, decode_summary, encode_summary
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.runtime.snapshotfile import crc32c
from tidegate.store.base import Store

log = logging.getLogger("tidegate")
T = TypeVar("T")

AT_ONCE = 8
"""Slots that are asked for at the same time, and how far beyond the end of the log a reader looks for more of it."""


class LogStore:
    """One job's log. Calls block; any thread."""

    def __init__(self, store: Store, job: str) -> None:
        self.store = store
        self.paths = JobPaths(job)

    # -- all of it -------------------------------------------------------------------------------------------------

    def read(self) -> list[LogRecord]:
        """Every entry, in order, damaged ones as such. One that was not written by this version is an error: fail closed."""
        return [self._record(slot) for slot in self.slots()]  # on a local disk threads would take twice as long

    def slots(self) -> list[int]:
        """The slots that are taken, in order."""
        names = (self.paths.parse(info.path) for info in self.store.list(self.paths.log_prefix))
        return sorted(name.slot for name in names if isinstance(name, LogObject))

    # -- what it adds up to ----------------------------------------------------------------------------------------

    def view(self) -> LogView:
        """What the log adds up to."""
        return self.recent().view()

    def recent(self) -> LogRead:
        """As much of the log as its view needs: a number of requests that does not grow with it, and no listing.

        Damage in what is read, and anything else that does not fit, is dealt with by reading everything. What is not read can
        have no effect any more: the summary has it. A slot that went missing there is found by whoever reads everything.
        """
        summary = self._summary()
        if summary is not None:
            try:
                named = self._each(self._record, summary.slots)
                read = LogRead((*named, *self.behind(summary.next_slot)), summary)
                read.view()  # raises if they do not fit
                return read
            except (CorruptDataError, FileNotFoundError) as error:
                log.warning("reading the whole log, its summary is of no use: %s job=%s", error, self.paths.job)
        entries = tuple(self.read())
        if summary is None and len(entries) > SUMMARY_EVERY:
            log.warning("there was no summary: the whole log was read entries=%s job=%s", len(entries), self.paths.job)
        return LogRead(entries)

    def behind(self, slot: int) -> list[LogRecord]:
        """Every entry from this slot on. Ends where a whole window of slots is empty.

        Slots are filled in order, so one that is missing before another is lost, unless it was written between two looks:
        ``CorruptDataError``. If a whole window was lost in a row, a leader would write into the hole, and be stopped by the
        first slot behind it that is taken; after that nobody can read the log without noticing.
        """
        found: list[LogRecord] = []
        while True:
            start = slot + len(found)
            window = self._each(self._probe, range(start, start + AT_ONCE))
            if not any(window):
                return found
            # The first may have come since: what is there behind it was put after it.
            first = window[0] or self._probe(start)
            if first is None:
                path = self.paths.log_entry(start)
                raise CorruptDataError(f"an entry of the log is missing before others path={path}", path=path)
            found.append(first)
            found += (record for record in takewhile(bool, window[1:]) if record)

    def begun(self) -> bool:
        """True when there is any entry."""
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

    def write_summary(self, summary: LogSummary) -> None:
        """Put it over the one before, which may be newer: no harm."""
        self.store.put(self.paths.summary, encode_summary(summary))

    def _summary(self) -> LogSummary | None:
        try:
            return decode_summary(self.store.get(self.paths.summary), self.paths.summary)
        except FileNotFoundError:
            return None
        except CorruptDataError as error:
            log.warning("%s job=%s", error, self.paths.job)
            return None

    # -- single entries --------------------------------------------------------------------------------------------

    def entry(self, slot: int) -> LogEntry:
        """The entry in one slot. A damaged one is an error."""
        path = self.paths.log_entry(slot)
        return decode_entry(self.store.get(path), path, slot)

    def _record(self, slot: int) -> LogRecord:
        path = self.paths.log_entry(slot)
        return read_entry(self.store.get(path), path, slot)

    def _probe(self, slot: int) -> LogRecord | None:
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
