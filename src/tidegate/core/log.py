"""The job's log: what its entries add up to. The log is the only truth about terms, gangs and commits.

Slots are filled in order, create-only, and never change. ``LogView`` takes entries one by one and refuses any
that the rules could not have produced. An entry that is damaged keeps its slot and its place in the lineage,
because the rules leave no doubt about them: a commit's parent is the head before it. Only a restore that
nothing sound follows leaves the head unclear. It knows no store and no leader.

A log grows for ever and a view does not: what is older than anything restorable is forgotten, but for what
savepoints and carried committables still refer to. All of a view's state but the manifests fits a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from tidegate.core.summary import KnownDamage, LogSummary
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

    Manifests are held for what may still be restored, and of savepoints. ``damage`` is every entry that can't
    be read; ``unclear`` the one that leaves the head unknown: then ``head_epoch`` is the head before it, and
    what is true now lies in that lineage.

    With a ``summary``, the entries are those in its ``slots`` and those behind it; if they are not what it
    says, ``CorruptDataError``. The view is the same as one of all entries.
    """

    __slots__ = (
        "_left",
        "_lineage",
        "_lost",
        "_manifests",
        "_write_id",
        "damage",
        "gang",
        "last_id",
        "next_slot",
        "oldest_restorable",
        "term",
        "unclear",
    )

    def __init__(self, entries: Iterable[LogRecord] = (), summary: LogSummary | None = None) -> None:
        self.next_slot = 0
        self.term: int | None = None
        self.gang = 0
        self.last_id = 0
        self.oldest_restorable = 0
        self._lineage: list[int] = []
        self._left: set[int] = set()
        self._write_id: str | None = None
        self._manifests: dict[int, CheckpointManifest] = {}
        self._lost: dict[int, Damaged] = {}
        self.damage: tuple[Damaged, ...] = ()
        self.unclear: Damaged | None = None
        every = list(entries)
        if summary is not None:
            self._resume(summary, [entry for entry in every if entry.slot < summary.next_slot])
        for entry in explained(entry for entry in every if entry.slot >= self.next_slot):
            self.apply(entry)

    @property
    def head_epoch(self) -> int | None:
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

    def lost(self, epoch: int) -> Damaged | None:
        """The damage of this epoch's commit, if it is damaged."""
        return self._lost.get(epoch)

    def lost_after(self, epoch: int | None) -> Damaged | None:
        """The newest damaged commit after this epoch. Nobody knows which rows it published."""
        found = (d for d in reversed(self.damage) if d.may_be_commit and (epoch is None or d.slot > epoch))
        return next(found, None)

    def lineage(self) -> Iterator[int]:
        """The head's epoch, its parent's, and so on: newest first.

        Complete as far as anything can be restored. Of what is older only those are left that the
        committables of held manifests are of, and the newest sound one, which ends many a search.
        """
        return reversed(self._lineage)

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
        """The part of the lineage that is not older."""
        return takewhile(lambda epoch: epoch >= oldest, self.lineage())

    def restorable(self, epoch: int) -> CheckpointManifest:
        """The manifest of an epoch that a restore may go back to, or ``InvalidUseError`` saying why not."""
        self._check_reachable(epoch)
        if damaged := self.unclear or self._lost.get(epoch):
            raise InvalidUseError(f"{damaged.why} epoch={epoch}")
        return self._manifests[epoch]

    def _check_reachable(self, epoch: int) -> None:
        if epoch < self.oldest_restorable:  # whether there ever was one is forgotten
            oldest = self.oldest_restorable
            raise InvalidUseError(f"a checkpoint this old is no longer retained epoch={epoch} oldest={oldest}")
        if epoch in self._left:
            raise InvalidUseError(
                f"a later restore left this checkpoint behind epoch={epoch} head={self.head_epoch}"
            )
        if epoch not in self._lineage:
            raise InvalidUseError(f"there is no checkpoint with this epoch, see `tidegate checkpoints` for others epoch={epoch}")

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
        self._write_id = None if isinstance(entry, Damaged) else entry.write_id

    def _restore(self, slot: int, parent: int | None) -> None:
        self.gang, self.unclear = slot, None
        while self._lineage and self._lineage[-1] != parent:
            self._left.add(self._lineage.pop())

    def _lose(self, entry: Damaged) -> None:
        self.damage += (entry,)
        match entry.effect:
            case "takeover":
                self.term = entry.slot
            case "restore":
                self._restore(entry.slot, entry.parent)
            case "commit":
                self._lost[entry.slot] = entry
                self._lineage.append(entry.slot)
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
        named.add(next((e for e in self.lineage() if e < bound and e not in self._lost), 0))
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
            sound = next((epoch for epoch in self.lineage() if epoch not in self._lost), 0)
            # One that is too old to be held can't be compared with.
            manifest.check_lost_parent(self.head_epoch, self._manifests.get(sound))
        else:
            manifest.check_parent(head)

    # -- summaries

    def summary(self) -> LogSummary | None:
        """All of this but the manifests. ``None`` where the next entries may change what is known: the last one
        can't be read, or it is not known what a damaged one did."""
        known = [KnownDamage(d.slot, d.effect, d.parent) for d in self.damage if d.effect != "unclear"]
        if self._write_id is None or self.term is None or len(known) < len(self.damage):
            return None
        return LogSummary(
            next_slot=self.next_slot,
            write_id=self._write_id,
            term=self.term,
            gang=self.gang,
            last_id=self.last_id,
            oldest_restorable=self.oldest_restorable,
            lineage=tuple(self._lineage),
            left=tuple(sorted(self._left)),
            held=tuple(sorted(self._manifests)),
            damage=tuple(known),
        )

    def _resume(self, summary: LogSummary, entries: Sequence[LogRecord]) -> None:
        """Be what the summary says, with the manifests from the log."""
        found = {entry.slot: entry for entry in entries}
        last = found.get(summary.next_slot - 1)
        if last is None or isinstance(last, Damaged) or last.write_id != summary.write_id:
            raise _unfit(summary.next_slot - 1)
        for slot in summary.held:
            entry = found.get(slot)
            if not isinstance(entry, Commit):
                raise _unfit(slot)
            self._manifests[slot] = entry.manifest
        for known in summary.damage:
            damaged = found.get(known.slot)
            if not isinstance(damaged, Damaged):  # a copy was put back: all is to be read anew
                raise _unfit(known.slot)
            self.damage += (replace(damaged, effect=known.effect, parent=known.parent),)
        self._lost = {damaged.slot: damaged for damaged in self.damage if damaged.effect == "commit"}
        self._lineage, self._left = list(summary.lineage), set(summary.left)
        self.next_slot, self._write_id = summary.next_slot, summary.write_id
        self.term, self.gang, self.last_id = summary.term, summary.gang, summary.last_id
        self.oldest_restorable = summary.oldest_restorable


def _unfit(slot: int) -> CorruptDataError:
    return CorruptDataError(f"the summary of the log says something else than the log does slot={slot}")
