"""The job's log on an object store: read it whole, put one entry, look whether a checkpoint's objects are sound."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidegate.core.log import Damaged, LogEntry, LogRecord, LogView, decode_entry, encode_entry, read_entry
from tidegate.core.manifest import CheckpointManifest
from tidegate.core.paths import JobPaths, LogObject
from tidegate.errors import CorruptDataError, RetryableError
from tidegate.runtime.snapshotfile import crc32c
from tidegate.store.base import Store

log = logging.getLogger("tidegate")


class LogStore:
    """One job's log. Calls block; any thread."""

    def __init__(self, store: Store, job: str) -> None:
        self.store = store
        self.paths = JobPaths(job)

    def read(self) -> list[LogRecord]:
        """Every entry, in order, damaged ones as such. One that was not written by this version is an error: fail closed."""
        return [self._record(slot) for slot in self.slots()]

    def slots(self) -> list[int]:
        """The slots that are taken, in order."""
        names = (self.paths.parse(info.path) for info in self.store.list(self.paths.log_prefix))
        return sorted(name.slot for name in names if isinstance(name, LogObject))

    def view(self) -> LogView:
        """What the log adds up to."""
        return LogView(self.read())

    def entry(self, slot: int) -> LogEntry:
        """The entry in one slot. A damaged one is an error."""
        path = self.paths.log_entry(slot)
        return decode_entry(self.store.get(path), path, slot)

    def _record(self, slot: int) -> LogRecord:
        path = self.paths.log_entry(slot)
        return read_entry(self.store.get(path), path, slot)

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
