"""The entries of the log and their stored form; and what is left of one whose bytes have changed.

Every entry is sealed by its SHA-256. An entry with an intact seal that cannot be understood was written by
something else: that is an error. One with a broken seal is ``Damaged``: the slot is taken, and what it said
is known as far as its first bytes and the entries after it tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tidegate.core.checkpoint.manifest import FORMAT_VERSION, CheckpointManifest, completed
from tidegate.core.log.base import Base
from tidegate.core.log.codec import build, encode, parse, seal, unsealed
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import Epoch, Slot, Term

ENTRY_BYTES_MAX = 60 * 1024 * 1024
"""Less than a control message may have: a manifest that could be stored and not be sent could never be restored."""

FLIPS_MAX = 4
"""This many changed bits leave an entry's opening recognisable. The openings differ in far more than twice as many."""


Role: TypeAlias = Literal["driver", "coordinator"]
"""A driver starts gangs of its own; a coordinator goes on with the one that it finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A leader's term begins. The term is the slot. ``host``, ``pid`` and ``wall_ms`` tell people who it is and since when."""

    kind: Literal["takeover"] = "takeover"
    slot: Slot
    term: Term
    write_id: str
    leader: str
    host: str = ""
    pid: int = 0
    wall_ms: int = 0
    role: Role = "driver"
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)
        if self.term != self.slot:
            raise InvalidUseError(f"a term is the slot of its takeover slot={self.slot} term={self.term}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint is committed. Its epoch is the slot."""

    kind: Literal["commit"] = "commit"
    slot: Slot
    term: Term
    write_id: str
    manifest: CheckpointManifest
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)
        if (self.manifest.epoch, self.manifest.term) != (self.slot, self.term):
            raise InvalidUseError(f"a manifest of another slot or term slot={self.slot} epoch={self.manifest.epoch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A gang is about to start from ``parent`` (``None``: without state). The gang's number is the slot."""

    kind: Literal["restore"] = "restore"
    slot: Slot
    term: Term
    write_id: str
    parent: Epoch | None
    reason: str
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_entry(self)


LogEntry: TypeAlias = Takeover | Commit | Restore | Base
Kind: TypeAlias = Literal["takeover", "commit", "restore", "base"]
_KINDS: dict[object, type[LogEntry]] = {"takeover": Takeover, "commit": Commit, "restore": Restore, "base": Base}
_OPENINGS: dict[Kind, bytes] = {kind: f'{{"kind":"{kind}","slot":'.encode() for kind in ("takeover", "commit", "restore", "base")}
OPENING_BYTES = max(map(len, _OPENINGS.values()))
"""This many bytes of an entry say its kind."""
_ADDED: dict[object, dict[str, object]] = {"takeover": {"host": "", "pid": 0, "wall_ms": 0, "role": "driver"}}
"""Keys that entries of earlier versions lack."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that can't be read any more. Its slot stays taken.

    ``kind`` is what its opening tells, ``None`` where that is unreadable too. ``effect`` is what it did to the
    log: a restore's is known only when a later commit says from where its gang started (``parent``), and is
    none when another restore followed. A base never has one.
    """

    slot: Slot
    path: str
    why: str
    kind: Kind | None
    effect: Literal["takeover", "commit", "restore", "none", "unclear"] = "unclear"
    parent: Epoch | None = None

    @property
    def may_be_commit(self) -> bool:
        """True when rows may have been published because of it."""
        return self.effect == "commit" or self.kind is None


LogRecord: TypeAlias = LogEntry | Damaged


def encode_entry(entry: LogEntry) -> bytes:
    """The stored form of an entry: its JSON object, sealed."""
    data = seal(encode(entry))
    if len(data) > ENTRY_BYTES_MAX:
        raise InvalidUseError(f"a log entry is too long bytes={len(data)} bytes_max={ENTRY_BYTES_MAX}")
    return data


def read_entry(data: bytes, path: str, slot: Slot) -> LogRecord:
    """The entry in these bytes, read from this slot, or what is left of it.

    An unknown kind or version under an intact seal is an error: fail closed.
    """
    body = unsealed(data)
    if body is None:
        why = f"the log entry is damaged: its checksum differs path={path}"
        return Damaged(slot, path, why, kind_of(data))
    parsed = parse(body, path)
    plain = parsed if isinstance(parsed, dict) else {}
    name = plain.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CorruptDataError(f"not an entry that this version of tidegate knows kind={name!r} path={path}", path=path)
    plain = _ADDED.get(name, {}) | plain
    if "manifest" in plain:
        plain["manifest"] = completed(plain["manifest"])
    entry = build(kind, plain, path)
    if entry.slot != slot:
        raise CorruptDataError(f"an entry of another slot slot={entry.slot} path={path}", path=path)
    return entry


def decode_entry(data: bytes, path: str, slot: Slot) -> LogEntry:
    """The entry in these bytes. A damaged one is an error too."""
    found = read_entry(data, path, slot)
    if isinstance(found, Damaged):
        raise CorruptDataError(found.why, path=path)
    return found


def missing_entry(path: str, slot: Slot) -> Damaged:
    """What is left of an entry that a base names and that is gone."""
    return Damaged(slot, path, f"the log entry is missing path={path}", None)


def kind_of(data: bytes) -> Kind | None:
    """What kind of entry begins with these bytes; ``None`` when they don't tell."""
    for kind, opening in _OPENINGS.items():
        start = data[: len(opening)]
        flips = (int.from_bytes(start, "big") ^ int.from_bytes(opening, "big")).bit_count()
        if len(start) == len(opening) and flips <= FLIPS_MAX:
            return kind
    return None


# -- what later entries tell ---------------------------------------------------------------------------------


def explained(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """The same records, each damaged one with its effect as far as it is known."""
    every = list(records)
    for index, record in enumerate(every):
        yield _explained(record, every[index + 1 :]) if isinstance(record, Damaged) else record


def _explained(record: Damaged, later: Sequence[LogRecord]) -> Damaged:
    """A commit tells whose gang and child it is; a restore, that whatever was there before it is over.

    Takeovers and bases in between say nothing of gangs and epochs.
    """
    kind = record.kind if record.slot else "takeover"  # nobody writes anything before the first takeover
    match kind:
        case "takeover" | "commit":
            return replace(record, effect=kind)
        case "base":
            return replace(record, effect="none")
        case _:
            follower = next((entry for entry in later if entry.kind not in ("takeover", "base")), None)
            return _told_by(follower, record)


def _told_by(follower: LogRecord | None, record: Damaged) -> Damaged:
    """What a restore, or an entry of unknown kind, did."""
    match follower:
        case Commit(manifest=manifest) if manifest.gang == record.slot:
            known = manifest.parent is None or manifest.parent < record.slot
            return replace(record, effect="restore", parent=manifest.parent) if known else record
        case Commit(manifest=manifest) if record.kind is None and manifest.parent == record.slot:
            return replace(record, effect="commit")
        case Commit(manifest=manifest) if record.kind is None:
            return replace(record, effect="takeover" if manifest.term == record.slot else "none")
        case Restore() as restore if record.kind is None and record.slot in (restore.parent, restore.term):
            return replace(record, effect="commit" if restore.parent == record.slot else "takeover")
        case Restore():
            return replace(record, effect="none")
        case _:
            return record


def _check_entry(entry: LogEntry) -> None:
    if entry.format_version != FORMAT_VERSION:
        raise InvalidUseError(f"written by another version of tidegate format_version={entry.format_version}")
    if not entry.write_id:
        raise InvalidUseError("an entry has a write id")
