"""The spool of a DataFrame in the job's store: Arrow chunks, and the lists that say which of them count.

A batch DataFrame is spooled once: tasks write chunks under names that nobody shares, then the driver creates ``manifest.json``.
A streaming one grows: one list per micro-batch, numbered without gaps, created once and never changed. A chunk that no list
names does not exist, whatever a killed or repeated task left behind. So a list is the commit point of its rows. ``trim`` takes
away the oldest micro-batches, and with them what such tasks left: a chunk's name says which micro-batch it was written for.

    {prefix}/g{generation}/manifest.json | spool.json        the full list | the number of lanes
    {prefix}/g{generation}/batches/{number}.json             one micro-batch
    {prefix}/g{generation}/chunks/{Spark's batch id}-{partition}-{token}-{k}.arrow
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

from tidegate.core.log.codec import decode, encode
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError, RetryableError
from tidegate.runtime.snapshotfile import check_rows, crc32c
from tidegate.store.interface import Store

CHUNK_BYTES = 32 << 20
CREATE_TRIES = 8
_GENERATION = re.compile(r"g(\d{1,9})")
_BATCH = re.compile(r"(\d{20})\.json")
_CHUNK = re.compile(r"(\d{20})-\d{5,10}-[0-9a-f]{32}-\d{5,10}\.arrow")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One object of rows. ``lowest`` and ``highest`` are event times, where there are any."""

    path: str
    partition: int
    rows: int
    bytes: int
    crc32c: int
    lowest: object = None
    highest: object = None

    def __post_init__(self) -> None:
        for time in (self.lowest, self.highest):
            if time is not None and (not isinstance(time, int) or isinstance(time, bool)):
                raise InvalidUseError(f"an event time is a whole number time={time!r}")

    @property
    def lowest_time(self) -> int | None:
        """The smallest event time."""
        return self.lowest if isinstance(self.lowest, int) else None

    @property
    def highest_time(self) -> int | None:
        """The largest event time."""
        return self.highest if isinstance(self.highest, int) else None


@dataclass(frozen=True, slots=True)
class FrameManifest:
    """A batch DataFrame, spooled to its end."""

    schema: str
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A streaming DataFrame: what stays the same for all of its micro-batches. ``token`` tells this spool from all others."""

    schema: str
    lanes: int
    token: str

    def __post_init__(self) -> None:
        if not 0 < self.lanes <= 4096:
            raise InvalidUseError(f"a spool has 1 to 4096 lanes lanes={self.lanes}")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one micro-batch. ``highest`` is the largest event time up to and with it; ``end``: nothing follows."""

    batch_id: int
    write_id: str
    chunks: tuple[Chunk, ...]
    highest: object = None
    end: bool = False

    @property
    def highest_time(self) -> int | None:
        """The largest event time so far."""
        return self.highest if isinstance(self.highest, int) else None


@dataclass(frozen=True, slots=True)
class Spool:
    """Where one generation of a spool is. A start without state begins a new generation."""

    prefix: str
    generation: int

    @property
    def root(self) -> str:
        """What all names of this generation begin with."""
        return f"{self.prefix}/g{self.generation}"

    @property
    def manifest(self) -> str:
        """The list of a batch DataFrame."""
        return f"{self.root}/manifest.json"

    @property
    def head(self) -> str:
        """The head of a streaming DataFrame."""
        return f"{self.root}/spool.json"

    @property
    def batches(self) -> str:
        """What to list for micro-batches."""
        return f"{self.root}/batches"

    def batch(self, number: int) -> str:
        """One micro-batch, by its number in the spool."""
        return f"{self.batches}/{number:020d}.json"

    @property
    def chunks(self) -> str:
        """What to list for rows."""
        return f"{self.root}/chunks"

    def chunk(self, batch_id: int, partition: int, token: str, number: int) -> str:
        """One object of rows."""
        return f"{self.chunks}/{batch_id:020d}-{partition:05d}-{token}-{number:05d}.arrow"


