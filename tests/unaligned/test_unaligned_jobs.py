"""Unaligned checkpoints of jobs (F-DCKP-006): taken under backpressure, stored, restored, mixed with aligned ones."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
from pressure import (
    TIMEOUT_MS,
    Gate,
    PausingSource,
    Scene,
    found_pairs,
    found_windows,
    gate_after_aggregation,
    gate_before_aggregation,
    last,
    pairs,
    took_unaligned,
    wait_for,
    windows,
)

import tidegate as tg


def test_unaligned_checkpoint_with_backpressure(tmp_path: Path) -> None:
    """A function that does not return holds up no checkpoint; the aligned one waits for it."""
    scene = gate_after_aggregation(tmp_path)
    job = scene.start()
    scene.paused_everywhere(job)
    begun = time.monotonic()
    took_unaligned(job)
    assert (time.monotonic() - begun) * 1000 < TIMEOUT_MS + 1000
    assert not any(gate.passed for gate in scene.gates), "the gate was never open"
    scene.complete(job)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_unaligned_checkpoint_save_and_load(tmp_path: Path) -> None:
    """What the manifest lists is what was between the cut and the barrier, row by row."""
    scene = gate_before_aggregation(tmp_path)
    with scene.running() as job:
        scene.paused_everywhere(job)
        record = took_unaligned(job)
        held = [row["value"] for batch in scene.gates[0].entered for row in batch.to_pylist()]
    manifest = scene.manifests()[-1]
    assert manifest.is_unaligned
    stored = scene.inflight_values()
    assert sum(entry.events for entry in manifest.inflight) == record["inflight_events"]
    read = [row["value"] for split in (0, 1) for row in scene.sources[0].rows(split, 0, 120)]
    assert sorted(held + stored) == sorted(read), "every row is somewhere once: in the function or in flight"
    job = scene.finish()
    assert job.restored_from == manifest.epoch
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_unaligned_recovery_replays_inflight(tmp_path: Path) -> None:
    """The function's own batch first, then what was in flight, then what the source had not emitted."""
    scene = gate_before_aggregation(tmp_path, splits=1)
    with scene.running(1) as job:
        scene.paused_everywhere(job, 1)
        took_unaligned(job)
    job = scene.finish(1)
    seen = [row["value"] for batch in scene.gates[0].entered for row in batch.to_pylist()]
    assert seen == [row["value"] for row in scene.sources[0].all_rows()]
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_unaligned_then_aligned_sequence(tmp_path: Path) -> None:
    """Each checkpoint is what its moment asks for; any of them restores."""
    scene = gate_before_aggregation(tmp_path)
    gate = scene.gates[0]
    with scene.running() as job:
        scene.paused_everywhere(job)
        first = took_unaligned(job)
        gate.open()
        wait_for("the rows to pass the gate", lambda: sum(b.num_rows for b in gate.passed) == 240)
        job.checkpoint("20s")
        second = last(job)
        assert (second["unaligned"], second["inflight_events"]) == (False, 0)
    scene.gates[0].reset(is_open=False)
    with scene.running(unaligned="always") as job:
        assert job.restored_from == second["epoch"] > first["epoch"]
        scene.sources[0].paused = False
        wait_for("something at the gate", lambda: gate.entered)
        third = took_unaligned(job)
    assert [m.is_unaligned for m in scene.manifests()] == [True, False, True]
    job = scene.finish()
    assert job.restored_from == third["epoch"]
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def joined(store: Path, *, where: str) -> Scene:
    """Two sources meet in a join; the gate is on the left input or after the join."""
    gate = Gate()
    left = PausingSource(2, 200, pause_at=120, pace_s=0.01)
    right = PausingSource(2, 200, first=10_000, pause_at=150, pace_s=0.01)
    first = tg.from_source(left)
    if where == "left":
        first = first.map_batches(gate)
    both = first.join(tg.from_source(right), on="key", window=tg.tumbling("1s"))
    if where == "after":
        both = both.map_batches(gate)
    return Scene(tg.Pipeline(f"joined-{where}", both.collect()), store, (gate,), (left, right))


def test_unaligned_with_join_operator(tmp_path: Path) -> None:
    """One side of a join is slow: the join cuts with the other side's barrier and records the slow side."""
    scene = joined(tmp_path, where="left")
    with scene.running() as job:
        scene.paused_everywhere(job)
        record = took_unaligned(job)
    job = scene.finish()
    assert job.restored_from == record["epoch"]
    left, right = (source.all_rows() for source in scene.sources)
    assert found_pairs(job.collect()) == pairs(left, right)


def test_results_of_a_join_in_flight_are_restored(tmp_path: Path) -> None:
    scene = joined(tmp_path, where="after")
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
    left, right = (source.all_rows() for source in scene.sources)
    assert found_pairs(scene.finish().collect()) == pairs(left, right)


def test_state_and_inflight_data_of_an_aggregation_are_restored(tmp_path: Path) -> None:
    scene = gate_after_aggregation(tmp_path)
    with scene.running() as job:
        scene.paused_everywhere(job)
        took_unaligned(job)
    job = scene.finish()
    assert isinstance(job.collect(), pa.Table)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())
