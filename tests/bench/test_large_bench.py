"""Nodes as processes: what the large benchmark measures, and a gang that can be killed without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.bench.large import LargeSettings, processes
from tidegate.bench.processes import ProcessGang, Recipe
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.gang import Launcher, process_state
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job

WAIT_S = 60.0
GONE_S = 15.0
ROWS = 30_000


def start(gang: Launcher, plan: PhysicalPlan, parallelism: int, folder: Path) -> Job:
    options = JobOptions(parallelism=parallelism, checkpoint=tg.CheckpointConfig(interval="100ms"), store=str(folder / "store"))
    return Job(launch_job(plan, gang, options))


def processes_of(function: str, *arguments: Any, parallelism: int = 2) -> ProcessGang:
    return ProcessGang(Recipe(f"test_large_bench:{function}", arguments, parallelism))


def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {timeout_s} s for {what} in vain")


def is_gone(pid: int) -> bool:
    return process_state(pid) in (None, "Z")


def counted(rows_per_second: float | None, out: str) -> tg.Pipeline:
    windows = tg.generate(ROWS, rows_per_second, keys=17).key_by("key").window(tg.tumbling("1s"))
    return tg.Pipeline("counted", windows.aggregate(n=tg.count(), total=tg.sum("value")).write_parquet(out))


def found(out: Path) -> list[tuple[Any, ...]]:
    return duckdb.connect().sql(f"select n, total, key, window_start from '{out}/*.parquet' order by all").fetchall()


def test_processes_with_state_checkpoint_and_come_back_with_it(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    committed, recovered = processes(tmp_path / "work", LargeSettings(nodes=2, state_bytes=2_000_000))
    assert (committed.name, committed.row()["target"]) == ("bench_distributed_checkpoint_10_nodes_1gb", "< 60 s")
    assert (recovered.name, recovered.row()["target"]) == ("bench_recovery_time", "< 10 s")
    assert committed.values[0] > 0 and recovered.values[0] > 0
    uploaded_mb = float(committed.what.split(" MB")[0].split()[-1])
    assert 2.0 <= uploaded_mb < 3.0, committed.what
    assert list(tmp_path.iterdir()) == [], "jobs leave nothing behind"
    until(lambda: set(threading.enumerate()) <= before, "threads that are left")


def test_a_node_killed_with_kill_9_costs_and_doubles_no_row(tmp_path: Path) -> None:
    gang = processes_of("counted", 10_000.0, str(tmp_path / "out"))
    job = start(gang, gang.plan, 2, tmp_path)
    try:
        until(lambda: job.metrics()["checkpoints_committed"] >= 2, "checkpoints")
        first = gang.pids
        assert gang.running() == 2
        os.kill(first[1], signal.SIGKILL)
        assert job.await_termination(WAIT_S), job.metrics()
        assert job.metrics()["restarts"] == 1
        assert not set(first) & set(gang.pids), "every node is a new process"
    finally:
        job.stop()
    assert gang.join(WAIT_S) and gang.running() == 0
    whole = start(ThreadGang(1), counted(None, str(tmp_path / "whole")).physical(1), 1, tmp_path / "other")
    assert whole.await_termination(WAIT_S)
    assert found(tmp_path / "out") == found(tmp_path / "whole")
    assert sum(n for n, *_ in found(tmp_path / "out")) == ROWS


def test_processes_go_when_they_are_cancelled_even_stopped_ones(tmp_path: Path) -> None:
    gang = processes_of("counted", 100.0, str(tmp_path / "out"))
    job = start(gang, gang.plan, 2, tmp_path)
    try:
        until(lambda: job.status == "RUNNING", "nodes")
        first = gang.pids
        os.kill(first[0], signal.SIGSTOP)
        until(lambda: process_state(first[0]) == "T", "its stop")
        gang.cancel()
        until(lambda: all(map(is_gone, first)), "their end", GONE_S)
    finally:
        job.stop()


def stuck(driver: int, folder: str) -> tg.Pipeline:
    """Comes to an end in the driver only."""
    if os.getpid() != driver:
        Path(folder, f"stuck-{os.getpid()}").touch()
        time.sleep(600)
    return counted(100.0, f"{folder}/out")


DRIVER = """
import os, sys, time
from pathlib import Path
tests, folder, function = sys.argv[1:]
sys.path.append(tests)
from test_large_bench import processes_of, start, until
gang = processes_of("stuck", os.getpid(), folder) if function == "stuck" else processes_of("counted", 100.0, f"{folder}/out")
job = start(gang, gang.plan, 2, Path(folder))
until(lambda: job.status == "RUNNING" or len(list(Path(folder).glob("stuck-*"))) == 2, "nodes")
print(*gang.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("function", ["counted", "stuck"], ids=["running", "not even built"])
def test_nodes_end_with_a_driver_that_is_killed(tmp_path: Path, function: str) -> None:
    command = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(tmp_path), function]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert driver.stdout is not None
        pids = list(map(int, driver.stdout.readline().split()))
    finally:
        driver.kill()
        driver.communicate()
    assert len(pids) == 2
    until(lambda: all(map(is_gone, pids)), "the end of the nodes", GONE_S)


def refuse(batch: Any) -> Any:
    raise ValueError("not this one")


def refused(out: str) -> tg.Pipeline:
    rows = tg.generate(100)
    return tg.Pipeline("refused", rows.map_batches(refuse, schema=rows.schema).write_parquet(out))


def test_a_node_that_raises_says_what_of(tmp_path: Path) -> None:
    gang = processes_of("refused", str(tmp_path / "out"), parallelism=1)
    job = start(gang, gang.plan, 1, tmp_path)
    with pytest.raises(JobFailedError, match="not this one"):
        job.await_termination(WAIT_S)


def test_a_plan_that_a_process_would_not_build_is_refused(tmp_path: Path) -> None:
    gang = processes_of("counted", None, str(tmp_path / "out"))
    other = processes_of("counted", None, str(tmp_path / "out")).plan
    job = start(gang, other, 2, tmp_path)
    with pytest.raises(JobFailedError, match="build their own plan"):
        job.await_termination(WAIT_S)


@pytest.mark.parametrize("name", ["nodes", "state_bytes"])
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(InvalidUseError, match=f"{name} is at least 1"):
        LargeSettings(**{name: 0})
