"""A Spark DataFrame as a source: spooled by Spark into the job's store, read from there.

Computing a DataFrame twice may return its rows in another order, so it is computed once per job and offsets count rows of the
spool. Spark itself is hidden by ``Feeder``; this module does not know it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol, Self
from uuid import uuid4

import pyarrow as pa

from tidegate.connectors.framespool import (
    Chunk,
    FrameManifest,
    MicroBatch,
    Spool,
    StreamHead,
    check_schema,
    create,
    generations,
    next_generation,
    read_batch,
    read_chunk,
    read_head,
    read_manifest,
    schema_text,
    trim,
    was_trimmed,
)
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.capabilities import OnFailure
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.plan.expressions import need_column
from tidegate.plan.units import in_unit, is_event_time
from tidegate.runtime.continuous import resume_offsets
from tidegate.runtime.splits import digest
from tidegate.store.interface import Store
from tidegate.store.open import open_store

LANES = 8
LOOK_INTERVAL_S = 0.02
BATCHES_KNOWN = 64


class Feeder(Protocol):
    """What has a DataFrame and can write its rows. Lives on the driver."""

    @property
    def streaming(self) -> bool:
        """True for a streaming DataFrame."""

    def fill(self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
        """Write all rows of a batch DataFrame, in parallel. Blocks."""

    def feed(
        self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure
    ) -> Callable[[], None]:
        """Begin to append micro-batches; returns what stops it. ``on_failure`` is called when it can't go on."""


class _FrameSource:
    """What both kinds share. The feeder stays on the driver: it is left out when the source is pickled for the nodes."""

    bounded: bool

    def __init__(
        self, feeder: Feeder, schema: pa.Schema, *, event_time: str | None, out_of_orderness: Duration, name: str
    ) -> None:
        self.schema = schema
        self.event_time = event_time
        self.out_of_orderness = _in_event_time(schema, event_time, out_of_orderness)
        self.name = name
        self._feeder: Feeder | None = feeder
        self._url = ""
        self._spool: Spool | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_feeder": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _spooled_at(self, url: str, spool: Spool) -> Self:
        source = copy.copy(self)
        source._url, source._spool, source._feeder = url, spool, self._feeder
        return source

    @property
    def _where(self) -> Spool:
        if self._spool is None:
            raise InvalidUseError(f"a DataFrame is spooled when its job starts, there is nothing to read before name={self.name}")
        return self._spool

    def check_store(self, url: str, prefix: str) -> None:
        """Refuse spools of other columns. Only reads."""
        self._fitting(open_store(url), prefix)

    def _fitting(self, store: Store, prefix: str) -> list[Spool]:
        """The generations with these columns, newest first. None although there are some is an error."""
        spools = [Spool(prefix, generation) for generation in generations(store, prefix)]
        stored = [(read_manifest(store, each) if self.bounded else read_head(store, each)).schema for each in spools]
        found = [each for each, schema in zip(spools, stored, strict=True) if schema == schema_text(self.schema)]
        if spools and not found:
            check_schema(stored[0], self.schema, spools[0].root)
        return found

    def _need_feeder(self) -> Feeder:
        if self._feeder is None:
            raise InvalidUseError("this copy of the source is a node's: its DataFrame stayed on the driver")
        return self._feeder


class DataFrameSource(_FrameSource):
    """The rows of a batch DataFrame, in the order of event time."""

    bounded = True
    _chunks: Mapping[str, Chunk] = {}

    def with_store(self, url: str, prefix: str, *, fresh: bool, states: Sequence[object] = ()) -> DataFrameSource:
        """The same source over its spool in this store. Computes the DataFrame unless that was done before. Blocks.

        ``states`` is what a checkpoint has of this source: it is read from the generation that the checkpoint is of.
        """
        store = open_store(url)
        if fresh or not (known := self._fitting(store, prefix)):
            spool = next_generation(store, prefix)
            chunks = self._need_feeder().fill(url, spool, self.schema, self.event_time)
            create(store, spool.manifest, FrameManifest(schema_text(self.schema), tuple(chunks)))
            return self._reading(url, spool)
        wanted = {state.get("digest") for state in states if isinstance(state, dict)}
        found = (source for each in known if (source := self._reading(url, each))._digest in wanted)
        return next(found, None) or self._reading(url, known[0])

    @property
    def _digest(self) -> str:
        return digest(split.id for split in self.splits())

    def _reading(self, url: str, spool: Spool) -> DataFrameSource:
        manifest = read_manifest(open_store(url), spool)
        check_schema(manifest.schema, self.schema, spool.root)
        source = self._spooled_at(url, spool)
        source._chunks = {chunk.path: chunk for chunk in sorted(manifest.chunks, key=_by_time)}
        return source

    def splits(self) -> list[Split]:
        """One split per chunk, earliest event time first."""
        generation = self._where.generation
        return [Split(f"{generation}:{chunk.path}", chunk.lowest_time, chunk.rows) for chunk in self._chunks.values()]

    def open(self, split: Split, offset: Offset) -> ChunkReader:
        """A reader of one chunk."""
        chunk = self._chunks.get(split.id.removeprefix(f"{self._where.generation}:"))
        if chunk is None:
            raise InvalidUseError(f"this is no split of this DataFrame split={split.id}")
        start = 0 if offset is None else offset
        if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start <= chunk.rows:
            raise InvalidUseError(f"this offset is not within the split split={split.id} offset={offset!r}")
        return ChunkReader(_opened(self._url), chunk, self.schema, self.event_time, start)


