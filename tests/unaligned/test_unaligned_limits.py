"""What bounds an unaligned checkpoint, and what is never unaligned."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pressure import (
    TIMEOUT_MS,
    found_windows,
    gate_before_aggregation,
    last,
    took_unaligned,
    wait_for,
    windows,
)

from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.errors import CheckpointAbortedError


def test_more_data_in_flight_than_allowed_aborts_that_checkpoint_and_names_the_channel(tmp_path: Path) -> None:
    scene = gate_before_aggregation(tmp_path)
    job = scene.start(max_inflight_bytes=1_000)
    scene.paused_everywhere(job)
    with pytest.raises(CheckpointAbortedError, match=r"too much data in flight.*channel=input 0.*limit=1000"):
        job.checkpoint("20s")
    aborted = job.checkpoints()[-1]
    assert aborted["status"] == "aborted"
    stage = scene.pipeline.physical(2).stages[1].name
    assert stage in aborted["reason"], "the reason says which operator's input it was"
    assert job.status == "RUNNING"
    scene.complete(job)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_the_checkpoint_after_one_with_too_much_in_flight_commits(tmp_path: Path) -> None:
    """Nothing of the aborted one is left over: the next is aligned, and a crash after it is exact."""
    scene = gate_before_aggregation(tmp_path)
    with scene.running(max_inflight_bytes=1_000) as job:
        scene.paused_everywhere(job)
        with pytest.raises(CheckpointAbortedError):
            job.checkpoint("20s")
        scene.gates[0].open()
        wait_for("the rows to pass", lambda: sum(b.num_rows for b in scene.gates[0].passed) == 240)
        job.checkpoint("20s")
        assert last(job)["inflight_events"] == 0
    assert found_windows(scene.finish().collect()) == windows(scene.sources[0].all_rows())


@pytest.mark.parametrize("kind", ["savepoint", "never"])
def test_savepoints_and_never_wait_however_long_it_takes(tmp_path: Path, kind: str) -> None:
    scene = gate_before_aggregation(tmp_path)
    job = scene.start(**({"unaligned": "never"} if kind == "never" else {}))
    scene.paused_everywhere(job)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(job.savepoint, str(tmp_path / "kept")) if kind == "savepoint" else pool.submit(job.checkpoint)
        time.sleep(4 * TIMEOUT_MS / 1000)  # it must not be done however long one waits
        assert not asked.done()
        scene.gates[0].open()
        epoch = asked.result(20)
    record = last(job)
    assert (record["epoch"], record["unaligned"], record["inflight_events"]) == (epoch, False, 0)
    scene.complete(job)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_always_does_not_wait_at_all(tmp_path: Path) -> None:
    """Barriers overtake from the source on: the alignment timeout plays no part."""
    scene = gate_before_aggregation(tmp_path)
    with scene.running(unaligned="always", alignment_timeout="50s") as job:
        scene.paused_everywhere(job)
        begun = time.monotonic()
        took_unaligned(job)
        assert time.monotonic() - begun < 1.0
    assert found_windows(scene.finish().collect()) == windows(scene.sources[0].all_rows())


def test_a_function_that_holds_everything_up_delays_a_commit_by_seconds_with_default_settings(tmp_path: Path) -> None:
    scene = gate_before_aggregation(tmp_path)
    with scene.running(alignment_timeout=CheckpointConfig().alignment_timeout) as job:
        scene.paused_everywhere(job)
        begun = time.monotonic()
        took_unaligned(job)
        assert time.monotonic() - begun < 5.0
    assert found_windows(scene.finish().collect()) == windows(scene.sources[0].all_rows())


def test_auto_without_pressure_stays_aligned(tmp_path: Path) -> None:
    scene = gate_before_aggregation(tmp_path)
    scene.gates[0].open()
    job = scene.start(alignment_timeout="20s")
    scene.paused_everywhere(job)
    job.checkpoint("20s")
    assert (last(job)["unaligned"], last(job)["inflight_events"]) == (False, 0)
    scene.complete(job)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())


def test_a_job_whose_checkpoints_all_go_unaligned_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = gate_before_aggregation(tmp_path)
    with caplog.at_level(logging.WARNING, "tidegate"), scene.running(alignment_timeout="20ms") as job:
        scene.paused_everywhere(job)
        for _ in range(7):
            took_unaligned(job)
    said = [record for record in caplog.records if "ThresholdTooLow" in record.getMessage()]
    assert len(said) == 1
    assert "the last 5 checkpoints" in said[0].getMessage()


def test_an_adaptive_threshold_learns_from_every_commit(tmp_path: Path) -> None:
    scene = gate_before_aggregation(tmp_path)
    job = scene.start(adaptive_alignment=True)
    machine = job._leader._machine
    scene.paused_everywhere(job)
    assert machine.checkpoints.alignment_timeout is not None
    assert (machine.checkpoints.alignment_timeout.ms, machine.checkpoints.alignment_timeout.share_unaligned) == (TIMEOUT_MS, 0.0)
    took_unaligned(job)
    assert machine.checkpoints.alignment_timeout.share_unaligned > 0
    assert machine.checkpoints.alignment_timeout.overtaking_ms is not None
    scene.complete(job)
    assert found_windows(job.collect()) == windows(scene.sources[0].all_rows())
