"""What is wrong with a running job, for people: log lines, ``Job.problems``, a few metrics. ``core.failure.problems`` decides."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import assert_never

from tidegate.clock import Clock
from tidegate.core.checkpoint.effects import CoordinatorEffect
from tidegate.core.checkpoint.events import CoordinatorEvent
from tidegate.core.failure.problems import Notice, Passed, Problem, ProblemKind, Problems, StillWrong
from tidegate.runtime.metrics import StorageMetrics
from tidegate.runtime.timers import Timers

log = logging.getLogger("tidegate")


class ProblemWatch:
    """Shown every event and effect of the leader, on its thread. ``current`` and ``metrics`` may be read by any."""

    def __init__(self, job: str, clock: Clock, timers: Timers) -> None:
        self._job = job
        self._clock = clock
        self._timers = timers
        self._problems = Problems()
        self._look_at: int | None = None
        self.current: tuple[Problem, ...] = ()

    def note(self, fact: CoordinatorEvent | CoordinatorEffect) -> None:
        """Something happened, or was ordered."""
        self._tell(self._problems.noted(fact, self._clock.now_ms(), self._clock.wall_ms()))

    def failed(self, kind: ProblemKind, because: str) -> None:
        """Something did not work that is no event of the coordinator."""
        self._tell(self._problems.failed(kind, because, self._clock.now_ms(), self._clock.wall_ms()))

    def metrics(self) -> StorageMetrics:
        """Whether checkpoints fail, and why; ``None`` while all is well."""
        first = self.current[0] if self.current else None
        return {
            "checkpoints_failing_since": None if first is None else _time(first.since_ms),
            "checkpoints_failing_because": None if first is None else str(first),
            "last_store_error": self._problems.last_cause,
        }

    def last_words(self, cause: str) -> str:
        """What was wrong when the job ended by this cause, to be put after it."""
        return "".join(
            f" ({f'{p.times} times ' if p.because in cause else f'{p}, {p.times} times '}since {_time(p.since_ms)})"
            for p in self.current
        )

    def _look(self) -> None:
        self._look_at = None
        self._tell(self._problems.look(self._clock.now_ms(), self._clock.wall_ms()))

    def _tell(self, notices: Iterable[Notice]) -> None:
        self.current = self._problems.current
        for notice in notices:
            match notice:
                case StillWrong(p):
                    since = f"{p.times} times since {_time(p.since_ms)}"
                    log.warning("%s (%s; %s) problem=%s job=%s", p, since, p.advice, p.kind, self._job)
                case Passed(p):
                    log.warning("over after %s failures: %s problem=%s job=%s", p.times, p.what, p.kind, self._job)
                case _:
                    assert_never(notice)
        look_at = self._problems.look_ms
        if look_at is not None and self._look_at is None:
            self._look_at = look_at
            self._timers.at(look_at, self._look)


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
