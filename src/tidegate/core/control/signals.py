"""Control signals: what is told to a running dataflow, at once or when all upstreams have reached the same point.

A barrier signal travels in the data channels, after the data before it, and is aligned at every fan-in. An instant
signal goes over the control line, once per node, and is refused among the data: forwarded per input it would multiply.
This module decides what a signal is and its bytes; it moves nothing.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tidegate.core.log.codec import decode, encode
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import U64_LIMIT

INLINE_PAYLOAD_BYTES = 64 * 1024
"""What travels in the frame itself; a longer payload is an object of the store."""
HEADER_BYTES_MAX = 4096

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_FRAME = struct.Struct("<BI")
_INSTANT, _BARRIER = 0, 1


@dataclass(frozen=True, slots=True)
class BarrierControlSignalKind:
    """What a signal means, without its number. Kinds that are not ours are the user's."""

    name: str

    StreamGracefulEnd: ClassVar[BarrierControlSignalKind]
    """Everything before this point is processed, then the stream ends. Terminal."""
    SyncTest: ClassVar[BarrierControlSignalKind]
    """Means nothing: it measures the data path."""
    SetParameter: ClassVar[BarrierControlSignalKind]
    """From here on a parameter has another value."""

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.name):
            raise InvalidUseError(
                "a kind of signal has 1 to 64 letters, digits, dots, dashes and underscores and begins with a letter "
                f"kind={self.name!r}"
            )

    @property
    def is_terminal(self) -> bool:
        """True when sources end after this signal."""
        return self == BarrierControlSignalKind.StreamGracefulEnd

    @property
    def is_users(self) -> bool:
        """True when functions and sinks are to hear of it."""
        return self not in _OURS

    def with_id(self, barrier_id: int) -> BarrierControlSignal:
        """This kind as a signal with a number."""
        return BarrierControlSignal(self, barrier_id)


BarrierControlSignalKind.StreamGracefulEnd = BarrierControlSignalKind("StreamGracefulEnd")
BarrierControlSignalKind.SyncTest = BarrierControlSignalKind("SyncTest")
BarrierControlSignalKind.SetParameter = BarrierControlSignalKind("SetParameter")
_OURS = (
    BarrierControlSignalKind.StreamGracefulEnd,
    BarrierControlSignalKind.SyncTest,
    BarrierControlSignalKind.SetParameter,
)


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """A payload that is too long for a frame: an object of the job's store. Nodes check it against both sums."""

    path: str
    size_bytes: int
    crc32c: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ParameterVersion:
    """Which parameter a ``SetParameter`` sets, and how often it was set then."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class ControlSignal(ABC):
    """A kind, its number and what comes with it. Numbers start at 1 and are never used twice."""

    kind: BarrierControlSignalKind
    barrier_id: int
    payload: bytes = b""
    stored: StoredPayload | None = None
    parameter: ParameterVersion | None = None

    def __post_init__(self) -> None:
        if not 0 < self.barrier_id < U64_LIMIT:
            raise InvalidUseError(f"a barrier id is a positive 64-bit number barrier_id={self.barrier_id}")
        if len(self.payload) > INLINE_PAYLOAD_BYTES or (self.payload and self.stored is not None):
            raise InvalidUseError(f"a payload is in the frame, up to {INLINE_PAYLOAD_BYTES} bytes, or in the store, not both")
        if (self.parameter is not None) != (self.kind == BarrierControlSignalKind.SetParameter):
            raise InvalidUseError(f"a parameter is set by its own kind of signal kind={self.kind.name}")

    @property
    @abstractmethod
    def is_barrier(self) -> bool:
        """True when all upstreams must have delivered it before it passes."""

    @property
    def is_terminal(self) -> bool:
        """True when sources end after this signal."""
        return self.kind.is_terminal

    @property
    def key(self) -> tuple[int, BarrierControlSignalKind]:
        """What must be equal on all upstreams."""
        return (self.barrier_id, self.kind)

    def pack(self) -> bytes:
        """Form (0 instant, 1 barrier), the length of the header, the header as JSON, the payload; little endian."""
        header = encode(_Header(self.barrier_id, self.kind.name, self.stored, self.parameter))
        return _FRAME.pack(_BARRIER if self.is_barrier else _INSTANT, len(header)) + header + self.payload


@dataclass(frozen=True, slots=True)
class BarrierControlSignal(ControlSignal):
    """Aligned at every fan-in, then passed on once."""

    @property
    def is_barrier(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class InstantControlSignal(ControlSignal):
    """Obeyed when a node hears of it, wherever its data is."""

    @property
    def is_barrier(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Header:
    barrier_id: int
    kind: str
    stored: StoredPayload | None
    parameter: ParameterVersion | None


def unpack(data: bytes | bytearray | memoryview) -> ControlSignal:
    """The signal in these bytes; anything that ``pack`` does not make is corrupt."""
    view = memoryview(data)
    if len(view) < _FRAME.size:
        raise CorruptDataError(f"a control signal is cut off length={len(view)}")
    form, length = _FRAME.unpack(view[: _FRAME.size])
    end = _FRAME.size + length
    if form not in (_INSTANT, _BARRIER) or length > HEADER_BYTES_MAX or end > len(view):
        raise CorruptDataError(f"no such control signal form={form} header_bytes={length} length={len(view)}")
    header = decode(_Header, bytes(view[_FRAME.size : end]), "control signal")
    made = BarrierControlSignal if form == _BARRIER else InstantControlSignal
    try:
        kind = BarrierControlSignalKind(header.kind)
        return made(kind, header.barrier_id, bytes(view[end:]), header.stored, header.parameter)
    except InvalidUseError as error:
        raise CorruptDataError(f"a control signal that no head makes: {error}") from error
