"""Following a job to its end."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from job_metrics import job_metrics
from tidegate.cli.follow import RateNote, counted, follow, summary
from tidegate.cli.progress import Progress
from tidegate.cli.run import restore_of
from tidegate.errors import JobFailedError
from tidegate.runtime.metrics import JobMetrics


class Scripted:
    """A job that plays back what a real one would say: (status, metrics) at each look, then its end."""

    name = "scripted"

    def __init__(self, looks: list[tuple[str, dict[str, Any]]], error: Exception | None = None) -> None:
        self._looks: Iterator[tuple[str, dict[str, Any]]] = iter(looks)
        self._error = error
        self.status = "STARTING"
        self._metrics = job_metrics()

    def await_termination(self, timeout: float | None = None) -> bool:
        try:
            self.status, known = next(self._looks)
            self._metrics = job_metrics(**known)
        except StopIteration:
            if self._error is not None:
                raise self._error from None
            self.status = "FINISHED"
            return True
        return False

    def metrics(self) -> JobMetrics:
        return self._metrics


def quiet() -> Progress:
    return Progress("test", stream=io.StringIO())


def test_every_look_is_passed_on_until_the_job_ends() -> None:
    job = Scripted([("RUNNING", {"rows_in": n}) for n in (1, 2, 3)])
    seen: list[int] = []
    assert follow(job, quiet(), on_look=lambda metrics: seen.append(metrics["rows_in"]))
    assert seen == [1, 2, 3]


def test_a_failure_of_the_job_is_raised() -> None:
    with pytest.raises(JobFailedError, match="poison"):
        follow(Scripted([("RUNNING", {})], JobFailedError("poison")), quiet())


def test_watching_ends_after_its_time() -> None:
    assert not follow(Scripted([("RUNNING", {})] * 3), quiet(), timeout_s=-1.0)


def test_the_pace_is_rows_per_second_over_the_last_second() -> None:
    pace = RateNote(0.0)
    assert pace.note("RUNNING", job_metrics(rows_in=500), 0.5).startswith("RUNNING  0 rows/s  0 checkpoints")
    assert "2 k rows/s" in pace.note("RUNNING", job_metrics(rows_in=2_000, checkpoints_committed=1), 1.0)
    assert "0 rows/s  1 checkpoint  2 restarts" in pace.note(
        "RUNNING", job_metrics(rows_in=10, checkpoints_committed=1, restarts=2), 2.0
    )


def test_the_summary_keeps_what_people_ask_for() -> None:
    job = Scripted([("RUNNING", {"rows_in": 5, "rows_out": 2, "nodes": [1, 2]})])
    follow(job, quiet())
    assert summary(job, 1.23456) == {
        "job": "scripted",
        "status": "FINISHED",
        "rows_in": 5,
        "rows_out": 2,
        "checkpoints_committed": 0,
        "restarts": 0,
        "late_rows": 0,
        "seconds": 1.235,
    }


def test_one_is_not_many() -> None:
    assert [counted(n, "restart") for n in (0, 1, 2_000)] == ["0 restarts", "1 restart", "2,000 restarts"]


def test_an_epoch_to_restore_is_a_number() -> None:
    assert [restore_of(text) for text in ("latest", "none", "12", "/a/b")] == ["latest", "none", 12, "/a/b"]
