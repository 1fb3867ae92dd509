"""A crash right after an unaligned commit, for every shape of pipeline: the result is exact."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pressure import (
    TIMEOUT_MS,
    Gate,
    PausingSource,
    Scene,
    aggregated,
    found_windows,
    gate_after_aggregation,
    gate_before_aggregation,
    last,
    took_unaligned,
    values,
    wait_for,
    windows,
)

import tidegate as tg

LOAD = bytes(8 << 20)


def test_rows_of_a_union_in_flight_are_restored(tmp_path: Path) -> None:
    """The union fires while both of its inputs go on; what waits after it is recorded."""
    gate = Gate()
    sources = (PausingSource(2, 200, pause_at=120), PausingSource(2, 200, first=10_000, pause_at=90))
    stream = tg.from_source(sources[0]).union(tg.from_source(sources[1])).map_batches(gate)
    scene = Scene(tg.Pipeline("union", stream.collect()), tmp_path, (gate,), sources)
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
    wanted = values([row for source in sources for row in source.all_rows()])
    assert values(scene.finish().collect()) == wanted


def test_one_slow_input_of_a_union_is_recorded_and_the_other_is_not(tmp_path: Path) -> None:
    gate = Gate()
    sources = (PausingSource(2, 200, pause_at=120), PausingSource(2, 200, first=10_000, pause_at=90))
    stream = tg.from_source(sources[0]).map_batches(gate).union(tg.from_source(sources[1]))
    scene = Scene(tg.Pipeline("half", stream.collect()), tmp_path, (gate,), sources)
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
        fast = values(sources[1].rows(0, 0, 90) + sources[1].rows(1, 0, 90))
        wait_for("the fast input to be visible", lambda: values(job.collect()) == fast)
    wanted = values([row for source in sources for row in source.all_rows()])
    assert values(scene.finish().collect()) == wanted


def test_two_outputs_agree_after_a_crash(tmp_path: Path) -> None:
    """One output is slow, the other is not: both show every row once, and the same epochs."""
    gate = Gate()
    source = PausingSource(2, 200, pause_at=120)
    rows = tg.from_source(source)
    outputs = (rows.map_batches(gate).collect("slow"), aggregated(rows).collect("fast"))
    scene = Scene(tg.Pipeline("two", *outputs), tmp_path, (gate,), (source,))
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
    job = scene.finish()
    assert values(job.collect("slow")) == values(source.all_rows())
    assert found_windows(job.collect("fast")) == windows(source.all_rows())


def test_an_end_after_a_barrier_is_sent_again(tmp_path: Path) -> None:
    """The source has ended, and its end waits in front of the gate when the checkpoint overtakes it."""
    scene = gate_before_aggregation(tmp_path, splits=2, pause_at=200)
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
    assert found_windows(scene.finish().collect()) == windows(scene.sources[0].all_rows())


def test_an_aggregation_that_ended_is_restored_with_its_results_in_flight(tmp_path: Path) -> None:
    """Everything up to the gate has ended; only results are on the way."""
    scene = gate_after_aggregation(tmp_path)
    source = scene.sources[0]
    source.paused = False
    with scene.running() as job:
        wait_for("the end of the source", lambda: all(source.positions[s] == 400 for s in (0, 1)))
        wait_for("something at the gate", lambda: scene.gates[0].entered)
        took_unaligned(job)
    assert found_windows(scene.finish().collect()) == windows(source.all_rows())


def test_a_source_that_fired_aligned_is_promoted_later(tmp_path: Path) -> None:
    """The receiver's credit is used up, so the barrier waits in the source's output until the deadline."""
    gate = Gate()
    source = PausingSource(1, 40, poll_rows=1, load=LOAD)
    scene = Scene(
        tg.Pipeline("heavy", tg.from_source(source).map_batches(gate).select("value").collect()),
        tmp_path,
        (gate,),
        (source,),
    )
    with scene.running(1) as job:
        # 16 of them are the receiver's credit, one is in the function's hands, and one waits for room.
        wait_for("the credit to be used up", lambda: source.positions[0] >= 18)
        took_unaligned(job)
    directions = {entry.direction for entry in scene.manifests()[-1].inflight}
    assert directions == {"in", "out"}, "something was overtaken on both ends of the channel"
    job = scene.finish(1)
    assert values(job.collect()) == values(source.all_rows())


def test_a_checkpoint_taken_while_replay_goes_on_is_correct(tmp_path: Path) -> None:
    """Restore, checkpoint at once, crash again, restore: what was replayed is recorded a second time."""
    scene = gate_before_aggregation(tmp_path)
    with scene.running() as job:
        scene.paused_everywhere(job)
        first = took_unaligned(job)
    recorded = scene.inflight_values()
    for _ in range(2):
        with scene.running() as job:
            wait_for("something at the gate", lambda: scene.gates[0].entered)
            again = took_unaligned(job)
            assert again["epoch"] > first["epoch"]
            # The function has its own batch again, so all that was in flight still is.
            assert scene.inflight_values() == recorded
    job = scene.finish()
    assert job.restored_from == again["epoch"]
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_a_sink_may_fire_unaligned(tmp_path: Path) -> None:
    """What the barrier overtook belongs to the next epoch of the sink."""
    gate = Gate(lambda batch: batch.column("value")[0].as_py() >= 50)
    source = PausingSource(1, 200, pause_at=120)
    output = tg.from_source(source).map_batches(gate).collect()
    scene = Scene(tg.Pipeline("sink", output), tmp_path, (gate,), (source,))
    with scene.running(1) as job:
        scene.paused_everywhere(job, 1)
        wait_for("the gate to hold", lambda: len(gate.passed) == 5 and len(gate.entered) == 6)
        took_unaligned(job)
        wait_for("the first epoch", lambda: job.collect().num_rows)
        assert values(job.collect()) == list(range(50))
    assert values(scene.finish(1).collect()) == list(range(200))


def test_a_checkpoint_may_be_partially_unaligned(tmp_path: Path) -> None:
    """One node is stuck and the other is not: only the stuck one overtakes."""
    gate = Gate(lambda batch: batch.column("value")[0].as_py() >= 200)
    source = PausingSource(2, 200, pause_at=120)
    output = tg.from_source(source).map_batches(gate).collect()
    scene = Scene(tg.Pipeline("partial", output), tmp_path, (gate,), (source,))
    with scene.running() as job:
        scene.paused_everywhere(job)
        wait_for("the free node to be done", lambda: sum(b.num_rows for b in gate.passed) == 120)
        took_unaligned(job)
    manifest = scene.manifests()[-1]
    assert [node.unaligned for node in manifest.nodes] == [False, True]
    assert {entry.subtask for entry in manifest.inflight} == {1}
    assert values(scene.finish().collect()) == list(range(400))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2), (2, 3), (3, 7), (7, 3)])
def test_inflight_data_is_restored_at_another_parallelism(tmp_path: Path, before: int, after: int) -> None:
    """In front of the function rows go to any node; partial aggregates go to the owner of their key group."""
    scene = gate_before_aggregation(tmp_path, splits=7)
    with scene.running(before) as job:
        scene.paused_everywhere(job, before)
        took_unaligned(job)
    job = scene.finish(after)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())
    assert last(job)["final"]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (3, 2), (2, 3), (3, 7)])
def test_a_keyed_channel_in_flight_is_routed_again_by_key_group(tmp_path: Path, before: int, after: int) -> None:
    """One node is late with its barrier: the others cut without it and record what it still sends them.

    The late node's rows are read after the others' cut and before its own barrier.
    """
    scene = gate_before_aggregation(tmp_path, splits=7, pause_at=60)
    source = scene.sources[0]
    scene.gates[0].open()
    plain = Scene(tg.Pipeline("keyed", aggregated(tg.from_source(source)).collect()), tmp_path, scene.gates, (source,))
    job = plain.start(before)
    wait_for("the sources to pause", lambda: all(source.positions[s] == 60 for s in range(before)))
    source.stick = 1
    assert source.stuck.wait(10)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(job.checkpoint, "20s")
        time.sleep(3 * TIMEOUT_MS / 1000)  # the other nodes are past their deadline now
        source.paused = False
        source.unstuck.set()
        asked.result(20)
    job.stop()
    manifest = plain.manifests()[0]
    kinds = {edge.id: edge.kind for edge in plain.pipeline.physical(before).edges}
    recorded = [(entry.peer, entry.direction) for entry in manifest.inflight if kinds[entry.channel] == "hash"]
    assert (1, "in") in recorded
    job = plain.finish(after)
    assert job.restored_from == manifest.epoch
    assert found_windows(job.collect()) == windows(source.all_rows())


def test_corrupt_inflight_data_falls_back_to_the_previous_checkpoint(tmp_path: Path) -> None:
    scene = gate_before_aggregation(tmp_path)
    with scene.running() as job:
        scene.paused_everywhere(job)
        first = took_unaligned(job)
        second = took_unaligned(job)
    damaged = scene.manifests()[-1].inflight[0].path
    file = tmp_path / damaged
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    job = scene.finish()
    assert job.restored_from == first["epoch"]
    ((epoch, why),) = job.skipped
    assert epoch == second["epoch"]
    assert damaged in why
    assert "damaged" in why
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())
