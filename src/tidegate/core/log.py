"""The job's log: what its entries add up to. The log is the only truth about terms, gangs and commits.

Slots are filled in order, create-only, and never change. ``LogView`` takes entries one by one and refuses any
that the rules could not have produced. An entry that is damaged keeps its slot and its place in the lineage,
because the rules leave no doubt about them: a commit's parent is the head before it. Only a restore that
nothing sound follows leaves the head unclear. It knows no store and no leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from tidegate.core.entries import (
    Commit,
    Damaged,
    LogEntry,
    LogRecord,
    Restore,
    Takeover,
    decode_entry,
    encode_entry,
    explained,
    read_entry,
)
from tidegate.core.manifest import CheckpointManifest, CommittableEntry
from tidegate.errors import CorruptDataError, InvalidUseError

__all__ = [
    "Commit",
    "Damaged",
    "LogEntry",
    "LogRecord",
    "LogView",
    "Restore",
    "Takeover",
    "decode_entry",
    "encode_entry",
    "read_entry",
]


class LogView:
    """What a prefix of the log adds up to. ``apply`` is the only way to change it, and changes all or
    nothing.

    Full manifests are held for what may still be restored; of the others only epoch and parent stay in
    memory. ``damage`` is every entry that can't be read; ``unclear`` the one that leaves the head unknown: then
    ``head_epoch`` is the head before it, and what is true now lies in that lineage.
    """

    __slots__ = (
        "_lost",
        "_manifests",
        "_parents",
        "damage",
        "gang",
        "head_epoch",
        "last_id",
        "next_slot",
        "oldest_restorable",
        "term",
        "unclear",
    )

    def __init__(self, entries: Iterable[LogRecord] = ()) -> None:
        self.next_slot = 0
        self.term: int | None = None
        self.gang = 0
        self.head_epoch: int | None = None
        self.last_id = 0
        self.oldest_restorable = 0
        self._parents: dict[int, int | None] = {}
        self._manifests: dict[int, CheckpointManifest] = {}
        self._lost: dict[int, Damaged] = {}
        self.damage: tuple[Damaged, ...] = ()
        self.unclear: Damaged | None = None
        for entry in explained(entries):
            self.apply(entry)

    @property
    def head(self) -> CheckpointManifest | None:
        """The manifest of the head. ``None``: there is no head, or its entry is damaged."""
        return None if self.head_epoch is None else self._manifests.get(self.head_epoch)

    @property
    def head_is_lost(self) -> bool:
        """True when damage hides the head: nothing may go on from it, only fall back."""
        return self.unclear is not None or self.head_epoch in self._lost

    def lost(self, epoch: int) -> Damaged | None:
        """The damage of this epoch's commit, if it is damaged."""
        return self._lost.get(epoch)

    def lost_after(self, epoch: int | None) -> Damaged | None:
        """The newest damaged commit after this epoch. Nobody knows which rows it published."""
        found = (d for d in reversed(self.damage) if d.may_be_commit and (epoch is None or d.slot > epoch))
        return next(found, None)

    def lineage(self) -> Iterator[int]:
        """The head's epoch, its parent's, and so on: newest first."""
        epoch = self.head_epoch
        while epoch is not None:
            yield epoch
            epoch = self._parents[epoch]

    def held(self) -> tuple[CheckpointManifest, ...]:
        """Every manifest that is still whole in memory, oldest first."""
        return tuple(self._manifests[epoch] for epoch in sorted(self._manifests))

    def retained(self) -> tuple[CheckpointManifest, ...]:
        """What garbage collection must keep: everything restorable, and all savepoints."""
        reach = {manifest.epoch for manifest in self.restorables()}
        return tuple(m for m in self.held() if m.is_savepoint or m.epoch in reach)

    def off_lineage(self) -> tuple[CommittableEntry, ...]:
        """Committables that a manifest named and the head's lineage lacks; sinks must not show them.

        Only of manifests that are held. That is all of them after a restore of anything restorable.
        """
        lineage = set(self.lineage())
        found = {c.key: c for m in self.held() for c in m.committables if c.epoch not in lineage}
        return tuple(found.values())

    def restorables(self) -> tuple[CheckpointManifest, ...]:
        """What a restore may go back to, newest first. Further back the sinks could not be put right again."""
        return tuple(self._manifests[epoch] for epoch in self.reachable() if epoch not in self._lost)

    def reachable(self) -> Iterator[int]:
        """The epochs of the lineage that are not given up, damaged ones too, newest first."""
        return self._lineage_from(self.oldest_restorable)

    def _lineage_from(self, oldest: int) -> Iterator[int]:
        """The part of the lineage that is not older; the rest of it, which grows for ever, is not walked."""
        return takewhile(lambda epoch: epoch >= oldest, self.lineage())

    def restorable(self, epoch: int) -> CheckpointManifest:
        """The manifest of an epoch that a restore may go back to, or ``InvalidUseError`` saying why not."""
        self._check_reachable(epoch)
        if damaged := self.unclear or self._lost.get(epoch):
            raise InvalidUseError(f"{damaged.why} epoch={epoch}")
        return self._manifests[epoch]

    def _check_reachable(self, epoch: int) -> None:
        if epoch not in self._parents:
            raise InvalidUseError(f"there is no checkpoint with this epoch, see `tidegate checkpoints` for others epoch={epoch}")
        if epoch < self.oldest_restorable:
            oldest = self.oldest_restorable
            raise InvalidUseError(f"this checkpoint is no longer retained epoch={epoch} oldest={oldest}")
        if epoch not in self._lineage_from(epoch):
            raise InvalidUseError(
                f"a later restore left this checkpoint behind epoch={epoch} head={self.head_epoch}"
            )

    def apply(self, entry: LogRecord) -> None:
        """Take the next entry. One that does not follow is ``CorruptDataError`` and changes nothing."""
        try:
            self._check(entry)
        except InvalidUseError as error:
            raise CorruptDataError(f"the log is broken at slot {entry.slot}: {error}") from error
        if isinstance(entry, Takeover):
            self.term = entry.slot
        elif isinstance(entry, Restore):
            self._restore(entry.slot, entry.parent)
        elif isinstance(entry, Damaged):
            self._lose(entry)
        else:
            self._commit(entry.manifest)
        self.next_slot = entry.slot + 1

    def _restore(self, slot: int, parent: int | None) -> None:
        self.gang, self.head_epoch, self.unclear = slot, parent, None

    def _lose(self, entry: Damaged) -> None:
        self.damage += (entry,)
        match entry.effect:
            case "takeover":
                self.term = entry.slot
            case "restore":
                self._restore(entry.slot, entry.parent)
            case "commit":
                self._lost[entry.slot] = entry
                self._parents[entry.slot], self.head_epoch = self.head_epoch, entry.slot
            case "unclear":
                self.unclear = entry
            case _:
                pass  # a later restore has overruled it

    def _commit(self, manifest: CheckpointManifest) -> None:
        self._parents[manifest.epoch] = manifest.parent
        self._manifests[manifest.epoch] = manifest
        self.head_epoch, self.last_id = manifest.epoch, manifest.checkpoint_id
        self.oldest_restorable = max(self.oldest_restorable, manifest.oldest_restorable)
        bound = self.oldest_restorable
        gone = [e for e, m in self._manifests.items() if e < bound and not m.is_savepoint]
        for epoch in gone:
            del self._manifests[epoch]

    def _check(self, entry: LogRecord) -> None:
        if entry.slot != self.next_slot:
            raise InvalidUseError(f"expected slot {self.next_slot}")
        if isinstance(entry, Takeover):
            return
        if isinstance(entry, Damaged):
            self._check_damaged(entry)
            return
        if entry.term != self.term:
            raise InvalidUseError(
                f"written by a leader whose term was over term={entry.term} current={self.term}"
            )
        if isinstance(entry, Restore):
            self._check_restore(entry.parent)
        else:
            self._check_commit(entry.manifest)

    def _check_restore(self, parent: int | None) -> None:
        if parent is not None:
            self._check_reachable(parent)

    def _check_damaged(self, entry: Damaged) -> None:
        if entry.effect == "restore":
            self._check_restore(entry.parent)
        elif entry.effect == "commit":
            self._check_clear()

    def _check_clear(self) -> None:
        if self.unclear is not None:
            raise InvalidUseError(f"it depends on one that can't be read path={self.unclear.path}")

    def _check_commit(self, manifest: CheckpointManifest) -> None:
        self._check_clear()
        if manifest.gang != self.gang:
            raise InvalidUseError(f"made by a gang that was over gang={manifest.gang} current={self.gang}")
        if manifest.checkpoint_id <= self.last_id:
            raise InvalidUseError(f"a checkpoint id was used again checkpoint_id={manifest.checkpoint_id}")
        head = self.head
        if head is not None and head.final:
            raise InvalidUseError("nothing follows a final checkpoint")
        if self.head_epoch in self._lost:
            sound = next((epoch for epoch in self.lineage() if epoch not in self._lost), None)
            manifest.check_lost_parent(self.head_epoch, None if sound is None else self._manifests[sound])
        else:
            manifest.check_parent(head)
