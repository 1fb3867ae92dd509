"""The spool of DataFrames without Spark: lists are commit points, micro-batches are there once, damage is named."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threads import start, until

import tidegate as tg
from tidegate.connectors.dataframe import DataFrameSource, DataFrameStreamSource
from tidegate.connectors.framespool import BatchAppender, Chunk, Spool, read_batch, write_chunks
from tidegate.errors import CorruptDataError, InvalidUseError, JobFailedError
from tidegate.plan.capabilities import OnFailure
from tidegate.plan.connector import Source
from tidegate.runtime.continuous import ContinuousReader
from tidegate.state.run import Restored
from tidegate.store.interface import Store
from tidegate.store.open import open_store
from tidegate.testing.connectors import check_source
from tidegate.testing.store import Fault, FaultyStore

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.RecordBatch.from_pydict({"ts": [n * 10 for n in numbers], "n": numbers}, schema=SCHEMA)


class Frame:
    """A feeder whose partitions are given; counts how often it was computed."""

    def __init__(self, *partitions: pa.RecordBatch) -> None:
        self.partitions = list(partitions)
        self.computed = 0
        self.streaming = False

    def fill(self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
        self.computed += 1
        store = open_store(url)
        return [
            chunk
            for number, batch in enumerate(self.partitions)
            for chunk in write_chunks(store, spool, 0, number, [batch], schema, event_time)
        ]

    def feed(
        self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure
    ) -> Callable[[], None]:
        raise AssertionError("this is a batch DataFrame")


class Stream(Frame):
    """A feeder that appends when the test says so."""

    def feed(
        self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure
    ) -> Callable[[], None]:
        self.appender = BatchAppender(open_store(url), spool)
        self.write = lambda *batches: self._write(url, spool, batches)
        self.batch_id = -1 if self.appender._last is None else self.appender._last.batch_id
        self.fail = on_failure
        self.stopped = threading.Event()
        return self.stopped.set

    def _write(self, url: str, spool: Spool, batches: tuple[pa.RecordBatch, ...]) -> None:
        """Append the next micro-batch, one partition per record batch."""
        self.batch_id += 1
        append(self.appender, open_store(url), spool, self.batch_id, *batches)


def append(appender: BatchAppender, store: Store, spool: Spool, batch_id: int, *batches: pa.RecordBatch) -> bool:
    written = (write_chunks(store, spool, batch_id, p, [batch], SCHEMA, "ts") for p, batch in enumerate(batches))
    return appender.append(batch_id, [chunk for chunks in written for chunk in chunks])


def batch_source(frame: Frame) -> DataFrameSource:
    return DataFrameSource(frame, SCHEMA, event_time="ts", out_of_orderness="0s", name="frame")


def stream_source(frame: Stream) -> DataFrameStreamSource:
    return DataFrameStreamSource(frame, SCHEMA, event_time="ts", out_of_orderness="0s", name="stream")


def numbers(out: Path) -> list[int]:
    return sorted(pq.read_table(out).column("n").to_pylist()) if any(out.glob("*.parquet")) else []


# -- batch -------------------------------------------------------------------------------------------------------------


def test_a_batch_frame_is_computed_once_whatever_starts_again(tmp_path: Path) -> None:
    frame = Frame(rows(50, 50), rows(0, 50))
    out = tmp_path / "out"
    for _ in range(2):
        pipeline = tg.Pipeline("frame", tg.from_source(batch_source(frame)).write_parquet(out))
        job = start(pipeline, tmp_path / "store")
        assert job.await_termination(20)
    assert numbers(out) == list(range(100))
    assert frame.computed == 1


def test_splits_come_in_the_order_of_event_time_and_carry_it(tmp_path: Path) -> None:
    frame = Frame(rows(50, 50), rows(0, 50))
    source = batch_source(frame).with_store(str(tmp_path), "job/spool/frame", fresh=False)
    assert [(split.lowest, split.rows) for split in source.splits()] == [(0, 50), (500, 50)]
    again = pickle.loads(pickle.dumps(source))
    reader = again.open(again.splits()[0], 48)
    polled = reader.poll(10)
    assert (polled.batch.column("n").to_pylist(), polled.highest, polled.finished) == ([48, 49], 490, True)
    assert reader.offset == 50


def test_a_split_of_another_generation_is_refused(tmp_path: Path) -> None:
    first = batch_source(Frame(rows(0, 5))).with_store(str(tmp_path), "p", fresh=False)
    second = batch_source(Frame(rows(0, 5))).with_store(str(tmp_path), "p", fresh=True)
    with pytest.raises(InvalidUseError, match="no split of this DataFrame"):
        second.open(first.splits()[0], None)


def test_a_start_without_state_computes_the_frame_anew_and_keeps_the_old_spool_apart(tmp_path: Path) -> None:
    first = batch_source(Frame(rows(0, 5))).with_store(str(tmp_path), "p", fresh=False)
    second = batch_source(Frame(rows(7, 3))).with_store(str(tmp_path), "p", fresh=True)
    third = batch_source(Frame()).with_store(str(tmp_path), "p", fresh=False)
    assert [split.rows for split in first.splits()] == [5]
    assert third.splits() == second.splits() and [split.rows for split in second.splits()] == [3]


def test_chunks_without_a_list_do_not_exist(tmp_path: Path) -> None:
    """Spark was killed while it spooled: nothing of that counts."""
    list(write_chunks(open_store(tmp_path), Spool("p", 0), 0, 0, [rows(0, 5)], SCHEMA, "ts"))
    frame = Frame(rows(10, 2))
    source = batch_source(frame).with_store(str(tmp_path), "p", fresh=False)
    assert frame.computed == 1 and [split.lowest for split in source.splits()] == [100]


def test_a_flipped_bit_in_a_chunk_is_found(tmp_path: Path) -> None:
    source = batch_source(Frame(rows(0, 100))).with_store(str(tmp_path), "p", fresh=False)
    chunk = next(tmp_path.rglob("*.arrow"))
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptDataError, match="damaged"):
        source.open(source.splits()[0], None).poll(10)


def test_a_frame_with_other_columns_than_the_spool_is_refused(tmp_path: Path) -> None:
    batch_source(Frame(rows(0, 5))).with_store(str(tmp_path), "p", fresh=False)
    other = DataFrameSource(Frame(), SCHEMA.append(pa.field("x", pa.int8())), event_time=None, out_of_orderness=0, name="f")
    with pytest.raises(InvalidUseError, match="other columns"):
        other.with_store(str(tmp_path), "p", fresh=False)


def test_event_times_that_are_null_are_refused_while_spooling(tmp_path: Path) -> None:
    bad = pa.RecordBatch.from_pydict({"ts": [1, None], "n": [1, 2]}, schema=SCHEMA)
    with pytest.raises(InvalidUseError, match="must not be null"):
        batch_source(Frame(bad)).with_store(str(tmp_path), "p", fresh=False)


def test_a_store_in_memory_is_refused_for_frames() -> None:
    pipeline = tg.Pipeline("frame", tg.from_source(batch_source(Frame(rows(0, 5)))).collect())
    with pytest.raises(InvalidUseError, match="memory"):
        start(pipeline, "memory://frames")


# -- streaming ---------------------------------------------------------------------------------------------------------


def test_a_micro_batch_that_is_repeated_is_appended_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    spool = Spool("p", 0)
    appender = BatchAppender(store, spool)
    chunks = list(write_chunks(store, spool, 0, 0, [rows(0, 5)], SCHEMA, "ts"))
    assert appender.append(0, chunks) and not appender.append(0, chunks)
    after_a_crash = BatchAppender(store, spool)
    assert not after_a_crash.wants(0) and after_a_crash.wants(1)
    assert not after_a_crash.append(0, chunks)
    assert after_a_crash.append(1, [])
    second = read_batch(store, spool, 1)
    assert second is not None and (second.batch_id, second.highest_time) == (1, 40)
    assert read_batch(store, spool, 2) is None


def test_two_drivers_that_append_the_same_micro_batch_leave_one(tmp_path: Path) -> None:
    store, spool = open_store(tmp_path), Spool("p", 0)
    first, second = BatchAppender(store, spool), BatchAppender(store, spool)
    assert first.append(0, []) and not second.append(0, [])
    assert second.append(1, []) and not first.append(1, [])
    assert first.appended == second.appended == 2


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LATE_WRITE, Fault.UNAVAILABLE])
def test_an_append_that_nobody_answers_is_put_again_and_found_to_be_ours(fault: Fault) -> None:
    inner = open_store("memory://")
    store = FaultyStore(inner)
    appender = BatchAppender(store, Spool("p", 0))
    store.fail_next("create", fault)
    assert appender.append(0, [])
    store.settle()
    assert appender.appended == 1 and len(list(inner.list("p"))) == 1


def test_the_end_is_the_end(tmp_path: Path) -> None:
    appender = BatchAppender(open_store(tmp_path), Spool("p", 0))
    appender.append(0, [])
    appender.finish()
    appender.finish()
    assert appender.ended and not appender.wants(7) and appender.appended == 2


def test_rows_of_a_stream_arrive_once_over_stops_and_other_parallelisms(tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "store"
    at = 0
    for parallelism in (2, 3, 1):
        frame = Stream()
        pipeline = tg.Pipeline("stream", tg.from_source(stream_source(frame)).write_parquet(out, publish_every="0s"))
        job = start(pipeline, store, parallelism)
        for _ in range(4):
            frame.write(*(rows(at + 10 * part, 10) for part in range(5)))
            at += 50
        until(lambda: len(numbers(out)) >= at, job)  # noqa: B023
        job.stop()
        assert frame.stopped.is_set(), "the query ends with the job"
        assert numbers(out) == list(range(at))


def test_a_stream_that_ends_finishes_its_job_and_empty_lanes_hold_no_window_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    frame = Stream()
    counts = tg.from_source(stream_source(frame)).with_columns(one=1).key_by("one").window(tg.tumbling("1s"))
    job = start(tg.Pipeline("ends", counts.aggregate(n=tg.count()).write_parquet(out, publish_every="0s")), tmp_path / "store", 2)
    frame.write(rows(0, 250))
    until(lambda: numbers(out) == [100, 100], job)
    frame.appender.finish()
    assert job.await_termination(20) and job.status == "FINISHED"
    assert numbers(out) == [50, 100, 100]


def test_a_checkpoint_does_not_go_with_the_spool_of_another_store(tmp_path: Path) -> None:
    """Its offsets would skip rows there."""
    first, second = (stream_source(Stream()).with_store(str(tmp_path / name), "p", fresh=False) for name in "ab")
    before = ContinuousReader("s", first, first.splits(), 0, 1, lambda: 0)
    before.poll(1)
    after = ContinuousReader("s", second, second.splits(), 0, 1, lambda: 0)
    with pytest.raises(InvalidUseError, match="is not what the checkpoint was reading"):
        after.restore([Restored(0, dict(before.freeze().meta))])


def test_a_query_that_can_not_go_on_fails_the_job_with_its_reason(tmp_path: Path) -> None:
    frame = Stream()
    job = start(tg.Pipeline("fails", tg.from_source(stream_source(frame)).collect()), tmp_path / "store", 1)
    frame.fail("the streaming query failed: no such topic")
    with pytest.raises(JobFailedError, match="no such topic"):
        job.await_termination(20)
    assert job.status == "FAILED" and frame.stopped.is_set()


# -- the contract of sources -------------------------------------------------------------------------------------------


def test_both_kinds_keep_the_contract_of_sources(tmp_path: Path) -> None:
    url = str(tmp_path)
    frame = Frame(rows(0, 900), rows(900, 300))
    check_source(batch_source(frame).with_store(url, "batch", fresh=False), to_node=_pickled)
    source = stream_source(Stream()).with_store(url, "stream", fresh=False)
    store, spool = open_store(tmp_path), Spool("stream", 0)
    appender = BatchAppender(store, spool)
    for number in range(3):
        append(appender, store, spool, number, *[rows(number * 100, 100)] * 10)
    check_source(source, rows_max=250, to_node=_pickled)


def _pickled(source: Source) -> Source:
    copy: Source = pickle.loads(pickle.dumps(source))
    return copy
