"""Is what the log promises still there, byte for byte, and what may go? Reads every object of every retained checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from tidegate.core.checkpoint.manifest import CheckpointManifest, ObjectEntry
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.retain import collection_bound, garbage
from tidegate.core.log.view import Damaged, LogView
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.snapshotfile import crc32c
from tidegate.store.interface import Store

FLOOR = "_collected"
LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class Damage:
    """One object that is not what it should be, and the epochs that need it; no epoch: the log itself."""

    path: str
    what: str
    epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verifying a job found."""

    job: str
    epochs: tuple[int, ...]
    objects: int
    bytes: int
    damage: tuple[Damage, ...]


def verify(store: Store, job: str, progress: Callable[[int], None] = lambda objects: None) -> VerifyReport:
    """Read everything that the retained checkpoints of a job name. Blocks as long as that takes."""
    view, damage = _log(LogStore(store, job), lambda log: LogView(log.read()))
    manifests = retained(view, floor_of(store, job))
    needed: dict[ObjectEntry, list[int]] = {}
    for manifest in manifests:
        for entry in manifest.objects:
            needed.setdefault(entry, []).append(manifest.epoch)
        damage += _inline(store, manifest, job)
    for number, (entry, epochs) in enumerate(sorted(needed.items(), key=lambda item: item[0].path)):
        what = _fault(store, entry)
        if what is not None:
            damage.append(Damage(entry.path, what, tuple(epochs)))
        progress(number + 1)
    size = sum(entry.size_bytes for entry in needed)
    return VerifyReport(job, tuple(m.epoch for m in manifests), len(needed), size, tuple(damage))


def retained(view: LogView, floor: int) -> tuple[CheckpointManifest, ...]:
    """What can be restored, and savepoints; what ``collect`` was told to drop is left out."""
    return tuple(m for m in view.retained() if m.is_savepoint or m.epoch >= floor)


def _log(log: LogStore, read: Callable[[LogStore], LogView]) -> tuple[LogView, list[Damage]]:
    """What the log adds up to, and what can't be read of it. A log that makes no sense at all says nothing."""
    try:
        view = read(log)
    except CorruptDataError as error:
        return LogView(), [Damage(error.path or log.paths.log_prefix, str(error))]
    return view, [Damage(each.path, each.why, _epochs(each)) for each in view.damage]


def _epochs(damaged: Damaged) -> tuple[int, ...]:
    return (damaged.slot,) if damaged.effect == "commit" else ()


def _fault(store: Store, entry: ObjectEntry) -> str | None:
    try:
        data = store.get(entry.path)
    except FileNotFoundError:
        return "it is missing"
    except TidegateError as error:
        return f"it can't be read: {error}"
    if len(data) != entry.size_bytes:
        return f"it has {len(data)} bytes instead of {entry.size_bytes}"
    return None if crc32c(data) == entry.crc32c else "its checksum differs"


def _inline(store: Store, manifest: CheckpointManifest, job: str) -> list[Damage]:
    every = [run for entry in manifest.operators for run in entry.runs]
    every += [run for entry in manifest.sources for run in entry.runs]
    runs = [run for run in every if run.inline is not None]
    if all(crc32c(run.inline_bytes()) == run.crc32c for run in runs):
        return []
    return [Damage(JobPaths(job).log_entry(manifest.epoch), "the checksum of a run in it differs", (manifest.epoch,))]


# -- collecting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """What collecting a job's garbage did, or would do."""

    job: str
    kept_epochs: tuple[int, ...]
    objects: int
    bytes: int
    entries: int = 0
    """Of the log."""


def collect(store: Store, job: str, retain: int, *, dry_run: bool = False) -> Collected:
    """Delete what neither the newest ``retain`` checkpoints nor a savepoint needs. Safe beside a running job.

    The bound is taken before the listing: what a live attempt uploads has a larger id, and what it takes from its parent
    belongs to the newest checkpoint. If the log grew meanwhile, everything is looked at again. The log itself is trimmed as far
    as its newest bases allow; only a leader writes bases.
    """
    if retain < 1:
        raise InvalidUseError(f"at least one checkpoint is retained retain={retain}")
    paths, log = JobPaths(job), LogStore(store, job)
    for _ in range(LOOKS_MAX):
        view, damage = _log(log, LogStore.view)
        if damage and (view.head_is_lost or not view.next_slot):
            # A copy put back under its name would need what is there; once the job has gone on without it, nothing would.
            raise CorruptDataError(f"nothing is deleted while the log is damaged: {damage[-1].what}", path=damage[-1].path)
        floor = max(floor_of(store, job), _floor(view, retain))
        manifests = retained(view, floor)
        keep = frozenset(path for manifest in manifests for path in manifest.object_paths())
        bound = collection_bound(view)
        listed = {info.path: info.size_bytes for prefix in paths.object_prefixes for info in store.list(prefix)}
        doomed = garbage(paths, listed, keep, bound)
        if dry_run or max(log.slots(), default=-1) < view.next_slot:
            if not dry_run:
                _delete(store, job, floor, doomed)
            size, entries = sum(listed[path] for path in doomed), log.trim_as_allowed(dry_run=dry_run)
            return Collected(job, tuple(m.epoch for m in manifests), len(doomed), size, entries)
    raise InvalidUseError(f"the job commits faster than its store can be listed: stop it first job={job}")


def _delete(store: Store, job: str, floor: int, doomed: Sequence[str]) -> None:
    # First the note, then the deed: a checkpoint that is half deleted must not look damaged.
    store.put(f"{job}/{FLOOR}", str(floor).encode())
    store.delete(doomed)


def _floor(view: LogView, retain: int) -> int:
    """The oldest of the newest ``retain`` epochs that can be restored."""
    newest = list(islice((manifest.epoch for manifest in view.restorables()), retain))
    return newest[-1] if newest else 0


def floor_of(store: Store, job: str) -> int:
    """Checkpoints below this epoch were dropped by ``collect``."""
    try:
        text = store.get(f"{job}/{FLOOR}").decode("ascii", "replace")
    except FileNotFoundError:
        return 0
    return int(text) if text.isdecimal() and len(text) < 20 else 0
