"""When a lost gang is started again."""

from __future__ import annotations

import pytest

from tidegate.core.restart import GiveUp, RestartAfter, RestartPolicy, Restarts
from tidegate.errors import InvalidUseError


def test_waits_double_up_to_the_longest() -> None:
    restarts = Restarts(RestartPolicy(first_wait_ms=100, longest_wait_ms=350, limit=5))
    assert [restarts.lost(user_error=False) for _ in range(4)] == [
        RestartAfter(100),
        RestartAfter(200),
        RestartAfter(350),
        RestartAfter(350),
    ]
    assert restarts.total == 4


def test_the_limit_counts_losses_without_progress_only() -> None:
    restarts = Restarts(RestartPolicy(limit=1))
    assert restarts.lost(user_error=False) == RestartAfter(100)
    restarts.progressed()
    assert restarts.lost(user_error=False) == RestartAfter(100)
    assert restarts.lost(user_error=False) == GiveUp(2)
    assert restarts.total == 2


def test_a_users_error_gets_fewer_chances() -> None:
    restarts = Restarts(RestartPolicy(limit=10, user_error_limit=1))
    assert restarts.lost(user_error=True) == RestartAfter(100)
    assert restarts.lost(user_error=True) == GiveUp(2)


def test_a_user_error_after_progress_counts_from_one_again() -> None:
    restarts = Restarts(RestartPolicy(limit=10, user_error_limit=1))
    restarts.lost(user_error=True)
    restarts.progressed()
    assert restarts.lost(user_error=True) == RestartAfter(100)


def test_the_same_user_error_in_a_row_is_final_in_spite_of_checkpoints() -> None:
    restarts = Restarts(RestartPolicy(same_error_limit=2))
    for _ in range(2):
        assert restarts.lost(user_error=True, error="division by zero") == RestartAfter(100)
        restarts.progressed()
    assert restarts.lost(user_error=True, error="division by zero") == GiveUp(3)


def test_another_error_starts_the_count_of_repeats_anew() -> None:
    restarts = Restarts(RestartPolicy(same_error_limit=1))
    for error in ("a", "b", "a"):
        assert restarts.lost(user_error=True, error=error) == RestartAfter(100)
        restarts.progressed()
    assert restarts.lost(user_error=False, error="a") == RestartAfter(100)
    restarts.progressed()
    assert restarts.lost(user_error=True, error="a") == RestartAfter(100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_wait_ms": -1},
        {"first_wait_ms": 5, "longest_wait_ms": 4},
        {"limit": -1},
        {"user_error_limit": -1},
        {"same_error_limit": -1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUseError):
        RestartPolicy(**wrong)
