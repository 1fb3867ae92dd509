"""How long what cannot be written is waited for."""

from __future__ import annotations

from tidegate.core.failure.patience import Patience
from tidegate.core.failure.restart import RestartAfter, StopRestarting


def test_waits_double_up_to_ten_seconds_and_end_when_they_add_up_to_the_limit() -> None:
    patience = Patience(20_000)
    waits = [patience.failed() for _ in range(8)]
    assert waits == [*map(RestartAfter, (500, 1_000, 2_000, 4_000, 8_000, 4_500)), StopRestarting(7), StopRestarting(8)]
    assert patience.total == 6


def test_the_longest_wait_is_ten_seconds() -> None:
    patience = Patience(3_600_000)
    assert max(patience.failed().wait_ms for _ in range(100)) == 10_000


def test_progress_makes_it_patient_again() -> None:
    patience = Patience(600)
    assert [patience.failed(), patience.failed(), patience.failed()] == [RestartAfter(500), RestartAfter(100), StopRestarting(3)]
    patience.passed()
    assert patience.failed() == RestartAfter(500)
    assert patience.total == 3
