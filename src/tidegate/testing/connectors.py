"""The contracts of sources and sinks as checks that anyone can run against their own.

A check raises ``AssertionError`` with a sentence that says what is broken. ``check_source`` only reads.
``check_sink`` makes new sinks with the function it gets and looks at them from outside with another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.plan.capabilities import Hides, HidesUnnamed
from tidegate.plan.connector import Committable, Offset, Sink, SinkWriter, Source, Split, WriterContext

NewSink = Callable[[], Sink]
Visible = Callable[[Sink], pa.Table]

SINK_SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])
"""The columns of the rows that ``check_sink`` writes."""

_QUIET_POLLS_MAX = 2_000
_QUIET_SECONDS = 0.001


# -- sources ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """What reading a split returned: batches, and each offset with the rows read and emitted before it."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    marks: list[tuple[Offset, int, int]] = field(default_factory=list)
    rows: int = 0
    emitted: int = 0
    highest: int | None = None
    finished: bool = False


def check_source(
    source: Source,
    *,
    rows_max: int = 10_000,
    splits_max: int = 8,
    poll_rows: int = 257,
    to_node: Callable[[Source], Source] = deepcopy,
) -> None:
    """Check a source: stable splits, replay from every offset, honest counts and event times.

    The first ``splits_max`` splits are read up to ``rows_max`` rows each, in polls of ``poll_rows``.
    Readers are opened on the source and on the copy that ``to_node`` makes; pass a round trip through pickle
    to check that the source survives the way to a node as it does in a job.
    """
    _need(isinstance(source, Source), "the object lacks a member of the Source protocol")
    copy = to_node(source)
    _need(copy.schema.equals(source.schema), "the copy for the nodes has another schema")
    splits = list(source.splits())
    ids = [split.id for split in splits]
    _need(len(set(ids)) == len(ids), f"two splits have the same id ids={ids}")
    _need(list(source.splits()) == splits, "a second call of splits() returned other splits")
    _need(list(copy.splits()) == splits, "the copy for the nodes has other splits")
    _need(source.out_of_orderness >= 0, "out_of_orderness is negative")
    for split in splits[:splits_max]:
        _check_split(source, copy, split, rows_max, poll_rows)


