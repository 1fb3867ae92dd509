"""The bytes of a channel: ``[type u8][length u32 LE][payload]``, and a decoder that is fed whatever the
network brings.

This module decides what a well-formed frame is. It knows nothing of sockets, Arrow or who may send which
frame when.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tidegate.core.barrier.messages import BARRIER_BYTES
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError

Bytes: TypeAlias = bytes | bytearray | memoryview

_HEADER = struct.Struct("<BI")
_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")

HEADER_BYTES = _HEADER.size
U32_MAX = (1 << 32) - 1
MAX_FRAME_BYTES = 256 << 20
MAX_HELLO_BYTES = 1024
MAX_CONTROL_BYTES = 1 << 20
MAX_REASON_BYTES = 4096
SCRATCH_BYTES = 64 << 10


class FrameType(IntEnum):
    """What a frame carries. The numbers are the wire's and never change their meaning."""

    EVENT = 0x01
    WATERMARK = 0x02
    BARRIER = 0x03
    CONTROL = 0x04
    HELLO = 0x10
    CREDIT = 0x11
    END = 0x12
    ABORT = 0x13


_EXACT = {
    FrameType.WATERMARK: _I64.size,
    FrameType.BARRIER: BARRIER_BYTES,
    FrameType.CREDIT: _U64.size,
    FrameType.END: 0,
}
_AT_MOST = {
    FrameType.CONTROL: MAX_CONTROL_BYTES,
    FrameType.HELLO: MAX_HELLO_BYTES,
    FrameType.ABORT: MAX_REASON_BYTES,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One complete frame. The payload's memory belongs to the frame and is not written again."""

    kind: FrameType
    payload: memoryview


def header(kind: FrameType, length: int) -> bytes:
    """The five bytes that go before a payload of this length."""
    if not 0 <= length <= U32_MAX:
        raise InvalidUseError(f"a frame's length has 32 bits length={length}")
    return _HEADER.pack(kind, length)


def pack_frame(kind: FrameType, payload: Bytes = b"") -> bytes:
    """A complete small frame in one piece."""
    return header(kind, len(payload)) + payload


def parse_header(data: Bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[FrameType, int]:
    """Type and payload length of a frame; refuses what no sender makes *before* anything is allocated for
    it.
    """
    number, length = _HEADER.unpack(data)
    try:
        kind = FrameType(number)
    except ValueError:
        raise ProtocolError(f"unknown frame type type={number:#04x}") from None
    exact = _EXACT.get(kind)
    if exact is not None and length != exact:
        raise CorruptDataError(f"wrong frame length kind={kind.name} length={length} expected={exact}")
    if length > min(_AT_MOST.get(kind, max_frame_bytes), max_frame_bytes):
        raise CorruptDataError(f"a frame over its limit kind={kind.name} length={length}")
    return kind, length


def pack_i64(value: int) -> bytes:
    """A watermark's payload."""
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidUseError(f"a watermark has 64 bits timestamp={value}")
    return _I64.pack(value)


def unpack_i64(payload: Bytes) -> int:
    """A watermark from its payload."""
    return int(_unpack(_I64, payload))


def pack_u64(value: int) -> bytes:
    """A credit's payload."""
    if not 0 < value < 1 << 64:
        raise InvalidUseError(f"a credit is a positive 64-bit number of bytes size_bytes={value}")
    return _U64.pack(value)


def unpack_u64(payload: Bytes) -> int:
    """A credit from its payload. Nothing is no credit."""
    value = int(_unpack(_U64, payload))
    if value == 0:
        raise CorruptDataError("a credit of no bytes")
    return value


def _unpack(form: struct.Struct, payload: Bytes) -> int:
    try:
        (value,) = form.unpack(payload)
    except struct.error as error:
        raise CorruptDataError(f"a payload of the wrong length expected={form.size}") from error
    return value  # type: ignore[no-any-return]


def pack_reason(reason: str) -> bytes:
    """An abort's payload, cut to its limit at a character's border."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore").encode()


def unpack_reason(payload: Bytes) -> str:
    """Why the peer closed the channel. Never fails: what is not text is shown as replacement characters."""
    return bytes(payload)[:MAX_REASON_BYTES].decode(errors="replace")


class FrameDecoder:
    """Turns bytes into frames, in any portions. Pure: it is fed by ``feed``, or in place by ``space`` and
    ``filled``.

    Small frames pass through one scratch buffer. A large payload gets memory of its own as soon as its header
    is known, and ``space`` then points into it, so that the network writes there and nothing is copied. After
    a malformed frame the frames before it are still returned; every later call raises the same error.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES, allocate: Callable[[int], memoryview] | None = None) -> None:
        if not HEADER_BYTES <= max_frame_bytes <= U32_MAX:
            raise InvalidUseError(f"the frame limit is out of range max_frame_bytes={max_frame_bytes}")
        self._max_frame_bytes = max_frame_bytes
        self._allocate = allocate if allocate is not None else _new_memory
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._end = 0
        self._large: Frame | None = None
        self._large_end = 0
        self._error: CorruptDataError | ProtocolError | None = None

    @property
    def inside_payload(self) -> bool:
        """True while ``space`` is exactly the rest of one payload: the caller may wait until it is full."""
        return self._large is not None

    @property
    def at_boundary(self) -> bool:
        """True when no frame is half received, so that the stream may end here."""
        return self._large is None and self._end == 0 and self._error is None

    def space(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._error is not None:
            raise self._error
        if self._large is not None:
            return self._large.payload[self._large_end :]
        return self._scratch[self._end :]

    def filled(self, count: int) -> list[Frame]:
        """The first ``count`` bytes of ``space`` have been written: the frames that are complete now."""
        if self._error is not None:
            raise self._error
        if self._large is not None:
            return self._fill_large(self._large, count)
        self._end += count
        return self._take_frames()

    def feed(self, data: Bytes) -> list[Frame]:
        """Copy these bytes in: the frames that are complete now."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            if self._error is not None and frames:
                break  # the frames before the malformed one go out first; the next call raises
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            frames += self.filled(count)
            rest = rest[count:]
        return frames

    def _fill_large(self, frame: Frame, count: int) -> list[Frame]:
        self._large_end += count
        if self._large_end < len(frame.payload):
            return []
        self._large = None
        return [frame]

    def _take_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        start = 0
        while self._large is None and self._end - start >= HEADER_BYTES:
            try:
                kind, length = parse_header(self._scratch[start:][:HEADER_BYTES], self._max_frame_bytes)
            except (CorruptDataError, ProtocolError) as error:
                self._error = error
                break
            body = start + HEADER_BYTES
            if length > SCRATCH_BYTES - HEADER_BYTES and body + length > self._end:
                self._begin_large(kind, length, body)
                start = self._end
            elif body + length > self._end:
                break
            else:
                start = body + length
                frames.append(Frame(kind, memoryview(bytes(self._scratch[body:start]))))
        self._keep_from(start)
        if self._error is not None and not frames:
            raise self._error
        return frames

    def _begin_large(self, kind: FrameType, length: int, body: int) -> None:
        payload = self._allocate(length)
        self._large_end = self._end - body
        payload[: self._large_end] = self._scratch[body : self._end]
        self._large = Frame(kind, payload)

    def _keep_from(self, start: int) -> None:
        rest = self._end - start
        if start and rest:
            self._scratch[:rest] = bytes(self._scratch[start : self._end])
        self._end = rest


def _new_memory(size: int) -> memoryview:
    return memoryview(bytearray(size))
