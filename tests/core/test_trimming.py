"""The rules of trimming hold in every state of the small model, and without any one of them a commit is lost."""

from __future__ import annotations

from typing import Any

import pytest
from trimming import Rules, Violation, explore

WIDE = {"commits": 2, "bases": 1}
LONG = {"commits": 3, "bases": 2}


@pytest.mark.parametrize(("processes", "size"), [(3, WIDE), (2, LONG)])
def test_no_acknowledged_commit_is_ever_missing(processes: int, size: dict[str, Any]) -> None:
    assert explore(Rules(**size), processes) > 10_000


@pytest.mark.slow
def test_no_acknowledged_commit_is_ever_missing_in_a_larger_world() -> None:
    assert explore(Rules(commits=3, bases=1), 3) > 100_000


@pytest.mark.parametrize(
    ("clause", "processes", "size"),
    [
        ("takeovers_stay", 3, WIDE),
        ("held_entries_stay", 2, LONG),
        ("takeover_is_confirmed", 2, LONG),
        ("confirmed_after_landing", 2, LONG),
        ("ascending", 2, LONG),
        ("looks_again", 3, WIDE),
        ("begins_at_the_newest_base", 2, LONG),
    ],
)
def test_without_one_clause_a_commit_is_lost(clause: str, processes: int, size: dict[str, Any]) -> None:
    with pytest.raises(Violation):
        explore(Rules(**size)._replace(**{clause: False}), processes)


def test_every_clause_has_its_mutant() -> None:
    listed = test_without_one_clause_a_commit_is_lost.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {clause for clause, *_ in listed} == set(Rules._fields) - set(LONG)
