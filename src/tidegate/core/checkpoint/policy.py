"""The coordinator's settings and its counters. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.core.checkpoint.adapt import AlignmentThreshold
from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.schedule import SchedulePolicy
from tidegate.errors import InvalidUseError, TooManyConcurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedCheckpointConfig:
    """Settings of the coordinator. ``checkpoint_interval_ms=None``: checkpoints only on request and at the
    end.

    ``unaligned_threshold_ms=0`` lets barriers overtake data from the start; with ``adaptive_alignment`` it is
    where learning begins. ``node_snapshot_timeout_ms`` is
    how long no further node may report before the checkpoint is aborted. A put that stays unanswered for
    ``put_give_up_ms``, or a publish that failed ``publish_tries_max`` times in a row and for
    ``publish_give_up_ms``, makes the leader step down: nothing else would be safe. ``publish_budgets`` are of
    sinks, by operator; all others show every epoch at once. After ``base_every`` entries the log is summed up by
    another one, and what lies before the last but one of those is trimmed.
    """

    checkpoint_interval_ms: int | None = 30_000
    checkpoint_timeout_ms: int = 300_000
    barrier_injection_timeout_ms: int = 10_000
    node_snapshot_timeout_ms: int = 120_000
    enable_unaligned_fallback: bool = True
    unaligned_threshold_ms: int = 30_000
    adaptive_alignment: bool = False
    max_concurrent_checkpoints: int = 1
    gc_retain_count: int = 5
    auto_gc: bool = True
    min_pause_ms: int = 0
    retry_ms: int = 1_000
    tolerable_failures: int = 10
    put_retry_ms: int = 200
    put_give_up_ms: int = 600_000
    publish_retry_ms: int = 500
    publish_tries_max: int = 20
    publish_give_up_ms: int = 0
    publish_budgets: Mapping[str, PublishBudget] = field(default_factory=dict)
    base_every: int = 64

    def __post_init__(self) -> None:
        if self.max_concurrent_checkpoints != 1:
            raise TooManyConcurrent(
                "one checkpoint is in flight at a time: a second one would aim for a slot of the log that"
                " depends on the"
                f" first, and its barriers could overtake it"
                f" max_concurrent_checkpoints={self.max_concurrent_checkpoints}"
            )
        for name in (
            "checkpoint_timeout_ms",
            "barrier_injection_timeout_ms",
            "node_snapshot_timeout_ms",
            "retry_ms",
        ):
            _check_at_least(1, name, getattr(self, name))
        for name in (
            "gc_retain_count",
            "put_retry_ms",
            "put_give_up_ms",
            "publish_retry_ms",
            "publish_tries_max",
            "base_every",
        ):
            _check_at_least(1, name, getattr(self, name))
        _check_at_least(0, "unaligned_threshold_ms", self.unaligned_threshold_ms)
        _check_at_least(0, "publish_give_up_ms", self.publish_give_up_ms)
        if self.enable_unaligned_fallback and self.unaligned_threshold_ms >= self.checkpoint_timeout_ms:
            raise InvalidUseError(
                "the unaligned fallback must come before the timeout, lower it or switch it off"
                f" unaligned_threshold_ms={self.unaligned_threshold_ms}"
                f" checkpoint_timeout_ms={self.checkpoint_timeout_ms}"
            )
        _ = self.schedule

    @property
    def adaptive_threshold(self) -> AlignmentThreshold | None:
        """Where learning begins; ``None`` when the threshold is fixed or there is none."""
        learns = self.adaptive_alignment and self.enable_unaligned_fallback and self.unaligned_threshold_ms
        return AlignmentThreshold.around(learns, self.checkpoint_timeout_ms) if learns else None

    @property
    def schedule(self) -> SchedulePolicy:
        """The part that says when checkpoints start."""
        return SchedulePolicy(
            interval_ms=self.checkpoint_interval_ms,
            min_pause_ms=self.min_pause_ms,
            retry_ms=self.retry_ms,
            tolerable_failures=self.tolerable_failures,
        )


@dataclass(slots=True)
class CoordinatorMetrics:
    """Counters of one leader, and the durations of its checkpoints."""

    checkpoints_completed: int = 0
    checkpoints_aborted: int = 0
    last_checkpoint_duration_ms: int = 0
    max_checkpoint_duration_ms: int = 0
    total_bytes_checkpointed: int = 0
    unaligned_checkpoints: int = 0
    leader_failovers: int = 0
    promotions: int = 0
    stale_messages: int = 0
    duplicate_acks: int = 0
    put_retries: int = 0
    publish_retries: int = 0

    def completed(self, duration_ms: int, uploaded_bytes: int, unaligned: bool) -> None:
        """A checkpoint was committed."""
        self.checkpoints_completed += 1
        self.last_checkpoint_duration_ms = duration_ms
        self.max_checkpoint_duration_ms = max(self.max_checkpoint_duration_ms, duration_ms)
        self.total_bytes_checkpointed += uploaded_bytes
        self.unaligned_checkpoints += unaligned


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise InvalidUseError(f"{name} is at least {least} {name}={value}")
