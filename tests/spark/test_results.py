"""What comes out on Spark is what a batch engine returns for the same files, whoever is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from workloads import WORKLOADS, Data, Workload

from conftest import Start
from tidegate.spark import daemon
from tidegate.testing.crash import kill_at_random, kill_node, wait_for_checkpoints, wait_until

CONF = daemon.CONF  # many kills here: new workers should be quick
WIDTHS = [1, 2, 4]
SECONDS = 2.5
KILLS = 2
MOVES = [1, 2, 4, 2]
MOVING_SECONDS = 4.0
KILLED_STEP = 2


@pytest.mark.parametrize("parallelism", WIDTHS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_result_is_that_of_a_batch_engine(
    start: Start, data: Data, tmp_path: Path, workload: Workload, parallelism: int
) -> None:
    job = start(workload.pipeline(data, tmp_path / "out"), parallelism=parallelism)
    assert job.await_termination(60)
    assert (job.status, job.metrics()["restarts"]) == ("FINISHED", 0)
    assert (job.metrics()["late_rows"] > 0) == workload.has_late_rows
    assert job.metrics()["rows_in"] == workload.rows_in()
    workload.check(data, tmp_path / "out")


@pytest.mark.parametrize("parallelism", WIDTHS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_result_is_exact_after_kills_at_random_moments(
    start: Start, data: Data, tmp_path: Path, workload: Workload, parallelism: int
) -> None:
    seed = WORKLOADS.index(workload) * 10 + parallelism
    pipeline = workload.pipeline(data, tmp_path / "out", seconds=SECONDS, parallelism=parallelism)
    job = start(pipeline, parallelism=parallelism)
    wait_for_checkpoints(job)
    kills = kill_at_random(job, KILLS, seed)
    assert job.await_termination(60)
    metrics = job.metrics()
    print(f"seed={seed} recovered after {[kill.recovered_s and round(kill.recovered_s, 2) for kill in kills]} s")
    assert (job.status, metrics["restarts"]) == ("FINISHED", KILLS), f"seed={seed} {kills}"
    assert metrics["rows_in"] == workload.rows_in()
    # Gangs went on from a checkpoint, there was one before the first kill: together they read less than if each had begun anew.
    assert 0 < metrics["rows_read"] < (KILLS + 1) * metrics["rows_in"]
    workload.check(data, tmp_path / "out")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_result_is_exact_when_restored_at_other_parallelisms(
    start: Start, data: Data, tmp_path: Path, workload: Workload
) -> None:
    """Every job but the last is stopped on its way, one of them after a kill; the next goes on from its last checkpoint."""
    out, rows = tmp_path / "out", workload.rows_in()
    for step, parallelism in enumerate(MOVES):
        pipeline = workload.pipeline(data, out, seconds=MOVING_SECONDS, parallelism=parallelism)
        job = start(pipeline, parallelism=parallelism)
        assert (job.restored_from is None) == (step == 0)
        wanted = rows * (step + 1) // (len(MOVES) + 1)
        wait_until("rows", lambda job=job, wanted=wanted: job.metrics()["rows_in"] > wanted)
        wait_for_checkpoints(job, job.metrics()["checkpoints_committed"] + 1)
        assert step != KILLED_STEP or kill_node(job, parallelism - 1) is not None
        job.stop()
    job = start(workload.pipeline(data, out), parallelism=MOVES[0])
    assert job.await_termination(60)
    assert 0 < job.metrics()["rows_read"] < job.metrics()["rows_in"] == rows
    workload.check(data, out)


def test_without_checkpoints_the_result_is_the_same(start: Start, data: Data, tmp_path: Path) -> None:
    for workload in WORKLOADS:
        out = tmp_path / workload.name
        job = start(workload.pipeline(data, out), checkpoint=None)
        assert job.await_termination(60)
        assert job.status == "FINISHED"
        workload.check(data, out)
