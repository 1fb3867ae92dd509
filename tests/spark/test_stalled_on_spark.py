"""A worker that stands still on Spark is noticed, named and replaced, and costs no row."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import psutil
import pyarrow as pa
from workloads import TUMBLING, Data, read

import tidegate as tg
from conftest import Start
from tidegate.testing.crash import wait_for_checkpoints, wait_until

STALL_S = 3


def test_a_stopped_worker_is_named_replaced_and_costs_no_row(start: Start, data: Data, tmp_path: Path) -> None:
    pipeline = TUMBLING.pipeline(data, tmp_path / "out", seconds=4, parallelism=2)
    job = start(pipeline, stall_timeout=f"{STALL_S}s")
    wait_for_checkpoints(job, 3)
    victim = job.metrics()["nodes"][1]
    os.kill(victim["pid"], signal.SIGSTOP)
    began = time.monotonic()
    try:
        wait_until("a new gang", lambda: job.metrics()["restarts"] == 1 and job.status == "RUNNING")
        seconds = time.monotonic() - began
        print(f"SIGSTOP to running again: {seconds:.1f} s")
        cause = job._leader.cause or ""
        assert f"node 1 of gang 0 on {victim['host']} (pid {victim['pid']}) stands still" in cause
        assert "its process is stopped (SIGSTOP" in cause and seconds < 20
        # It would hold its slot for ever.
        wait_until("the end of the stopped process", lambda: not psutil.pid_exists(victim["pid"]))
    finally:
        if psutil.pid_exists(victim["pid"]):
            os.kill(victim["pid"], signal.SIGCONT)
    assert job.await_termination(60)
    TUMBLING.check(data, tmp_path / "out")


def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keeps the interpreter to itself for longer than anybody waits."""
    ctypes.PyDLL(None).sleep(30)
    return batch


def test_a_function_that_holds_the_interpreter_is_named(start: Start, data: Data, tmp_path: Path) -> None:
    stream = read(data.bids, None, 2).map_batches(hold).named("holder")
    job = start(tg.Pipeline("holds", stream.write_parquet(tmp_path / "out")), stall_timeout=f"{STALL_S}s")
    wait_until("the first restart", lambda: job.metrics()["restarts"] >= 1)
    cause = job._leader.cause or ""
    assert "stands still" in cause and "map_batches 'holder' for" in cause, cause
    job.stop()
