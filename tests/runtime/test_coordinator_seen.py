"""What the coordinator knows, as a running job shows it: measurements, the id in progress, who is to blame."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until
from runtime_world import World

import tidegate as tg
from tidegate.errors import BarrierInjectionFailed, CheckpointAbortedError, NodeRejected
from tidegate.wire._gen import control_pb2 as pb


def waiting_world() -> tuple[GatedSource, MemorySink, World]:
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=300), MemorySink()
    world = World(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    return source, sink, world


def kind(message: pb.NodeMessage | pb.CoordinatorMessage) -> str:
    return str(message.WhichOneof("body"))


def checkpoint(world: World) -> int:
    future = world.leader.request_checkpoint()
    world.until(future.done)
    return future.result()


def finish(world: World, source: GatedSource) -> None:
    world.passes = lambda way, node, message: True
    source.allow()
    world.finish()


def test_durations_bytes_and_latencies_of_checkpoints_are_measured(tmp_path: Path) -> None:
    source, jobs = GatedSource(events(), allowed=1_000), Jobs(tmp_path)
    job = jobs.start(tg.Pipeline("m", counts(tg.from_source(source)).write(MemorySink())))
    try:
        assert job.metrics()["last_checkpoint_duration_ms"] == 0 and job.metrics()["checkpoint_in_progress"] is None
        first, second = job.checkpoint(), job.checkpoint()
        found, records = job.metrics(), {record["epoch"]: record for record in job.checkpoints()}
        assert found["last_checkpoint_duration_ms"] == records[second]["duration_ms"]
        durations = [records[epoch]["duration_ms"] for epoch in (first, second)]
        assert (found["max_checkpoint_duration_ms"], found["total_checkpoint_duration_ms"]) == (max(durations), sum(durations))
        assert found["last_checkpoint_bytes"] == records[second]["bytes"]
        assert found["total_checkpoint_bytes"] == records[first]["bytes"] + records[second]["bytes"] > 0
        assert found["last_checkpoint_node_durations_ms"].keys() == {0, 1}
        cuts = [task["start_delay_ms"] + task["alignment_ms"] for task in records[second]["tasks"]]
        assert found["last_barrier_latency_ms"] == max(cuts) <= found["max_barrier_latency_ms"]
        assert found["checkpoints_aborted"] == found["leader_failovers"] == 0
    finally:
        jobs.stop_all()


def test_a_checkpoint_in_progress_is_cancelled_by_the_id_that_metrics_show(tmp_path: Path) -> None:
    source, sink, jobs, may_prepare = GatedSource(events(), allowed=1_000), MemorySink(), Jobs(tmp_path), threading.Event()
    sink.on_prepare = lambda number: [may_prepare.wait(60)][1:]  # type: ignore[assignment]
    job = jobs.start(tg.Pipeline("m", tg.from_source(source).write(sink)))
    refused: list[str] = []

    def ask() -> None:
        try:
            job.checkpoint()
        except CheckpointAbortedError as error:
            refused.append(str(error))

    asking = threading.Thread(target=ask)
    try:
        until(lambda: job.status == "RUNNING", "the gang")
        asking.start()
        number = until(lambda: job.metrics()["checkpoint_in_progress"], "the checkpoint")
        job.cancel_checkpoint(number)
        asking.join(60)
        assert refused == ["cancelled on request"] and job.metrics()["checkpoint_in_progress"] is None
        assert job.metrics()["checkpoints_aborted_by_error"] == {"CheckpointAbortedError": 1}
        may_prepare.set()
        assert job.checkpoint() > 0
    finally:
        may_prepare.set()
        jobs.stop_all()


def test_a_lost_notice_of_a_commit_is_sent_again_until_the_node_has_answered() -> None:
    source, _, world = waiting_world()
    lost: list[int] = []

    def passes(way: str, node: int, message: Any) -> bool:
        loses = way == "down" and node == 1 and kind(message) == "committed" and not lost
        lost.extend([node] if loses else [])
        return not loses

    world.passes = passes
    checkpoint(world)
    world.until(lambda: world.leader._machine.checkpoints.notices.committed_nodes == {0, 1})
    assert lost == [1] and world.leader.metrics()["commit_notice_retries"] == 1
    assert world.leader.metrics()["stale_messages"] == 0
    finish(world, source)


def test_a_node_that_never_acknowledges_a_commit_is_told_a_bounded_number_of_times() -> None:
    source, sink, world = waiting_world()
    told: list[int] = []

    def passes(way: str, node: int, message: Any) -> bool:
        if way == "down" and kind(message) == "committed" and node == 1:
            told.append(message.committed.checkpoint_id)
        return kind(message) != "commit_ack"

    world.passes = passes
    first = checkpoint(world)
    world.until(lambda: world.leader._machine.checkpoints.notices.deadline_ms() is None)
    assert len(told) == 5 and len(set(told)) == 1
    assert checkpoint(world) > first, "the next commit does not wait for it"
    finish(world, source)
    assert found_counts(sink) == expected_counts(source.table)


def test_a_node_that_put_the_barrier_into_too_few_sources_is_named() -> None:
    source, _, world = waiting_world()

    def passes(way: str, node: int, message: Any) -> bool:
        if way == "up" and kind(message) == "injection_ack":
            assert message.injection_ack.source_count == 1
            message.injection_ack.source_count = 1 - node
        return True

    world.passes = passes
    future = world.leader.request_checkpoint()
    world.until(future.done)
    error = future.exception()
    assert isinstance(error, BarrierInjectionFailed) and error.failed_nodes == {1: "put the barrier into 0 sources and hosts 1"}
    finish(world, source)


def test_a_node_that_declines_is_named_in_the_history() -> None:
    source, _, world = waiting_world()

    def passes(way: str, node: int, message: Any) -> bool:
        if way == "up" and kind(message) == "prepared" and node == 1:
            gang, term, number = message.gang, message.term, world.leader.metrics()["checkpoint_in_progress"]
            declined = pb.Declined(checkpoint_id=number, gang=gang, reason="its disk is full")
            message.CopyFrom(pb.NodeMessage(gang=gang, term=term, declined=declined))
        return True

    world.passes = passes
    future = world.leader.request_checkpoint()
    world.until(future.done)
    assert isinstance(future.exception(), NodeRejected)
    (record,) = (each for each in world.leader.checkpoints() if each["status"] == "aborted")
    assert record["error"] == "NodeRejected" and record["failed_nodes"] == {1: "cannot take part: its disk is full"}
    assert world.leader.metrics()["checkpoints_aborted_by_error"] == {"NodeRejected": 1}
    finish(world, source)
