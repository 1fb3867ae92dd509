"""One put at a time, followed to a definite answer."""

from __future__ import annotations

import pytest
from test_view import takeover

from tidegate.core.checkpoint.effects import PutEntry
from tidegate.core.checkpoint.events import Conflict, PutAnswer, PutAnswered, Unknown, Written
from tidegate.core.log.append import Landed, LogAppender, NotAsked, StillOpen, Taken
from tidegate.core.log.view import Takeover

OURS = takeover(4)
THEIRS = Takeover(slot=4, term=4, write_id="other", leader="other")
ORDER = PutEntry(4, "t4", OURS)


def opened() -> LogAppender:
    appender = LogAppender(retry_ms=10, storage_timeout_ms=1_000)
    assert appender.put(OURS, 0) == ORDER
    return appender


def answered(appender: LogAppender, answer: PutAnswer, now_ms: int = 0) -> object:
    return appender.answered(PutAnswered(4, "t4", answer), now_ms)


def test_written_is_landed() -> None:
    appender = opened()
    assert answered(appender, Written()) == Landed(OURS)
    assert not appender.is_open


def test_a_conflict_with_our_own_entry_is_landed() -> None:
    assert answered(opened(), Conflict(OURS)) == Landed(OURS)


def test_a_conflict_with_another_entry_is_taken() -> None:
    appender = opened()
    assert answered(appender, Conflict(THEIRS)) == Taken(THEIRS, OURS)
    assert not appender.is_open


def test_unknown_is_put_again_the_same_until_a_definite_answer() -> None:
    appender, now_ms = opened(), 0
    for wait_ms in (10, 20, 40):
        assert answered(appender, Unknown(), now_ms) == StillOpen()
        assert appender.is_open
        assert appender.due(now_ms + wait_ms - 1) is None
        now_ms += wait_ms
        assert appender.deadline_ms == now_ms
        assert appender.due(now_ms) == ORDER
        assert appender.due(now_ms) is None, "one effect, one answer"
    assert answered(appender, Written()) == Landed(OURS)


def test_the_wait_between_tries_has_a_limit() -> None:
    appender = LogAppender(retry_ms=10, storage_timeout_ms=10**9)
    appender.put(OURS, 0)
    for _ in range(20):
        answered(appender, Unknown(), 0)
        assert appender.due(10**6) == ORDER
    answered(appender, Unknown(), 0)
    assert appender.deadline_ms == 320


def test_a_conflict_that_cannot_be_read_is_no_answer_and_the_put_is_tried_again() -> None:
    appender = opened()
    assert answered(appender, Conflict(None), 5) == StillOpen()
    assert "can't be read" in appender.why
    assert appender.due(15) == ORDER
    assert answered(appender, Conflict(THEIRS)) == Taken(THEIRS, OURS)


def test_it_remembers_what_the_store_said_and_since_when_it_waits() -> None:
    appender = opened()
    answered(appender, Unknown("503"), 5)
    assert appender.why == "503" and appender.waited_ms(90) == 90


def test_answers_to_nothing_open_are_not_taken() -> None:
    appender = opened()
    assert appender.answered(PutAnswered(5, "t4", Written()), 0) == NotAsked()
    assert appender.answered(PutAnswered(4, "x", Written()), 0) == NotAsked()
    assert appender.is_open
    answered(appender, Written())
    assert answered(appender, Written()) == NotAsked()


def test_it_stops_trying_after_a_while() -> None:
    appender = opened()
    assert appender.deadline_ms == 1_000
    answered(appender, Unknown(), 995)
    assert appender.deadline_ms == 1_000
    assert not appender.gave_up(999)
    assert appender.gave_up(1_000)


def test_nothing_open_has_no_deadline() -> None:
    appender = LogAppender(10, 1_000)
    assert appender.deadline_ms is None
    assert appender.due(10**9) is None
    assert not appender.gave_up(10**9)


def test_a_second_put_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="a put is open"):
        opened().put(takeover(5), 0)
