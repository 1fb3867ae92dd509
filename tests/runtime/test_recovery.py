"""Jobs that are stopped, resumed, restored, poisoned, deposed or started wrongly."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
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
    left_over,
    once,
    rows_of,
    until,
)
from runtime_world import World

import tidegate as tg
from tidegate.clock import SystemClock
from tidegate.core.barrier.messages import Barrier
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import InvalidUseError, RetryableError
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.local import ThreadGang


class CrashClock(SystemClock):
    """Fails the loop thread that asks for the time the n-th time; other threads may go on asking."""

    def __init__(self, at: int, error: BaseException) -> None:
        self._left = at
        self._error = error
        self._owner = threading.get_ident()

    def now_ms(self) -> int:
        if threading.get_ident() == self._owner:
            self._left -= 1
            if self._left == 0:
                raise self._error
        return super().now_ms()


class Gone(BaseException):
    """A node that vanishes without a word."""


def crashing_gang(parallelism: int, crashes: list[tuple[int, int, BaseException]]) -> ThreadGang:
    """Node i of the next gang fails at its n-th look at the clock, for one (i, n, error) per gang."""
    plans: dict[int, tuple[int, int, BaseException]] = {}

    def run(launch: Launch, index: int) -> str:
        gang = launch.setup.gang
        if gang not in plans and crashes:
            plans[gang] = crashes.pop(0)
        node, at, error = plans.get(gang, (-1, 0, Gone()))
        try:
            return run_node(launch, index, CrashClock(at, error) if node == index else None)
        except Gone:
            return "gone"

    return ThreadGang(parallelism, run)


def windowed(source: GatedSource, sink: MemorySink | Path) -> tg.Pipeline:
    stream = counts(tg.from_source(source)).named("counts")
    written = stream.write(sink) if isinstance(sink, MemorySink) else stream.write_parquet(sink, durable=False)
    return tg.Pipeline("w", written)


# -- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_fail_at_some_step_cost_no_row(jobs: Jobs, seed: int) -> None:
    source, sink = GatedSource(events(6_000), rows_per_poll=30), MemorySink()
    errors: list[BaseException] = [RuntimeError("on purpose"), Gone(), OSError("on purpose")]
    crashes = [(k % 3, 20 + 17 * seed + 60 * k, errors[(seed + k) % 3]) for k in range(3)]
    job = jobs.finish(windowed(source, sink), 3, interval="15ms", gang=crashing_gang(3, crashes))
    assert found_counts(sink) == expected_counts(source.table)
    assert 1 <= job.metrics()["restarts"] <= 3


def test_without_checkpoints_a_lost_node_starts_the_job_over(jobs: Jobs) -> None:
    source, sink = GatedSource(events(6_000), rows_per_poll=30), MemorySink()
    job = jobs.finish(windowed(source, sink), 2, interval=None, gang=crashing_gang(2, [(1, 100, Gone())]))
    assert found_counts(sink) == expected_counts(source.table)
    assert job.metrics()["restarts"] == 1 and len(sink.commits) == 1


def test_a_node_that_cannot_be_built_is_a_lost_gang(jobs: Jobs) -> None:
    sink = MemorySink()
    ready = once(OSError("no such disk"))
    make = sink.writer
    sink.writer = lambda context: (ready(None), make(context))[1]  # type: ignore[method-assign]
    source = GatedSource(events(500))
    job = jobs.finish(windowed(source, sink), 1)
    assert found_counts(sink) == expected_counts(source.table)
    assert job.metrics()["restarts"] == 1


def test_sinks_show_the_same_epochs_after_a_crash_between_their_commits() -> None:
    """The driver dies when one of two sinks has published an epoch and the other has not (I9)."""
    source = GatedSource(events(6_000), rows_per_poll=4, allowed=1_000)
    left, right = MemorySink("a"), MemorySink("b")
    stream = tg.from_source(source)
    pipeline = tg.Pipeline("w", stream.write(left).named("a"), stream.write(right).named("b"))
    world = World(pipeline, 2)
    world.until(lambda: right.epochs())
    stopped: list[int] = []

    def refuse(epoch: int) -> None:
        stopped.append(epoch)
        raise RetryableError("the driver is about to die")

    right.on_commit = refuse
    source.allow(1_000)
    world.until(lambda: stopped)
    assert left.epochs() > right.epochs(), "the crash must fall between the two"
    world.kill_leader()
    right.on_commit = lambda epoch: None
    world.lead()
    world.until(lambda: world.leader.status == "RUNNING")
    assert left.epochs() == right.epochs() and stopped[0] in right.epochs()
    assert left.rows() == right.rows()
    source.allow()
    world.finish()
    assert left.rows() == right.rows() == rows_of(source.table)


def test_a_commit_that_fails_for_a_while_is_tried_again(jobs: Jobs) -> None:
    source, left, right = GatedSource(events()), MemorySink("a"), MemorySink("b")
    right.on_commit = once(RetryableError("busy"))
    stream = tg.from_source(source)
    jobs.finish(tg.Pipeline("w", stream.write(left).named("a"), stream.write(right).named("b")), 2, interval="50ms")
    assert left.rows() == right.rows() == rows_of(source.table)


# -- starts --------------------------------------------------------------------------------------------------------


def test_a_fresh_start_onto_rows_is_refused_and_overwrite_clears_them(jobs: Jobs) -> None:
    source = GatedSource(events(500))
    out = jobs.path / "out"
    jobs.finish(windowed(source, out), 2)
    files = sorted(os.listdir(out))
    with pytest.raises(InvalidUseError, match="already has rows"):
        jobs.start(windowed(source, out), 2, restore="none")
    assert sorted(os.listdir(out)) == files
    jobs.finish(windowed(source, out), 2, restore="none", overwrite=True)
    assert found_counts(out) == expected_counts(source.table)


def test_two_jobs_do_not_share_a_directory(jobs: Jobs) -> None:
    """The one with the higher gang number would sweep away what the other has staged."""
    source, out = GatedSource(events(500), allowed=0), jobs.path / "out"
    stream = tg.from_source(source)
    first = jobs.start(tg.Pipeline("one", stream.write_parquet(out)), 1)
    with pytest.raises(InvalidUseError, match=r"sink .* of job 'one' is running"):
        jobs.start(tg.Pipeline("two", stream.write_parquet(out)), 1)
    first.checkpoint()
    first.stop()
    with pytest.raises(InvalidUseError, match=r"belongs to the sink .* of job 'one'.*overwrite=True"):
        jobs.start(tg.Pipeline("two", stream.write_parquet(out)), 1)
    jobs.finish(tg.Pipeline("two", tg.from_source(GatedSource(events(500))).write_parquet(out)), 1, overwrite=True)
    with pytest.raises(InvalidUseError, match="of job 'two'"):
        jobs.start(tg.Pipeline("one", stream.write_parquet(out)), 1)


def test_a_finished_job_is_finished_at_once_and_publishes_again(jobs: Jobs) -> None:
    source, sink = GatedSource(events(500)), MemorySink()
    jobs.finish(windowed(source, sink), 2)
    before, emitted = len(sink.commits), source.emitted
    sink.visible.clear()
    job = jobs.finish(windowed(source, sink), 2)
    assert job.status == "FINISHED" and source.emitted == emitted
    assert len(sink.commits) > before
    assert sink.visible, "what the final manifest names was not published again"


def test_restoring_an_older_epoch_hides_newer_rows(jobs: Jobs) -> None:
    source = GatedSource(events(1_000), splits=1, allowed=300)
    sink = MemorySink()
    pipeline = tg.Pipeline("w", tg.from_source(source).write(sink))
    job = jobs.start(pipeline, 1)
    until(lambda: source.emitted == 300)
    older = job.checkpoint()
    source.allow(200)
    until(lambda: source.emitted == 500)
    newer = job.checkpoint()
    until(lambda: newer in sink.epochs())
    job.stop()
    source.allow(-(10**9))
    again = jobs.start(pipeline, 1, restore=older)
    until(lambda: again.status == "RUNNING")
    assert sink.rows() == rows_of(source.table.slice(0, 300))
    source.allow(2 * 10**9)
    assert again.await_termination(8)
    assert sink.rows() == rows_of(source.table)


def test_a_corrupt_newest_checkpoint_is_skipped_and_named(jobs: Jobs) -> None:
    """All rows are in one window, so that the state is large enough for objects of its own."""
    source, sink = GatedSource(events(9_000, keys=9_000), splits=4, allowed=1_000), MemorySink()
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("10h"))
    pipeline = tg.Pipeline("w", keyed.aggregate(n=tg.count(), total=tg.sum("value")).write(sink))
    job = jobs.start(pipeline, 2)
    until(lambda: source.emitted == 1_000)
    older = job.checkpoint()
    source.allow(7_500)
    until(lambda: source.emitted == 8_500)
    newer = job.checkpoint()
    job.stop()
    first, second = jobs.manifests("w")
    paths = {entry.path for entry in second.objects} - {entry.path for entry in first.objects}
    assert paths, "the state must be large enough to be in objects of its own"
    damaged = Path(jobs.store) / sorted(paths)[0]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    source.allow()
    again = jobs.finish(pipeline, 2)
    assert again.restored_from == older
    assert [epoch for epoch, _ in again.skipped] == [newer]
    assert "damaged" in again.skipped[0][1]
    assert [row[1:] for row in found_counts(sink)] == sorted((k, 1, v) for _, k, v in rows_of(source.table))


def test_state_that_does_not_fit_is_refused_before_anything_starts(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=500), MemorySink()
    job = jobs.start(windowed(source, sink), 2)
    until(lambda: source.emitted == 500)
    job.checkpoint()
    job.stop()
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("5s"))
    other = tg.Pipeline("w", keyed.aggregate(n=tg.count()).named("counts").write(sink))
    before, slots = set(threading.enumerate()), len(jobs.log("w"))
    with pytest.raises(InvalidUseError, match="does not fit"):
        jobs.start(other, 2)
    assert left_over(before) == [] and len(jobs.log("w")) == slots


def test_changed_input_is_refused(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=500), MemorySink()
    job = jobs.start(windowed(source, sink), 2)
    until(lambda: source.emitted == 500)
    job.checkpoint()
    job.stop()
    other = GatedSource(events(2_100))
    assert "is not what the checkpoint was reading" in failure(jobs.start(windowed(other, sink), 2))


# -- user functions ------------------------------------------------------------------------------------------------


def poison(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 700 in batch.column("ts").to_pylist():
        raise KeyError("a row that this function does not like")
    return batch


@pytest.mark.parametrize("interval", [None, "1h"])
def test_a_poisoned_function_fails_fast_with_its_own_traceback(jobs: Jobs, interval: str | None) -> None:
    calls: list[int] = []

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(1)
        return poison(batch)

    source, sink = GatedSource(events()), MemorySink()
    pipeline = tg.Pipeline("w", tg.from_source(source).map_batches(function).write(sink))
    reason = failure(jobs.start(pipeline, 3, interval=interval))
    assert "a row that this function does not like" in reason
    assert "in poison" in reason and "test_recovery.py" in reason
    assert sink.rows() == []


def test_a_checkpoint_does_not_wait_for_a_slow_function(jobs: Jobs) -> None:
    """Unaligned: the batch that the function has in hand is in the cut, and is done again after a restore."""
    source, sink = GatedSource(events(400), splits=1, rows_per_poll=50, allowed=100), MemorySink()
    gate = threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        gate.wait(8)
        return batch

    pipeline = tg.Pipeline("w", tg.from_source(source).map_batches(slow).write(sink))
    job = jobs.start(pipeline, 1, unaligned="always")
    until(lambda: source.emitted == 100)
    job.checkpoint("5s")
    (manifest,) = jobs.manifests("w")
    held = sum(run.rows for entry in manifest.operators for run in entry.runs)
    flying = sum(entry.events for entry in manifest.inflight)
    assert held == 50 and flying == 1, "one batch in hand, one on its way"
    gate.set()
    job.stop()
    source.allow()
    jobs.finish(pipeline, 1)
    assert sink.rows() == rows_of(source.table)


# -- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["stop", "drain", "finish", "fail"])
def test_nothing_is_left_running_after_the_end(jobs: Jobs, ending: str) -> None:
    process = psutil.Process()
    gc.collect()
    before, sockets = set(threading.enumerate()), len(process.net_connections())
    source, sink = GatedSource(events(), allowed=600), MemorySink()
    job = jobs.start(windowed(source, sink), 3)
    until(lambda: source.emitted == 600)
    if ending == "finish":
        source.allow()
    elif ending == "fail":
        source.on_poll = lambda number: 1 / 0  # type: ignore[assignment,return-value]
    else:
        job.stop(drain=ending == "drain")
    if ending == "fail":
        assert "ZeroDivisionError" in failure(job)
    else:
        assert job.await_termination(8)
    assert left_over(before) == []
    assert len(process.net_connections()) <= sockets
    assert job.status == {"stop": "STOPPED", "fail": "FAILED"}.get(ending, "FINISHED")
    if ending == "drain":
        assert sum(row[2] for row in found_counts(sink)) == 600


def test_a_drain_is_remembered_by_the_next_gang() -> None:
    """Asked to drain, the gang was lost before it had done so."""
    source, sink = GatedSource(events(400, step_ms=30), rows_per_poll=5, allowed=200), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    world.until(lambda: source.emitted == 200 and world.leader.checkpoints())
    world.passes = lambda way, node, message: way == "up" or message.WhichOneof("body") != "signal"
    world.leader.stop(drain=True)
    world.until(lambda: world.leader.status == "STOPPING")
    world.passes = lambda way, node, message: True
    world.kill_node(0)
    world.finish()
    assert world.gangs == 2 and len(sink.rows()) == len(set(sink.rows()))


def test_a_stop_while_the_gang_is_starting_again(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=100), MemorySink()
    source.on_poll = once(OSError("on purpose"), lambda number: number > 3)
    patient = RestartPolicy(first_wait_ms=60_000, longest_wait_ms=60_000)
    job = jobs.start(windowed(source, sink), 2, restarts=patient)
    until(lambda: job.status == "RESTARTING")
    job.stop()
    assert job.status == "STOPPED"


def test_a_second_driver_takes_over_and_the_first_says_so(jobs: Jobs) -> None:
    source, sink = GatedSource(events(4_000), splits=4, allowed=500), MemorySink()
    first = jobs.start(windowed(source, sink), 2)
    until(lambda: source.emitted == 500)
    first.checkpoint()
    second = jobs.start(windowed(source, sink), 2, contend="takeover")
    until(lambda: second.status == "RUNNING")
    with pytest.raises(Exception, match="taken"):
        first.checkpoint()
    assert "another driver has taken over this job" in failure(first)
    source.allow()
    assert second.await_termination(8)
    assert found_counts(sink) == expected_counts(source.table)


@pytest.mark.parametrize("first", [0, 20])
def test_an_end_and_a_loss_at_the_same_time_are_an_end(first: int) -> None:
    """All nodes die at each of the last steps of a job, that in which it ends among them."""
    for late in range(first, first + 20):
        source, sink = GatedSource(events(60), rows_per_poll=10), MemorySink()
        world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
        world.until(lambda: [kind for _, kind in world.said].count("drained") == 2)  # noqa: B023
        for _ in range(late):
            world.step()
        world.kill_node(0)
        world.kill_node(1)
        world.finish()
        assert sink.rows() == rows_of(source.table)


# -- pressure ------------------------------------------------------------------------------------------------------


def narrow(parallelism: int, credit_bytes: int) -> ThreadGang:
    """A gang whose channels have almost no credit."""

    def run(launch: Launch, index: int) -> str:
        return run_node(replace(launch, setup=replace(launch.setup, credit_bytes=credit_bytes)), index)

    return ThreadGang(parallelism, run)


@pytest.mark.parametrize("mode", [{"interval": None}, {"unaligned": "always"}, {"unaligned": "never"}], ids=str)
def test_two_nodes_full_towards_each_other_do_not_deadlock(jobs: Jobs, mode: dict[str, Any]) -> None:
    bids, people, sink = GatedSource(events(3_000)), GatedSource(events(1_500)), MemorySink()
    people.name = "people"
    names = tg.from_source(people).select("ts", "key", other=tg.col("value"))
    stream = tg.from_source(bids).join(names, on="key", window=tg.tumbling("1s"))
    options = {"interval": "20ms", **mode}
    jobs.finish(tg.Pipeline("w", stream.write(sink)), 2, gang=narrow(2, 500), **options)
    connection = duckdb.connect()
    connection.register("a", bids.table)
    connection.register("b", people.table)
    query = "select count(*) from a join b on a.key = b.key and a.ts // 1000 = b.ts // 1000"
    assert len(sink.rows()) == connection.sql(query).fetchall()[0][0]


# -- off -----------------------------------------------------------------------------------------------------------


def test_switched_off_nothing_of_checkpointing_exists(jobs: Jobs) -> None:
    """No barrier, no upload, no store: sinks publish once, at the end (I12)."""
    source, sink = GatedSource(events(), allowed=1_000), MemorySink()
    job = jobs.start(windowed(source, sink), 2, interval=None)
    until(lambda: source.emitted == 1_000)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "upload" in name or "hint" in name or "garbage" in name]
    assert job.checkpoints() == [] and not Path(jobs.store).exists()
    source.allow()
    assert job.await_termination(8)
    (last,) = job.checkpoints()
    assert last["final"] and len(sink.commits) == 1
    assert not Path(jobs.store).exists()


def test_switched_off_no_barrier_is_ever_on_a_channel() -> None:
    source, sink = GatedSource(events(300), rows_per_poll=5), MemorySink()
    world = World(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2, interval=None)
    world.finish()
    assert not [message for _, message in world.wire if isinstance(message, Barrier)]
    assert "injection_ack" not in {kind for _, kind in world.said}
    assert found_counts(sink) == expected_counts(source.table)


def test_a_source_without_end_needs_checkpoints(jobs: Jobs) -> None:
    with pytest.raises(InvalidUseError, match="never ends"):
        jobs.start(tg.Pipeline("w", tg.generate().write(MemorySink())), 1, interval=None)
