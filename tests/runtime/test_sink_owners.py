"""Two runs and one directory, a store that was rolled back, starts that are refused: nothing doubles, nothing is left behind."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runtime_jobs import (
    GatedSource,
    Jobs,
    MemorySink,
    counts,
    events,
    expected_counts,
    failure,
    found_counts,
    rows_of,
    until,
)

import tidegate as tg
from tidegate.api.job import Job
from tidegate.connectors.dataframe import DataFrameSource, DataFrameStreamSource
from tidegate.connectors.framespool import BatchAppender, Chunk, Spool, write_chunks
from tidegate.core.log.paths import JobPaths
from tidegate.errors import FencedError, InvalidUseError
from tidegate.plan.capabilities import OnFailure
from tidegate.runtime.failure import caused
from tidegate.runtime.jobs import check_directories, starting
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store

TABLE = events(2_000)


@pytest.fixture
def jobs(tmp_path: Path) -> Any:
    running = Jobs(tmp_path)
    yield running
    running.stop_all()


def pipeline(source: Any, out: Path, name: str = "bids", **options: Any) -> tg.Pipeline:
    return tg.Pipeline(name, counts(tg.from_source(source)).write_parquet(str(out), **options))


def begun(pipeline: tg.Pipeline, store: Path | None, **options: Any) -> Job:
    """Start it with checkpoints in this store, or without any."""
    interval = None if store is None else options.pop("interval", "1h")
    settings = JobOptions(
        parallelism=1,
        checkpoint=tg.CheckpointConfig(interval=interval),
        store=None if store is None else str(store),
        **options,
    )
    return Job(launch_job(pipeline.physical(1), ThreadGang(1), settings))


def everything(path: Path) -> list[tuple[str, bytes]]:
    """Every name below a directory, with what is in it; but for the heartbeat of a job that runs."""
    found = sorted(each for each in path.rglob("*") if each.parent.name != "leader")
    return [(str(each.relative_to(path)), each.read_bytes() if each.is_file() else b"") for each in found]


def copied_to(url: str | Path, jobs: Jobs) -> None:
    """Copy the store of a job that runs: what vanishes meanwhile makes it begin again."""

    def copied() -> bool:
        try:
            shutil.copytree(jobs.store, url)
        except shutil.Error:
            shutil.rmtree(url)
            return False
        return True

    until(copied)


# -- two runs, one directory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stores", [(None, None), ("one", "two"), (None, "two")], ids=["none", "two", "one"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_while_a_run_writes_a_directory_a_run_of_another_log_is_refused(
    tmp_path: Path, stores: tuple[str | None, str | None], overwrite: bool
) -> None:
    source, out = GatedSource(TABLE, allowed=0), tmp_path / "out"
    urls = [None if store is None else tmp_path / store for store in stores]
    first = begun(pipeline(source, out), urls[0])
    before = everything(tmp_path)
    with pytest.raises(InvalidUseError, match=rf"job 'bids' is running .*host=.* pid={os.getpid()} since=20"):
        begun(pipeline(GatedSource(TABLE), out), urls[1], overwrite=overwrite)
    assert everything(tmp_path) == before, "a refused start leaves nothing behind"
    source.allow()
    assert first.await_termination(20) and found_counts(out) == expected_counts(TABLE)


def test_after_its_end_the_rules_for_rows_that_are_there_apply(tmp_path: Path) -> None:
    out = tmp_path / "out"
    begun(pipeline(GatedSource(TABLE), out), None).await_termination(20)
    with pytest.raises(InvalidUseError, match="already has rows"):
        begun(pipeline(GatedSource(TABLE), out), None)
    begun(pipeline(GatedSource(TABLE), out), None, overwrite=True).await_termination(20)
    assert found_counts(out) == expected_counts(TABLE)


def test_a_start_of_another_store_needs_overwrite_while_rows_may_be_on_their_way(tmp_path: Path) -> None:
    source, out = GatedSource(TABLE, allowed=600), tmp_path / "out"
    first = begun(pipeline(source, out), tmp_path / "one")
    until(lambda: source.emitted == 600)
    first.checkpoint()
    first.stop()
    for file in out.glob("*.parquet"):
        file.rename(out / "_pending" / file.name)  # committed and not shown yet, as after a crash
    with pytest.raises(InvalidUseError, match=r"belongs to the .* of job 'bids'.*store=file://.*one"):
        begun(pipeline(GatedSource(TABLE), out), tmp_path / "two")
    begun(pipeline(GatedSource(TABLE), out), tmp_path / "two", overwrite=True).await_termination(20)
    assert found_counts(out) == expected_counts(TABLE)


def test_two_starts_at_once_do_not_both_get_the_directory(tmp_path: Path) -> None:
    """Both have looked before either takes it: the lock lets one see the other."""
    outcomes: list[Any] = []
    gate = threading.Barrier(2)

    def go() -> None:
        try:
            gate.wait()
            outcomes.append(begun(pipeline(GatedSource(TABLE), tmp_path / "out"), None))
        except InvalidUseError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in outcomes:
        if isinstance(job, Job):
            job.await_termination(20)
    assert sum(isinstance(each, Job) for each in outcomes) == 1, outcomes
    assert found_counts(tmp_path / "out") == expected_counts(TABLE)


def test_a_run_that_lost_its_sinks_publishes_nothing_more_and_says_to_whom(jobs: Jobs, tmp_path: Path) -> None:
    """The first is deposed by a leader of the same log, whose number it has not heard of yet: it finds out at its sink."""
    first = GatedSource(TABLE, allowed=600)
    one = jobs.start(pipeline(first, tmp_path / "out"), 1)
    until(lambda: first.emitted == 600)
    one.checkpoint()
    copied_to(tmp_path / "copy", jobs)
    second = GatedSource(TABLE)
    two = begun(pipeline(second, tmp_path / "out"), tmp_path / "copy")
    first.allow(300)
    until(lambda: first.emitted == 900)
    with suppress(InvalidUseError):  # it may have found out already, if its first epoch was shown late
        one.checkpoint()  # in its own log, and no further
    assert "another run has taken this sink over" in failure(one) and f"pid={os.getpid()}" in failure(one)
    assert two.await_termination(20) and found_counts(tmp_path / "out") == expected_counts(TABLE)


# -- a store that was rolled back --------------------------------------------------------------------------------------


def ran_on(jobs: Jobs, make: Callable[[Any], tg.Pipeline], damage: str) -> None:
    """A job with a few epochs, stopped, whose store then loses what came after the second."""
    source = GatedSource(TABLE, allowed=300)
    job = jobs.start(make(source), 1)
    for rows in (300, 600):
        until(lambda rows=rows: source.emitted == rows)
        job.checkpoint()
        source.allow(300)
    until(lambda: source.emitted == 900)
    copied_to(f"{jobs.store}-copy", jobs)
    copied = len(jobs.log("bids"))
    job.checkpoint()
    job.stop()
    job = jobs.start(make(source), 1)  # the lost part has a takeover and a gang of its own: their numbers come again
    for rows in (1_200, 1_500):
        source.allow(rows - source.emitted)
        until(lambda rows=rows: source.emitted >= rows)
        job.checkpoint()
    job.stop()
    if damage == "copy":
        shutil.rmtree(jobs.store)
        os.rename(f"{jobs.store}-copy", jobs.store)
    else:
        lost = range(copied, len(jobs.log("bids")))
        open_store(jobs.store).delete([JobPaths("bids").log_entry(slot) for slot in lost])
    assert len(jobs.log("bids")) == copied


@pytest.mark.parametrize("every", ["0s", "1h"])
@pytest.mark.parametrize("damage", ["copy", "lost"])
def test_rows_newer_than_a_rolled_back_log_are_hidden_and_computed_again(
    jobs: Jobs, tmp_path: Path, damage: str, every: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Shown at once, or waiting to be shown with what the log still has."""

    def make(source: Any) -> tg.Pipeline:
        return pipeline(source, tmp_path / "out", publish_every=every)

    ran_on(jobs, make, damage)
    job = jobs.finish(make(GatedSource(TABLE)), 1)
    assert found_counts(tmp_path / "out") == expected_counts(TABLE)
    (note,) = job.notes
    assert "the sinks are newer than the log" in note and note in caplog.text
    assert list((tmp_path / "out" / "_hidden").iterdir()), "what was hidden is kept"
    again = jobs.finish(make(GatedSource(TABLE)), 1)
    assert found_counts(tmp_path / "out") == expected_counts(TABLE)
    assert not any("newer than the log" in each for each in again.notes)


