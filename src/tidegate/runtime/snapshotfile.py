"""Runs and in-flight data as bytes and back. Everything is Arrow IPC; nothing is ever unpickled.

A state object is a row of IPC streams, one run each, found by the byte ranges in the manifest. An in-flight object is one IPC
stream: a record batch holds one event, or several small ones that followed each other, and a watermark is an empty one with its
timestamp in the batch's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from io import RawIOBase
from typing import Any, TypeAlias

import google_crc32c
import pyarrow as pa

from tidegate.core.barrier.messages import IDLE, Event, StreamMessage, Watermark
from tidegate.errors import CorruptDataError, InFlightDeserializationFailed
from tidegate.state.runs import empty_batch
from tidegate.wire.arrow import check_rows as check_rows  # for connectors, who know no wire
from tidegate.wire.arrow import event_of

WATERMARK_KEY = b"watermark"
TOGETHER_BYTES_MAX = 1 << 20
"""Small events are written as one batch up to this size: each batch has a price, to write and to replay."""

Message = StreamMessage[pa.RecordBatch]
EncodedPiece: TypeAlias = "bytes | pa.Buffer"


def crc32c(data: EncodedPiece, before: int = 0) -> int:
    """The checksum of everything that tidegate stores; ``before`` is that of the bytes before these."""
    return int(google_crc32c.extend(before, data))


@dataclass(frozen=True, slots=True)
class Encoded:
    """An IPC stream in pieces, its rows by reference.

    Nothing is copied: a checkpoint of many megabytes a second would pay for fresh memory more than for the writing.
    """

    pieces: tuple[EncodedPiece, ...]

    @property
    def length(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    @property
    def joined(self) -> bytes:
        """All of it in one, copied."""
        return b"".join(self.pieces)

    def crc32c(self, before: int = 0) -> int:
        """The checksum; ``before`` is that of the bytes before these."""
        return reduce(lambda value, piece: crc32c(piece, value), self.pieces, before)


class _Gathering(RawIOBase):
    """A file that keeps what is written, and copies none of it: Arrow hands over its buffers."""

    def __init__(self) -> None:
        self.pieces: list[EncodedPiece] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        return len(piece)


def encode_run(batch: pa.RecordBatch) -> Encoded:
    """One run as an IPC stream."""
    gathering = _Gathering()
    with pa.PythonFile(gathering, mode="w") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Encoded(tuple(gathering.pieces))


def read_run(data: bytes, path: str) -> pa.RecordBatch:
    """The run in these bytes."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batch = reader.read_next_batch()
            check_rows(batch)
            return batch
    except (pa.ArrowException, StopIteration, OSError, ValueError) as error:
        raise CorruptDataError(f"a run of state can't be read: {error} path={path}", path=path) from error


def encode_inflight(messages: Sequence[Message], schema: pa.Schema, compression: str | None) -> Encoded:
    """Recorded events and watermarks, in order; small events that follow each other become one."""
    gathering = _Gathering()
    empty = empty_batch(schema)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.PythonFile(gathering, mode="w") as sink, pa.ipc.new_stream(sink, schema, options=options) as writer:
        for piece in _together(messages, schema):
            if isinstance(piece, Watermark):
                writer.write_batch(empty, custom_metadata={WATERMARK_KEY: str(piece.timestamp).encode()})
            else:
                writer.write_batch(piece)
    return Encoded(tuple(gathering.pieces))


def _together(messages: Sequence[Message], schema: pa.Schema) -> Iterator[pa.RecordBatch | Watermark[pa.RecordBatch]]:
    """The same rows and watermarks in the same order, in fewer batches."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for message in messages:
        if isinstance(message, Event):
            if waiting and size_bytes + message.size_bytes > TOGETHER_BYTES_MAX:
                yield concat(waiting, schema)
                waiting, size_bytes = [], 0
            waiting.append(message.payload)
            size_bytes += message.size_bytes
        elif isinstance(message, Watermark) and message.timestamp != IDLE:  # idle sources say so again
            if waiting:
                yield concat(waiting, schema)
            waiting, size_bytes = [], 0
            yield message
    if waiting:
        yield concat(waiting, schema)


def read_inflight(data: bytes, schema: pa.Schema, path: str) -> list[Message]:
    """The recorded messages in these bytes."""
    try:
        return list(_messages(data, schema))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InFlightDeserializationFailed(f"in-flight data can't be read: {error} path={path}", path=path) from error


def _messages(data: bytes, schema: pa.Schema) -> Iterator[Message]:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        if not reader.schema.equals(schema):
            raise ValueError(f"its columns are [{reader.schema}], the plan's are [{schema}]")
        for batch, metadata in reader.iter_batches_with_custom_metadata():
            if metadata is not None and WATERMARK_KEY in metadata:
                yield Watermark(_timestamp(metadata[WATERMARK_KEY]))
            else:
                check_rows(batch)
                yield event_of(batch)


def _timestamp(text: bytes) -> int:
    timestamp = int(text)
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise ValueError("a watermark has 64 bits")
    return timestamp


def concat(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of many. A single one is not copied."""
    batches = list(batches)
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
    return table.to_batches()[0] if table.num_rows else empty_batch(schema)