class ChunkReader:
    """A ``SplitReader`` of one chunk; the offset counts its rows. The first poll reads the complete object."""

    def __init__(self, store: Store, chunk: Chunk, schema: pa.Schema, event_time: str | None, offset: int) -> None:
        self._store = store
        self._chunk = chunk
        self._schema = schema
        self._event_time = event_time
        self._offset = offset
        self._batch: pa.RecordBatch | None = None

    @property
    def offset(self) -> Offset:
        """Rows handed out so far."""
        return self._offset

    def poll(self, max_rows: int) -> Polled:
        """The next rows."""
        if self._offset >= self._chunk.rows:
            return Polled(None, finished=True)
        if self._batch is None:
            self._batch = read_chunk(self._store, self._chunk, self._schema)
        taken = self._batch.slice(self._offset, max_rows)
        self._offset += taken.num_rows
        highest = None if self._event_time is None else _highest(taken.column(self._event_time))
        return Polled(taken, taken.num_rows, highest, self._offset >= self._chunk.rows)

    def close(self) -> None:
        """Let go of the rows."""
        self._batch = None


class DataFrameStreamSource(_FrameSource):
    """The rows of a streaming DataFrame, micro-batch by micro-batch.

    Partition p of every micro-batch goes to lane p mod the number of lanes, and a lane is read in order. A lane that has
    passed a micro-batch has the watermark of all of its rows, its own or not: so empty partitions hold nothing back, and rows
    of one micro-batch are never late for each other.
    """

    bounded = False
    batched = True
    _lanes = LANES
    _token = ""
    _tail: SpoolTail | None = None
    _trimmed = 0

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_tail": None}

    def with_store(self, url: str, prefix: str, *, fresh: bool, states: Sequence[object] = ()) -> DataFrameStreamSource:
        """The same source over its spool in this store, which is begun if there is none.

        ``states`` is what a checkpoint has of this source: it is read from the generation that the checkpoint is of.
        """
        store = open_store(url)
        if fresh or not (known := self._fitting(store, prefix)):
            spool = next_generation(store, prefix)
            create(store, spool.head, StreamHead(schema_text(self.schema), LANES, uuid4().hex))
            return self._reading(url, spool)
        wanted = resume_offsets(states).keys()
        readings = (self._reading(url, each) for each in known)
        found = (source for source in readings if any(split.id in wanted for split in source.splits()))
        return next(found, None) or self._reading(url, known[0])

    def _reading(self, url: str, spool: Spool) -> DataFrameStreamSource:
        head = read_head(open_store(url), spool)
        check_schema(head.schema, self.schema, spool.root)
        source = self._spooled_at(url, spool)
        source._lanes, source._token, source._tail, source._trimmed = head.lanes, head.token, None, 0
        return source

    def feed(self, on_failure: OnFailure) -> Callable[[], None]:
        """Start the streaming query on the driver; returns what stops it."""
        return self._need_feeder().feed(self._url, self._where, self.schema, self.event_time, on_failure)

    def splits(self) -> list[Split]:
        """One endless split per lane. An offset means nothing in another spool, so ids differ from spool to spool."""
        return [Split(f"{self._where.generation}:{self._token}:lane-{lane}") for lane in range(self._lanes)]

    def open(self, split: Split, offset: Offset) -> LaneReader:
        """A reader of one lane."""
        lane = next((lane for lane in range(self._lanes) if split == self.splits()[lane]), None)
        if lane is None:
            raise InvalidUseError(f"this is no split of this DataFrame split={split.id}")
        start = _lane_start(offset, split.id)
        if self._tail is None:
            self._tail = SpoolTail(_opened(self._url), self._where)
        self._tail.check(start[0])
        return LaneReader(self._tail, lane, self._lanes, self.schema, self.event_time, start)

    def trim(self, resumes: Sequence[Mapping[str, Offset]]) -> None:
        """Delete what lies before all of these checkpoints, of which each says where its lanes go on. Blocks; idempotent."""
        needed = [first for resume in resumes if (first := self._first_needed(resume)) is not None]
        if needed and min(needed) > self._trimmed:
            trim(_opened(self._url), self._where, min(needed))
            self._trimmed = min(needed)

    def _first_needed(self, resume: Mapping[str, Offset]) -> int | None:
        """The first micro-batch that this checkpoint needs: all of them if it does not say. ``None``: it is of another spool."""
        lanes = [resume.get(split.id) for split in self.splits()]
        if resume and all(lane is None for lane in lanes):
            return None
        return min(_lane_start(lane, self.name)[0] for lane in lanes)


