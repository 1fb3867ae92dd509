"""The job's log: what its entries add up to. The log is the only truth about terms, gangs and commits.

Slots are filled in order, create-only, and never change. ``LogView`` takes entries one by one and refuses any
that the rules could not have produced. An entry that is damaged keeps its slot and its position in the lineage,
because the rules leave no doubt about them: a commit's parent is the head before it. Only a restore that
nothing sound follows leaves the head unclear. It knows no store and no leader.

A view does not grow with its log: what is older than anything restorable is forgotten, but for what
savepoints and carried committables still refer to. All of its state but the manifests fits a base, an entry
that makes most of those before it superfluous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile

from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.log.base import Base
from tidegate.core.log.entries import (
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
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import NO_EPOCH, Epoch, GangNumber, Slot, Term

__all__ = [
    "Base",
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

    Manifests are held for what may still be restored, and of savepoints. ``damage`` is every entry that can't
    be read; ``unclear`` the one that leaves the head unknown: then ``head_epoch`` is the head before it, and
    what is true now lies in that lineage.

    Of the entries read at first only those count that come after the newest base, and those that it needs. The view is the
    same as one of all entries. ``bases`` are the last two that were taken: what a reader may begin at.
    """

    __slots__ = (
        "_left",
        "_lineage",
        "_lost",
        "_manifests",
        "bases",
        "damage",
        "gang",
        "last_id",
        "next_slot",
        "oldest_restorable",
        "term",
        "unclear",
    )

    def __init__(self, entries: Iterable[LogRecord] = ()) -> None:
        self.next_slot: Slot = 0
        self.term: Term | None = None
        self.gang = GangNumber(0)
        self.last_id = 0
        self.oldest_restorable = NO_EPOCH
        self._lineage: list[Epoch] = []
        self._left: set[Epoch] = set()
        self.bases: tuple[Base, ...] = ()
        self._manifests: dict[Epoch, CheckpointManifest] = {}
        self._lost: dict[Epoch, Damaged] = {}
        self.damage: tuple[Damaged, ...] = ()
        self.unclear: Damaged | None = None
        every = list(entries)
        if (base := newest_base(every)) is not None:
            self._begin_at(base, {entry.slot: entry for entry in every})
        for entry in explained(entry for entry in every if entry.slot >= self.next_slot):
            self.apply(entry)

    @property
    def head_epoch(self) -> Epoch | None:
        """The last commit, or what a later restore went back to."""
        return self._lineage[-1] if self._lineage else None

    @property
    def head(self) -> CheckpointManifest | None:
        """The manifest of the head. ``None``: there is no head, or its entry is damaged."""
        return None if self.head_epoch is None else self._manifests.get(self.head_epoch)

    @property
    def head_is_lost(self) -> bool:
        """True when damage hides the head: nothing may go on from it, only fall back."""
        return self.unclear is not None or self.head_epoch in self._lost

    def lost(self, epoch: Epoch) -> Damaged | None:
        """The damage of this epoch's commit, if it is damaged."""
        return self._lost.get(epoch)

    def lost_after(self, epoch: Epoch | None) -> Damaged | None:
        """The newest damaged commit after this epoch. Nobody knows which rows it published."""
        found = (d for d in reversed(self.damage) if d.may_be_commit and (epoch is None or d.slot > epoch))
        return next(found, None)

    def lineage(self) -> Iterator[Epoch]:
        """The head's epoch, its parent's, and so on: newest first.

        Complete as far as anything can be restored. Of what is older only those are left that the
        committables of held manifests are of, and the newest sound one, which ends many a search.
        """
        return reversed(self._lineage)

    def held(self) -> tuple[CheckpointManifest, ...]:
        """Every manifest that is still complete in memory, oldest first."""
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

    def reachable(self) -> Iterator[Epoch]:
        """The epochs of the lineage that are not collected, damaged ones too, newest first."""
        return self._lineage_from(self.oldest_restorable)

    def _lineage_from(self, oldest: Epoch) -> Iterator[Epoch]:
        """The part of the lineage that is not older."""
        return takewhile(lambda epoch: epoch >= oldest, self.lineage())

    def restorable(self, epoch: Epoch) -> CheckpointManifest:
        """The manifest of an epoch that a restore may go back to, or ``InvalidUseError`` saying why not."""
        self._check_reachable(epoch)
        if damaged := self.unclear or self._lost.get(epoch):
            raise InvalidUseError(f"{damaged.why} epoch={epoch}")
        return self._manifests[epoch]

    def _check_reachable(self, epoch: Epoch) -> None:
        if epoch < self.oldest_restorable:  # whether there ever was one is forgotten
            oldest = self.oldest_restorable
            raise InvalidUseError(f"a checkpoint this old is no longer retained epoch={epoch} oldest={oldest}")
        if epoch in self._left:
            raise InvalidUseError(f"a later restore left this checkpoint behind epoch={epoch} head={self.head_epoch}")
        if epoch not in self._lineage:
            raise InvalidUseError(f"there is no checkpoint with this epoch, see `tidegate checkpoints` for others epoch={epoch}")

    def apply(self, entry: LogRecord) -> None:
        """Take the next entry. One that does not follow is ``CorruptDataError`` and changes nothing."""
        try:
            self._check(entry)
        except InvalidUseError as error:
            raise CorruptDataError(f"the log is broken at slot {entry.slot}: {error}") from error
        if isinstance(entry, Takeover):
            self.term = entry.term
        elif isinstance(entry, Restore):
            self._restore(entry.slot, entry.parent)
        elif isinstance(entry, Damaged):
            self._lose(entry)
        elif isinstance(entry, Base):
            self.bases = (*self.bases[-1:], entry)
        else:
            self._commit(entry.manifest)
        self.next_slot = entry.slot + 1

    def _restore(self, slot: Slot, parent: Epoch | None) -> None:
        self.gang, self.unclear = GangNumber(slot), None
        self.damage = tuple(replace(d, effect="none") if d.effect == "unclear" else d for d in self.damage)
        while self._lineage and self._lineage[-1] != parent:
            self._left.add(self._lineage.pop())

    def _lose(self, entry: Damaged) -> None:
        self.damage += (entry,)
        match entry.effect:
            case "takeover":
                self.term = Term(entry.slot)
            case "restore":
                self._restore(entry.slot, entry.parent)
            case "commit":
                epoch = Epoch(entry.slot)
                self._lost[epoch] = entry
                self._lineage.append(epoch)
            case "unclear":
                self.unclear = entry
            case _:
                pass  # a later restore has overruled it

    def _commit(self, manifest: CheckpointManifest) -> None:
        self._lineage.append(manifest.epoch)
        self._manifests[manifest.epoch] = manifest
        self.last_id = manifest.checkpoint_id
        self.oldest_restorable = max(self.oldest_restorable, manifest.oldest_restorable)
        self._forget()

    def _forget(self) -> None:
        """Let go of what is too old to be restored and what nothing refers to any more.

        Whoever asks which committables are of the lineage asks for those of held manifests; a later manifest
        carries them from its parent, which is held. So no epoch is asked for again once it is gone.
        """
        bound, every = self.oldest_restorable, self._manifests
        self._manifests = {e: m for e, m in every.items() if e >= bound or m.is_savepoint}
        named = {c.epoch for m in self._manifests.values() for c in m.committables}
        named.add(next((e for e in self.lineage() if e < bound and e not in self._lost), NO_EPOCH))
        self._lineage = [e for e in self._lineage if e >= bound or e in named]
        self._left = {e for e in self._left if e >= bound}

    def _check(self, entry: LogRecord) -> None:
        if entry.slot != self.next_slot:
            raise InvalidUseError(f"expected slot {self.next_slot}")
        if isinstance(entry, Takeover):
            return
        if isinstance(entry, Damaged):
            self._check_damaged(entry)
            return
        if entry.term != self.term:
            raise InvalidUseError(f"written by a leader whose term was over term={entry.term} current={self.term}")
        if isinstance(entry, Restore):
            self._check_restore(entry.parent)
        elif isinstance(entry, Commit):
            self._check_commit(entry.manifest)

    def _check_restore(self, parent: Epoch | None) -> None:
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
            sound = next((epoch for epoch in self.lineage() if epoch not in self._lost), NO_EPOCH)
            # One that is too old to be held can't be compared with.
            manifest.check_lost_parent(self.head_epoch, self._manifests.get(sound))
        else:
            manifest.check_parent(head)

    # -- bases

    @property
    def since_base(self) -> int:
        """How many entries a reader has to read after the newest base."""
        return self.next_slot - (self.bases[-1].slot + 1 if self.bases else 0)

    def summed_up(self, write_id: str) -> Base | None:
        """The base that may follow. ``None`` while later entries may change what is known of a damaged one."""
        if self.term is None or any(damaged.effect == "unclear" for damaged in self.damage):
            return None
        unread = {d.slot for d in self.damage if d.may_be_commit} - set(self._lost)
        return Base(
            slot=self.next_slot,
            term=self.term,
            write_id=write_id,
            gang=self.gang,
            last_id=self.last_id,
            oldest_restorable=self.oldest_restorable,
            lineage=tuple(self._lineage),
            left=tuple(sorted(self._left)),
            held=tuple(sorted(self._manifests)),
            lost=tuple(sorted(self._lost)),
            unread=tuple(sorted(unread)),
        )

    def _begin_at(self, base: Base, found: Mapping[int, LogRecord]) -> None:
        """Be what the base says, with the manifests from the log. One that was lost may have been put back since."""
        self.bases = (base,)
        self.next_slot, self.term, self.gang = base.slot + 1, base.term, base.gang
        self.last_id, self.oldest_restorable = base.last_id, base.oldest_restorable
        self._lineage, self._left = list(base.lineage), set(base.left)
        for slot in base.needed:
            match found.get(slot):
                case Damaged() as damaged if slot in base.unread:
                    self.damage += (replace(damaged, kind=None, effect="none"),)
                case Damaged() as damaged:
                    self._lost[Epoch(slot)] = replace(damaged, effect="commit")
                    self.damage += (self._lost[Epoch(slot)],)
                case Commit(manifest=manifest) if slot not in base.unread:
                    self._manifests[manifest.epoch] = manifest
                    self.last_id = max(self.last_id, manifest.checkpoint_id)
                case None:
                    raise CorruptDataError(f"the log is broken: slot {slot} is missing, which slot {base.slot} needs")
                case _ if slot not in base.unread:
                    raise CorruptDataError(f"the log is broken at slot {slot}: slot {base.slot} says that it is a commit")
                case _:
                    pass  # it can be read now, and is no longer of interest
        self._forget()


def newest_base(records: Iterable[LogRecord]) -> Base | None:
    """Where a reader of these entries begins."""
    return max((each for each in records if isinstance(each, Base)), key=lambda base: base.slot, default=None)
