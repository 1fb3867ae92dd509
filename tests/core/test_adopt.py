"""What a new leader does about a running gang. A table."""

from __future__ import annotations

import pytest

from tidegate.core.failure.adopt import Adopt, Adoption, AdoptionOutcome, Replace, WaitForGang

START = Adoption(2, 1_000, 5_000)
ONE = START.arrived(0)
ALL = ONE.arrived(1)


@pytest.mark.parametrize(
    ("adoption", "now_ms", "outcome"),
    [
        (START, 1_000, WaitForGang(6_000)),
        (ONE.driver(there=True), 5_999, WaitForGang(6_000)),
        (ALL, 5_999, WaitForGang(6_000)),
        (ALL.driver(there=True), 1_000, Adopt()),
        (ALL.driver(there=True), 9_000, Adopt()),
        (ALL.driver(there=True).driver(there=False), 1_000, WaitForGang(6_000)),
        (ONE.driver(there=True), 6_000, Replace("nodes 1 did not come over to the new leader within 5 s")),
        (START, 6_000, WaitForGang(None)),
        (ALL, 9_000, WaitForGang(None)),
    ],
)
def test_a_gang_is_adopted_when_all_of_it_is_there_and_replaced_only_where_a_driver_could(
    adoption: Adoption, now_ms: int, outcome: AdoptionOutcome
) -> None:
    assert adoption.look(now_ms) == outcome
