"""Messages to frames and back, and what happens to bytes that are no message."""

from __future__ import annotations

import struct
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, Control, End, Event, Watermark
from tidegate.core.control.signals import BarrierControlSignal, BarrierControlSignalKind, InstantControlSignal
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError, TidegateError
from tidegate.wire.arrow import (
    allocate,
    batch_size,
    check_schema,
    decode_batch,
    decode_message,
    encode_batch,
    encode_message,
    event_of,
)
from tidegate.wire.frames import Frame, FrameDecoder, FrameType, header

SAMPLE = pa.record_batch(
    {
        "number": pa.array([1, None, 3], pa.int64()),
        "text": pa.array(["a", "", None]),
        "list": pa.array([[1.5], [], None], pa.list_(pa.float64())),
        "time": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
    }
)
SERIALISED = bytes(encode_batch(SAMPLE))


def through_frame(message):
    kind, payload = encode_message(message)
    (frame,) = FrameDecoder(allocate=allocate).feed(header(kind, len(payload)) + bytes(payload))
    return decode_message(frame, SAMPLE.schema)


@pytest.mark.parametrize(
    "message",
    [
        event_of(SAMPLE),
        event_of(SAMPLE.slice(1, 1)),
        event_of(SAMPLE.slice(0, 0)),
        Watermark(-5),
        Barrier(CheckpointBarrier.new_unaligned(7, 3)),
        Control(BarrierControlSignal(BarrierControlSignalKind("flush"), 4, b"payload")),
        End(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_survives_the_wire(message) -> None:
    assert through_frame(message) == message


def test_an_instant_signal_is_refused_in_a_data_channel() -> None:
    """Passed on per input it would multiply: it goes over the control line, once per node."""
    with pytest.raises(ProtocolError, match="instant"):
        through_frame(Control(InstantControlSignal(BarrierControlSignalKind.SyncTest, 4)))


def test_both_ends_count_the_same_size(batch: pa.RecordBatch) -> None:
    event = event_of(batch.slice(100, 500))
    assert event.size_bytes == batch_size(event.payload) == len(encode_batch(event.payload))


@pytest.mark.parametrize("size", [0, len(SERIALISED) - 1, SAMPLE.nbytes])
def test_an_event_with_another_size_is_refused_because_credit_would_leak(size: int) -> None:
    with pytest.raises(ProtocolError, match="event_of"):
        encode_message(Event(SAMPLE, size))


def test_a_decoded_batch_uses_the_received_memory(batch: pa.RecordBatch) -> None:
    payload = allocate(batch_size(batch))
    payload[:] = bytes(encode_batch(batch))
    before = pa.total_allocated_bytes()
    decoded = decode_batch(payload, batch.schema)
    assert decoded == batch
    assert pa.total_allocated_bytes() - before < batch.nbytes / 4


@pytest.mark.parametrize("kind", [FrameType.HELLO, FrameType.CREDIT, FrameType.ABORT])
def test_frames_of_the_connection_are_no_messages(kind: FrameType) -> None:
    with pytest.raises(ProtocolError):
        decode_message(Frame(kind, memoryview(b"")), SAMPLE.schema)


def test_an_unknown_message_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        encode_message("not a message")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int64()), pa.decimal128(10)])
def test_a_batch_of_another_schema_is_corrupt(kind: pa.DataType) -> None:
    schema = pa.schema({"n": kind})
    with pytest.raises(CorruptDataError):
        decode_batch(bytes(encode_batch(pa.record_batch({"n": pa.array([1, 2])}))), schema)


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.struct({"a": pa.dictionary(pa.int8(), pa.string())}),
    ],
)
def test_dictionary_columns_are_refused_when_the_channel_is_made(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUseError, match="column=d"):
        check_schema(pa.schema({"n": pa.int64(), "d": kind}))


def test_plain_schemas_pass() -> None:
    check_schema(SAMPLE.schema)


def with_bad_offset(data: bytes, offset: int = 8 + 0x7000000) -> bytes:
    """A batch of three strings of four letters, whose middle offset is far outside; the first and the last stay right."""
    good = struct.pack("<4i", 0, 4, 8, 12)
    assert data.count(good) == 1
    return data.replace(good, struct.pack("<4i", 0, 4, offset, 12))


THREE = pa.record_batch({"k": pa.array(["aaaa", "bbbb", "cccc"])})


@pytest.mark.parametrize("offset", [8 + 0x7000000, -1, 3])
def test_one_altered_offset_is_corrupt(offset: int) -> None:
    with pytest.raises(CorruptDataError, match="not a record batch"):
        decode_batch(with_bad_offset(bytes(encode_batch(THREE)), offset), THREE.schema)


@pytest.mark.parametrize("at", ["list", "struct", "map", "large_list"])
def test_one_altered_offset_inside_a_column_is_corrupt(at: str) -> None:
    text = pa.array(["aaaa", "bbbb", "cccc"])
    column = {
        "list": lambda: pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), text),
        "large_list": lambda: pa.LargeListArray.from_arrays(pa.array([0, 3], pa.int64()), text),
        "struct": lambda: pa.StructArray.from_arrays([text], ["t"]),
        "map": lambda: pa.MapArray.from_arrays(pa.array([0, 3], pa.int32()), text, pa.array([1, 2, 3])),
    }[at]()
    batch = pa.record_batch({"k": column})
    with pytest.raises(CorruptDataError):
        decode_batch(with_bad_offset(bytes(encode_batch(batch))), batch.schema)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.array([b"\xff", b"ok"]), pa.string()),
        (pa.array([[b"\xff"], None]), pa.list_(pa.string())),
        (pa.array([[b"\xff"], None], pa.list_(pa.binary(), 1)), pa.list_(pa.string(), 1)),
        (pa.array([1, 2]), pa.date64()),
        (pa.array([-1, 2], pa.int32()), pa.time32("s")),
        (pa.array([-1, 2]), pa.time64("ns")),
        (pa.array([b"\x7f" * 16, b"\x00" * 16], pa.binary(16)), pa.decimal128(5, 2)),
    ],
    ids=str,
)
def test_values_that_break_their_types_rules_are_no_damage(stored: pa.Array, kind: pa.DataType) -> None:
    batch = pa.record_batch({"dirty": stored.view(kind)})
    with pytest.raises(pa.ArrowInvalid):
        batch.validate(full=True)
    assert decode_batch(bytes(encode_batch(batch)), batch.schema).column(0).view(stored.type).equals(stored)


@given(st.sampled_from(list(FrameType)), st.binary(max_size=200))
def test_arbitrary_payloads_raise_only_tidegate_errors(kind: FrameType, payload: bytes) -> None:
    with suppress(TidegateError):
        decode_message(Frame(kind, memoryview(payload)), SAMPLE.schema)


@given(
    st.lists(st.tuples(st.integers(0, len(SERIALISED) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(SERIALISED)),
)
def test_damaged_batches_raise_only_tidegate_errors(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(SERIALISED)
    for at, value in changes:
        data[at] = value
    for damaged in (data, data[:length]):
        with suppress(TidegateError):
            decode_batch(bytes(damaged), SAMPLE.schema)
