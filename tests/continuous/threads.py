"""Jobs on threads of this process, for the tests beside this file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tidegate as tg
from tidegate.api.job import Job
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job


def start(pipeline: tg.Pipeline, store: Path | str, parallelism: int = 2, **options: Any) -> Job:
    """Start a job with a checkpoint every tenth of a second."""
    options.setdefault("checkpoint", tg.CheckpointConfig(interval="100ms"))
    given = JobOptions(parallelism=parallelism, store=str(store), **options)
    return Job(launch_job(pipeline.physical(parallelism), ThreadGang(parallelism), given))


def until(condition: Callable[[], bool], job: Job | None = None, timeout_s: float = 20.0) -> None:
    """Wait for something that a job does; a job that fails meanwhile fails the test with its reason."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if job is not None and job.error is not None:
            raise job.error
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
