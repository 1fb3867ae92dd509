"""What comes out on Spark is what a batch engine gives for the same files, whoever is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from workloads import WORKLOADS, Data, Workload

from conftest import Start
from tidegate.spark import daemon
from tidegate.testing.crash import kill_at_random, wait_for_checkpoints

CONF = daemon.CONF  # many kills here: new workers should be quick
WIDTHS = [1, 2, 4]
SECONDS = 2.5
KILLS = 2


@pytest.mark.parametrize("parallelism", WIDTHS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_result_is_that_of_a_batch_engine(
    start: Start, data: Data, tmp_path: Path, workload: Workload, parallelism: int
) -> None:
    job = start(workload.pipeline(data, tmp_path / "out"), parallelism=parallelism)
    assert job.await_termination(60)
    assert (job.status, job.metrics()["restarts"], job.metrics()["late_rows"]) == ("FINISHED", 0, 0)
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
    # The last gang read only what no checkpoint had: there was one before the first kill.
    assert 0 < metrics["rows_read"] < metrics["rows_in"] == workload.rows_in()
    workload.check(data, tmp_path / "out")


def test_without_checkpoints_the_result_is_the_same(start: Start, data: Data, tmp_path: Path) -> None:
    for workload in WORKLOADS:
        out = tmp_path / workload.name
        job = start(workload.pipeline(data, out), checkpoint=None)
        assert job.await_termination(60)
        assert job.status == "FINISHED"
        workload.check(data, out)
