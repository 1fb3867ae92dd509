"""Messages to frames and back. An event is one Arrow IPC record batch message; the channel's schema comes
from the plan.

Decoding trusts no length, no offset and no bit pattern: whatever comes in, the outcome is a message or a
``TidegateError``. One altered offset would otherwise crash the process, or show it memory that is not the
batch's.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from tidegate.core.barrier.messages import (
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.control.signals import ControlSignal, unpack
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError
from tidegate.wire.frames import Bytes, Frame, FrameType, pack_i64, unpack_i64

Message: TypeAlias = StreamMessage[pa.RecordBatch]


def batch_size(batch: pa.RecordBatch) -> int:
    """The serialised size of a batch: what it costs in credits and counts in the in-flight limit. Copies
    nothing.
    """
    return int(pa.ipc.get_record_batch_size(batch))


def event_of(batch: pa.RecordBatch) -> Event[pa.RecordBatch]:
    """The event that carries this batch, with the size that both ends of a channel count."""
    return Event(batch, batch_size(batch))


def check_schema(schema: pa.Schema) -> None:
    """Refuse a schema whose batches cannot travel by themselves."""
    for field in schema:
        if _holds_dictionary(field.type):
            raise InvalidUseError(f"dictionary-encoded columns cannot cross a channel, cast them before column={field.name}")


def _holds_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def allocate(size: int) -> memoryview:
    """Aligned memory for a payload, so that batches decoded in place have aligned columns."""
    return memoryview(pa.allocate_buffer(size)).cast("B")


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """The record batch message, without its schema. Blocks for a copy of the rows; releases the GIL."""
    return batch.serialize()


def check_rows(batch: pa.RecordBatch) -> None:
    """Refuse a batch that points outside its own memory: ``pa.ArrowInvalid``. Costs 5 ns for a string and nothing for
    columns of fixed width.

    A value that its type does not allow passes, say text that is not UTF-8: files that others wrote have such values, and
    reading them harms nobody.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        batch.validate()
        for column in batch.columns:
            column.view(_bare(column.type)).validate(full=True)


def _bare(kind: pa.DataType) -> pa.DataType:
    """The same layout without rules for values."""
    if (bare := _BARE.get(kind.id)) is not None:
        return bare
    if isinstance(kind, pa.BaseExtensionType):
        return _bare(kind.storage_type)
    if pa.types.is_decimal(kind):
        return pa.binary(kind.byte_width)
    if pa.types.is_struct(kind):
        return pa.struct([_bare_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_bare_field(kind.key_field), _bare_field(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_bare_field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_bare_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_bare_field(kind.value_field))
    return kind


def _bare_field(field: pa.Field) -> pa.Field:
    return field.with_type(_bare(field.type))


_BARE = {
    pa.string().id: pa.binary(),
    pa.large_string().id: pa.large_binary(),
    pa.string_view().id: pa.binary_view(),
    pa.date64().id: pa.int64(),
    pa.time32("s").id: pa.int32(),
    pa.time64("us").id: pa.int64(),
}


def decode_batch(payload: Bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these bytes. Its columns point into ``payload``, which must not be written again."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        check_rows(batch)
    except (pa.ArrowException, OSError, ValueError, MemoryError, EOFError, TypeError) as error:
        raise CorruptDataError(f"not a record batch of this channel's schema: {error}") from error
    return batch


def encode_message(message: Message) -> tuple[FrameType, pa.Buffer | bytes]:
    """The frame type and payload of a message."""
    match message:
        case Event(batch, size_bytes):
            return FrameType.EVENT, _encode_event(batch, size_bytes)
        case Watermark(timestamp):
            return FrameType.WATERMARK, pack_i64(timestamp)
        case Barrier(barrier):
            return FrameType.BARRIER, barrier.pack()
        case Control(signal):
            return FrameType.CONTROL, signal.pack()
        case End():
            return FrameType.END, b""
        case _:
            raise ProtocolError(f"no such message in a channel type={type(message).__name__}")


def _encode_event(batch: pa.RecordBatch, size_bytes: int) -> pa.Buffer:
    payload = encode_batch(batch)
    if payload.size != size_bytes:
        # The sender spends size_bytes and gets back the payload's length: a difference would leak credit
        # until all stops.
        raise ProtocolError(
            f"an event's size must be its serialised size, make it with event_of size_bytes={size_bytes}"
            f" serialised_bytes={payload.size}"
        )
    return payload


def _barrier_signal(payload: Bytes) -> ControlSignal:
    signal = unpack(payload)
    if not signal.is_barrier:  # passed on per input it would multiply: it belongs on the control line
        raise ProtocolError(f"an instant signal among the data kind={signal.kind.name} id={signal.barrier_id}")
    return signal


def decode_message(frame: Frame, schema: pa.Schema) -> Message:
    """The message in a frame of the data channel; any other frame is a ``ProtocolError``."""
    match frame.kind:
        case FrameType.EVENT:
            return Event(decode_batch(frame.payload, schema), len(frame.payload))
        case FrameType.WATERMARK:
            return Watermark(unpack_i64(frame.payload))
        case FrameType.BARRIER:
            return Barrier(CheckpointBarrier.unpack(frame.payload))
        case FrameType.CONTROL:
            return Control(_barrier_signal(frame.payload))
        case FrameType.END:
            return End()
        case _:
            raise ProtocolError(f"this frame does not belong among the data kind={frame.kind.name}")
