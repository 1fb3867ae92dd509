"""What `core` measures only when it is asked to: ten nodes as processes, with 1 GB of state. Takes minutes and gigabytes.

Ten processes share the cores of this machine, its disk and its page cache: a cluster has more of each.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tidegate as tg
from tidegate.api.job import Job
from tidegate.bench.nodes import WaitingSource, await_rows, waiting_pipeline
from tidegate.bench.processes import ProcessGang, Recipe
from tidegate.bench.timing import Reading, seconds
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.runtime.start import JobOptions, launch_job

WAIT_S = 600.0
BY_HAND = tg.CheckpointConfig(interval="1h", timeout=f"{WAIT_S:.0f}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeSettings:
    """How large."""

    nodes: int = 10
    state_bytes: int = 1_000_000_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidUseError(f"{name} is at least 1 {name}={getattr(self, name)}")


def pipeline(state_bytes: int, nodes: int, folder: str) -> tg.Pipeline:
    """What each process builds."""
    return waiting_pipeline(WaitingSource(state_bytes, nodes), Path(folder))


def processes(folder: Path, settings: LargeSettings) -> list[Reading]:
    """The first checkpoint of a job that then loses all of its processes at once. Each is measured once."""
    rows = WaitingSource(settings.state_bytes, settings.nodes).rows
    recipe = Recipe(f"{__name__}:pipeline", (settings.state_bytes, settings.nodes, str(folder)), settings.nodes)
    gang = ProcessGang(recipe)
    options = JobOptions(parallelism=settings.nodes, checkpoint=BY_HAND, store=str(folder / "store"))
    job = Job(launch_job(gang.plan, gang, options))
    try:
        await_rows(job, rows, WAIT_S)
        _await(job, lambda: _held(job) == rows, "the rows became no state")
        committed_s = seconds(partial(job.checkpoint, BY_HAND.timeout))
        uploaded = job.checkpoints()[-1]["bytes"]
        recovered_s = seconds(partial(_recover, job, gang))
        _await(job, lambda: _held(job) == rows, "the state was not restored")
        assert job.metrics()["rows_read"] == rows, "rows were read again instead"
        joined_s = job.metrics()["recoveries_ms"][-1] / 1e3
    finally:
        job.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return _readings(settings, committed_s, recovered_s, joined_s, uploaded)


def _recover(job: Job, gang: ProcessGang) -> None:
    """Kill every process; wait until those of the next gang have their state and a signal has gone through all of them.

    Not until a checkpoint: the first one after a restore uploads all state again.
    """
    before = job.metrics()["gang"]
    for pid in gang.pids:
        os.kill(pid, signal.SIGKILL)
    _await(job, lambda: job.metrics()["gang"] not in (None, before) and job.status == "RUNNING", "the nodes did not come back")
    job.signal("SyncTest", timeout=BY_HAND.timeout)


def _held(job: Job) -> int:
    return sum(operator["state_rows"] for operator in job.metrics()["operators"].values())


def _await(job: Job, condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if job.error is not None:
            raise job.error
        if time.monotonic() > deadline:
            raise JobFailedError(f"{otherwise} within {WAIT_S:.0f} s job={job.name}")
        time.sleep(0.01)


def _readings(settings: LargeSettings, committed_s: float, recovered_s: float, joined_s: float, uploaded: int) -> list[Reading]:
    size, stored = f"{settings.nodes} nodes as processes on {os.cpu_count()} cores", f"{uploaded / 1e6:.1f} MB"
    return [
        Reading(
            name="bench_distributed_checkpoint_10_nodes_1gb",
            values=(committed_s,),
            unit="s",
            target=60,
            what=f"the first checkpoint of {size}, {stored} uploaded to a synced directory, once",
        ),
        Reading(
            name="bench_recovery_time",
            values=(recovered_s,),
            unit="s",
            target=10,
            what=f"kill -9 of all {size} to a signal through those that replaced them, which took {joined_s:.1f} s to start and "
            f"join, {stored} restored, once",
        ),
    ]
