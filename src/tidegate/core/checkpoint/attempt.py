"""One attempt at a checkpoint: its phases, who has reported, its deadlines, and the manifest that comes of
it.

It emits no effects and does not know the log; the coordinator does. Time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from typing import TypeAlias

from tidegate.core.checkpoint.adapt import AlignmentTimeout, Observed
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry, NodeStats, ObjectEntry
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck
from tidegate.core.control.ask import ControlChanged
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointAbortedError,
    CheckpointTimeout,
    InvalidUseError,
    ManifestSerializationFailed,
    NodeTimeout,
    UnexpectedPhase,
)
from tidegate.ids import Epoch, GangNumber, NodeId, Term


class CheckpointPhase(Enum):
    """Where an attempt stands."""

    INJECTING_BARRIERS = "injecting barriers"
    WAITING_FOR_PREPARE = "waiting for prepare"
    COMMITTING = "committing"
    COMPLETED = "completed"
    ABORTED = "aborted"


LEGAL_PHASES: dict[CheckpointPhase, frozenset[CheckpointPhase]] = {
    CheckpointPhase.INJECTING_BARRIERS: frozenset({CheckpointPhase.WAITING_FOR_PREPARE, CheckpointPhase.ABORTED}),
    CheckpointPhase.WAITING_FOR_PREPARE: frozenset({CheckpointPhase.COMMITTING, CheckpointPhase.ABORTED}),
    # Only a conflict aborts here: the slot went to somebody else, so the manifest can never be in the log.
    CheckpointPhase.COMMITTING: frozenset({CheckpointPhase.COMPLETED, CheckpointPhase.ABORTED}),
    CheckpointPhase.COMPLETED: frozenset(),
    CheckpointPhase.ABORTED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Promote:
    """Barriers may overtake from now on."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A deadline has passed."""

    error: CheckpointAbortedError


Overdue: TypeAlias = Promote | Expired | None


@dataclass(slots=True, kw_only=True)
class CheckpointAttempt:
    """The live attempt. Participants are frozen at its start. ``progress_ms``: when a node last moved on.

    ``learned_alignment_timeout_ms`` counts instead of the configured one. ``control``: whether a signal is on its
    way, which no barrier may overtake, and the parameters of the cut. ``compacts``: every run is written again.
    """

    checkpoint_id: int
    epoch: Epoch
    parent: CheckpointManifest | None
    gang: GangNumber
    term: Term
    nodes: frozenset[NodeId]
    sources: frozenset[NodeId]
    started_ms: int
    wall_ms: int = 0
    savepoint: str | None = None
    final: bool = False
    learned_alignment_timeout_ms: int | None = None
    control: ControlChanged = field(default_factory=ControlChanged)
    compacts: bool = False
    requests: list[str] = field(default_factory=list)
    phase: CheckpointPhase = CheckpointPhase.INJECTING_BARRIERS
    progress_ms: int = 0
    promoted: bool = False
    injected: set[int] = field(default_factory=set)
    acks: dict[NodeId, PrepareAck] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.progress_ms = self.started_ms
        if self.final or not self.sources:
            self.move(CheckpointPhase.WAITING_FOR_PREPARE)

    @property
    def can_abort(self) -> bool:
        """True before the put: afterwards only the log decides."""
        return self.phase in (CheckpointPhase.INJECTING_BARRIERS, CheckpointPhase.WAITING_FOR_PREPARE)

    @property
    def missing(self) -> frozenset[NodeId]:
        """The nodes that have not reported."""
        return self.nodes - self.acks.keys()

    def move(self, phase: CheckpointPhase) -> None:
        """Go to another phase, if that is legal."""
        if phase not in LEGAL_PHASES[self.phase]:
            raise UnexpectedPhase(
                f"a checkpoint cannot go from {self.phase.value!r} to {phase.value!r} checkpoint_id={self.checkpoint_id}"
            )
        self.phase = phase

    def injection_acked(self, node: NodeId, now_ms: int) -> None:
        """This node has taken the barrier command. Idempotent."""
        self.injected.add(node)
        if self.phase is CheckpointPhase.INJECTING_BARRIERS and self.sources <= self.injected:
            self.move(CheckpointPhase.WAITING_FOR_PREPARE)
            self.progress_ms = now_ms

    def prepared(self, ack: PrepareAck, now_ms: int) -> bool:
        """This node has reported; false if it had before.

        It may come before its injection ack, and implies it.
        """
        if ack.node in self.acks:
            return False
        self.acks[ack.node] = ack
        self.progress_ms = now_ms
        self.injection_acked(ack.node, now_ms)
        return True

    def deadline_ms(self, config: DistributedCheckpointConfig) -> int | None:
        """When ``overdue`` will next have something to say."""
        if not self.can_abort:
            return None
        times = [self.started_ms + config.checkpoint_timeout_ms]
        if self.phase is CheckpointPhase.INJECTING_BARRIERS:
            times.append(self.started_ms + config.barrier_injection_timeout_ms)
        else:
            times.append(self.progress_ms + config.node_snapshot_timeout_ms)
        if self._promotable(config):
            times.append(self.started_ms + self._alignment_timeout_ms(config))
        return min(times)

    def overdue(self, config: DistributedCheckpointConfig, now_ms: int) -> Overdue:
        """What the time demands. A checkpoint is never aborted once its put is under way."""
        if not self.can_abort:
            return None
        age_ms = now_ms - self.started_ms
        if age_ms >= config.checkpoint_timeout_ms:
            return Expired(self._late(CheckpointTimeout, "it took too long", age_ms))
        if self.phase is CheckpointPhase.INJECTING_BARRIERS:
            if age_ms >= config.barrier_injection_timeout_ms:
                return Expired(self._late(BarrierInjectionFailed, "sources did not take the barrier", age_ms))
        elif now_ms - self.progress_ms >= config.node_snapshot_timeout_ms:
            return Expired(self._late(NodeTimeout, "nodes did not report in time", age_ms))
        if self._promotable(config) and age_ms >= self._alignment_timeout_ms(config):
            return Promote()
        return None

    def alignment_timeout_ms(self, config: DistributedCheckpointConfig) -> int | None:
        """After how long barriers may overtake; ``None``: never."""
        aligned = self._may_not_overtake or not config.enable_unaligned_fallback
        return None if aligned else self._alignment_timeout_ms(config)

    def learned(self, timeout: AlignmentTimeout | None, unaligned: bool) -> AlignmentTimeout | None:
        """The alignment timeout after this attempt's commit. What may not overtake teaches nothing."""
        used_ms = self.learned_alignment_timeout_ms
        if timeout is None or used_ms is None or self._may_not_overtake:
            return timeout
        return timeout.learned(Observed(unaligned, self.progress_ms - self.started_ms, used_ms))

    @property
    def _may_not_overtake(self) -> bool:
        return self.final or self.control.pinned or self.savepoint is not None

    def _alignment_timeout_ms(self, config: DistributedCheckpointConfig) -> int:
        learned_ms = self.learned_alignment_timeout_ms
        return config.unaligned_threshold_ms if learned_ms is None else learned_ms

    def _promotable(self, config: DistributedCheckpointConfig) -> bool:
        return not self.promoted and bool(self.alignment_timeout_ms(config))

    def _late(self, kind: type[CheckpointAbortedError], what: str, age_ms: int) -> CheckpointAbortedError:
        injecting = self.phase is CheckpointPhase.INJECTING_BARRIERS
        nodes = sorted(self.sources - self.injected if injecting else self.missing)
        missing: dict[int, str] = dict.fromkeys(nodes, "did not take the barrier" if injecting else "did not report")
        return kind(f"{what} nodes={nodes} age_ms={age_ms}", checkpoint_id=self.checkpoint_id, failed_nodes=missing)


