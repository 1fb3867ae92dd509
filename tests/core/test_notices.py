"""Notices of a commit: who has acknowledged, who is told again, and when that ends."""

from __future__ import annotations

from tidegate.core.checkpoint.effects import SendCommitted, Stamp
from tidegate.core.checkpoint.notices import NOTICE_RETRY_MS, NOTICE_TRIES_MAX, CommitNotices

STAMP = Stamp(0, 0, 3, 5)
BOTH = frozenset({0, 1})


def sent(nodes: frozenset[int] = BOTH) -> CommitNotices:
    notices = CommitNotices()
    notices.send(5, 3, nodes, STAMP, 0)
    return notices


def test_every_node_is_told_in_order() -> None:
    assert CommitNotices().send(5, 3, BOTH, STAMP, 0) == [SendCommitted(n, STAMP, 3, 5) for n in (0, 1)]


def test_only_who_has_not_answered_is_told_again_and_with_what_is_true_now() -> None:
    notices, later = sent(), Stamp(0, 0, 4, 6)
    assert notices.acked(0, 5) and notices.committed_nodes == {0}
    assert notices.retry(later, NOTICE_RETRY_MS - 1) == []
    assert notices.retry(later, NOTICE_RETRY_MS) == [SendCommitted(1, later, 3, 5)]


def test_when_all_have_answered_nothing_is_due() -> None:
    notices = sent()
    assert notices.deadline_ms() == NOTICE_RETRY_MS
    assert notices.acked(0, 5) and notices.acked(1, 5)
    assert notices.deadline_ms() is None and notices.retry(STAMP, 99_999) == []
    assert notices.acked(1, 5), "twice is not a mistake"


def test_an_answer_about_another_commit_or_of_a_stranger_does_not_count() -> None:
    notices = sent()
    assert not notices.acked(0, 4) and not notices.acked(7, 5)
    assert notices.committed_nodes == frozenset()


def test_the_tries_are_bounded_and_further_and_further_apart() -> None:
    notices, times = sent(), []
    while (due := notices.deadline_ms()) is not None:
        assert len(notices.retry(STAMP, due)) == 2
        times.append(due)
    assert len(times) == NOTICE_TRIES_MAX - 1
    assert [after - before for before, after in zip([0, *times], times, strict=False)] == [1_000, 2_000, 4_000, 8_000]


def test_a_later_commit_takes_the_place_of_the_one_before() -> None:
    notices = sent()
    notices.acked(0, 5)
    notices.send(6, 4, BOTH, STAMP, 10)
    assert notices.committed_nodes == frozenset() and not notices.acked(1, 5)
    assert notices.deadline_ms() == 10 + NOTICE_RETRY_MS


def test_a_gang_that_is_over_is_told_nothing() -> None:
    notices = sent()
    notices.drop()
    assert notices.deadline_ms() is None and not notices.acked(0, 5)
    assert CommitNotices().send(5, 3, frozenset(), STAMP, 0) == []