def generations(store: Store, prefix: str) -> list[int]:
    """The generations that were begun and can be read, newest first."""
    found = set()
    for info in store.list(prefix):
        generation, _, rest = info.path.removeprefix(f"{prefix}/").partition("/")
        matched = _GENERATION.fullmatch(generation)
        if matched and rest in ("manifest.json", "spool.json"):
            found.add(int(matched[1]))
    return sorted(found, reverse=True)


def next_generation(store: Store, prefix: str) -> Spool:
    """The one after all that are there."""
    return Spool(prefix, max(generations(store, prefix), default=-1) + 1)


def schema_text(schema: pa.Schema) -> str:
    """A schema as text that survives JSON."""
    return base64.b64encode(schema.serialize()).decode()


def create(store: Store, path: str, record: FrameManifest | StreamHead) -> None:
    """Create a list, or find that it exists: then the existing one counts."""
    for attempt in range(CREATE_TRIES):
        try:
            store.create(path, encode(record))
            return
        except RetryableError:
            if attempt + 1 == CREATE_TRIES:
                raise


def read_manifest(store: Store, spool: Spool) -> FrameManifest:
    """The list of a batch DataFrame."""
    return decode(FrameManifest, store.get(spool.manifest), spool.manifest)


def read_head(store: Store, spool: Spool) -> StreamHead:
    """The head of a streaming DataFrame."""
    return decode(StreamHead, store.get(spool.head), spool.head)


def check_schema(stored: str, schema: pa.Schema, prefix: str) -> None:
    """Refuse a spool of other columns."""
    if stored != schema_text(schema):
        raise InvalidUseError(
            "the DataFrame has other columns than the one that was spooled for this job: put them back, or start with "
            f"restore='none' spool={prefix}"
        )


# -- chunks ------------------------------------------------------------------------------------------------------------


def write_chunks(
    store: Store,
    spool: Spool,
    batch_id: int,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    event_time: str | None,
) -> Iterator[Chunk]:
    """Write the rows of one partition of a micro-batch, or of batch 0 of a batch DataFrame.

    Names are new at every call, so a repeated task never meets its own leftovers.
    """
    token = uuid4().hex
    for number, piece in enumerate(_pieces(batches, schema)):
        data = _chunk_bytes(piece, schema)
        path = spool.chunk(batch_id, partition, token, number)
        store.put(path, data)
        rows = sum(batch.num_rows for batch in piece)
        yield Chunk(path, partition, rows, len(data), crc32c(data), *_bounds(piece, event_time))


