"""A spool lets go of what no checkpoint can need: bounded while a job runs, whole for every restore, loud where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_frame_spool import SCHEMA, Stream, append, numbers, rows, stream_source
from threads import start, until

import tidegate as tg
from tidegate.api.job import Job
from tidegate.connectors.framespool import BatchAppender, Spool, read_batch, trim, write_chunks
from tidegate.connectors.framespool import numbers as places
from tidegate.core.log.view import LogView
from tidegate.errors import CorruptDataError, ProtocolError, RetryableError
from tidegate.plan.connector import Polled
from tidegate.runtime.logstore import LogStore
from tidegate.store.interface import Store
from tidegate.store.open import open_store
from tidegate.testing.store import Fault, FaultyStore

SPOOL = Spool("p", 0)


def spooled(store: Store, count: int) -> BatchAppender:
    """A spool of micro-batches whose ids are not their places."""
    appender = BatchAppender(store, SPOOL)
    for number in range(count):
        append(appender, store, SPOOL, number * 2 + 3, rows(number * 10, 10), rows(number * 10 + 5, 5))
    return appender


def chunks(store: Store, spool: Spool = SPOOL) -> set[str]:
    return {info.path for info in store.list(spool.chunks)}


def named(store: Store, *at: int) -> set[str]:
    found = [read_batch(store, SPOOL, number) for number in at]
    return {chunk.path for batch in found if batch is not None for chunk in batch.chunks}


# -- by itself ---------------------------------------------------------------------------------------------------------


def test_micro_batches_before_the_needed_one_are_gone_but_for_the_last_list() -> None:
    store = open_store("memory://")
    spooled(store, 6)
    trim(store, SPOOL, 4)
    assert places(store, SPOOL) == {3, 4, 5}
    assert chunks(store) == named(store, 4, 5)


def test_what_killed_tasks_left_goes_with_its_micro_batch_and_what_is_being_written_stays() -> None:
    store = open_store("memory://")
    spooled(store, 3)
    (left,) = write_chunks(store, SPOOL, 5, 0, [rows(0, 1)], SCHEMA, "ts")  # of the micro-batch at place 1
    (written,) = write_chunks(store, SPOOL, 9, 0, [rows(0, 1)], SCHEMA, "ts")  # of one that is not in a list yet
    trim(store, SPOOL, 3)
    assert left.path not in chunks(store)
    assert chunks(store) == {written.path}


@pytest.mark.parametrize("needed", [0, 1, 7])
def test_nothing_goes_before_the_first_and_beyond_the_end(needed: int) -> None:
    store = open_store("memory://")
    spooled(store, 3)
    trim(store, SPOOL, needed)
    assert places(store, SPOOL) == {0, 1, 2}
    assert chunks(store) == (named(store, 1, 2) if needed == 1 else named(store, 0, 1, 2))


def test_a_spool_that_was_trimmed_to_its_end_is_appended_to_where_it_was() -> None:
    store = open_store("memory://")
    spooled(store, 4)
    trim(store, SPOOL, 4)
    again = BatchAppender(store, SPOOL)
    assert again.appended == 4 and not again.wants(9) and again.wants(10)
    append(again, store, SPOOL, 10, rows(0, 1))
    after = read_batch(store, SPOOL, 4)
    assert after is not None and after.highest_time == 390, "the event time so far lived in the list that stayed"


@pytest.mark.parametrize("deletions", [0, 1])
def test_a_trim_that_is_cut_off_is_finished_by_the_next(deletions: int) -> None:
    store = FaultyStore(open_store("memory://"))
    spooled(store, 6)
    if deletions:
        store.delete([SPOOL.batch(number) for number in range(4)])  # the first of the two was done
    store.fail_next("delete", Fault.UNAVAILABLE)
    with pytest.raises(RetryableError):
        trim(store, SPOOL, 5)
    trim(store, SPOOL, 5)
    assert places(store, SPOOL) == {4, 5} and chunks(store) == named(store, 5)


def test_a_stale_leader_that_wants_less_gone_changes_nothing() -> None:
    store = open_store("memory://")
    spooled(store, 8)
    trim(store, SPOOL, 6)
    before = {info.path for info in store.list("p")}
    for earlier in range(6):
        trim(store, SPOOL, earlier)
    assert {info.path for info in store.list("p")} == before


def test_a_stale_driver_that_appends_at_a_number_that_was_freed_harms_nobody() -> None:
    store = open_store("memory://")
    stale = spooled(store, 2)
    current = BatchAppender(store, SPOOL)
    for number in range(2, 8):
        append(current, store, SPOOL, number * 2 + 3, rows(number * 10, 10))
    trim(store, SPOOL, 6)
    assert append(stale, store, SPOOL, 7, rows(0, 3)), "place 2 was free again"
    kept = named(store, 6, 7)
    append(current, store, SPOOL, 19, rows(80, 10))
    assert BatchAppender(store, SPOOL).appended == 9
    trim(store, SPOOL, 7)
    assert places(store, SPOOL) == {6, 7, 8} and chunks(store) == (kept - named(store, 6)) | named(store, 8)


def test_chunks_of_another_micro_batch_are_no_part_of_this_one() -> None:
    store = open_store("memory://")
    foreign = list(write_chunks(store, SPOOL, 4, 0, [rows(0, 1)], SCHEMA, "ts"))
    with pytest.raises(ProtocolError, match="another micro-batch"):
        BatchAppender(store, SPOOL).append(5, foreign)


def test_reading_from_an_offset_that_was_trimmed_is_refused_and_one_that_is_to_come_is_waited_for(tmp_path: Path) -> None:
    source = stream_source(Stream()).with_store(str(tmp_path), "p", fresh=False)
    store = open_store(tmp_path)
    spooled(store, 5)
    trim(store, SPOOL, 3)
    lane = source.splits()[0]
    for gone in (None, [1, 0, 0]):
        with pytest.raises(CorruptDataError, match="were deleted because no checkpoint"):
            source.open(lane, gone)
    assert source.open(lane, [3, 0, 0]).poll(100).rows == 10
    assert source.open(lane, [5, 0, 0]).poll(100) == Polled(None)


# -- what a source lets go of ------------------------------------------------------------------------------------------


def resume(source: Any, *at: int) -> dict[str, list[int]]:
    return {split.id: [number, 1, 0] for split, number in zip(source.splits(), at, strict=False)}


def test_the_slowest_lane_of_the_oldest_checkpoint_is_the_bound(tmp_path: Path) -> None:
    source = stream_source(Stream()).with_store(str(tmp_path), "p", fresh=False)
    store = open_store(tmp_path)
    spooled(store, 9)
    source.trim([resume(source, 8, 8, 8, 8, 5, 8, 8, 8), resume(source, *[7] * 8)])
    assert min(places(store, SPOOL)) == 4 and chunks(store) == named(store, 5, 6, 7, 8)


def test_a_checkpoint_that_does_not_say_where_a_lane_was_keeps_everything(tmp_path: Path) -> None:
    source = stream_source(Stream()).with_store(str(tmp_path), "p", fresh=False)
    store = open_store(tmp_path)
    spooled(store, 9)
    for silent in ({}, resume(source, *[8] * 7)):
        source.trim([silent, resume(source, *[8] * 8)])
        assert len(places(store, SPOOL)) == 9
    source.trim([])
    assert len(places(store, SPOOL)) == 9


def test_a_savepoint_of_another_spool_holds_nothing_back(tmp_path: Path) -> None:
    old = stream_source(Stream()).with_store(str(tmp_path), "p", fresh=False)
    source = stream_source(Stream()).with_store(str(tmp_path), "q", fresh=False)
    store, spool = open_store(tmp_path), Spool("q", 0)
    appender = BatchAppender(store, spool)
    for number in range(5):
        append(appender, store, spool, number, rows(number, 1))
    source.trim([resume(old, *[0] * 8), resume(source, *[4] * 8)])
    assert places(store, spool) == {3, 4}


# -- in whole jobs -----------------------------------------------------------------------------------------------------


def job_of(frame: Stream, tmp_path: Path, **options: Any) -> Job:
    pipeline = tg.Pipeline("stream", tg.from_source(stream_source(frame)).write_parquet(tmp_path / "out", publish_every="0s"))
    options.setdefault("checkpoint", tg.CheckpointConfig(interval="50ms", retain=2))
    return start(pipeline, tmp_path / "store", 2, **options)


def fed(frame: Stream, job: Job, out: Path, first: int, count: int) -> None:
    """Append micro-batches of ten rows, each once the one before is committed."""
    for number in range(first, first + count):
        frame.write(rows(number * 10, 5), rows(number * 10 + 5, 5))
        until(lambda: shown(out) == number * 10 + 10, job)  # noqa: B023


def shown(out: Path) -> int:
    """How many rows there are to see; none while a restore hides some."""
    try:
        return len(numbers(out))
    except FileNotFoundError:
        return 0


def spool_of(tmp_path: Path) -> tuple[Store, Spool]:
    (head,) = (tmp_path / "store").rglob("spool.json")
    root = head.parent.relative_to(tmp_path / "store").as_posix()
    return open_store(tmp_path / "store"), Spool(root.rpartition("/")[0], 0)


def view(tmp_path: Path) -> LogView:
    return LogStore(open_store(tmp_path / "store"), "stream").view()


def test_the_spool_of_a_job_stays_small_and_every_restorable_checkpoint_can_be_restored(tmp_path: Path) -> None:
    frame, out = Stream(), tmp_path / "out"
    job = job_of(frame, tmp_path, checkpoint=tg.CheckpointConfig(interval="50ms", retain=5))
    fed(frame, job, out, 0, 20)
    store, spool = spool_of(tmp_path)
    job.checkpoint()
    until(lambda: min(places(store, spool)) >= 10, job)
    job.stop()
    assert len(chunks(store, spool)) <= 20
    oldest = view(tmp_path).restorables()[-1].epoch
    again = Stream()
    job = job_of(again, tmp_path, restore=oldest)
    fed(again, job, out, 20, 2)
    job.stop()
    assert numbers(out) == list(range(220))


def test_a_savepoint_pins_the_rows_after_it(tmp_path: Path) -> None:
    frame, out = Stream(), tmp_path / "out"
    job = job_of(frame, tmp_path)
    fed(frame, job, out, 0, 6)
    job.savepoint(tmp_path / "saved")
    fed(frame, job, out, 6, 12)
    store, spool = spool_of(tmp_path)
    until(lambda: min(places(store, spool)) == 5, job)
    for _ in range(3):
        job.checkpoint()
    job.stop()
    assert places(store, spool) == set(range(5, 18)) and len(chunks(store, spool)) == 24
    # The log is gone; the savepoint and the spool are what is left.
    for entry in (tmp_path / "store" / "stream" / "log").iterdir():
        entry.unlink()
    again = Stream()
    job = job_of(again, tmp_path, savepoint=str(tmp_path / "saved"), overwrite=True)
    again.write(rows(180, 1))
    until(lambda: shown(out) == 121, job)
    assert numbers(out) == list(range(60, 181))
    for _ in range(4):
        job.checkpoint()
    job.stop()
    assert min(places(store, spool)) == 5, "the savepoint that the job was started from pins as well"


def test_a_damaged_commit_keeps_everything_that_follows(tmp_path: Path) -> None:
    frame, out = Stream(), tmp_path / "out"
    job = job_of(frame, tmp_path)
    fed(frame, job, out, 0, 3)
    job.stop()
    first = min(manifest.epoch for manifest in view(tmp_path).held())
    path = tmp_path / "store" / "stream" / "log" / f"{first:020d}.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    store, spool = spool_of(tmp_path)
    before = min(places(store, spool))
    again = Stream()
    job = job_of(again, tmp_path)
    fed(again, job, out, 3, 5)
    for _ in range(3):
        job.checkpoint()
    job.stop()
    assert min(places(store, spool)) == before
    assert numbers(out) == list(range(80))
