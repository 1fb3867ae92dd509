"""The job's log: its entries, and what they add up to. The log is the only truth about terms, gangs and
commits.

Slots are filled in order, create-only, and never change. ``LogView`` takes entries one by one and refuses any
that the rules could not have produced: a log that cannot be understood whole is not used at all. It knows no
store and no leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from typing import Literal, TypeAlias

from tidegate.core.codec import build, encode, parse
from tidegate.core.manifest import FORMAT_VERSION, CheckpointManifest, CommittableEntry
from tidegate.errors import CorruptDataError, InvalidUseError

DIGEST = "sha256"
ENTRY_BYTES_MAX = 60 * 1024 * 1024
"""Less than a control message may have: a manifest that could be stored and not be sent could never be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A leader's term begins. The term is the slot."""

    kind: Literal["takeover"] = "takeover"
    slot: int
    term: int
    write_id: str
    leader: str
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)
        if self.term != self.slot:
            raise InvalidUseError(f"a term is the slot of its takeover slot={self.slot} term={self.term}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint is committed. Its epoch is the slot."""

    kind: Literal["commit"] = "commit"
    slot: int
    term: int
    write_id: str
    manifest: CheckpointManifest
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)
        if (self.manifest.epoch, self.manifest.term) != (self.slot, self.term):
            raise InvalidUseError(
                f"a manifest of another slot or term slot={self.slot} epoch={self.manifest.epoch}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A gang is about to start from ``parent`` (``None``: without state). The gang's number is the slot."""

    kind: Literal["restore"] = "restore"
    slot: int
    term: int
    write_id: str
    parent: int | None
    reason: str
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)


LogEntry: TypeAlias = Takeover | Commit | Restore
_KINDS: dict[object, type[LogEntry]] = {"takeover": Takeover, "commit": Commit, "restore": Restore}


def encode_entry(entry: LogEntry) -> bytes:
    """The stored form of an entry: its JSON object with the SHA-256 of the rest as last key."""
    body = encode(entry)
    data = body[:-1] + f',"{DIGEST}":"{sha256(body).hexdigest()}"}}'.encode()
    if len(data) > ENTRY_BYTES_MAX:
        raise InvalidUseError(f"a log entry is too long bytes={len(data)} bytes_max={ENTRY_BYTES_MAX}")
    return data


def decode_entry(data: bytes, path: str, slot: int) -> LogEntry:
    """The entry in these bytes, read from this slot. An unknown kind or version is an error: fail closed."""
    plain = parse(data, path)
    digest = plain.pop(DIGEST, None) if isinstance(plain, dict) else None
    name = plain.get("kind") if isinstance(plain, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CorruptDataError(
            f"not an entry that this version of tidegate knows kind={name!r} path={path}", path=path
        )
    entry = build(kind, plain, path)
    if digest != sha256(encode(entry)).hexdigest():
        raise CorruptDataError(f"the log entry is damaged: its checksum differs path={path}", path=path)
    if entry.slot != slot:
        raise CorruptDataError(f"an entry of another slot slot={entry.slot} path={path}", path=path)
    return entry


class LogView:
    """What a prefix of the log adds up to. ``apply`` is the only way to change it, and changes all or
    nothing.

    Full manifests are held for what may still be restored; of the others only epoch and parent stay in
    memory.
    """

    __slots__ = (
        "_manifests",
        "_parents",
        "gang",
        "head_epoch",
        "last_id",
        "next_slot",
        "oldest_restorable",
        "term",
    )

    def __init__(self, entries: Iterable[LogEntry] = ()) -> None:
        self.next_slot = 0
        self.term: int | None = None
        self.gang = 0
        self.head_epoch: int | None = None
        self.last_id = 0
        self.oldest_restorable = 0
        self._parents: dict[int, int | None] = {}
        self._manifests: dict[int, CheckpointManifest] = {}
        for entry in entries:
            self.apply(entry)

    @property
    def head(self) -> CheckpointManifest | None:
        """The manifest that the next start begins from."""
        return None if self.head_epoch is None else self._manifests[self.head_epoch]

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
        return tuple(self._manifests[epoch] for epoch in self._lineage_from(self.oldest_restorable))

    def _lineage_from(self, oldest: int) -> Iterator[int]:
        """The part of the lineage that is not older; the rest of it, which grows for ever, is not walked."""
        return takewhile(lambda epoch: epoch >= oldest, self.lineage())

    def restorable(self, epoch: int) -> CheckpointManifest:
        """The manifest of an epoch that a restore may go back to, or ``InvalidUseError`` saying why not."""
        if epoch not in self._parents:
            raise InvalidUseError(f"there is no checkpoint with this epoch epoch={epoch}")
        if epoch < self.oldest_restorable:
            oldest = self.oldest_restorable
            raise InvalidUseError(f"this checkpoint is no longer retained epoch={epoch} oldest={oldest}")
        if epoch not in self._lineage_from(epoch):
            raise InvalidUseError(
                f"a later restore left this checkpoint behind epoch={epoch} head={self.head_epoch}"
            )
        return self._manifests[epoch]

    def apply(self, entry: LogEntry) -> None:
        """Take the next entry. One that does not follow is ``CorruptDataError`` and changes nothing."""
        try:
            self._check(entry)
        except InvalidUseError as error:
            raise CorruptDataError(f"the log is broken at slot {entry.slot}: {error}") from error
        if isinstance(entry, Takeover):
            self.term = entry.slot
        elif isinstance(entry, Restore):
            self.gang, self.head_epoch = entry.slot, entry.parent
        else:
            self._commit(entry.manifest)
        self.next_slot = entry.slot + 1

    def _commit(self, manifest: CheckpointManifest) -> None:
        self._parents[manifest.epoch] = manifest.parent
        self._manifests[manifest.epoch] = manifest
        self.head_epoch, self.last_id = manifest.epoch, manifest.checkpoint_id
        self.oldest_restorable = max(self.oldest_restorable, manifest.oldest_restorable)
        bound = self.oldest_restorable
        gone = [e for e, m in self._manifests.items() if e < bound and not m.is_savepoint]
        for epoch in gone:
            del self._manifests[epoch]

    def _check(self, entry: LogEntry) -> None:
        if entry.slot != self.next_slot:
            raise InvalidUseError(f"expected slot {self.next_slot}")
        if isinstance(entry, Takeover):
            return
        if entry.term != self.term:
            raise InvalidUseError(
                f"written by a leader whose term was over term={entry.term} current={self.term}"
            )
        if isinstance(entry, Restore):
            if entry.parent is not None:
                self.restorable(entry.parent)
            return
        self._check_commit(entry.manifest)

    def _check_commit(self, manifest: CheckpointManifest) -> None:
        if manifest.gang != self.gang:
            raise InvalidUseError(f"made by a gang that was over gang={manifest.gang} current={self.gang}")
        if manifest.checkpoint_id <= self.last_id:
            raise InvalidUseError(f"a checkpoint id was used again checkpoint_id={manifest.checkpoint_id}")
        head = self.head
        if head is not None and head.final:
            raise InvalidUseError("nothing follows a final checkpoint")
        manifest.check_parent(head)


def _check_entry(entry: LogEntry) -> None:
    if entry.format_version != FORMAT_VERSION:
        raise InvalidUseError(f"written by another version of tidegate format_version={entry.format_version}")
    if not entry.write_id:
        raise InvalidUseError("an entry has a write id")
