"""When the next checkpoint is due: interval, pause, retries.

It knows times and counts, and nothing of checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.errors import InvalidUseError

RETRY_DOUBLINGS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """``interval_ms`` from trigger to trigger (``None``: only on request), ``min_pause_ms`` from end to
    trigger.

    After a failure the next try comes after ``retry_ms``, doubled for each further failure in a row, never
    later than the interval would have it. More than ``tolerable_failures`` in a row are too many.
    """

    interval_ms: int | None = 30_000
    min_pause_ms: int = 0
    retry_ms: int = 1_000
    tolerable_failures: int = 10

    def __post_init__(self) -> None:
        if self.interval_ms is not None and self.interval_ms <= 0:
            raise InvalidUseError(f"a checkpoint interval is positive interval_ms={self.interval_ms}")
        if self.min_pause_ms < 0 or self.retry_ms <= 0 or self.tolerable_failures < 0:
            raise InvalidUseError(
                f"pauses and limits are not negative and a retry waits min_pause_ms={self.min_pause_ms}"
                f" retry_ms={self.retry_ms} tolerable_failures={self.tolerable_failures}"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """What has happened so far. Every method returns the next state; ``due_ms`` reads it."""

    policy: SchedulePolicy
    triggered_ms: int
    ended_ms: int | None = None
    failures: int = 0

    @classmethod
    def begin(cls, policy: SchedulePolicy, now_ms: int) -> Schedule:
        """The gang runs from now: the first checkpoint is due after one interval."""
        return cls(policy, now_ms)

    def triggered(self, now_ms: int) -> Schedule:
        """A checkpoint was started, for whatever reason."""
        return replace(self, triggered_ms=now_ms)

    def completed(self, now_ms: int) -> Schedule:
        """It was committed."""
        return replace(self, ended_ms=now_ms, failures=0)

    def failed(self, now_ms: int) -> Schedule:
        """It was aborted."""
        return replace(self, ended_ms=now_ms, failures=self.failures + 1)

    @property
    def exhausted(self) -> bool:
        """More failures in a row than can be tolerated."""
        return self.failures > self.policy.tolerable_failures

    @property
    def retry_due_ms(self) -> int:
        """When a failed one may be tried again; at once when none has failed."""
        if self.ended_ms is None or not self.failures:
            return self.triggered_ms
        doublings = min(self.failures - 1, RETRY_DOUBLINGS_MAX)
        return self.ended_ms + max(self.policy.min_pause_ms, self.policy.retry_ms << doublings)

    @property
    def due_ms(self) -> int | None:
        """When the next periodic checkpoint is to start; ``None`` when only requests start one."""
        if self.policy.interval_ms is None:
            return None
        regular = self.triggered_ms + self.policy.interval_ms
        if self.ended_ms is None:
            return regular
        regular = max(regular, self.ended_ms + self.policy.min_pause_ms)
        return min(regular, self.retry_due_ms) if self.failures else regular
