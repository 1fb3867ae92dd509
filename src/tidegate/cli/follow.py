"""Follows a job to its end and shows how it goes. Knows a job only by what ``Job`` promises to everybody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tidegate.cli.console import rate
from tidegate.cli.progress import Progress
from tidegate.runtime.metrics import JobMetrics

POLL_S = 0.1


class WatchedJob(Protocol):
    """The part of a job that watching needs."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    def await_termination(self, timeout: float | None = None) -> bool: ...

    def metrics(self) -> JobMetrics: ...


def follow(
    job: WatchedJob,
    progress: Progress,
    *,
    on_look: Callable[[JobMetrics], None] | None = None,
    timeout_s: float | None = None,
    poll_s: float = POLL_S,
) -> bool:
    """Wait until the job has ended; False when ``timeout_s`` passed first. Raises what made the job fail.

    ``on_look`` gets the metrics at every look, a few times a second.
    """
    pace = RateNote(time.monotonic())
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not job.await_termination(poll_s):
        metrics = job.metrics()
        if on_look is not None:
            on_look(metrics)
        progress.update(metrics["rows_in"], pace.note(job.status, metrics, time.monotonic()))
        if deadline is not None and time.monotonic() > deadline:
            return False
    return True


class RateNote:
    """Turns growing counts into a note such as ``RUNNING  3.10 M rows/s  4 checkpoints``."""

    def __init__(self, now_s: float, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._since_s = now_s
        self._rows = 0
        self._rate = 0.0

    def note(self, status: str, metrics: JobMetrics, now_s: float) -> str:
        """What to show beside the bar."""
        rows = int(metrics["rows_in"])
        if now_s - self._since_s >= self._window_s:
            # A restart may take the count back: no rate is better than a negative one.
            self._rate = max(0, rows - self._rows) / (now_s - self._since_s)
            self._since_s, self._rows = now_s, rows
        parts = [status, rate(self._rate), counted(metrics["checkpoints_committed"], "checkpoint")]
        if restarts := metrics["restarts"]:
            parts.append(counted(restarts, "restart"))
        return "  ".join(parts)


def counted(number: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def summary(job: WatchedJob, seconds: float) -> dict[str, object]:
    """What a job has done, for people and programs alike."""
    metrics = job.metrics()
    return {
        "job": job.name,
        "status": job.status,
        "rows_in": metrics["rows_in"],
        "rows_out": metrics["rows_out"],
        "checkpoints_committed": metrics["checkpoints_committed"],
        "restarts": metrics["restarts"],
        "late_rows": metrics["late_rows"],
        "seconds": round(seconds, 3),
    }
