"""Who has delivered a barrier and who has not. Inputs are known by identity, any number; nothing is counted.

This module decides when a cut is made. It knows nothing of queues, data, recordings or time.

    KeyAligner       one key over a set of inputs, for control barriers
    BarrierAligner   checkpoint barriers: aligned, with the fall-back to unaligned
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tidegate.core.barrier.messages import UNALIGNED_FLAG, CheckpointBarrier
from tidegate.errors import BarrierOverlap, DuplicateBarrier, InvalidUseError, ProtocolError

PINNED_FLAG = 2
"""Bit 1 of a barrier's flags: it stays aligned everywhere (a savepoint). It is in the barrier itself because
that may reach a node before the news that the checkpoint has started."""


@dataclass(frozen=True, slots=True)
class UnalignedCheckpointConfig:
    """When a checkpoint stops to wait for its barriers, and how much data it may record per channel.

    The names are of the protocol's own description: ``alignment_timeout_threshold_ms`` is the alignment timeout, and
    ``max_inflight_buffer_bytes`` what users call ``max_inflight_bytes``.
    """

    enabled: bool = True
    alignment_timeout_threshold_ms: int = 30_000
    max_inflight_buffer_bytes: int = 512 * 1024 * 1024
    force_unaligned: bool = False

    def __post_init__(self) -> None:
        if self.alignment_timeout_threshold_ms < 0:
            raise InvalidUseError(
                f"give an alignment timeout of 0 or more alignment_timeout_threshold_ms={self.alignment_timeout_threshold_ms}"
            )
        if self.max_inflight_buffer_bytes <= 0:
            raise InvalidUseError(
                f"give a positive limit for in-flight data max_inflight_buffer_bytes={self.max_inflight_buffer_bytes}"
            )
        if self.force_unaligned and not self.enabled:
            raise InvalidUseError("unaligned checkpoints can't be both forced and off enabled=False")

    def keeps_aligned(self, barrier: CheckpointBarrier) -> bool:
        """True when this barrier never overtakes data."""
        return not self.enabled or bool(barrier.flags & PINNED_FLAG)


DEFAULT_CONFIG = UnalignedCheckpointConfig()


def as_aligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The same barrier without the flag: it keeps its position among the data."""
    if barrier.is_aligned:
        return barrier
    return CheckpointBarrier(barrier.checkpoint_id, barrier.epoch, barrier.flags & ~UNALIGNED_FLAG)


def as_pinned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The same barrier, aligned, and nobody may flag it."""
    flags = (barrier.flags | PINNED_FLAG) & ~UNALIGNED_FLAG
    return CheckpointBarrier(barrier.checkpoint_id, barrier.epoch, flags)


# -- one key over a set of inputs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """The key is pending; ``missing`` inputs have not delivered it."""

    key: Hashable
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Complete:
    """Every open input has delivered the key. The aligner is free again."""

    key: Hashable


class KeyAligner:
    """Aligns one key at a time over a set of inputs. A refused arrival changes nothing."""

    def __init__(self, inputs: Iterable[int]) -> None:
        self._open = set(inputs)
        self._key: Hashable = None
        self._arrived: set[int] = set()

    @property
    def held(self) -> frozenset[int]:
        """The inputs that delivered the pending key: nothing after it may pass."""
        return frozenset(self._arrived)

    def arrive(self, input_id: int, key: Hashable) -> Waiting | Complete:
        """An input delivered the key."""
        if input_id not in self._open:
            raise ProtocolError(f"a barrier from an unknown or ended input input={input_id} key={key}")
        if self._arrived and key != self._key:
            raise BarrierOverlap(f"another barrier is pending input={input_id} key={key} pending={self._key}")
        if input_id in self._arrived:
            raise DuplicateBarrier(f"this input delivered the barrier before input={input_id} key={key}")
        self._key = key
        self._arrived.add(input_id)
        return self._judge()

    def ended(self, input_id: int) -> Waiting | Complete | None:
        """An input sends nothing more: it holds nothing back. ``None``: no key was pending. Idempotent."""
        self._open.discard(input_id)
        return self._judge() if self._arrived else None

    def _judge(self) -> Waiting | Complete:
        key, missing = self._key, self._open - self._arrived
        if missing:
            return Waiting(key, frozenset(missing))
        self._key = None
        self._arrived = set()
        return Complete(key)


# -- checkpoint barriers: states -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """No checkpoint is under way at this fan-in."""


@dataclass(frozen=True, slots=True)
class Aligning:
    """``arrived`` inputs are held back after their barrier until the others deliver theirs."""

    barrier: CheckpointBarrier
    arrived: frozenset[int]


@dataclass(frozen=True, slots=True)
class Recording:
    """The snapshot was taken unaligned; ``missing`` inputs are recorded until their barrier."""

    barrier: CheckpointBarrier
    missing: frozenset[int]


AlignmentState: TypeAlias = Idle | Aligning | Recording


# -- checkpoint barriers: outcomes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """Read nothing more from this input until the next ``Cut`` or ``Drop``."""

    input_id: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The snapshot fires now and no input is held any more. The barrier's flag tells the mode.

    ``record``: the inputs whose barrier had not had its turn. What they have queued before it is recorded,
    and what arrives on them until their ``StopRecording``. If the barrier is queued already, the ``StopRecording`` comes next.
    """

    barrier: CheckpointBarrier
    record: frozenset[int]


@dataclass(frozen=True, slots=True)
class StopRecording:
    """Stop recording this input: its barrier or its end was received."""

    input_id: int


@dataclass(frozen=True, slots=True)
class RecordingDone:
    """Nothing is left to record for this checkpoint. ``last_input`` kept it waiting longest, if one did."""

    checkpoint_id: int
    last_input: int | None


