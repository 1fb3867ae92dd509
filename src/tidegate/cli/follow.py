"""Follows a job to its end and shows how it goes. Knows a job only by what ``Job`` promises to everybody."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidegate.cli.console import rate
from tidegate.cli.progress import Progress

POLL_S = 0.1


class WatchedJob(Protocol):
    """The part of a job that watching needs."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    def await_termination(self, timeout: float | None = None) -> bool: ...

    def metrics(self) -> dict[str, Any]: ...


def follow(
    job: WatchedJob,
    progress: Progress,
    *,
    on_look: Callable[[dict[str, Any]], None] | None = None,
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
        progress.update(metrics.get("rows_in", 0), pace.note(job.status, metrics, time.monotonic()))
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

    def note(self, status: str, metrics: Mapping[str, Any], now_s: float) -> str:
        """What to show beside the bar."""
        rows = int(metrics.get("rows_in", 0))
        if now_s - self._since_s >= self._window_s:
            # A restart may take the count back: no rate is better than a negative one.
            self._rate = max(0, rows - self._rows) / (now_s - self._since_s)
            self._since_s, self._rows = now_s, rows
        parts = [status, rate(self._rate), counted(metrics.get("checkpoints_committed", 0), "checkpoint")]
        if restarts := metrics.get("restarts", 0):
            parts.append(counted(restarts, "restart"))
        return "  ".join(parts)


def counted(number: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def summary(job: WatchedJob, seconds: float) -> dict[str, object]:
    """What a job has done, for people and programs alike."""
    metrics = job.metrics()
    kept = ("rows_in", "rows_out", "checkpoints_committed", "restarts", "late_rows", "watermark")
    counts = {name: metrics[name] for name in kept if name in metrics}
    return {"job": job.name, "status": job.status, **counts, "seconds": round(seconds, 3)}
