"""Restarts are judged by what failed, told with who failed first, and cost no count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, events, failure, once, rows_of, until
from runtime_world import World

import tidegate as tg
from tidegate.core.checkpoint.coordinate import Mode
from tidegate.core.failure.restart import RestartPolicy, Restarts
from tidegate.errors import RetryableError
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.local import ThreadGang

SLOW = RestartPolicy(first_wait_ms=5_000, longest_wait_ms=5_000)
POLICY = RestartPolicy(first_wait_ms=1, longest_wait_ms=5)


def always(error: Exception) -> Callable[[Any], Any]:
    def hook(value: Any) -> Any:
        raise error

    return hook


# -- poison ------------------------------------------------------------------------------------------------------------


def poisoned(where: str, source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    error, stream = RuntimeError("poison on purpose"), tg.from_source(source)
    match where:
        case "a function":
            stream = stream.map_batches(always(error))
        case "a source's poll":
            source.on_poll = always(error)
        case "a source's open":
            source.open = lambda split, offset: always(error)(split)  # type: ignore[method-assign, assignment]
        case "a sink's writer":
            sink.writer = always(error)  # type: ignore[method-assign, assignment]
        case "a sink's write":
            sink.on_write = always(error)
    return tg.Pipeline("w", stream.write(sink))


PLACES = ["a function", "a source's poll", "a source's open", "a sink's writer", "a sink's write"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_poison_pipeline_fails_at_the_second_error_with_the_users_traceback(jobs: Jobs, where: str, parallelism: int) -> None:
    source, sink = GatedSource(events(600)), MemorySink()
    job = jobs.start(poisoned(where, source, sink), parallelism, restarts=POLICY)
    text = failure(job)
    assert "RuntimeError: poison on purpose" in text and "in hook" in text and "failed 2 times" in text
    assert job.metrics()["restarts"] == 1 and "Unreachable" not in text


def test_a_poison_row_is_final_at_the_second_time_although_checkpoints_come_between(jobs: Jobs) -> None:
    """The checkpoints stand right before it: each restart reads up to it and can commit that."""
    source, sink = GatedSource(events(2_000), splits=1, rows_per_poll=20, allowed=1_000), MemorySink()

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 1_500 * 7 in batch.column("ts").to_pylist():
            raise ValueError(f"no such country in {id(batch)}")
        return batch

    job = jobs.start(tg.Pipeline("w", tg.from_source(source).map_batches(check).write(sink)), 1, restarts=POLICY)
    until(lambda: source.emitted == 1_000)
    job.checkpoint()
    source.allow(520)
    until(lambda: job.metrics()["restarts"] == 1 and job.status == "RUNNING")
    source.allow(200)
    until(lambda: source.emitted == 1_720)
    job.checkpoint()
    source.allow()
    text = failure(job)
    assert "ValueError: no such country" in text and job.metrics()["restarts"] == 1


def test_a_function_that_says_it_may_pass_is_called_again(jobs: Jobs) -> None:
    source, sink = GatedSource(events(200)), MemorySink()
    calls = [0]

    def flaky(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls[0] += 1
        if calls[0] <= 4:
            raise ConnectionError("the service does not answer")
        return batch

    job = jobs.finish(tg.Pipeline("w", tg.from_source(source).map_batches(flaky).write(sink)), 1, restarts=POLICY)
    assert job.metrics()["restarts"] == 4 and sink.rows() == rows_of(source.table)


# -- who and when ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_restart_names_the_node_that_died_and_its_gang(victim: int, seed: int) -> None:
    """Its peers lose their channels to it, and some of them say so first."""
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=600), MemorySink()
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("1s")).aggregate(n=tg.count())
    world = World(tg.Pipeline("w", keyed.write(sink)), 3, seed=seed)
    world.until(lambda: source.emitted == 600)
    number = world.leader.metrics()["gang"]
    world.kill_node(victim)
    world.until(lambda: world.gangs == 2)
    assert f"node {victim} of gang {number} " in (world.leader.cause or "")
    source.allow()
    world.finish()


def test_the_coordinator_hears_of_a_lost_gang_before_the_wait_is_over() -> None:
    source = GatedSource(events(2_000), rows_per_poll=10, allowed=300)
    world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 2, interval="1h")
    world.leader._gangs.restarts = Restarts(SLOW)
    world.until(lambda: source.emitted == 300)
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    waiting = world.leader.request_checkpoint()
    world.until(lambda: world.leader._machine.attempt is not None)
    world.kill_node(0)
    world.until(lambda: world.leader.status == "RESTARTING")
    lost_ms = world.clock.at_ms
    assert world.leader._machine.mode is not Mode.RUNNING
    assert waiting.done() and "node 0 of gang 0" in str(waiting.exception())
    world.passes = lambda way, node, message: True
    source.allow()
    world.until(lambda: world.gangs == 2)
    assert world.clock.at_ms >= lost_ms + 5_000
    world.finish()


def test_a_stop_during_the_wait_for_the_next_gang_ends_the_job_at_once() -> None:
    source = GatedSource(events(2_000), rows_per_poll=10, allowed=300)
    world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 2)
    world.leader._gangs.restarts = Restarts(RestartPolicy(first_wait_ms=600_000, longest_wait_ms=600_000))
    world.until(lambda: source.emitted == 300)
    world.kill_node(0)
    world.until(lambda: world.leader.status == "RESTARTING")
    lost_ms = world.clock.at_ms
    world.leader.stop()
    while world.step():
        pass
    assert world.leader.status == "STOPPED" and world.clock.at_ms < lost_ms + 60_000


# -- joining -----------------------------------------------------------------------------------------------------------


def test_a_node_that_is_slow_to_start_is_waited_for_as_long_as_its_process_runs(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    source, sink = GatedSource(events(300)), MemorySink()

    def run(launch: Launch, index: int) -> str:
        if index == 1:
            until(lambda: caplog.text.count("1 of 2 nodes have joined") >= 2, "the driver's word that it waits")
        return run_node(launch, index)

    job = jobs.finish(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, gang=ThreadGang(2, run), join_timeout_ms=600)
    assert job.metrics()["restarts"] == 0 and sink.rows() == rows_of(source.table)


def test_nodes_that_never_come_are_named_with_how_long_and_what_to_change(jobs: Jobs) -> None:
    source, over = GatedSource(events(300)), threading.Event()

    def run(launch: Launch, index: int) -> str:
        if index == 1:
            over.wait(10)
            return "never came"
        return run_node(launch, index)

    class Impatient(ThreadGang):
        def cancel(self) -> None:
            over.set()

    once_only = RestartPolicy(limit=0)
    pipeline = tg.Pipeline("w", tg.from_source(source).write(MemorySink()))
    job = jobs.start(pipeline, 2, gang=Impatient(2, run), join_timeout_ms=100, restarts=once_only)
    text = failure(job)
    assert "gang 0: 1 of 2 nodes did not reach the driver" in text and "missing: 1" in text and "join_timeout=0.1s" in text


# -- counts ------------------------------------------------------------------------------------------------------------


def test_counts_survive_a_recovery() -> None:
    """rows_in and rows_out count each row once, rows_read each time that it was read."""
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=600), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, interval="1h")
    world.until(lambda: source.emitted == 600)
    asked = world.leader.request_checkpoint()
    world.until(asked.done)
    source.allow(400)
    world.until(lambda: source.emitted == 1_000)
    for node in (0, 1):
        world.kill_node(node)
        world.until(lambda node=node: world.gangs == node + 2 and world.leader.status == "RUNNING")  # type: ignore[misc]
        source.allow(200)
        world.until(lambda: source.emitted % 200 == 0 and world.leader.metrics()["rows_in"] >= 600)
    source.allow()
    world.finish()
    counted = world.leader.metrics()
    assert counted["rows_in"] == counted["rows_out"] == 2_000 == len(sink.rows())
    assert counted["rows_read"] >= 2_000 and counted["restarts"] == 2
    assert counted["rows_read"] <= source.emitted


def test_without_checkpoints_counts_start_over_with_the_rows() -> None:
    source, sink = GatedSource(events(1_000), rows_per_poll=10, allowed=400), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, interval=None)
    world.until(lambda: source.emitted == 400)
    world.until(lambda: world.leader.metrics()["rows_read"] > 0)
    world.kill_node(0)
    world.until(lambda: world.gangs == 2)
    source.allow()
    world.finish()
    counted = world.leader.metrics()
    assert counted["rows_in"] == counted["rows_out"] == 1_000 < counted["rows_read"]


def test_a_store_error_on_a_node_is_no_user_error(jobs: Jobs) -> None:
    source, sink = GatedSource(events(600)), MemorySink()
    source.on_poll = once(RetryableError("503"))
    job = jobs.finish(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, restarts=POLICY)
    assert job.metrics()["restarts"] == 1
