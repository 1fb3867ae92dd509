"""What a node reports at its cut and what the plan demands of that report: completeness is set inclusion.

Node n hosts subtask n of every stage. A report must hold all that the plan puts there and nothing else. This
module knows nothing of phases, time or the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidegate.core.checkpoint.manifest import (
    FORMAT_VERSION,
    CheckpointManifest,
    CommittableEntry,
    InFlightEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    SourceOffsetEntry,
    TaskOutcome,
    TaskStats,
    byte_ranges,
)
from tidegate.core.log.codec import decode, encode
from tidegate.core.log.paths import Direction
from tidegate.errors import InvalidUseError
from tidegate.ids import CheckpointId, GangNumber, NodeId, Term


@dataclass(frozen=True, slots=True)
class ChannelRef:
    """One channel as its subtask sees it: direction, edge, and the subtask at the other end."""

    direction: Direction
    edge: int
    peer: int


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How one subtask of one stage took part, and the channels on which its cut is settled.

    ``fired``: it snapshotted at the barrier. ``finished``: it had ended before and reported its last state and
    offset.
    """

    task: str
    subtask: int
    outcome: TaskOutcome
    channels: tuple[ChannelRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAck:
    """One node's part of a checkpoint; everything it names is durable when it is sent.

    ``committables`` are all that this node staged in this gang and has not yet seen committed, those of
    aborted attempts included. ``objects`` are all that its entries name, the parent's included. ``sinks``
    prepared, with or without rows. ``rows_out`` is what they had taken at the cut, of all rows of this gang.
    """

    node: NodeId
    gang: GangNumber
    term: Term
    checkpoint_id: int
    tasks: tuple[TaskReport, ...] = ()
    operators: tuple[OperatorSnapshotEntry, ...] = ()
    sources: tuple[SourceOffsetEntry, ...] = ()
    sinks: tuple[str, ...] = ()
    inflight: tuple[InFlightEntry, ...] = ()
    committables: tuple[CommittableEntry, ...] = ()
    objects: tuple[ObjectEntry, ...] = ()
    bytes_uploaded: int = 0
    duration_ms: int = 0
    unaligned: bool = False
    stats: tuple[TaskStats, ...] = ()
    rows_out: int = 0
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise InvalidUseError(f"sent by another version of tidegate format_version={self.format_version}")
        if CheckpointId(self.checkpoint_id).term != self.term:
            raise InvalidUseError(f"the id is not of this term checkpoint_id={self.checkpoint_id} term={self.term}")
        if not all(c.gang == self.gang and c.checkpoint_id <= self.checkpoint_id for c in self.committables):
            raise InvalidUseError(f"a committable of another gang or of a later cut node={self.node}")

    def to_json(self) -> bytes:
        """The form in which nodes send it."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, path: str = "ack") -> PrepareAck:
        """The ack in these bytes; anything else is ``CorruptDataError``."""
        return decode(cls, data, path)

    def used_objects(self) -> tuple[ObjectEntry, ...]:
        """The listed objects that an entry names; the rest is garbage and not the manifest's business."""
        used = {path for path, _, _ in byte_ranges((*self.operators, *self.sources), self.inflight)}
        return tuple(entry for entry in self.objects if entry.path in used)


@dataclass(frozen=True, slots=True)
class ChannelShape:
    """An edge at one of its ends: a forward edge has one peer, a hash edge all subtasks."""

    task: str
    direction: Direction
    edge: int
    kind: Literal["forward", "hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """What the plan demands of a checkpoint, for every subtask. ``fingerprint`` describes each operator's
    stored form.

    ``operators`` are those with state, ``tasks`` the stages.
    """

    job: str
    parallelism: int
    key_groups: int = 128
    tasks: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    channels: frozenset[ChannelShape] = frozenset()
    fingerprint: Mapping[str, object] = field(default_factory=dict)
    edges: Mapping[int, str] = field(default_factory=dict)
    """What each edge connects, in words that stay the same when the plan numbers its edges anew."""

    @property
    def source_count(self) -> int:
        """How many sources every node hosts a subtask of."""
        return len(self.sources)

    def edges_of(self, channels: Iterable[int]) -> dict[str, object]:
        """What these channels connect, as the manifest keeps it."""
        return {str(channel): self.edges[channel] for channel in sorted(set(channels)) if channel in self.edges}

    def uncovered(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The subtasks that none of these nodes hosts."""
        return tuple(sorted(set(range(self.parallelism)) - set(nodes)))

    def faults(self, ack: PrepareAck) -> tuple[str, ...]:
        """What this ack lacks or has too much, in words. Empty: it is complete."""
        wanted = self._wanted(ack.node)
        reported = _reported(ack)
        missing = [f"missing {what}" for what in sorted(wanted - reported)]
        foreign = [f"unexpected {what}" for what in sorted(_stored(ack) - wanted)]
        return (*missing, *foreign)

    def difference(self, manifest: CheckpointManifest) -> str | None:
        """Why this manifest's state does not fit the plan: the first operator and what differs."""
        if manifest.key_groups != self.key_groups:
            return f"key groups were {manifest.key_groups} and are now {self.key_groups}"
        for operator in sorted(manifest.plan.keys() | self.fingerprint.keys()):
            if operator not in self.fingerprint:
                return f"operator {operator!r} has saved state and is no longer in the plan"
            if operator not in manifest.plan:
                return f"operator {operator!r} is new in the plan and has no saved state"
            if manifest.plan[operator] != self.fingerprint[operator]:
                was, now = manifest.plan[operator], self.fingerprint[operator]
                return f"operator {operator!r} was {was} and is now {now}"
        return self._homeless(manifest)

    def _homeless(self, manifest: CheckpointManifest) -> str | None:
        """Rows in the checkpoint that no operator of this plan would take: leaving them out would lose them."""
        advice = "name operators with .named() to keep their names across changes"
        for entry in manifest.operators:
            if entry.runs and entry.operator not in self.operators:
                return f"operator {entry.operator!r} held rows and is no longer in the plan: {advice}"
        known = set(self.edges.values())
        for edge in manifest.edges.values():
            if edge not in known:
                return f"rows were in flight on the edge {edge}, which the plan does not have: {advice}"
        return None

    def _wanted(self, node: NodeId) -> set[str]:
        if node >= self.parallelism:
            return set()
        wanted = {f"task {task}/{node}" for task in self.tasks}
        wanted |= {f"operator {operator}/{node}" for operator in self.operators}
        wanted |= {f"source {source}/{node}" for source in self.sources}
        wanted |= {f"sink {sink}/{node}" for sink in self.sinks}
        return wanted | {
            _channel(shape.task, node, ChannelRef(shape.direction, shape.edge, peer))
            for shape in self.channels
            for peer in ((node,) if shape.kind == "forward" else range(self.parallelism))
        }


def _reported(ack: PrepareAck) -> set[str]:
    reported = _stored(ack) | {f"task {report.task}/{report.subtask}" for report in ack.tasks}
    reported |= {f"sink {sink}/{ack.node}" for sink in ack.sinks}
    return reported | {_channel(report.task, report.subtask, channel) for report in ack.tasks for channel in report.channels}


def _stored(ack: PrepareAck) -> set[str]:
    """What would end up in the manifest; none of it may be somebody else's."""
    stored = {f"operator {entry.operator}/{entry.subtask}" for entry in ack.operators}
    stored |= {f"source {entry.operator}/{entry.subtask}" for entry in ack.sources}
    return stored | {f"sink {entry.operator}/{entry.subtask}" for entry in ack.committables}


def _channel(task: str, subtask: int, ref: ChannelRef) -> str:
    return f"channel {task}/{subtask} {ref.direction} edge={ref.edge} peer={ref.peer}"