@dataclass(frozen=True, slots=True)
class Drop:
    """The checkpoint under way is over here; no input is held. ``newer``: what replaced it, or 0."""

    checkpoint_id: int
    newer: int = 0


Outcome: TypeAlias = Hold | Cut | StopRecording | RecordingDone | Drop


class BarrierAligner:
    """The alignment of checkpoint barriers over a set of inputs.

    Each method takes one fact and returns the outcomes, in the order in which they are to be carried out.
    ``dead`` is the highest id aborted, subsumed or completed here: what comes for such an id has no effect.
    """

    __slots__ = ("dead", "open", "state")

    def __init__(self, inputs: Iterable[int]) -> None:
        self.open = frozenset(inputs)
        self.state: AlignmentState = Idle()
        self.dead = 0

    def turn(self, input_id: int, barrier: CheckpointBarrier) -> list[Outcome]:
        """An aligned barrier has its turn on an input: all data before it was processed."""
        if self._is_stale(barrier):
            return []
        dropped = self.subsume(barrier)
        match self.state:
            case Idle():
                return [*dropped, *self._arrive(barrier, frozenset((input_id,)), input_id)]
            case Aligning(_, arrived):
                return self._arrive(barrier, arrived | {input_id}, input_id)
            case Recording():
                return self._close(frozenset((input_id,)))
            case _ as never:  # pragma: no cover  (mypy proves it)
                assert_never(never)

    def overtake(self, barrier: CheckpointBarrier, known: frozenset[int]) -> list[Outcome]:
        """A barrier acts at receipt, before data. ``known``: inputs with it, or their end, in the queue."""
        if self._is_stale(barrier):
            return []
        dropped = self.subsume(barrier)
        match self.state:
            case Idle():
                return [*dropped, *self._cut(barrier, frozenset(), known)]
            case Aligning(_, arrived):
                return self._cut(barrier, arrived, known)
            case Recording():
                return self._close(known)
            case _ as never:  # pragma: no cover  (mypy proves it)
                assert_never(never)

    def deadline(self, barrier: CheckpointBarrier, known: frozenset[int]) -> list[Outcome]:
        """The id's deadline passed. Without any sign of its barrier here there is nothing to do yet."""
        state = self.state
        is_aligning = isinstance(state, Aligning) and state.barrier.checkpoint_id == barrier.checkpoint_id
        return self.overtake(barrier, known) if known or is_aligning else []

    def end_received(self, input_id: int) -> list[Outcome]:
        """An end was received: after it there is nothing to record."""
        return self._close(frozenset((input_id,))) if isinstance(self.state, Recording) else []

    def ended(self, input_id: int) -> list[Outcome]:
        """An end has its turn: the input counts as arrived from now on. Idempotent."""
        self.open -= {input_id}
        match self.state:
            case Idle():
                return []
            case Aligning(barrier, arrived):
                return self._arrive(barrier, arrived, input_id) if self.open <= arrived else []
            case Recording():
                return self._close(frozenset((input_id,)))
            case _ as never:  # pragma: no cover  (mypy proves it)
                assert_never(never)

    def abort(self, checkpoint_id: int) -> list[Outcome]:
        """This id and all below are dead. Idempotent."""
        self.dead = max(self.dead, checkpoint_id)
        match self.state:
            case Idle():
                return []
            case Aligning(barrier) | Recording(barrier):
                return self._drop(barrier) if barrier.checkpoint_id <= checkpoint_id else []
            case _ as never:  # pragma: no cover  (mypy proves it)
                assert_never(never)

    def subsume(self, barrier: CheckpointBarrier) -> list[Outcome]:
        """A newer barrier ends the checkpoint under way; the same or an older one does not."""
        if isinstance(self.state, Idle) or self.state.barrier.checkpoint_id >= barrier.checkpoint_id:
            return []
        return self._drop(self.state.barrier, barrier.checkpoint_id)

    def _is_stale(self, barrier: CheckpointBarrier) -> bool:
        current = 0 if isinstance(self.state, Idle) else self.state.barrier.checkpoint_id
        return barrier.checkpoint_id <= self.dead or barrier.checkpoint_id < current

    def _arrive(self, barrier: CheckpointBarrier, arrived: frozenset[int], input_id: int) -> list[Outcome]:
        if self.open <= arrived:
            return [Cut(as_aligned(barrier), frozenset()), self._settle(barrier, input_id)]
        self.state = Aligning(barrier, arrived)
        return [Hold(input_id)]

    def _cut(self, barrier: CheckpointBarrier, arrived: frozenset[int], known: frozenset[int]) -> list[Outcome]:
        record = self.open - arrived
        self.state = Recording(barrier, record)
        return [Cut(barrier.as_unaligned(), record), *self._close(known)]

    def _close(self, known: frozenset[int]) -> list[Outcome]:
        assert isinstance(self.state, Recording)
        barrier, missing = self.state.barrier, self.state.missing
        stops: list[Outcome] = [StopRecording(input_id) for input_id in sorted(known & missing)]
        if not stops:
            return []
        if missing - known:
            self.state = Recording(barrier, missing - known)
            return stops
        return [*stops, self._settle(barrier, min(known) if len(known) == 1 else None)]

    def _settle(self, barrier: CheckpointBarrier, last_input: int | None) -> RecordingDone:
        self.state = Idle()
        self.dead = max(self.dead, barrier.checkpoint_id)
        return RecordingDone(barrier.checkpoint_id, last_input)

    def _drop(self, barrier: CheckpointBarrier, newer: int = 0) -> list[Outcome]:
        self.state = Idle()
        self.dead = max(self.dead, barrier.checkpoint_id)
        return [Drop(barrier.checkpoint_id, newer)]