class SpoolTail:
    """The micro-batches of a spool as one process sees them: read once, and looked for no more often than useful.

    Any thread may call it.
    """

    def __init__(self, store: Store, spool: Spool, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._spool = spool
        self._clock = clock
        self._known: dict[int, MicroBatch] = {}
        self._look_again = (-1, 0.0)
        self._lock = threading.Lock()

    def batch(self, number: int) -> MicroBatch | None:
        """A micro-batch, if it is there."""
        with self._lock:
            return self._batch(number)

    def check(self, number: int) -> None:
        """Refuse an offset whose micro-batch was trimmed: it would be waited for in vain."""
        if self.batch(number) is None and was_trimmed(self.store, self._spool, number):
            raise CorruptDataError(
                "the checkpoint needs rows of a spooled DataFrame that were deleted because no checkpoint of the job's log needs "
                f"them: restore a newer one path={self._spool.batch(number)}",
                path=self._spool.batch(number),
            )

    def _batch(self, number: int) -> MicroBatch | None:
        found = self._known.get(number)
        missing, until = self._look_again
        if found is not None or (missing == number and self._clock() < until):
            return found
        found = read_batch(self.store, self._spool, number)
        if found is None:
            self._look_again = (number, self._clock() + LOOK_INTERVAL_S)
            return None
        self._known[number] = found
        if len(self._known) > BATCHES_KNOWN:
            del self._known[next(iter(self._known))]
        return found


class LaneReader:
    """A ``SplitReader`` of one lane. The offset is a micro-batch, a chunk of this lane in it, and a row in that."""

    def __init__(
        self, tail: SpoolTail, lane: int, lanes: int, schema: pa.Schema, event_time: str | None, start: tuple[int, int, int]
    ) -> None:
        self._tail = tail
        self._lane = lane
        self._lanes = lanes
        self._schema = schema
        self._event_time = event_time
        self._number, self._index, self._row = start
        self._reader: ChunkReader | None = None

    @property
    def batch(self) -> int:
        """The number of the micro-batch that the next row is of."""
        return self._number

    @property
    def offset(self) -> Offset:
        """Where reading would go on."""
        return [self._number, self._index, self._row]

    def poll(self, max_rows: int) -> Polled:
        """The next rows; at the end of a micro-batch, its event time."""
        batch = self._tail.batch(self._number)
        if batch is None:
            return Polled(None)
        chunks = [chunk for chunk in batch.chunks if chunk.partition % self._lanes == self._lane]
        if self._index >= len(chunks):
            self._number, self._index, self._row = self._number + (0 if batch.end else 1), 0, 0
            return Polled(None, 0, batch.highest_time, finished=batch.end)
        if self._reader is None:
            store, chunk = self._tail.store, chunks[self._index]
            self._reader = ChunkReader(store, chunk, self._schema, self._event_time, self._row)
        polled = self._reader.poll(max_rows)
        self._row += polled.rows
        if polled.finished:
            self.close()
            self._index, self._row = self._index + 1, 0
        return Polled(polled.batch, polled.rows, polled.highest)

    def close(self) -> None:
        """Let go of the rows."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@lru_cache(maxsize=16)
def _opened(url: str) -> Store:
    return open_store(url)


def _lane_start(offset: Offset, split_id: str) -> tuple[int, int, int]:
    match offset:
        case None:
            return 0, 0, 0
        case [int(number), int(index), int(row)] if min(number, index, row) >= 0:
            return number, index, row
        case _:
            raise InvalidUseError(f"this is no offset of a lane split={split_id} offset={offset!r}")


def _by_time(chunk: Chunk) -> tuple[bool, int, str]:
    lowest = chunk.lowest_time
    return lowest is not None, lowest or 0, chunk.path


def _highest(times: pa.Array) -> int:
    return int(times.view(pa.int64()).to_numpy().max())


def _in_event_time(schema: pa.Schema, event_time: str | None, out_of_orderness: Duration) -> int:
    duration_ms = parse_duration_ms(out_of_orderness, name="out_of_orderness")
    if event_time is None:
        if duration_ms:
            raise InvalidUseError("out_of_orderness needs an event_time column, name it")
        return 0
    kind = need_column("event_time", event_time, schema).type
    if not is_event_time(kind):
        raise InvalidUseError(f"event time is int64 milliseconds or a timestamp column={event_time!r} type={kind}")
    return in_unit("out_of_orderness", duration_ms, kind)
