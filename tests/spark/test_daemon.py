"""The preloading Python daemon: workers are ready when they are forked, and forking it is safe, however often."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
from workloads import TUMBLING, Data

import tidegate as tg
from conftest import Start
from tidegate.spark import daemon
from tidegate.testing.crash import kill_node, wait_for_checkpoints, wait_for_status

CONF = daemon.CONF
GANGS = 12
KILLS = 6


def test_nothing_that_is_preloaded_is_unsafe_to_fork() -> None:
    """In a process of its own; what this one has imported says nothing."""
    code = (
        "import sys, threading; from tidegate.spark.daemon import preload; preload();"
        "print('grpc' in sys.modules, threading.active_count(), 'tidegate.runtime.host' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == ["False", "1", "True"]  # and nothing else: standard output is Spark's


def test_a_preload_that_brings_grpc_is_refused() -> None:
    code = "import grpc; from tidegate.spark.daemon import preload; preload()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1
    assert "must fork before these exist modules=['grpc']" in answer.stderr


def test_workers_are_forked_from_the_daemon(start: Start, tmp_path: Path) -> None:
    job = start(endless(tmp_path))
    wait_for_status(job, "RUNNING")
    for node in job.metrics()["nodes"]:
        parent = psutil.Process(node["pid"]).parent()
        assert parent is not None
        assert daemon.MODULE in parent.cmdline()


def test_many_gangs_start_and_stop(start: Start, tmp_path: Path) -> None:
    """Every other gang loses a worker first, so that workers are both used again and forked anew."""
    seconds, forked = [], set()
    for number in range(GANGS):
        began = time.monotonic()
        job = start(endless(tmp_path), parallelism=4)
        wait_for_status(job, "RUNNING")
        seconds.append(time.monotonic() - began)
        wait_for_checkpoints(job)
        nodes = job.metrics()["nodes"]
        forked |= {node["pid"] for node in nodes}
        if number % 2:
            psutil.Process(nodes[number % 4]["pid"]).kill()
        job.stop()
        assert job.status == "STOPPED"
    print(f"{GANGS} gangs of 4: start {min(seconds):.2f} to {max(seconds):.2f} s, {len(forked)} workers")
    assert len(forked) > 4


def test_a_job_survives_many_kills_and_is_exact(start: Start, data: Data, tmp_path: Path) -> None:
    job = start(TUMBLING.pipeline(data, tmp_path / "out", seconds=8, parallelism=4), parallelism=4)
    recovered = []
    for number in range(KILLS):
        wait_for_checkpoints(job, job.metrics()["checkpoints_committed"] + 1)
        kill = kill_node(job, number % 4)
        assert kill is not None
        assert kill.recovered_s is not None
        recovered.append(kill.recovered_s)
    assert job.await_termination(60)
    print(f"kill -9 to a full gang, preloaded: {min(recovered):.2f} to {max(recovered):.2f} s")
    assert job.metrics()["restarts"] == KILLS
    TUMBLING.check(data, tmp_path / "out")


def endless(tmp_path: Path) -> tg.Pipeline:
    return tg.Pipeline("endless", tg.generate(rows_per_second=2_000).write_parquet(tmp_path / "out"))
