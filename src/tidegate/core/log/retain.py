"""What may be deleted, and how far back a restore may go. Pure arithmetic on the log; it deletes nothing
itself.

The bound and the kept objects must be taken before the store is listed: an object that appears after that
belongs to an attempt at or above the bound, or to a dead one that the next collection finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.base import Base
from tidegate.core.log.entries import kind_of
from tidegate.core.log.paths import JobPaths, checkpoint_of
from tidegate.core.log.view import LogView
from tidegate.errors import InvalidUseError
from tidegate.ids import CheckpointId, Epoch


def oldest_restorable(view: LogView, retain: int, epoch: Epoch) -> Epoch:
    """The oldest epoch that stays restorable once ``epoch`` is committed on the head. Never goes back.

    Damaged ones can't be restored and don't count.
    """
    if retain < 1:
        raise InvalidUseError(f"at least one checkpoint is retained retain={retain}")
    sound = (each for each in view.lineage() if view.lost(each) is None)
    kept = list(islice(chain((epoch,), sound), retain))
    return max(view.oldest_restorable, kept[-1])


def kept_objects(view: LogView, restoring: Iterable[int] = ()) -> frozenset[str]:
    """Every object that a retained manifest, a savepoint or a restore in progress reaches."""
    protected = set(restoring)
    manifests = {m.epoch: m for m in view.retained()}
    manifests |= {m.epoch: m for m in view.held() if m.epoch in protected}
    return frozenset(path for m in manifests.values() for path in m.object_paths())


def resumable(view: LogView) -> tuple[CheckpointManifest, ...]:
    """Where sources must be able to go on: everything retained.

    Empty while a commit can't be read: it may have been a savepoint, and its copy elsewhere may be sound.
    """
    return () if view.lost_after(None) is not None else view.retained()


def collection_bound(view: LogView) -> int:
    """The bound for a collector that is not the leader: it cannot see the live attempt, only that its id is
    larger."""
    if view.term is None:
        return 0
    return max(view.last_id + 1, CheckpointId.of(view.term, 1))


def garbage(paths: JobPaths, listed: Iterable[str], keep: frozenset[str], bound: int) -> list[str]:
    """What to delete of the listed objects: uploaded for a checkpoint below the bound, and kept by nobody.

    The log, the hint and names that are not ours are never in it: the log has rules of its own, below.
    """
    doomed = []
    for path in listed:
        owner = checkpoint_of(paths.parse(path))
        if owner is not None and owner < bound and path not in keep:
            doomed.append(path)
    return doomed


# -- the log -------------------------------------------------------------------------------------------------


def trim_bound(bases: Sequence[Base]) -> tuple[int, frozenset[int]] | None:
    """Below which slot the log may be trimmed, and what stays there; ``None``: nothing may go yet.

    Two bases are kept with all that either needs: should the newest be damaged, readers begin at the one before.
    """
    if len(bases) < 2:
        return None
    older, newer = bases[-2:]
    return older.slot, frozenset((*older.needed, *newer.needed))


def trimmable(slots: Iterable[int], below: int, keep: frozenset[int]) -> list[int]:
    """Which of these slots may go if their entries ``may_be_trimmed``, oldest first."""
    return sorted(slot for slot in slots if slot < below and slot not in keep)


def may_be_trimmed(opening: bytes) -> bool:
    """True when an entry that begins so is no takeover. One that does not tell what it is stays.

    A deposed leader that wakes up aims at the slot of its successor's takeover: were that free, its put would succeed.
    """
    return kind_of(opening) in ("commit", "restore", "base")
