"""When a lost gang is started again, which reason counts, and how long nodes are waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.core.failure.restart import (
    Failure,
    FailureKind,
    Joining,
    KeepWaiting,
    NotJoined,
    RestartAfter,
    RestartPolicy,
    Restarts,
    StopRestarting,
    first_cause,
)
from tidegate.errors import InvalidUseError

LOST = Failure(FailureKind.LOST, "node 1 is gone")
USER = Failure(FailureKind.USER_FUNCTION, "division by zero", 0, "UserFunctionError", "f.py:3")


def test_waits_double_up_to_the_longest() -> None:
    restarts = Restarts(RestartPolicy(first_wait_ms=100, longest_wait_ms=350, limit=5))
    waits = [restarts.lost(LOST) for _ in range(4)]
    assert waits == [RestartAfter(100), RestartAfter(200), RestartAfter(350), RestartAfter(350)]
    assert restarts.total == 4


def test_the_limit_counts_losses_without_progress_only() -> None:
    restarts = Restarts(RestartPolicy(limit=1))
    assert restarts.lost(LOST) == RestartAfter(100)
    restarts.progressed()
    assert restarts.lost(LOST) == RestartAfter(100)
    assert restarts.lost(LOST) == StopRestarting(2)
    assert restarts.total == 2


@pytest.mark.parametrize("kind", FailureKind)
def test_what_comes_again_gets_fewer_chances(kind: FailureKind) -> None:
    restarts = Restarts(RestartPolicy())
    again = kind in (
        FailureKind.USER_FUNCTION,
        FailureKind.DEFECT,
        FailureKind.SETUP,
        FailureKind.STORAGE_REFUSED,
    )
    assert restarts.lost(Failure(kind, "a")) == RestartAfter(100)
    assert isinstance(restarts.lost(Failure(kind, "b")), StopRestarting) == again


@pytest.mark.parametrize(
    ("second", "commits", "final"),
    [
        (USER, 0, True),
        (USER, 3, True),
        (USER, 10, True),
        (USER, 11, False),
        (replace(USER, text="division by zero in batch 17 at 0x7f01"), 3, True),
        (replace(USER, node=1), 3, True),
        (replace(USER, where="g.py:9"), 3, False),
        (replace(USER, error_type="DefectError"), 3, False),
        (replace(USER, kind=FailureKind.TRANSIENT), 3, False),
    ],
)
def test_the_second_identical_error_is_final_in_spite_of_checkpoints(second: Failure, commits: int, final: bool) -> None:
    restarts = Restarts(RestartPolicy())
    assert restarts.lost(USER) == RestartAfter(100)
    for _ in range(commits):
        restarts.progressed()
    assert isinstance(restarts.lost(second), StopRestarting) == final


def test_without_a_line_of_code_the_words_distinguish_errors() -> None:
    for other, final in (("a", True), ("b", False)):
        restarts = Restarts(RestartPolicy())
        restarts.lost(Failure(FailureKind.SETUP, "a"))
        restarts.progressed()
        assert isinstance(restarts.lost(Failure(FailureKind.SETUP, other)), StopRestarting) == final


def test_a_node_lost_in_between_does_not_hide_that_an_error_is_the_same() -> None:
    restarts = Restarts(RestartPolicy())
    restarts.lost(USER)
    restarts.progressed()
    restarts.lost(LOST)
    restarts.progressed()
    assert isinstance(restarts.lost(USER), StopRestarting)


def test_another_error_in_between_starts_the_count_anew() -> None:
    restarts = Restarts(RestartPolicy())
    for failure in (USER, replace(USER, where="g.py:9"), USER):
        assert restarts.lost(failure) == RestartAfter(100)
        restarts.progressed()


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_wait_ms": -1},
        {"first_wait_ms": 5, "longest_wait_ms": 4},
        {"limit": -1},
        {"user_error_limit": -1},
        {"same_error_limit": -1},
        {"same_error_commits": -1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUseError):
        RestartPolicy(**wrong)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_a_store_that_somebody_has_to_fix_is_waited_for(kind: FailureKind) -> None:
    failure = Failure(kind, "x")
    assert failure.waits(has_run=True) == (kind in (FailureKind.STORAGE_UNAVAILABLE, FailureKind.STORAGE_REFUSED))
    assert failure.waits(has_run=False) == (kind is FailureKind.STORAGE_UNAVAILABLE)


STORAGE = [FailureKind.STORAGE_UNAVAILABLE, FailureKind.STORAGE_REFUSED]
CAUSES = [FailureKind.USER_FUNCTION, FailureKind.DEFECT, FailureKind.TRANSIENT, FailureKind.SETUP, *STORAGE]
GONE = [FailureKind.LOST, FailureKind.STALLED, FailureKind.NOT_JOINED]
RANKS = [CAUSES, GONE, [FailureKind.PEER_LOST]]


@pytest.mark.parametrize("known", FailureKind)
@pytest.mark.parametrize("new", FailureKind)
def test_a_cause_counts_more_than_what_follows_from_it_else_the_first(known: FailureKind, new: FailureKind) -> None:
    ranks = {kind: rank for rank, kinds in enumerate(RANKS) for kind in kinds}
    first, second = Failure(known, "first"), Failure(new, "second")
    assert first_cause(None, second) is second
    assert first_cause(first, second) is (second if ranks[new] < ranks[known] else first)


def test_a_kind_that_nobody_knows_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        first_cause(LOST, Failure(99, "x"))  # type: ignore[arg-type]


# -- joining -----------------------------------------------------------------------------------------------------------

GANG = Joining(size=3, limit_ms=60_000, started_ms=1_000)


def test_nodes_that_keep_coming_are_waited_for() -> None:
    gang = GANG.arrived(0, 50_000)
    assert gang.took_ms == 49_000 and GANG.took_ms == 0
    assert gang.look(61_000, None) == KeepWaiting(110_000)
    assert isinstance(gang.look(110_000, None), NotJoined)


@pytest.mark.parametrize(
    ("running", "slowest_ms", "waits_ms"), [(None, 0, 60_000), (2, 0, 60_000), (3, 0, 300_000), (0, 40_000, 120_000)]
)
def test_the_limit_follows_what_is_observed(running: int | None, slowest_ms: int, waits_ms: int) -> None:
    gang = replace(GANG, slowest_ms=slowest_ms)
    assert isinstance(gang.look(1_000 + waits_ms - 1, running), KeepWaiting)
    assert isinstance(gang.look(1_000 + waits_ms, running), NotJoined)


def test_a_long_wait_is_looked_at_again_and_again() -> None:
    assert GANG.look(61_000, 3) == KeepWaiting(121_000)


def test_the_reason_says_who_was_waited_for_how_long_and_what_to_change() -> None:
    verdict = GANG.arrived(1, 2_000).look(62_000, 2)
    assert isinstance(verdict, NotJoined)
    for words in ("2 of 3 nodes", "within 61 s", "missing: 0, 2", "Spark runs 2 of 3 tasks", "join_timeout=60s"):
        assert words in verdict.reason
    unknown = GANG.look(61_000, None)
    assert isinstance(unknown, NotJoined) and "Spark" not in unknown.reason
