"""Asking whether our entry is the last of the log until there is an answer."""

from __future__ import annotations

from tidegate.core.checkpoint.effects import CheckLog
from tidegate.core.checkpoint.events import Followed, Last, LogChecked, Unknown
from tidegate.core.log.confirm import LogConfirmer


def asked() -> LogConfirmer:
    confirmer = LogConfirmer(10, 1_000)
    assert confirmer.ask(4, 0) == CheckLog(4)
    return confirmer


def test_a_definite_answer_ends_the_question() -> None:
    for answer in (Last(), Followed()):
        confirmer = asked()
        assert confirmer.answered(LogChecked(4, answer), 5)
        assert confirmer.slot is None and confirmer.deadline_ms is None and not confirmer.gave_up(10**9)
        assert not confirmer.answered(LogChecked(4, answer), 6), "it was answered"


def test_an_answer_about_another_slot_is_none() -> None:
    confirmer = asked()
    assert not confirmer.answered(LogChecked(3, Last()), 5)
    assert confirmer.slot == 4 and confirmer.due(10**6) is None


def test_a_store_that_does_not_know_is_asked_again_later_and_later() -> None:
    confirmer = asked()
    for wait_ms in (10, 20, 40, 80, 160, 320, 320):
        assert not confirmer.answered(LogChecked(4, Unknown("503")), 0)
        assert confirmer.deadline_ms == wait_ms and confirmer.due(wait_ms - 1) is None
        assert confirmer.due(wait_ms) == CheckLog(4)
    assert confirmer.why == "503"


def test_it_stops_trying_after_a_while() -> None:
    confirmer = asked()
    assert confirmer.deadline_ms == 1_000 and not confirmer.gave_up(999)
    assert confirmer.gave_up(1_000) and confirmer.waited_ms(1_000) == 1_000


def test_nothing_asked_has_no_deadline() -> None:
    confirmer = LogConfirmer(10, 1_000)
    assert confirmer.deadline_ms is None and confirmer.due(10**9) is None and not confirmer.gave_up(10**9)
