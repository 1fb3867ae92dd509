"""Messages to frames and back. An event is one Arrow IPC record batch message; the channel's schema comes
from the plan.

Decoding trusts no length and no bit pattern: whatever comes in, the outcome is a message or a
``TidegateError``. The rows themselves are checked only cheaply (buffer sizes, not every offset): peers have
proved that they know the job's secret.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from tidegate.core.control import unpack
from tidegate.core.messages import Barrier, CheckpointBarrier, Control, End, Event, StreamMessage, Watermark
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
            raise InvalidUseError(
                f"dictionary-encoded columns cannot cross a channel, cast them before column={field.name}"
            )


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


def decode_batch(payload: Bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these bytes. Its columns point into ``payload``, which must not be written again."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
        batch.validate()
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
            return Control(unpack(frame.payload))
        case FrameType.END:
            return End()
        case _:
            raise ProtocolError(f"this frame does not belong among the data kind={frame.kind.name}")