@pytest.mark.parametrize("damage", ["copy", "lost"])
def test_collected_rows_are_there_once_after_a_roll_back(jobs: Jobs, damage: str) -> None:
    def make(source: Any) -> tg.Pipeline:
        return tg.Pipeline("bids", tg.from_source(source).collect())

    ran_on(jobs, make, damage)
    assert rows_of(jobs.finish(make(GatedSource(TABLE)), 1).collect()) == rows_of(TABLE)


def test_a_sink_that_can_not_take_rows_back_refuses_a_rolled_back_log(jobs: Jobs, tmp_path: Path) -> None:
    seen: list[int] = []

    def make(source: Any) -> tg.Pipeline:
        return tg.Pipeline("bids", tg.from_source(source).for_each_batch(lambda batch, epoch: seen.append(epoch)))

    ran_on(jobs, make, "lost")
    before, called = everything(tmp_path), len(seen)
    with pytest.raises(InvalidUseError, match=r"can't take back what it has published since: put the newest copy back"):
        jobs.start(make(GatedSource(TABLE)), 1)
    assert everything(tmp_path) == before and len(seen) == called


def test_a_copy_from_which_the_sinks_have_parted_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    """After a roll back was gone on from, the newer store no longer says what the sinks show."""

    def make(source: Any) -> tg.Pipeline:
        return pipeline(source, tmp_path / "out")

    source = GatedSource(TABLE, allowed=300)
    job = jobs.start(make(source), 1)
    until(lambda: source.emitted == 300)
    job.checkpoint()
    copied_to(tmp_path / "older", jobs)
    job.checkpoint()
    job.stop()
    newer = tmp_path / "newer"
    os.rename(jobs.store, newer)
    os.rename(tmp_path / "older", jobs.store)
    jobs.finish(make(GatedSource(TABLE)), 1)
    shutil.rmtree(jobs.store)
    os.rename(newer, jobs.store)
    with pytest.raises(InvalidUseError, match="run of another copy of this store"):
        jobs.start(make(GatedSource(TABLE)), 1)
    jobs.finish(make(GatedSource(TABLE)), 1, restore="none", overwrite=True)
    assert found_counts(tmp_path / "out") == expected_counts(TABLE)


