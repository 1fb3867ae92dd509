"""Signals that tell processors what to do: at once, or when all upstreams have reached the same point.

A barrier signal has a number from one counter at the head and travels in exactly one of the two channels,
data or control. Each channel has its own alignment. This module decides which signals pass; it moves nothing.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from tidegate.core.barrier.align import Complete, KeyAligner, Waiting
from tidegate.core.barrier.messages import Control, End, StreamMessage
from tidegate.errors import ChannelFull, CorruptDataError, InvalidUseError, ProtocolError
from tidegate.ids import U64_LIMIT

T = TypeVar("T")

_SIGNAL = struct.Struct("<BBQ")
SIGNAL_BYTES = _SIGNAL.size
HOLD_MAX = 1_024
"""Messages kept per early input. A shell that stops reading held inputs needs a few."""


class InstantControlSignal(Enum):
    """A signal that is obeyed when it is seen."""

    StreamQuickEnd = 1
    """Stop now; what is still on its way is dropped. Terminal."""

    FlushBuffers = 2
    """Send on what is buffered for efficiency."""

    @property
    def is_terminal(self) -> bool:
        """True when a processor stops after this signal."""
        return self is InstantControlSignal.StreamQuickEnd


class BarrierControlSignalKind(Enum):
    """What a barrier signal means, without its number."""

    StreamGracefulEnd = 1
    """Everything before this point is processed, then processors stop. Terminal."""

    SyncTest = 2
    """Means nothing; for tests of alignment."""

    @property
    def is_terminal(self) -> bool:
        """True when a processor stops after this signal."""
        return self is BarrierControlSignalKind.StreamGracefulEnd

    def with_id(self, barrier_id: int) -> BarrierControlSignal:
        """This kind as a signal with a number."""
        return BarrierControlSignal(self, barrier_id)


@dataclass(frozen=True, slots=True)
class BarrierControlSignal:
    """A kind and its number. Numbers start at 1."""

    kind: BarrierControlSignalKind
    barrier_id: int

    def __post_init__(self) -> None:
        if not 0 < self.barrier_id < U64_LIMIT:
            raise InvalidUseError(f"a barrier id is a positive 64-bit number barrier_id={self.barrier_id}")

    @property
    def key(self) -> tuple[int, BarrierControlSignalKind]:
        """What must be equal on all upstreams."""
        return (self.barrier_id, self.kind)

    @property
    def is_terminal(self) -> bool:
        """True when a processor stops after this signal."""
        return self.kind.is_terminal


class ControlSignal(ABC):
    """``Instant`` or ``BarrierSignal``."""

    __slots__ = ()

    @property
    def is_barrier(self) -> bool:
        """True when all upstreams must have delivered it before it passes."""
        return isinstance(self, BarrierSignal)

    @property
    @abstractmethod
    def is_terminal(self) -> bool:
        """True when a processor stops after this signal."""

    @property
    @abstractmethod
    def key(self) -> tuple[int, InstantControlSignal | BarrierControlSignalKind]:
        """Number and kind. Instant signals have the number 0."""

    def pack(self) -> bytes:
        """Ten bytes: form (0 instant, 1 barrier), kind, number; little endian."""
        number, kind = self.key
        return _SIGNAL.pack(int(self.is_barrier), kind.value, number)

    @staticmethod
    def unpack(data: bytes | bytearray | memoryview) -> ControlSignal:
        """The signal in these bytes; anything that ``pack`` does not return is corrupt."""
        return unpack(data)


@dataclass(frozen=True, slots=True)
class Instant(ControlSignal):
    """Obeyed at once, never aligned."""

    signal: InstantControlSignal

    @property
    def is_terminal(self) -> bool:
        return self.signal.is_terminal

    @property
    def key(self) -> tuple[int, InstantControlSignal]:
        return (0, self.signal)


@dataclass(frozen=True, slots=True)
class BarrierSignal(ControlSignal):
    """Aligned at every fan-in, then passed on once."""

    signal: BarrierControlSignal

    @property
    def is_terminal(self) -> bool:
        return self.signal.is_terminal

    @property
    def key(self) -> tuple[int, BarrierControlSignalKind]:
        return self.signal.key


def unpack(data: bytes | bytearray | memoryview) -> ControlSignal:
    """The signal in these bytes; anything that ``pack`` does not return is corrupt."""
    if len(data) != SIGNAL_BYTES:
        raise CorruptDataError(f"a control signal has {SIGNAL_BYTES} bytes length={len(data)}")
    form, kind, number = _SIGNAL.unpack(data)
    try:
        if form == 0 and number == 0:
            return Instant(InstantControlSignal(kind))
        if form == 1:
            return BarrierSignal(BarrierControlSignalKind(kind).with_id(number))
    except ValueError:
        pass
    raise CorruptDataError(f"no such control signal form={form} kind={kind} barrier_id={number}")


# -- the head --------------------------------------------------------------------------------------


class Channel(Enum):
    """Which of the two channels carries a signal. They never cross."""

    DATA = "data"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Carried:
    """A signal and the one channel that is to carry it."""

    channel: Channel
    signal: ControlSignal


class ControlSourceProcessor:
    """The head of the pipeline: numbers barrier signals, one counter for both channels.

    A barrier signal for the data channel still has to pass the head's sequencer.
    """

    def __init__(self, *, next_id: int = 1) -> None:
        if not 0 < next_id < U64_LIMIT:
            raise InvalidUseError(f"a barrier id is a positive 64-bit number next_id={next_id}")
        self._next_id = next_id
        self._stopped = False

    @property
    def next_id(self) -> int:
        """The number that the next barrier signal gets."""
        return self._next_id

    @property
    def stopped(self) -> bool:
        """True after a terminal signal."""
        return self._stopped

    def send(self, what: InstantControlSignal | BarrierControlSignalKind, channel: Channel) -> Carried:
        """Make the signal for this channel. Nothing can be sent after a terminal signal."""
        if self._stopped:
            raise InvalidUseError(f"the stream has been told to end: no signal may follow signal={what.name}")
        signal = self._signal(what)
        self._stopped = signal.is_terminal
        return Carried(channel, signal)

    def _signal(self, what: InstantControlSignal | BarrierControlSignalKind) -> ControlSignal:
        if isinstance(what, InstantControlSignal):
            return Instant(what)
        signal = BarrierSignal(what.with_id(self._next_id))
        self._next_id += 1
        return signal


# -- the fan-in ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForwardData(Generic[T]):
    """Pass this message on, as it came, on the port of its input."""

    input_id: int
    message: StreamMessage[T]


@dataclass(frozen=True, slots=True)
class ForwardSignal:
    """Pass this signal on, once, in the channel it came in. AFTER all data that came before it."""

    channel: Channel
    signal: ControlSignal


@dataclass(frozen=True, slots=True)
class Stop:
    """A terminal signal went on: stop. ``dropped`` messages were after it on early inputs."""

    dropped: int = 0


ProcessorEffect: TypeAlias = ForwardData[T] | ForwardSignal | Stop


class BarrierProcessor(Generic[T]):
    """Aligns barrier signals of several upstreams, known by identity, and passes everything else on.

    Effects are to be performed in the order returned. An input that delivered a pending barrier is held: read
    nothing from it. What comes all the same is kept, up to ``hold_max``. A refused message changes nothing.
    """

    def __init__(self, upstreams: Sequence[int], *, hold_max: int = HOLD_MAX) -> None:
        if not upstreams or len(set(upstreams)) != len(upstreams):
            raise InvalidUseError(f"upstreams are one or more different inputs upstreams={list(upstreams)}")
        if hold_max < 1:
            raise InvalidUseError(f"hold_max must be at least 1 hold_max={hold_max}")
        self._hold_max = hold_max
        self._aligners = {channel: KeyAligner(upstreams) for channel in Channel}
        self._pending: dict[Channel, ControlSignal] = {}
        self._kept: dict[int, deque[StreamMessage[T]]] = {input_id: deque() for input_id in upstreams}
        self._ended: set[int] = set()
        self._stopped = False

    @property
    def expected_upstreams(self) -> int:
        """How many upstreams there are, ended ones included."""
        return len(self._kept)

    @property
    def stopped(self) -> bool:
        """True after a terminal signal went on; whatever comes later is ignored."""
        return self._stopped

    @property
    def held(self) -> frozenset[int]:
        """The inputs whose data waits after a barrier signal of the data channel."""
        return self._aligners[Channel.DATA].held

    def data(self, input_id: int, message: StreamMessage[T]) -> list[ProcessorEffect[T]]:
        """A message came on the data channel of an input."""
        self._check_input(input_id)
        if self._stopped:
            return []
        if input_id in self._ended:
            raise ProtocolError(f"a message after the end of an input input={input_id} message={message}")
        if isinstance(message, Control):
            return self._signalled(Channel.DATA, input_id, message.signal)
        if input_id in self.held:
            return self._keep(input_id, message)
        return self._pass(input_id, message)

    def control(self, input_id: int, signal: ControlSignal) -> list[ProcessorEffect[T]]:
        """A signal came on the control channel of an input."""
        self._check_input(input_id)
        return [] if self._stopped else self._signalled(Channel.CONTROL, input_id, signal)

    def control_ended(self, input_id: int) -> list[ProcessorEffect[T]]:
        """The control channel of an input sends nothing more, so nobody waits for it. Idempotent."""
        self._check_input(input_id)
        answer = self._aligners[Channel.CONTROL].ended(input_id)
        return [] if self._stopped else self._judge(Channel.CONTROL, answer)

    def _check_input(self, input_id: int) -> None:
        if input_id not in self._kept:
            raise ProtocolError(f"no such upstream input={input_id}")

    def _signalled(self, channel: Channel, input_id: int, signal: ControlSignal) -> list[ProcessorEffect[T]]:
        if not signal.is_barrier:
            return self._forward(channel, signal)
        answer = self._aligners[channel].arrive(input_id, signal.key)
        self._pending[channel] = signal
        return self._judge(channel, answer)

    def _judge(self, channel: Channel, answer: Waiting | Complete | None) -> list[ProcessorEffect[T]]:
        if not isinstance(answer, Complete):
            return []
        effects = self._forward(channel, self._pending.pop(channel))
        return effects if self._stopped or channel is Channel.CONTROL else effects + self._release()

    def _forward(self, channel: Channel, signal: ControlSignal) -> list[ProcessorEffect[T]]:
        if not signal.is_terminal:
            return [ForwardSignal(channel, signal)]
        self._stopped = True
        dropped = sum(len(kept) for kept in self._kept.values())
        for kept in self._kept.values():
            kept.clear()
        return [ForwardSignal(channel, signal), Stop(dropped)]

    def _keep(self, input_id: int, message: StreamMessage[T]) -> list[ProcessorEffect[T]]:
        kept = self._kept[input_id]
        if len(kept) >= self._hold_max:
            raise ChannelFull(f"a held input is not to be read from input={input_id} kept={len(kept)}")
        kept.append(message)
        return []

    def _release(self) -> list[ProcessorEffect[T]]:
        """What early inputs had after the barrier, per input in order."""
        effects: list[ProcessorEffect[T]] = []
        for input_id, kept in self._kept.items():
            while kept:
                effects += self._pass(input_id, kept.popleft())
        return effects

    def _pass(self, input_id: int, message: StreamMessage[T]) -> list[ProcessorEffect[T]]:
        effects: list[ProcessorEffect[T]] = [ForwardData(input_id, message)]
        if not isinstance(message, End):
            return effects
        self._ended.add(input_id)
        return effects + self._judge(Channel.DATA, self._aligners[Channel.DATA].ended(input_id))
