"""A streaming DataFrame's watermark moves at the ends of micro-batches: what is late is the same in every run."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_frame_spool import SCHEMA, Stream
from threads import start

import tidegate as tg
from tidegate.api.job import Job
from tidegate.connectors.dataframe import DataFrameStreamSource, LaneReader
from tidegate.connectors.framespool import BatchAppender, Spool, write_chunks
from tidegate.core.failure.restart import RestartPolicy
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.runtime.continuous import open_reader
from tidegate.runtime.source import Reader
from tidegate.state.run import Restored
from tidegate.store.open import open_store
from tidegate.values import BEGINNING_OF_TIME

SECOND = 1_000
ALWAYS = tg.CheckpointConfig(interval="30ms", unaligned="always")
OFTEN = tg.CheckpointConfig(interval="30ms")

Times = list[list[int]]
"""The event times of one micro-batch, by partition."""


def as_batch(times: list[int], first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"ts": times, "n": range(first, first + len(times))}, schema=SCHEMA)


def overlapping(batches: int, seed: int, *, jitter_ms: int) -> list[Times]:
    """Micro-batches of five partitions, each over the whole time of its batch, some rows as much as ``jitter_ms`` before it."""
    chance = random.Random(seed)
    made = []
    for number in range(batches):
        low, high = number * 700 - jitter_ms, number * 700 + 700
        made.append([[chance.randrange(low, high) for _ in range(chance.choice((0, 7, 60)))] for _ in range(5)])
    return made


def in_time(batches: list[Times], out_of_orderness: int) -> tuple[Counter[int], int]:
    """What comes of them by the rule: rows per window, and how many are late by the watermark of the batches before."""
    counts: Counter[int] = Counter()
    late, watermark, highest = 0, BEGINNING_OF_TIME, BEGINNING_OF_TIME
    for batch in batches:
        for time in (time for partition in batch for time in partition):
            window = time // SECOND * SECOND
            is_late = window + SECOND <= watermark
            late += is_late
            counts[window] += not is_late
            highest = max(highest, time)
        watermark = max(watermark, highest - out_of_orderness)
    return +counts, late


def stream_of(frame: Stream, out_of_orderness: int = 0) -> tg.Stream:
    source = DataFrameStreamSource(frame, SCHEMA, event_time="ts", out_of_orderness=out_of_orderness, name="stream")
    return tg.from_source(source)


def windows(out: Path) -> Counter[int]:
    table = pq.read_table(out)
    found: Counter[int] = Counter()
    for window, count in zip(table.column("window_start").to_pylist(), table.column("c").to_pylist(), strict=True):
        found[window] += count
    return found


def counting(frame: Stream, out: Path, out_of_orderness: int = 0) -> tg.Pipeline:
    keyed = stream_of(frame, out_of_orderness).key_by("n").window(tg.tumbling("1s"))
    return tg.Pipeline("counting", keyed.aggregate(c=tg.count()).write_parquet(out))


def write(frame: Stream, batches: list[Times]) -> None:
    for batch in batches:
        frame.write(*(as_batch(times) for times in batch))


def late_rows(job: Job) -> int:
    return int(job.metrics()["late_rows"])


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize(("jitter_ms", "out_of_orderness"), [(0, 0), (1_500, 500)])
def test_what_is_late_depends_on_the_batches_before_and_on_nothing_else(
    tmp_path: Path, parallelism: int, jitter_ms: int, out_of_orderness: int
) -> None:
    batches = overlapping(12, seed=7, jitter_ms=jitter_ms)
    expected, late = in_time(batches, out_of_orderness)
    assert bool(late) == bool(jitter_ms), "both kinds of input are tried"
    frame = Stream()
    job = start(counting(frame, tmp_path / "out", out_of_orderness), tmp_path / "store", parallelism, checkpoint=OFTEN)
    write(frame, batches)
    frame.appender.finish()
    assert job.await_termination(30)
    assert (windows(tmp_path / "out"), late_rows(job)) == (expected, late)


@pytest.mark.parametrize("checkpoint", [OFTEN, ALWAYS], ids=["aligned", "unaligned"])
def test_late_rows_are_the_same_ones_through_kills(tmp_path: Path, checkpoint: tg.CheckpointConfig) -> None:
    """In the wide form too, where late rows are an output."""
    batches = overlapping(12, seed=3, jitter_ms=1_500)
    expected, late = in_time(batches, 500)
    frame = Stream()
    keyed = tg.from_source(DyingSource(frame, SCHEMA, event_time="ts", out_of_orderness=500, name="stream")).key_by("n")
    result = keyed.window(tg.tumbling("1s")).aggregate(c=tg.count())
    pipeline = tg.Pipeline("killed", result.write_parquet(tmp_path / "out"), result.late().write_parquet(tmp_path / "late"))
    restarts = RestartPolicy(first_wait_ms=1, longest_wait_ms=5, limit=200)
    job = start(pipeline, tmp_path / "store", 2, checkpoint=checkpoint, restarts=restarts)
    write(frame, batches)
    frame.appender.finish()
    assert job.await_termination(60)
    assert job.metrics()["restarts"] > 2
    assert windows(tmp_path / "out") == expected
    assert pq.read_table(tmp_path / "late").num_rows == late


class DyingSource(DataFrameStreamSource):
    """Reads slowly, and now and then a node of it is lost in the middle of a micro-batch."""

    deaths: ClassVar[list[int]] = []

    def open(self, split: Split, offset: Offset) -> LaneReader:
        reader = super().open(split, offset)
        poll, polls = reader.poll, iter(range(1_000))

        def dying(max_rows: int) -> Polled:
            if next(polls) == 25:
                self.deaths.append(1)
                raise ConnectionError(f"node lost for the {len(self.deaths)}. time")
            return poll(min(max_rows, 5))

        reader.poll = dying  # type: ignore[method-assign]
        return reader


def test_other_parallelisms_in_the_middle_of_a_batch_change_nothing(tmp_path: Path) -> None:
    batches = overlapping(12, seed=11, jitter_ms=1_500)
    expected, late = in_time(batches, 500)
    for turn, parallelism in enumerate((2, 4, 1)):
        frame = Stream()
        job = start(counting(frame, tmp_path / "out", 500), tmp_path / "store", parallelism, checkpoint=OFTEN)
        write(frame, batches[turn * 4 : turn * 4 + 4])
        if turn == 2:
            frame.appender.finish()
            assert job.await_termination(30)
        else:
            job.stop()  # wherever the lanes are
    assert (windows(tmp_path / "out"), late_rows(job)) == (expected, late)


# -- one subtask's reader ----------------------------------------------------------------------------------------------


def spooled(tmp_path: Path, *batches: Times) -> DataFrameStreamSource:
    source = DataFrameStreamSource(Stream(), SCHEMA, event_time="ts", out_of_orderness=0, name="stream")
    placed = source.with_store(str(tmp_path), "p", fresh=False)
    store, spool = open_store(tmp_path), Spool("p", 0)
    appender = BatchAppender(store, spool)
    for batch_id, batch in enumerate(batches):
        written = (write_chunks(store, spool, batch_id, p, [as_batch(times)], SCHEMA, "ts") for p, times in enumerate(batch))
        appender.append(batch_id, [chunk for chunks in written for chunk in chunks])
    return placed


def reader_of(source: DataFrameStreamSource, subtask: int = 0, parallelism: int = 1, now_ms: int = 0) -> Reader:
    return open_reader("stream", source, source.splits(), subtask, parallelism, lambda: now_ms)


def story(reader: Reader, polls: int, max_rows: int = 2) -> list[object]:
    """What the reader brings, and the watermark whenever it is another one."""
    told: list[object] = []
    watermark = reader.watermark
    for _ in range(polls):
        polled: Polled = reader.poll(max_rows)
        if polled.batch is not None:
            told.append(polled.batch.column("ts").to_pylist())
        if reader.watermark != watermark:
            watermark = reader.watermark
            told.append(watermark)
    return told


def test_the_watermark_moves_after_the_last_row_of_a_batch_and_by_rows_of_others_too(tmp_path: Path) -> None:
    source = spooled(tmp_path, [[10, 90], [20], [5]], [], [[95], [60, 70]])
    assert story(reader_of(source), 12) == [[10, 90], [20], [5], 90, [95], [60, 70], 95]
    assert story(reader_of(source, 1, 2), 12) == [[20], 90, [60, 70], 95]
    assert story(reader_of(source, 7, 8), 12) == [90, 95], "it has no partition of any"


def test_a_stream_is_never_idle_because_its_subtasks_hear_of_a_batch_one_after_the_other(tmp_path: Path) -> None:
    reader = reader_of(spooled(tmp_path, [[10], [20]]), now_ms=10**9)
    story(reader, 5)
    assert not reader.idle


def test_a_reader_that_goes_on_says_the_watermark_before_the_rest_of_the_batch(tmp_path: Path) -> None:
    source = spooled(tmp_path, [[10, 90], [20]], [[40, 50, 60, 91], [30]])
    first = reader_of(source)
    assert story(first, 5) == [[10, 90], [20], 90, [40, 50]]
    second = reader_of(source)
    second.restore([Restored(0, dict(first.freeze().meta))])
    assert second.poll(2) == Polled(None) and second.watermark == 90
    assert sorted(map(str, story(second, 6))) == sorted(map(str, [[60, 91], [30], 91]))


def test_lanes_that_come_together_in_different_batches_are_read_the_earliest_first(tmp_path: Path) -> None:
    source = spooled(tmp_path, [[10], [20]], [[30], [40]], [[50], [60]])
    ahead, behind = reader_of(source, 0, 2), reader_of(source, 1, 2)
    assert story(ahead, 8) == [[10], 20, [30], 40, [50], 60]
    assert story(behind, 1) == []
    together = reader_of(source)
    together.restore([Restored(n, dict(reader.freeze().meta)) for n, reader in enumerate((ahead, behind))])
    assert story(together, 12) == [[20], 20, [40], 40, [60], 60]
