"""One order for all barriers of the data channel, checkpoint and control alike, decided at the head.

Two sources that were told of two barriers in different order would send them in different order, and a fan-in
would wait for ever. So one barrier is in flight at a time; the rest wait here. Knows no sources or channels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.control.signals import BarrierControlSignal, BarrierControlSignalKind
from tidegate.errors import ChannelFull, DuplicateBarrier, EpochMismatch, InvalidUseError, ProtocolError

WAITING_MAX = 64
"""Barriers that may wait for the one in flight."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Names a checkpoint barrier among all barriers, in either mode."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ControlKey:
    """Names a control barrier among all barriers."""

    barrier_id: int
    kind: BarrierControlSignalKind


SequenceKey: TypeAlias = CheckpointKey | ControlKey
HeadBarrier: TypeAlias = CheckpointBarrier | BarrierControlSignal


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell every source to emit this barrier now; it is in flight until ``done`` or ``abort``."""

    barrier: HeadBarrier


@dataclass(frozen=True, slots=True)
class Queued:
    """The barrier waits; ``ahead`` barriers go before it, the one in flight included."""

    before: int


def key_of(barrier: HeadBarrier) -> SequenceKey:
    """The key by which ``done`` and ``abort`` know this barrier."""
    if isinstance(barrier, CheckpointBarrier):
        return CheckpointKey(barrier.checkpoint_id)
    return ControlKey(barrier.barrier_id, barrier.kind)


class HeadSequencer:
    """Lets one barrier at a time into the data channel, in the order of the requests.

    It has no clock: whoever asked for a barrier ends it by ``done`` or, when it takes too long, by
    ``abort``. A control barrier in flight cannot be aborted, because fan-ins may hold inputs for it: only
    a new start of the gang ends it. Refused calls change nothing.
    """

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        if waiting_max < 0:
            raise InvalidUseError(f"waiting_max is not negative waiting_max={waiting_max}")
        self._waiting_max = waiting_max
        self._in_flight: HeadBarrier | None = None
        self._waiting: deque[HeadBarrier] = deque()
        self._highest_checkpoint = 0
        self._highest_control = 0
        self._ending: SequenceKey | None = None

    @property
    def in_flight(self) -> HeadBarrier | None:
        """The barrier that the sources were told to emit last, unless it is over."""
        return self._in_flight

    @property
    def waiting(self) -> tuple[HeadBarrier, ...]:
        """The barriers that wait, in the order in which they will go."""
        return tuple(self._waiting)

    def request(self, barrier: HeadBarrier) -> Emit | Queued:
        """Ask to be next in the order. ``ChannelFull``: too many wait. No other signal follows a terminal one."""
        self._check(barrier)
        self._remember(barrier)
        if self._in_flight is None:
            self._in_flight = barrier
            return Emit(barrier)
        self._waiting.append(barrier)
        return Queued(before=len(self._waiting))

    def done(self, key: SequenceKey) -> Emit | None:
        """Every source has emitted the barrier; the next one goes. A key that is over changes nothing."""
        if any(key_of(barrier) == key for barrier in self._waiting):
            raise ProtocolError(f"a barrier that still waits cannot have been emitted key={key}")
        return self._next() if self._is_in_flight(key) else None

    def abort(self, key: SequenceKey) -> Emit | None:
        """Give this barrier up, in flight or waiting; returns the next one if that sets it free. Idempotent."""
        if self._is_in_flight(key):
            if isinstance(key, ControlKey):
                raise InvalidUseError(f"a control barrier in flight ends only by a restart key={key}")
            return self._next()
        if self._ending == key:
            self._ending = None
        self._waiting = deque(barrier for barrier in self._waiting if key_of(barrier) != key)
        return None

    def _is_in_flight(self, key: SequenceKey) -> bool:
        return self._in_flight is not None and key_of(self._in_flight) == key

    def _next(self) -> Emit | None:
        self._in_flight = self._waiting.popleft() if self._waiting else None
        return None if self._in_flight is None else Emit(self._in_flight)

    def _check(self, barrier: HeadBarrier) -> None:
        key = key_of(barrier)
        if self._is_in_flight(key) or any(key_of(other) == key for other in self._waiting):
            raise DuplicateBarrier(f"this barrier is in the order already key={key}")
        if self._ending is not None and isinstance(key, ControlKey):  # checkpoints go on until all has ended
            raise InvalidUseError(f"the stream ends: no signal may follow key={key} ending={self._ending}")
        number, highest = self._numbers(barrier)
        if number <= highest:
            raise EpochMismatch(f"barrier ids only grow: ask with a higher one key={key} highest={highest}")
        if self._in_flight is not None and len(self._waiting) >= self._waiting_max:
            raise ChannelFull(f"too many barriers wait: try later key={key} waiting={len(self._waiting)}")

    def _numbers(self, barrier: HeadBarrier) -> tuple[int, int]:
        if isinstance(barrier, CheckpointBarrier):
            return barrier.checkpoint_id, self._highest_checkpoint
        return barrier.barrier_id, self._highest_control

    def _remember(self, barrier: HeadBarrier) -> None:
        if isinstance(barrier, CheckpointBarrier):
            self._highest_checkpoint = barrier.checkpoint_id
            return
        self._highest_control = barrier.barrier_id
        if barrier.is_terminal:
            self._ending = key_of(barrier)