def _check_split(source: Source, copy: Source, split: Split, rows_max: int, poll_rows: int) -> None:
    full = _read(source, split, None, rows_max, poll_rows)
    _check_counts(source, split, full)
    table = _table(source, full)
    for offset, rows, emitted in full.marks:
        # Another poll size: where batches are cut must not matter.
        rest = _read(copy, split, offset, full.rows - rows, max(1, poll_rows * 2 // 3))
        same = _table(source, rest).equals(table.slice(emitted))
        _need(same, f"reading again from an offset returned other rows split={split.id} offset={offset!r}")
        _need(rest.rows == full.rows - rows, f"an offset counts other rows split={split.id} offset={offset!r}")


def _read(source: Source, split: Split, offset: Offset, rows_max: int, poll_rows: int) -> _Reading:
    reader = source.open(split, json.loads(json.dumps(offset)))
    reading = _Reading()
    quiet = 0
    try:
        while not reading.finished and reading.rows < rows_max and quiet < _QUIET_POLLS_MAX:
            wanted = min(poll_rows, rows_max - reading.rows)
            polled = reader.poll(wanted)
            _need(polled.rows <= wanted, f"a poll returned more rows than were asked for split={split.id}")
            _take(source, split, reading, polled.batch, polled.rows, polled.highest)
            reading.finished = polled.finished
            reading.marks.append((json.loads(json.dumps(reader.offset)), reading.rows, reading.emitted))
            quiet = 0 if polled.rows else _wait(quiet)
        if reading.finished:
            again = reader.poll(poll_rows)
            _need(again.finished and not again.rows, f"a finished split returned more rows split={split.id}")
    finally:
        reader.close()
        reader.close()
    _need(quiet < _QUIET_POLLS_MAX, f"a split returned nothing for {quiet} polls split={split.id}")
    return reading


def _wait(quiet: int) -> int:
    time.sleep(_QUIET_SECONDS)
    return quiet + 1


def _take(
    source: Source,
    split: Split,
    reading: _Reading,
    batch: pa.RecordBatch | None,
    rows: int,
    highest: int | None,
) -> None:
    emitted = 0 if batch is None else batch.num_rows
    _need(emitted <= rows, f"a poll returned more rows than it counted split={split.id}")
    if batch is not None:
        _need(batch.schema.equals(source.schema), f"a batch has another schema than the source split={split.id}")
        batch.validate(full=True)
        _check_times(source, split, batch, rows, highest)
        reading.batches.append(batch)
    reading.rows += rows
    reading.emitted += emitted
    if highest is not None:
        reading.highest = highest if reading.highest is None else max(highest, reading.highest)


def _check_times(source: Source, split: Split, batch: pa.RecordBatch, rows: int, highest: int | None) -> None:
    name = source.event_time
    if name is None or name not in batch.schema.names or not batch.num_rows:
        return
    times = batch.column(name).view(pa.int64()).to_pylist()
    _need(None not in times, f"an event time is null split={split.id}")
    _need(highest is not None and highest >= max(times), f"highest is below an event time split={split.id}")
    if rows == len(times):
        _need(highest == max(times), f"highest is above all event times split={split.id}")
    if split.lowest is not None:
        _need(split.lowest <= min(times), f"an event time is below the split's lowest split={split.id}")


def _check_counts(source: Source, split: Split, full: _Reading) -> None:
    if source.bounded and full.finished and split.rows is not None:
        _need(
            full.rows == split.rows,
            f"the split has other rows than it says split={split.id} is={full.rows}",
        )
    if not source.bounded:
        _need(not full.finished, f"a split of an unbounded source ended split={split.id}")


def _table(source: Source, reading: _Reading) -> pa.Table:
    table = pa.Table.from_batches(reading.batches, source.schema).combine_chunks()
    # Floats by their bits: NaN is the same row again too.
    return pa.table([_bits(column) for column in table.columns], names=table.schema.names)


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    widths = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return column.combine_chunks().view(widths[column.type]) if column.type in widths else column


# -- sinks -----------------------------------------------------------------------------------------


def check_sink(new_sink: NewSink, visible: Visible, *, to_node: Callable[[Sink], Sink] = deepcopy) -> None:
    """Check a two-phase sink. ``new_sink`` returns a fresh, empty one; ``visible`` all rows that a reader sees.

    The sink is written with ``SINK_SCHEMA``; the order of rows does not matter. Writers come from the
    copy that ``to_node`` makes; pass a round trip through pickle to check that too.
    """
    for check in _SINK_CHECKS:
        sink = new_sink()
        _need(isinstance(sink, Sink), "the object lacks a member of the Sink protocol")
        check(_Bench(sink, visible, to_node))


@dataclass(slots=True)
class _Bench:
    """A sink under test, with what stages rows for it and looks at it."""

    sink: Sink
    visible: Visible
    to_node: Callable[[Sink], Sink]
    counter: int = 0

    def writer(self, subtask: int = 0, gang: int = 0) -> SinkWriter:
        return self.to_node(self.sink).writer(WriterContext("sink", subtask, gang, SINK_SCHEMA))

    def staged(self, *keys: int, subtask: int = 0, gang: int = 0) -> Committable:
        writer = self.writer(subtask, gang)
        writer.write(rows_of(*keys))
        committable = self.prepared(writer)
        writer.close()
        assert committable is not None, "prepare returned nothing although rows were written"
        return committable

    def prepared(self, writer: SinkWriter) -> Committable | None:
        self.counter += 1
        committable = writer.prepare(self.counter)
        through: Committable | None = json.loads(json.dumps(committable))
        _need(through == committable, f"a committable does not survive JSON committable={committable!r}")
        return through

    def expect(self, *keys: int, when: str) -> None:
        found = self.visible(self.sink)
        is_keys = sorted(found.column("key").to_pylist()) if found.num_rows else []
        _need(is_keys == sorted(keys), f"{when}: a reader sees other rows is={is_keys} expected={sorted(keys)}")


def rows_of(*keys: int) -> pa.RecordBatch:
    """Rows for a sink under test, one per key."""
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int64()), pa.array([f"row {key}" for key in keys], pa.string())],
        schema=SINK_SCHEMA,
    )


