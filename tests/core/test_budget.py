"""How often a sink shows what is committed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordination import CONFIG, World, play

from tidegate.core.checkpoint.budget import DEFAULT_BUDGET, PublishBudget, TokenBucket
from tidegate.errors import InvalidUseError


def shown(budget: PublishBudget, interval_ms: int, end_ms: int) -> list[int]:
    """When a job that commits so often shows what it has."""
    bucket, times = TokenBucket(budget), []
    for now_ms in range(0, end_ms, interval_ms):
        if bucket.ready_ms(now_ms) <= now_ms:
            bucket.take(now_ms)
            times.append(now_ms)
    return times


def test_the_first_epochs_appear_at_once_and_later_ones_every_ten_seconds() -> None:
    times = shown(DEFAULT_BUDGET, 200, 360_000)
    assert times[:8] == [0, 200, 400, 600, 800, 1_000, 1_200, 1_400]
    assert times[8:11] == [10_000, 20_000, 30_000]
    assert len(times) == 43


def test_an_interval_of_ten_seconds_shows_every_epoch() -> None:
    assert len(shown(DEFAULT_BUDGET, 10_000, 3_600_000)) == 360


def test_tokens_come_back_up_to_the_capacity() -> None:
    bucket = TokenBucket(PublishBudget(2, 100))
    bucket.take(0)
    bucket.take(0)
    bucket.take(0)
    assert bucket.ready_ms(50) == 100
    assert bucket.ready_ms(1_000_000) == 1_000_000
    bucket.take(1_000_000)
    bucket.take(1_000_000)
    assert bucket.ready_ms(1_000_000) == 1_000_100


def test_a_budget_of_one_is_a_shortest_time_between_two() -> None:
    assert shown(PublishBudget(1, 1_000), 300, 4_000) == [0, 1_200, 2_400, 3_600]


@pytest.mark.parametrize("wrong", [(0, 10), (1, 0)])
def test_a_budget_that_never_shows_anything_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(InvalidUseError, match="a budget has a token"):
        PublishBudget(*wrong)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_waiting_epochs_are_shown_once(seed: int) -> None:
    """The world of the coordinator's own tests, with checkpoints that nobody asks for and a sink that waits."""
    budgets = {"out": PublishBudget(1, 400)}
    play(World(config=replace(CONFIG, checkpoint_interval_ms=50, publish_budgets=budgets)), seed)
