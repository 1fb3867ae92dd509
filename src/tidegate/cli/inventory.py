"""Reads what a store holds: its jobs and their logs. Changes nothing, and is safe beside a running job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidegate.core.log import Commit, LogEntry, LogView, decode_entry
from tidegate.core.manifest import CheckpointManifest
from tidegate.core.paths import JobPaths, LogObject
from tidegate.errors import InvalidUseError
from tidegate.runtime.inspect import shown
from tidegate.store.base import Store
from tidegate.store.open import open_store


@dataclass(frozen=True, slots=True)
class JobLog:
    """One job of a store: everything it ever committed, and what its log adds up to."""

    job: str
    entries: tuple[LogEntry, ...]
    view: LogView

    def commits(self) -> Iterator[CheckpointManifest]:
        """The manifests of the log, oldest first, those that a later restore left behind included."""
        return (entry.manifest for entry in self.entries if isinstance(entry, Commit))

    def restorable(self, epoch: int) -> bool:
        """True when a restore may go back to this epoch."""
        try:
            self.view.restorable(epoch)
        except InvalidUseError:
            return False
        return True


def read_jobs(url: str, job: str | None = None) -> list[JobLog]:
    """Every job in the store, by name, or the one that was asked for."""
    store = open_existing(url)
    slots = _slots(store, job)
    if not slots:
        wanted = f" of job {job}" if job is not None else ""
        raise InvalidUseError(f"nothing{wanted} is stored there: check the store's address store={shown(url)}")
    return [_read(store, name, slots[name]) for name in sorted(slots)]


def open_existing(url: str) -> Store:
    """The store at this address. A directory that is not there is an error, not a new store."""
    folder = local_folder(url)
    if folder is not None and not folder.is_dir():
        raise InvalidUseError(f"no such directory: give the store that the job was started with store={url}")
    if url.startswith("memory:"):
        raise InvalidUseError(
            f"a memory store ends with its process: nothing can be read from outside store={url}"
        )
    return open_store(url)


def local_folder(url: str) -> Path | None:
    """The directory that a plain path or a file:// address names; ``None`` for stores elsewhere."""
    if "://" not in url:
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _slots(store: Store, job: str | None) -> dict[str, list[int]]:
    """The filled slots of each job, in order. Objects with other names are none of our business."""
    found: dict[str, list[int]] = {}
    for info in store.list(JobPaths(job).log_prefix if job is not None else ""):
        name = info.path.partition("/")[0]
        if isinstance(slot := _parsed(name, info.path), LogObject):
            found.setdefault(name, []).append(slot.slot)
    return {name: sorted(slots) for name, slots in found.items()}


def _parsed(job: str, path: str) -> object:
    try:
        return JobPaths(job).parse(path)
    except InvalidUseError:
        return None


def _read(store: Store, job: str, slots: list[int]) -> JobLog:
    paths = JobPaths(job)
    entries = []
    for slot in slots:
        path = paths.log_entry(slot)
        entries.append(decode_entry(store.get(path), path, slot))
    return JobLog(job, tuple(entries), LogView(entries))
