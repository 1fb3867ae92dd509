"""Frames: what is well formed, what is refused, and that the portions in which bytes arrive do not matter."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged
from tidegate.core.barrier.messages import BARRIER_BYTES
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError, TidegateError
from tidegate.wire.frames import (
    MAX_HELLO_BYTES,
    MAX_REASON_BYTES,
    SCRATCH_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    header,
    pack_frame,
    pack_i64,
    pack_reason,
    pack_u64,
    parse_header,
    unpack_i64,
    unpack_reason,
    unpack_u64,
)


def decode(data: bytes, sizes: list[int] | None = None, **limits: Any) -> tuple[list[object], str]:
    """All frames of these bytes fed in portions of these sizes, and how it ended."""
    decoder = FrameDecoder(**limits)
    frames: list[Frame] = []
    portions = _portions(data, sizes or [max(1, len(data))])
    try:
        for portion in portions:
            frames += decoder.feed(portion)
        decoder.space()
        ended = "boundary" if decoder.at_boundary else "inside"
    except TidegateError as error:
        ended = type(error).__name__
    return [(frame.kind, bytes(frame.payload)) for frame in frames], ended


def _portions(data: bytes, sizes: list[int]) -> list[bytes]:
    portions, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        portions.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return portions


def test_a_header_is_a_type_byte_and_a_little_endian_length() -> None:
    assert header(FrameType.EVENT, 0x01020304) == bytes([0x01, 0x04, 0x03, 0x02, 0x01])


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (FrameType.EVENT, 0x01),
        (FrameType.WATERMARK, 0x02),
        (FrameType.BARRIER, 0x03),
        (FrameType.CONTROL, 0x04),
        (FrameType.HELLO, 0x10),
        (FrameType.CREDIT, 0x11),
        (FrameType.END, 0x12),
        (FrameType.ABORT, 0x13),
    ],
)
def test_frame_types_keep_their_numbers(kind: FrameType, number: int) -> None:
    assert kind == number


def test_numbers_are_packed_little_endian() -> None:
    assert pack_i64(-2) == struct.pack("<q", -2)
    assert unpack_i64(pack_i64(-(1 << 63))) == -(1 << 63)
    assert unpack_u64(pack_u64((1 << 64) - 1)) == (1 << 64) - 1


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_watermark_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(InvalidUseError):
        pack_i64(value)


@pytest.mark.parametrize("value", [0, -1, 1 << 64])
def test_a_credit_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(InvalidUseError):
        pack_u64(value)


def test_a_received_credit_of_nothing_is_corrupt() -> None:
    with pytest.raises(CorruptDataError):
        unpack_u64(bytes(8))


@pytest.mark.parametrize("payload", [b"", b"1234567", b"123456789"])
def test_a_number_of_the_wrong_length_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptDataError):
        unpack_i64(payload)


@pytest.mark.parametrize("length", [-1, 1 << 32])
def test_a_length_over_32_bits_is_never_truncated(length: int) -> None:
    with pytest.raises(InvalidUseError):
        header(FrameType.EVENT, length)


@pytest.mark.parametrize("number", [0x00, 0x05, 0x0F, 0x14, 0xFF])
def test_an_unknown_type_is_a_protocol_error(number: int) -> None:
    with pytest.raises(ProtocolError):
        parse_header(bytes([number, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (FrameType.WATERMARK, 7),
        (FrameType.BARRIER, BARRIER_BYTES + 1),
        (FrameType.CREDIT, 0),
        (FrameType.END, 1),
        (FrameType.HELLO, MAX_HELLO_BYTES + 1),
        (FrameType.ABORT, MAX_REASON_BYTES + 1),
        (FrameType.EVENT, 101),
    ],
)
def test_a_bad_length_is_corrupt_before_anything_is_allocated(kind: FrameType, length: int) -> None:
    with pytest.raises(CorruptDataError):
        parse_header(header(kind, length), max_frame_bytes=100 if kind is FrameType.EVENT else 1 << 20)


def test_the_limit_of_a_frame_is_inclusive() -> None:
    assert parse_header(header(FrameType.EVENT, 100), 100) == (FrameType.EVENT, 100)


@pytest.mark.parametrize("limit", [4, 1 << 32])
def test_a_senseless_limit_is_refused(limit: int) -> None:
    with pytest.raises(InvalidUseError):
        FrameDecoder(max_frame_bytes=limit)


def test_a_large_payload_is_received_in_place() -> None:
    payload = bytes(range(256)) * 1024
    memory: list[memoryview] = []

    def allocate(size: int) -> memoryview:
        memory.append(memoryview(bytearray(size)))
        return memory[-1]

    decoder = FrameDecoder(allocate=allocate)
    data = pack_frame(FrameType.EVENT, payload)
    assert decoder.feed(data[:10]) == []
    assert decoder.inside_payload
    space = decoder.space()
    assert space.obj is memory[0].obj and len(space) == len(payload) - 5
    space[:] = data[10:]
    (frame,) = decoder.filled(len(space))
    assert frame.payload.obj is memory[0].obj and bytes(frame.payload) == payload
    assert decoder.at_boundary and not decoder.inside_payload


@pytest.mark.parametrize("length", [SCRATCH_BYTES - 6, SCRATCH_BYTES - 5, SCRATCH_BYTES - 4, SCRATCH_BYTES])
def test_payloads_around_the_scratch_size_pass(length: int) -> None:
    payload = bytes([7]) * length
    data = pack_frame(FrameType.EVENT, payload) + pack_frame(FrameType.END)
    for sizes in ([len(data)], [1000], [length, 1]):
        assert decode(data, sizes) == ([(FrameType.EVENT, payload), (FrameType.END, b"")], "boundary")


def test_a_payload_is_not_changed_by_what_follows() -> None:
    decoder = FrameDecoder()
    (first,) = decoder.feed(pack_frame(FrameType.WATERMARK, pack_i64(1)))
    decoder.feed(pack_frame(FrameType.WATERMARK, pack_i64(2)))
    assert unpack_i64(first.payload) == 1


def test_frames_before_a_malformed_one_are_returned_and_then_the_error_stays() -> None:
    decoder = FrameDecoder()
    frames = decoder.feed(pack_frame(FrameType.END) + b"\xff\0\0\0\0" + pack_frame(FrameType.END))
    assert [frame.kind for frame in frames] == [FrameType.END]
    for call in (decoder.space, lambda: decoder.filled(0), lambda: decoder.feed(b"x")):
        with pytest.raises(ProtocolError):
            call()
    assert not decoder.at_boundary


def test_a_reason_is_cut_at_a_characters_border() -> None:
    reason = "ä" * MAX_REASON_BYTES
    packed = pack_reason(reason)
    assert len(packed) <= MAX_REASON_BYTES and set(unpack_reason(packed)) == {"ä"}
    assert unpack_reason(b"\xff") == "\ufffd"


kinds = st.sampled_from([FrameType.EVENT, FrameType.CONTROL, FrameType.HELLO])
frames = st.one_of(
    st.builds(pack_frame, kinds, st.binary(max_size=300)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda v: pack_frame(FrameType.WATERMARK, pack_i64(v))),
    st.just(pack_frame(FrameType.END)),
)
sizes = st.lists(st.integers(1, 97), min_size=1, max_size=9)


@given(st.lists(frames, max_size=12), st.binary(max_size=12), sizes)
def test_portions_do_not_matter(whole: list[bytes], rest: bytes, sizes: list[int]) -> None:
    data = b"".join(whole) + rest
    assert decode(data, sizes) == decode(data)


@given(st.binary(max_size=400), sizes)
def test_arbitrary_bytes_raise_only_tidegate_errors(data: bytes, sizes: list[int]) -> None:
    decode(data, sizes, max_frame_bytes=1000)


WHOLE = b"".join(
    (
        pack_frame(FrameType.EVENT, b"rows of a batch"),
        pack_frame(FrameType.WATERMARK, pack_i64(-5)),
        pack_frame(FrameType.BARRIER, bytes(BARRIER_BYTES)),
        pack_frame(FrameType.CONTROL, bytes(10)),
        pack_frame(FrameType.END),
    )
)


@given(damaged(WHOLE), sizes)
def test_damaged_frames_raise_only_tidegate_errors_and_the_same_in_any_portions(data: bytes, sizes: list[int]) -> None:
    assert decode(data, sizes, max_frame_bytes=1000) == decode(data, max_frame_bytes=1000)