def assemble(
    attempt: CheckpointAttempt,
    shape: PlanShape,
    committables: Iterable[CommittableEntry],
    *,
    oldest: Epoch,
    leader: str,
    wall_ms: int,
) -> CheckpointManifest:
    """The manifest of a complete attempt. What cannot be one is ``ManifestSerializationFailed``.

    Committables that no manifest has named before get this epoch.
    """
    acks = [attempt.acks[node] for node in sorted(attempt.acks)]
    objects: dict[str, ObjectEntry] = {}
    try:
        stored = [ObjectEntry(p.path, p.size_bytes, p.crc32c) for p in attempt.control.parameters if p.path is not None]
        for entry in (*stored, *(entry for ack in acks for entry in ack.used_objects())):
            if objects.setdefault(entry.path, entry) != entry:
                raise InvalidUseError(f"two nodes disagree about an object path={entry.path}")
        manifest = CheckpointManifest(
            job=shape.job,
            checkpoint_id=attempt.checkpoint_id,
            epoch=attempt.epoch,
            parent=None if attempt.parent is None else attempt.parent.epoch,
            gang=attempt.gang,
            term=attempt.term,
            uuid=uuid7(wall_ms, f"{leader}/{attempt.checkpoint_id}"),
            final=attempt.final,
            savepoint=attempt.savepoint,
            is_unaligned=any(ack.unaligned or ack.inflight for ack in acks),
            parallelism=shape.parallelism,
            key_groups=shape.key_groups,
            plan=shape.fingerprint,
            trigger_wall_ms=attempt.wall_ms,
            commit_wall_ms=wall_ms,
            oldest_restorable=oldest,
            operators=tuple(entry for ack in acks for entry in ack.operators),
            sources=tuple(entry for ack in acks for entry in ack.sources),
            inflight=tuple(entry for ack in acks for entry in ack.inflight),
            parameters=attempt.control.parameters,
            edges=shape.edges_of(entry.channel for ack in acks for entry in ack.inflight),
            committables=tuple(replace(c, epoch=c.epoch or attempt.epoch) for c in committables),
            objects=tuple(objects.values()),
            nodes=tuple(NodeStats(a.node, a.bytes_uploaded, a.duration_ms, a.unaligned, a.stats) for a in acks),
        )
        manifest.check_parent(attempt.parent)
    except InvalidUseError as error:
        raise ManifestSerializationFailed(
            f"the reports make no manifest: {error}", checkpoint_id=attempt.checkpoint_id
        ) from error
    return manifest


def uuid7(wall_ms: int, seed: str) -> str:
    """A version 7 UUID of this time. The same seed makes the same random part, so seeds must not repeat."""
    noise = int.from_bytes(sha256(seed.encode()).digest()[:10], "big")
    value = (wall_ms & ((1 << 48) - 1)) << 80 | 7 << 76 | (noise >> 62 & 0xFFF) << 64 | 2 << 62 | noise & ((1 << 62) - 1)
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
