"""Reads what a store holds: its jobs and their logs. Changes nothing, and is safe beside a running job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.paths import JobPaths, LogObject
from tidegate.core.log.view import Commit, Damaged, LogRecord, LogView
from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch
from tidegate.runtime.inspect import shown
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.soundness import floor_of
from tidegate.store.interface import Store
from tidegate.store.open import open_store


@dataclass(frozen=True, slots=True)
class JobLog:
    """One job of a store: everything it ever committed, and what its log adds up to."""

    job: str
    entries: tuple[LogRecord, ...]
    view: LogView
    floor: int = 0
    """Checkpoints below this epoch were collected by ``tidegate gc``."""

    def commits(self) -> Iterator[CheckpointManifest]:
        """The manifests of the log, oldest first, those that a later restore left behind included."""
        return (entry.manifest for entry in self.entries if isinstance(entry, Commit))

    def damaged(self) -> Iterator[Damaged]:
        """The entries that can't be read, oldest first."""
        return iter(self.view.damage)

    def restorable(self, epoch: int) -> bool:
        """True when a restore may go back to this epoch."""
        try:
            manifest = self.view.restorable(Epoch(epoch))
        except InvalidUseError:
            return False
        return epoch >= self.floor or manifest.is_savepoint


def read_jobs(url: str, job: str | None = None) -> list[JobLog]:
    """Every job in the store, by name, or the one that was asked for."""
    store = open_existing(url)
    jobs = _jobs(store, job)
    if not jobs:
        wanted = f" of job {job}" if job is not None else ""
        raise InvalidUseError(f"nothing{wanted} is stored there: check the store's address store={shown(url)}")
    return [_read(store, name) for name in sorted(jobs)]


def open_existing(url: str) -> Store:
    """The store at this address. A directory that is not there is an error, not a new store."""
    folder = local_folder(url)
    if folder is not None and not folder.is_dir():
        raise InvalidUseError(f"no such directory: give the store that the job was started with store={url}")
    if url.startswith("memory:"):
        raise InvalidUseError(f"a memory store ends with its process: nothing can be read from outside store={url}")
    return open_store(url)


def local_folder(url: str) -> Path | None:
    """The directory that a plain path or a file:// address names; ``None`` for stores elsewhere."""
    if "://" not in url:
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _jobs(store: Store, job: str | None) -> set[str]:
    """The jobs that have a log. Objects with other names are none of our business."""
    paths = [info.path for info in store.list(JobPaths(job).log_prefix if job is not None else "")]
    return {name for path in paths if isinstance(_parsed(name := path.partition("/")[0], path), LogObject)}


def _parsed(job: str, path: str) -> object:
    try:
        return JobPaths(job).parse(path)
    except InvalidUseError:
        return None


def _read(store: Store, job: str) -> JobLog:
    entries = LogStore(store, job).read()
    return JobLog(job, tuple(entries), LogView(entries), floor_of(store, job))
