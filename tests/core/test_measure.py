"""What a coordinator measures of its checkpoints."""

from __future__ import annotations

from driving import make_manifest

from tidegate.core.checkpoint.manifest import CheckpointManifest, NodeStats, TaskStats
from tidegate.core.checkpoint.measure import CoordinatorMetrics, barrier_latency_ms
from tidegate.errors import CheckpointTimeout, NodeFailed


def manifest(uploaded: int, *, unaligned: bool = False, delay_ms: int = 0) -> CheckpointManifest:
    late = TaskStats("b", 1, "aligned", start_delay_ms=delay_ms, alignment_ms=3, settle_ms=99)
    ended = TaskStats("a", 1, "finished", start_delay_ms=500)
    nodes = (
        NodeStats(0, uploaded, 20, unaligned, (TaskStats("b", 0, "aligned", 1, 1),)),
        NodeStats(1, 0, 40, False, (late, ended)),
    )
    return make_manifest(1, nodes=nodes, is_unaligned=unaligned)


def test_durations_and_bytes_are_of_the_last_the_longest_and_all() -> None:
    metrics = CoordinatorMetrics()
    metrics.completed(manifest(100, unaligned=True), 70)
    metrics.completed(manifest(10), 50)
    assert (metrics.last_checkpoint_duration_ms, metrics.max_checkpoint_duration_ms) == (50, 70)
    assert metrics.total_checkpoint_duration_ms == 120
    assert (metrics.checkpoints_completed, metrics.last_checkpoint_bytes, metrics.total_bytes_checkpointed) == (2, 10, 110)
    assert metrics.unaligned_checkpoints == 1


def test_the_barrier_has_arrived_when_the_last_subtask_has_cut_and_those_that_had_ended_do_not_count() -> None:
    metrics = CoordinatorMetrics()
    metrics.completed(manifest(1, delay_ms=40), 70)
    metrics.completed(manifest(1, delay_ms=5), 70)
    assert (metrics.last_barrier_latency_ms, metrics.max_barrier_latency_ms) == (8, 43)
    assert barrier_latency_ms(make_manifest(1)) == 0


def test_each_node_has_a_duration_of_its_own() -> None:
    metrics = CoordinatorMetrics()
    metrics.completed(manifest(1), 70)
    assert metrics.last_node_durations_ms == {0: 20, 1: 40}


def test_aborts_are_counted_by_the_class_of_their_error() -> None:
    metrics = CoordinatorMetrics()
    for error in (NodeFailed("x"), CheckpointTimeout("x"), NodeFailed("y")):
        metrics.aborted(error)
    assert metrics.checkpoints_aborted == 3 and metrics.aborts_by_reason == {"NodeFailed": 2, "CheckpointTimeout": 1}
