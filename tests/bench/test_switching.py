"""The cost of checkpoints within one job, measured on jobs whose cost is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate.bench.switching import LOOK_S, STRETCH_S, Switching, result
from tidegate.errors import JobFailedError
from tidegate.runtime.threads import InlineExecutor


class Job:
    """Reads a number of rows a second, and none for a while at each checkpoint. Reports twice a second, as nodes do."""

    def __init__(self, stands_s: float, drift: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.status = "RUNNING"
        self.checkpoints: list[float] = []
        self._rows = 0.0
        self._reported = 0
        self._stands_s, self._drift = stands_s, drift
        self._standing_s = 0.0

    def sleep(self, seconds: float) -> None:
        moving = max(0.0, seconds - self._standing_s)
        self._standing_s = max(0.0, self._standing_s - seconds)
        self._rows += 1_000_000 * moving * self._drift(self.now)
        before, self.now = self.now, self.now + seconds
        if int(self.now * 2) != int(before * 2):
            self._reported = int(self._rows)

    def metrics(self) -> dict[str, Any]:
        return {"rows_in": self._reported}

    def checkpoint(self) -> int:
        self.checkpoints.append(self.now)
        self._standing_s += self._stands_s
        return len(self.checkpoints)


def measured(job: Job, switches: int = 6) -> dict[str, Any]:
    return Switching(job, now=lambda: job.now, sleep=job.sleep, thread=InlineExecutor()).run(switches)


@pytest.mark.parametrize("stands_s", [0.0, 0.02, 0.1])
def test_the_cost_is_the_share_of_time_that_checkpoints_take(stands_s: float) -> None:
    found = measured(Job(stands_s))
    assert found["cost"] == pytest.approx(stands_s, abs=0.01)
    assert found["off"]["median"] == pytest.approx(1_000_000, rel=0.02)
    assert len(found["cost_per_pair"]) == 6


def test_a_machine_that_gets_slower_all_the_time_does_not_look_like_a_cost() -> None:
    found = measured(Job(0.0, drift=lambda now: 1.0 - now / 200), switches=8)
    assert found["off"]["max"] > 1.3 * found["off"]["min"]
    assert abs(found["cost"]) < 0.01


def test_there_is_one_checkpoint_a_second_and_none_in_the_other_stretches() -> None:
    job = Job(0.0)
    measured(job, switches=3)
    assert len(job.checkpoints) == 3 * STRETCH_S
    apart = [later - earlier for earlier, later in zip(job.checkpoints, job.checkpoints[1:], strict=False)]
    assert sum(gap < 1 + 2 * LOOK_S for gap in apart) >= 3 * (STRETCH_S - 1)
    assert max(apart) > STRETCH_S


def test_a_job_that_ends_meanwhile_is_no_measurement() -> None:
    job = Job(0.0)
    job.status = "FINISHED"
    with pytest.raises(JobFailedError, match="status=FINISHED"):
        measured(job)


def test_a_checkpoint_that_fails_is_no_measurement() -> None:
    class Failing(Job):
        def checkpoint(self) -> int:
            raise JobFailedError("no")

    with pytest.raises(JobFailedError, match="no"):
        measured(Failing(0.0))


def test_the_standard_error_says_how_far_the_pairs_are_apart() -> None:
    found = result([98.0, 96.0], [100.0, 100.0])
    assert found["cost"] == pytest.approx(0.03) and found["standard_error"] == pytest.approx(0.01)
    assert result([98.0], [100.0])["standard_error"] is None