def test_rows_that_a_lost_restore_has_hidden_are_not_missed_in_silence(jobs: Jobs, tmp_path: Path) -> None:
    def make(source: Any) -> tg.Pipeline:
        return tg.Pipeline("bids", tg.from_source(source).write_parquet(str(tmp_path / "out")))

    source = GatedSource(TABLE, allowed=300)
    job = jobs.start(make(source), 1)
    until(lambda: source.emitted == 300)
    older = job.checkpoint()
    source.allow(300)
    until(lambda: source.emitted == 600)
    job.checkpoint()
    job.stop()
    copied = len(jobs.log("bids"))
    again = jobs.start(make(GatedSource(TABLE, allowed=0)), 1, restore=older)
    again.checkpoint()
    again.stop()
    lost = range(copied, len(jobs.log("bids")))
    open_store(jobs.store).delete([JobPaths("bids").log_entry(slot) for slot in lost])
    with pytest.raises(InvalidUseError, match="has hidden rows that this log counts as published"):
        jobs.start(make(GatedSource(TABLE)), 1)
    jobs.finish(make(GatedSource(TABLE)), 1, restore=older)
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(TABLE)


# -- nothing changes before a start is allowed -------------------------------------------------------------------------


class Feeder:
    """A DataFrame without Spark: four micro-batches, or one table."""

    def __init__(self, streaming: bool) -> None:
        self.streaming = streaming

    def fill(self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
        return list(write_chunks(open_store(url), spool, 0, 0, TABLE.to_batches(), schema, event_time))

    def feed(
        self, url: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure
    ) -> Callable[[], None]:
        store = open_store(url)
        appender = BatchAppender(store, spool)
        for number in filter(appender.wants, range(4)):
            part = TABLE.slice(number * 500, 500).combine_chunks().to_batches()
            appender.append(number, tuple(write_chunks(store, spool, number, 0, part, schema, event_time)))
        return lambda: None


def framed(streaming: bool, out: Path) -> tg.Pipeline:
    """Rows of a DataFrame, and a source without any that keeps the job from its end."""
    kind = DataFrameStreamSource if streaming else DataFrameSource
    frame = kind(Feeder(streaming), TABLE.schema, event_time="ts", out_of_orderness="0s", name="df")
    rows = tg.from_source(frame).union(tg.from_source(GatedSource(TABLE, allowed=0)))
    return tg.Pipeline("bids", rows.write_parquet(str(out)))


def spooled_once(out: Path) -> bool:
    return rows_of(pq.read_table(out)) == rows_of(TABLE)


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_refused_start_without_state_leaves_a_spooled_job_resumable(jobs: Jobs, tmp_path: Path, streaming: bool) -> None:
    out = tmp_path / "out"
    job = jobs.start(framed(streaming, out), 1, interval="20ms")
    until(lambda: list(out.glob("*.parquet")) and spooled_once(out))
    job.stop()
    before = everything(tmp_path)
    with pytest.raises(InvalidUseError, match="already has rows"):
        jobs.start(framed(streaming, out), 1, restore="none")
    assert everything(tmp_path) == before
    again = jobs.start(framed(streaming, out), 1)
    assert again.restored_from is not None
    again.checkpoint()
    again.stop()
    assert spooled_once(out)


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_start_without_state_that_crashed_early_leaves_a_spooled_job_resumable(
    jobs: Jobs, tmp_path: Path, streaming: bool
) -> None:
    """It had begun a new generation of the spool and no more: a checkpoint reads the generation that it is of."""
    out = tmp_path / "out"
    job = jobs.start(framed(streaming, out), 1, interval="20ms")
    until(lambda: list(out.glob("*.parquet")) and spooled_once(out))
    job.stop()
    specs = [spec for stage in framed(streaming, out).physical(1).stages for spec in stage.operators]
    source: Any = next(each for spec in specs if hasattr(each := getattr(spec, "source", None), "with_store"))
    (root,) = {path.parent for path in Path(jobs.store, "bids", "spool").glob("*/g0")}
    source.with_store(jobs.store, f"bids/spool/{root.name}", fresh=True)
    assert sorted(path.name for path in root.iterdir()) == ["g0", "g1"]
    again = jobs.start(framed(streaming, out), 1)
    until(lambda: again.status == "RUNNING" or again.error)
    assert again.error is None
    again.checkpoint()
    again.stop()
    assert spooled_once(out)


def test_sinks_are_emptied_only_when_the_log_says_that_the_job_starts_anew(jobs: Jobs, tmp_path: Path) -> None:
    """A start that ends between its takeover and that entry leaves a job that goes on with all of its rows."""
    source, out = GatedSource(TABLE, allowed=900), tmp_path / "out"
    job = jobs.start(pipeline(source, out), 1)
    until(lambda: source.emitted == 900)
    job.checkpoint()
    job.stop()
    shown = found_counts(out)
    assert shown

    class Broken(GatedSource):
        def with_store(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("killed here")

    Broken.__name__ = "GatedSource"  # operators are named after what they read
    with pytest.raises(RuntimeError, match="killed here"):
        jobs.start(pipeline(Broken(TABLE), out), 1, restore="none", overwrite=True)
    assert found_counts(out) == shown
    jobs.finish(pipeline(GatedSource(TABLE), out), 1)
    assert found_counts(out) == expected_counts(TABLE)


def test_a_refused_start_leaves_no_directory_behind(tmp_path: Path) -> None:
    rows = tg.from_source(GatedSource(TABLE))
    taken = tmp_path / "taken"
    taken.mkdir()
    pq.write_table(TABLE, taken / "part-0.parquet")
    both = tg.Pipeline("bids", rows.write_parquet(tmp_path / "new" / "out"), rows.write_parquet(taken))
    before = everything(tmp_path)
    with pytest.raises(InvalidUseError, match="already has rows"):
        begun(both, tmp_path / "deep" / "store")
    assert everything(tmp_path) == before


# -- directories ------------------------------------------------------------------------------------------------------------


def test_outputs_inside_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o").mkdir()
    os.symlink(tmp_path / "o", tmp_path / "link")
    rows = tg.from_source(GatedSource(TABLE))
    for outer, inner in (("o", "o/hot"), ("o/hot", "o"), (tmp_path / "o", "link/hot"), ("o", "x/../o/hot"), ("o", "link")):
        with pytest.raises(InvalidUseError, match="inside the directory of another"):
            begun(tg.Pipeline("bids", rows.write_parquet(outer), rows.write_parquet(inner)), None)
    assert everything(tmp_path) == [("link", b""), ("o", b"")]
    check_directories(tg.Pipeline("bids", rows.write_parquet("o"), rows.write_parquet("o-hot")).physical(1))


def test_an_output_inside_a_directory_that_is_read_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    pq.write_table(TABLE, data / "a.parquet")
    for continuous in (False, True):
        rows = tg.read_parquet(data, event_time="ts", continuous=continuous)
        for inner in (data, data / "out"):
            with pytest.raises(InvalidUseError, match="inside a directory that the job reads"):
                check_directories(tg.Pipeline("bids", rows.write_parquet(inner)).physical(1))
        check_directories(tg.Pipeline("bids", rows.write_parquet(data / "_out")).physical(1))
    single = tg.read_parquet(data / "a.parquet", event_time="ts")
    check_directories(tg.Pipeline("bids", single.write_parquet(data / "out")).physical(1))


class _Leader:
    job, status = "bids", "RUNNING"

    def __init__(self) -> None:
        self.ended = threading.Event()


def test_a_job_that_runs_in_this_process_is_not_started_again(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "link")
    first = _Leader()
    with starting("bids", str(tmp_path)) as started:
        with pytest.raises(InvalidUseError, match=r"running in this process already.*job=bids status=STARTING"):
            starting("bids", f"file://{tmp_path}/link").__enter__()
        started(first)
    with pytest.raises(InvalidUseError, match=r"stop\(\).*status=RUNNING"):
        starting("bids", str(tmp_path / "link")).__enter__()
    with starting("other", str(tmp_path)), starting("bids", str(tmp_path / "x")), starting("bids", None), starting("bids", None):
        pass
    first.ended.set()
    with pytest.raises(RuntimeError), starting("bids", str(tmp_path)):
        raise RuntimeError("refused")
    with starting("bids", str(tmp_path)) as started:
        started(first)


def test_a_finished_job_says_that_it_reads_nothing_more(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    first = jobs.finish(tg.Pipeline("bids", tg.from_source(GatedSource(TABLE)).write(sink)), 1)
    assert first.notes == ()
    with caplog.at_level(logging.WARNING, "tidegate"):
        again = jobs.finish(tg.Pipeline("bids", tg.from_source(GatedSource(TABLE)).write(sink)), 1)
    (note,) = again.notes
    assert f"the job has finished at epoch {again.restored_from} and reads nothing more" in note and "restore='none'" in note
    assert note in caplog.text


def test_fenced_errors_are_told_as_they_are() -> None:
    assert caused("sinks", FencedError("somebody else has it")).text == "somebody else has it"