def _check_commit(bench: _Bench) -> None:
    committable = bench.staged(1, 2, 3)
    bench.expect(when="prepared and not committed")
    bench.sink.commit(1, [committable])
    bench.expect(1, 2, 3, when="committed")
    bench.sink.commit(1, [committable])
    bench.expect(1, 2, 3, when="committed twice")
    bench.sink.commit(2, [])
    bench.expect(1, 2, 3, when="an empty epoch was committed")


def _check_epochs_of_one_writer(bench: _Bench) -> None:
    writer = bench.writer()
    _need(bench.prepared(writer) is None, "prepare returned a committable although nothing was written")
    writer.write(rows_of(1))
    writer.write(rows_of())
    first = bench.prepared(writer)
    writer.write(rows_of(2))
    second = bench.prepared(writer)
    writer.write(rows_of(3))
    writer.close()
    writer.close()
    assert first is not None and second is not None, "prepare returned nothing although rows were written"
    bench.sink.commit(1, [first])
    bench.expect(1, when="the first of two epochs was committed")
    bench.sink.commit(2, [second])
    bench.expect(1, 2, when="two epochs were committed and rows that were not prepared dropped")


def _check_partial_commit(bench: _Bench) -> None:
    both = [bench.staged(1, subtask=0), bench.staged(2, subtask=1)]
    bench.sink.commit(1, both[:1])
    bench.sink.commit(1, both)
    bench.expect(1, 2, when="a commit that broke off was done again")


def _check_named_twice(bench: _Bench) -> None:
    first = bench.staged(1)
    second = bench.staged(2)
    bench.sink.commit(1, [first])
    bench.sink.commit(2, [first, second])
    bench.expect(1, 2, when="two manifests named one committable")


def _check_carried_over(bench: _Bench) -> None:
    failed, next_one = bench.staged(1), bench.staged(2)
    bench.sink.commit(1, [failed, next_one])
    bench.expect(1, 2, when="an epoch carried the committable of a failed checkpoint")


def _check_abort(bench: _Bench) -> None:
    dropped, kept = bench.staged(1), bench.staged(2)
    bench.sink.abort([dropped])
    bench.sink.abort([dropped])
    bench.sink.commit(1, [kept])
    bench.expect(2, when="one of two committables was aborted")
    bench.sink.abort([])


def _check_gangs(bench: _Bench) -> None:
    old, new = bench.staged(1, gang=3), bench.staged(2, gang=7)
    bench.sink.commit(1, [old])
    bench.sink.commit(2, [new])
    bench.expect(1, 2, when="two gangs staged with the same subtask")


def _check_hide(bench: _Bench) -> None:
    if not isinstance(bench.sink, Hides):
        return
    hide = bench.sink.hide
    kept, shown, waiting = bench.staged(1), bench.staged(2), bench.staged(3)
    bench.sink.commit(1, [kept])
    bench.sink.commit(2, [shown])
    hide([shown, waiting])
    bench.expect(1, when="a committed and a waiting epoch were hidden")
    hide([shown, waiting])
    bench.sink.commit(2, [shown])
    bench.sink.commit(3, [waiting])
    bench.expect(1, when="a late commit of hidden epochs came")
    bench.sink.commit(2, [bench.staged(4, gang=9)])
    bench.expect(1, 4, when="another epoch was committed after hiding")


def _check_hide_unnamed(bench: _Bench) -> None:
    if not isinstance(bench.sink, HidesUnnamed):
        return
    hide = bench.sink.hide_unnamed
    kept, waiting, shown = bench.staged(1), bench.staged(2), bench.staged(3)
    bench.staged(4)
    bench.sink.commit(1, [kept])
    bench.sink.commit(3, [shown])
    newer = bench.staged(5, gang=9)
    for _ in range(2):  # as often as starts fail
        hide(9, 2, [waiting])
        bench.expect(1, when="what lower gangs staged after a checkpoint was hidden")
    bench.sink.commit(2, [waiting])
    bench.sink.commit(10, [newer])
    bench.expect(1, 2, 5, when="what was kept and what a newer gang staged was committed after hiding the rest")


_SINK_CHECKS: tuple[Callable[[_Bench], None], ...] = (
    _check_commit,
    _check_epochs_of_one_writer,
    _check_partial_commit,
    _check_named_twice,
    _check_carried_over,
    _check_abort,
    _check_gangs,
    _check_hide,
    _check_hide_unnamed,
)


def _need(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
