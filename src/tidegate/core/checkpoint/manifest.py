"""The manifest of a checkpoint: what it consists of and where every byte is. A committed checkpoint is its
manifest in the log.

This module decides whether a manifest is well-formed by itself and against its parent. It knows nothing of
the plan, of nodes or of how a manifest comes about. Times of day are in it for people only; nothing is
decided by them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.log.codec import build, encode, parse
from tidegate.core.log.paths import Direction, JobPaths, checkpoint_of
from tidegate.errors import InvalidUseError
from tidegate.ids import EPOCH_LIMIT, NO_EPOCH, U32_LIMIT, CheckpointId, Epoch, GangNumber, NodeId, Term

FORMAT_VERSION = 1
INLINE_BYTES_MAX = 64 * 1024
"""What a manifest may hold inline, of all nodes together. A single run that is longer is refused."""
INLINE_NODE_BYTES = 4 * 1024
"""What one node puts there at most: every entry of the log carries it, and a later manifest carries it again."""

ADDED: Mapping[str, object] = {"parameters": []}
"""Keys that manifests of earlier versions lack."""

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

CommittableKey = tuple[str, int, int, int]


def inline_bytes_max(parallelism: int) -> int:
    """How much state one of ``parallelism`` nodes may put inline, so that an entry stays small."""
    return min(INLINE_NODE_BYTES, INLINE_BYTES_MAX // parallelism)


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An uploaded object with its size and CRC-32C."""

    path: str
    size_bytes: int
    crc32c: int

    def __post_init__(self) -> None:
        check_crc(self.crc32c, self.path)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of state: a byte range of an object, or inline as base64 when it is small.

    The checksum is over its bytes.
    """

    path: str | None
    offset: int
    length: int
    crc32c: int
    rows: int
    inline: str | None = None

    def __post_init__(self) -> None:
        check_crc(self.crc32c, str(self.path))
        if (self.path is None) == (self.inline is None):
            raise InvalidUseError("a run is either in an object or inline")
        if self.inline is not None and (self.offset or len(self.inline_bytes()) != self.length):
            raise InvalidUseError(f"an inline run has offset 0 and its own length length={self.length}")

    @classmethod
    def of_bytes(cls, data: bytes, crc32c: int, rows: int) -> RunEntry:
        """A small run, inline."""
        return cls(None, 0, len(data), crc32c, rows, base64.b64encode(data).decode())

    def inline_bytes(self) -> bytes:
        """The bytes of an inline run."""
        text = self.inline or ""
        if len(text) > 2 * INLINE_BYTES_MAX:
            raise InvalidUseError(f"an inline run is too long, use an object inline_bytes_max={INLINE_BYTES_MAX}")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidUseError(f"an inline run is not base64: {error}") from error
        if len(data) > INLINE_BYTES_MAX:
            raise InvalidUseError(f"an inline run is too long, use an object inline_bytes_max={INLINE_BYTES_MAX}")
        return data


@dataclass(frozen=True, slots=True)
class OperatorSnapshotEntry:
    """The state of one subtask of one operator: small JSON and runs."""

    operator: str
    subtask: int
    meta: Mapping[str, object]
    runs: tuple[RunEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOffsetEntry:
    """Where one subtask of one source stood at the cut; in runs what of that would be long."""

    operator: str
    subtask: int
    state: object
    runs: tuple[RunEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlightEntry:
    """Recorded data of one channel: ``channel`` is the edge, ``peer`` the subtask at its other end."""

    operator: str
    subtask: int
    direction: Direction
    channel: int
    peer: int
    path: str
    offset: int
    length: int
    crc32c: int
    events: int
    bytes: int

    def __post_init__(self) -> None:
        check_crc(self.crc32c, self.path)


@dataclass(frozen=True, slots=True)
class CommittableEntry:
    """What one sink subtask staged at one cut. ``epoch`` is that of the first manifest that named it, 0
    before any.

    It never changes: a later manifest that still carries it carries it with the same epoch, so publishing it
    again is the same act as publishing it the first time.
    """

    operator: str
    subtask: int
    gang: GangNumber
    checkpoint_id: int
    committable: Mapping[str, object]
    epoch: Epoch = NO_EPOCH

    @property
    def key(self) -> CommittableKey:
        """What tells one committable from all others, for ever."""
        return self.operator, self.subtask, self.gang, self.checkpoint_id


@dataclass(frozen=True, slots=True)
class TaskStats:
    """How a checkpoint went at one subtask, for people.

    ``start_delay_ms``: from the trigger's notice to the first barrier. ``alignment_ms``: from there to the
    cut. ``settle_ms``: from the cut until recordings were closed and the barrier had left. ``last_channel``:
    who was last.
    """

    task: str
    subtask: int
    mode: Literal["aligned", "unaligned", "finished"]
    start_delay_ms: int = 0
    alignment_ms: int = 0
    settle_ms: int = 0
    inflight_bytes: int = 0
    inflight_events: int = 0
    last_channel: str | None = None


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one node's part took."""

    node: NodeId
    bytes_uploaded: int
    duration_ms: int
    unaligned: bool
    tasks: tuple[TaskStats, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Everything that a restore needs. Construction checks it; ``check_parent`` checks what it takes from its
    parent.

    ``edges`` says for every channel number in ``inflight`` what it connects: a changed plan may number anew. ``parameters`` are
    those that were set, as every subtask had them at the cut.
    """

    job: str
    checkpoint_id: int
    epoch: Epoch
    parent: Epoch | None
    gang: GangNumber
    term: Term
    uuid: str
    final: bool = False
    savepoint: str | None = None
    is_unaligned: bool = False
    parallelism: int
    key_groups: int
    plan: Mapping[str, object] = field(default_factory=dict)
    trigger_wall_ms: int = 0
    commit_wall_ms: int = 0
    oldest_restorable: Epoch
    operators: tuple[OperatorSnapshotEntry, ...] = ()
    sources: tuple[SourceOffsetEntry, ...] = ()
    inflight: tuple[InFlightEntry, ...] = ()
    parameters: tuple[ParameterEntry, ...] = ()
    edges: Mapping[str, object] = field(default_factory=dict)
    committables: tuple[CommittableEntry, ...] = ()
    objects: tuple[ObjectEntry, ...] = ()
    nodes: tuple[NodeStats, ...] = ()
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise InvalidUseError(f"written by another version of tidegate format_version={self.format_version}")
        self._check_numbers()
        self._check_unique()
        self._check_objects()
        if self.inflight and (self.final or self.savepoint is not None or not self.is_unaligned):
            raise InvalidUseError("only an unaligned checkpoint that is neither final nor a savepoint has in-flight data")

    def to_json(self) -> bytes:
        """The stored form."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> CheckpointManifest:
        """The manifest in these bytes; anything else is ``CorruptDataError`` naming ``path``."""
        return build(cls, completed(parse(data, path)), path)

    @property
    def is_savepoint(self) -> bool:
        """True when retention never lets go of it."""
        return self.savepoint is not None

    def object_paths(self) -> frozenset[str]:
        """Every object that this manifest needs."""
        return frozenset(entry.path for entry in self.objects)

    def check_parent(self, parent: CheckpointManifest | None) -> None:
        """Refuse objects that are neither this checkpoint's own nor its parent's, byte for byte the same."""
        if self.parent != (None if parent is None else parent.epoch):
            raise InvalidUseError(f"not this manifest's parent parent={self.parent}")
        self._check_owned(self.checkpoint_id, parent)

    def check_lost_parent(self, parent: Epoch, ancestor: CheckpointManifest | None) -> None:
        """The same where the parent's own manifest can't be read any more; ``ancestor`` is the nearest that
        can.

        An object of any checkpoint after the ancestor's passes: it may have been the parent's.
        """
        if self.parent != parent:
            raise InvalidUseError(f"not this manifest's parent parent={self.parent}")
        self._check_owned(1 if ancestor is None else ancestor.checkpoint_id + 1, ancestor)

    def _check_owned(self, oldest_id: int, ancestor: CheckpointManifest | None) -> None:
        inherited = frozenset() if ancestor is None else frozenset(ancestor.objects)
        values = {parameter.path for parameter in self.parameters}  # uploaded once, by the leader, for whatever attempt commits
        paths = JobPaths(self.job)
        for entry in self.objects:
            owner = checkpoint_of(paths.parse(entry.path)) or 0
            if owner < oldest_id and entry not in inherited and entry.path not in values:
                raise InvalidUseError(f"names an object that neither it nor its parent owns path={entry.path}")

    def _check_numbers(self) -> None:
        identifier = CheckpointId(self.checkpoint_id)
        rules = {
            "the id's term is the manifest's": identifier.term == self.term and identifier.counter > 0,
            "an epoch comes after its term and gang": max(self.term, self.gang) < self.epoch < EPOCH_LIMIT,
            "a parent is an earlier epoch": self.parent is None or 0 < self.parent < self.epoch,
            "the oldest restorable epoch is not newer": self.oldest_restorable <= self.epoch,
            "there is a subtask and a key group": self.parallelism > 0 and self.key_groups > 0,
            "the uuid is of version 7": _UUID7.fullmatch(self.uuid) is not None,
        }
        for rule, holds in rules.items():
            if not holds:
                raise InvalidUseError(f"{rule}: it does not hold here checkpoint_id={self.checkpoint_id}")

    def _check_unique(self) -> None:
        check_unique("operator state", ((e.operator, e.subtask) for e in self.operators))
        check_unique("source offset", ((e.operator, e.subtask) for e in self.sources))
        flights = ((e.operator, e.subtask, e.direction, e.channel, e.peer) for e in self.inflight)
        check_unique("in-flight data", flights)
        check_unique("parameter", (e.name for e in self.parameters))
        check_unique("committable", (e.key for e in self.committables))
        check_unique("object", (e.path for e in self.objects))
        subtasks = [(e.operator, e.subtask) for e in self.operators] + [(e.operator, e.subtask) for e in self.sources]
        for operator, subtask in subtasks + [(e.operator, e.subtask) for e in self.inflight]:
            if subtask >= self.parallelism:
                raise InvalidUseError(f"no such subtask operator={operator} subtask={subtask}")
        for committable in self.committables:
            if not 0 < committable.epoch <= self.epoch or committable.checkpoint_id > self.checkpoint_id:
                raise InvalidUseError(f"a committable of another epoch operator={committable.operator}")

    def _check_objects(self) -> None:
        paths = JobPaths(self.job)
        sizes = {entry.path: entry.size_bytes for entry in self.objects}
        for path in sizes:
            owner = checkpoint_of(paths.parse(path))
            if owner is None or owner > self.checkpoint_id:
                raise InvalidUseError(f"not an object of this job and of this or an earlier checkpoint path={path}")
        stored = byte_ranges((*self.operators, *self.sources), self.inflight)
        values = ((p.path, 0, p.size_bytes) for p in self.parameters if p.path is not None)
        for path, offset, length in (*stored, *values):
            if path not in sizes or offset + length > sizes[path]:
                raise InvalidUseError(f"names bytes that no listed object has path={path} offset={offset} length={length}")


def completed(plain: object) -> object:
    """A manifest as JSON with the keys that those of earlier versions lack."""
    return {**ADDED, **plain} if isinstance(plain, dict) else plain


def byte_ranges(
    states: Iterable[OperatorSnapshotEntry | SourceOffsetEntry], inflight: Iterable[InFlightEntry]
) -> Iterator[tuple[str, int, int]]:
    """Path, offset and length of everything that is kept in objects."""
    for entry in states:
        for run in entry.runs:
            if run.path is not None:
                yield run.path, run.offset, run.length
    for flight in inflight:
        yield flight.path, flight.offset, flight.length


def check_unique(what: str, keys: Iterable[Hashable]) -> None:
    """Refuse a key that comes twice."""
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            raise InvalidUseError(f"{what} comes twice key={key}")
        seen.add(key)


def check_crc(crc32c: int, path: str) -> None:
    """Refuse a checksum that does not fit 32 bits."""
    if not 0 <= crc32c < U32_LIMIT:
        raise InvalidUseError(f"a CRC-32C has 32 bits crc32c={crc32c} path={path}")


TaskOutcome = Literal["fired", "finished"]