def _pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[list[pa.RecordBatch]]:
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            piece.append(_as(batch, schema))
            size += piece[-1].nbytes
        if size >= CHUNK_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in exactly these types: Spark names time zones and string types by its session's settings."""
    columns = [
        batch.column(at) if batch.column(at).type == field.type else batch.column(at).cast(field.type)
        for at, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _chunk_bytes(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _bounds(batches: list[pa.RecordBatch], event_time: str | None) -> tuple[int | None, int | None]:
    if event_time is None:
        return None, None
    columns = [batch.column(event_time) for batch in batches]
    if any(column.null_count for column in columns):
        raise InvalidUseError(f"an event time must not be null, filter the DataFrame first column={event_time}")
    values = [column.view(pa.int64()).to_numpy() for column in columns]
    return min(int(each.min()) for each in values), max(int(each.max()) for each in values)


def read_chunk(store: Store, chunk: Chunk, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of a chunk, checked."""
    data = store.get(chunk.path)
    if len(data) != chunk.bytes or crc32c(data) != chunk.crc32c:
        raise CorruptDataError(f"a chunk of a spooled DataFrame is damaged path={chunk.path}", path=chunk.path)
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batches = list(reader)
            for batch in batches:
                check_rows(batch)
            table = pa.Table.from_batches(batches, reader.schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError(f"a chunk of a spooled DataFrame can't be read: {error}", path=chunk.path) from error
    if not table.schema.equals(schema) or table.num_rows != chunk.rows:
        raise CorruptDataError(f"a chunk is not what its list says path={chunk.path}", path=chunk.path)
    return table.to_batches()[0]


# -- micro-batches -----------------------------------------------------------------------------------------------------


def read_batch(store: Store, spool: Spool, number: int) -> MicroBatch | None:
    """One micro-batch by its number; ``None`` when it is not there yet."""
    path = spool.batch(number)
    try:
        return decode(MicroBatch, store.get(path), path)
    except FileNotFoundError:
        return None


def numbers(store: Store, spool: Spool) -> set[int]:
    """The numbers of the micro-batches that are there."""
    return {int(found[1]) for info in store.list(spool.batches) if (found := _named(_BATCH, info.path))}


def trim(store: Store, spool: Spool, needed: int) -> None:
    """Delete the micro-batches before this one. Blocks; idempotent, and a call for an earlier one changes nothing.

    The last list of them stays: it says up to which of Spark's batches the spool goes, for an appender and for the next call.
    Lists go first, so that whoever looks for rows that are gone is told so (``was_trimmed``). A crash leaves what the next call
    finds. A list that a stale driver puts at a number that was freed is before all that is read, and goes again.
    """
    last = read_batch(store, spool, needed - 1) if needed else None
    if last is None:
        return
    store.delete([spool.batch(number) for number in sorted(numbers(store, spool)) if number < needed - 1])
    store.delete([info.path for info in store.list(spool.chunks) if _batch_id(info.path, last.batch_id + 1) <= last.batch_id])


def was_trimmed(store: Store, spool: Spool, number: int) -> bool:
    """True when this micro-batch is gone; False when it is there or is yet to come."""
    later = any(found > number for found in numbers(store, spool))
    return later and read_batch(store, spool, number) is None  # in this order: it may be appended meanwhile


def _batch_id(path: str, otherwise: int) -> int:
    """The batch that a chunk was written for."""
    found = _named(_CHUNK, path)
    return int(found[1]) if found else otherwise


def _named(pattern: re.Pattern[str], path: str) -> re.Match[str] | None:
    return pattern.fullmatch(path.rpartition("/")[2])


class BatchAppender:
    """The driver's end of a growing spool. Each micro-batch is in it once, however often Spark repeats it."""

    def __init__(self, store: Store, spool: Spool, new_id: Callable[[], str] = lambda: uuid4().hex) -> None:
        self._store = store
        self._spool = spool
        self._new_id = new_id
        self._next = max(numbers(store, spool), default=-1) + 1
        self._last = read_batch(store, spool, self._next - 1) if self._next else None

    @property
    def appended(self) -> int:
        """How many micro-batches there were."""
        return self._next

    @property
    def ended(self) -> bool:
        """True when the end is in the spool."""
        return self._last is not None and self._last.end

    def wants(self, batch_id: int) -> bool:
        """False for a micro-batch that is in the spool already."""
        return self._last is None or (batch_id > self._last.batch_id and not self._last.end)

    def append(self, batch_id: int, chunks: Iterable[Chunk], *, end: bool = False) -> bool:
        """Make these rows part of the spool; False when they already were. Blocks; the rows are durable when it returns."""
        chosen = tuple(chunks)
        if any(_batch_id(chunk.path, -1) != batch_id for chunk in chosen):
            raise ProtocolError(f"chunks of another micro-batch would be trimmed at another time batch_id={batch_id}")
        while self.wants(batch_id):
            times = [None if self._last is None else self._last.highest_time, *(c.highest_time for c in chosen)]
            highest = max((time for time in times if time is not None), default=None)
            if self._put(MicroBatch(batch_id, self._new_id(), chosen, highest, end)):
                return True
        return False

    def finish(self) -> None:
        """Nothing follows."""
        self.append(0 if self._last is None else self._last.batch_id + 1, (), end=True)

    def _put(self, batch: MicroBatch) -> bool:
        """True when this batch took the next number. Another driver's batch there is taken note of."""
        for _ in range(CREATE_TRIES):
            try:
                created = self._store.create(self._spool.batch(self._next), encode(batch))
            except RetryableError:
                continue  # nobody knows whether it landed: the same bytes once more tell
            found = batch if created else read_batch(self._store, self._spool, self._next)
            if found is not None:
                self._last, self._next = found, self._next + 1
                return found.write_id == batch.write_id
        raise RetryableError(f"a micro-batch could not be written spool={self._spool.root}")
