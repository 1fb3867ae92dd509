"""Settings and counters."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.checkpoint.adapt import AlignmentTimeout
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.errors import InvalidUseError, TooManyConcurrent


def test_the_defaults() -> None:
    config = DistributedCheckpointConfig()
    assert config.checkpoint_interval_ms == 30_000
    assert config.checkpoint_timeout_ms == 300_000
    assert config.barrier_injection_timeout_ms == 10_000
    assert config.node_snapshot_timeout_ms == 120_000
    assert config.enable_unaligned_fallback is True
    assert config.unaligned_threshold_ms == 30_000
    assert config.max_concurrent_checkpoints == 1
    assert config.gc_retain_count == 5
    assert config.auto_gc is True


@pytest.mark.parametrize("count", [0, 2])
def test_more_than_one_checkpoint_at_a_time_is_refused_with_the_reason(count: int) -> None:
    with pytest.raises(TooManyConcurrent, match="one checkpoint is in flight at a time"):
        DistributedCheckpointConfig(max_concurrent_checkpoints=count)


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_interval_ms": 0},
        {"checkpoint_timeout_ms": 0},
        {"barrier_injection_timeout_ms": -1},
        {"node_snapshot_timeout_ms": 0},
        {"gc_retain_count": 0},
        {"put_retry_ms": 0},
        {"publish_tries_max": 0},
        {"storage_timeout_ms": -1},
        {"unaligned_threshold_ms": -1},
        {"unaligned_threshold_ms": 300_000},
        {"min_pause_ms": -1},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError):
        DistributedCheckpointConfig(**wrong)


def test_a_late_threshold_does_not_matter_when_the_fallback_is_off() -> None:
    DistributedCheckpointConfig(enable_unaligned_fallback=False, unaligned_threshold_ms=300_000)


@pytest.mark.parametrize(
    "fixed",
    [{"adaptive_alignment": False}, {"enable_unaligned_fallback": False}, {"unaligned_threshold_ms": 0}],
)
def test_the_threshold_learns_only_when_told_to_and_when_there_is_one(fixed: dict[str, Any]) -> None:
    learning: dict[str, Any] = {"adaptive_alignment": True, "unaligned_threshold_ms": 2_000}
    begin = DistributedCheckpointConfig(**learning).adaptive_alignment_timeout
    assert begin == AlignmentTimeout.around(2_000, 300_000)
    assert DistributedCheckpointConfig(**(learning | fixed)).adaptive_alignment_timeout is None
