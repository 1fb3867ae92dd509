"""Which committables become visible next."""

from __future__ import annotations

import pytest
from driving import make_manifest

from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.effects import Hide, Publish, Unpublishable
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.publish import WAITING_MAX, PublishQueue, SinkAnswer, SinkEvent

A = CommittableEntry("out", 0, 0, 1, {"file": "a"}, 1)
B = CommittableEntry("out", 0, 0, 2, {"file": "b"}, 2)
HIDE = Hide(4, (B,))


def manifest(epoch: int, *committables: CommittableEntry) -> CheckpointManifest:
    return make_manifest(epoch, committables=committables)


def publisher() -> PublishQueue:
    return PublishQueue(retry_ms=10, tries_max=3)


def test_an_epoch_is_published_after_its_commit_and_confirmed_once() -> None:
    sink = publisher()
    assert sink.next(0, 0) is None
    sink.committed(manifest(1, A))
    assert sink.next(0, 0) == Publish(1, 0, (A,))
    assert sink.carried() == (A,)
    assert sink.next(0, 0) is None, "one at a time"
    assert sink.succeeded(epoch=1)
    assert (sink.carried(), sink.backlog, sink.next(0, 0)) == ((), 0, None)


def test_epochs_are_published_in_order_and_what_is_confirmed_is_not_repeated() -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    sink.committed(manifest(2, A, B))
    assert sink.carried() == (A, B)
    assert sink.backlog == 2
    sink.succeeded(epoch=1)
    assert sink.next(0, 0) == Publish(2, 0, (B,))


def test_an_epoch_without_rows_needs_no_publishing() -> None:
    sink = publisher()
    sink.committed(manifest(1))
    assert sink.next(0, 0) is None
    assert sink.backlog == 0


def test_a_failed_publish_is_tried_again_later_until_it_is_exhausted() -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    for tries, wait_ms in enumerate((10, 20, 40), start=1):
        assert sink.next(0, 1_000 * tries) == Publish(1, 0, (A,))
        assert sink.failed(1_000 * tries, "no", epoch=1)
        assert sink.deadline_ms(0) == 1_000 * tries + wait_ms
        assert sink.next(0, 1_000 * tries + wait_ms - 1) is None
    assert sink.stuck == Unpublishable(3, "no")
    assert sink.carried() == (A,)


def test_a_publish_is_given_up_only_after_its_time() -> None:
    sink = PublishQueue.of(DistributedCheckpointConfig(publish_retry_ms=10, publish_tries_max=1, storage_timeout_ms=5_000))
    sink.committed(manifest(1, A))
    for now_ms, exhausted in ((1_000, False), (5_999, False), (6_100, True)):
        sink.next(0, now_ms)
        sink.failed(now_ms, "no", epoch=1)
        assert (sink.stuck is not None) is exhausted


def test_a_success_forgets_the_failures() -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    sink.failed(0, "no", epoch=1)
    sink.next(0, 100)
    sink.succeeded(epoch=1)
    assert not sink.stuck
    assert sink.deadline_ms(0) is None


def test_a_recovery_hides_first_and_then_publishes_the_head_again() -> None:
    sink = publisher()
    sink.committed(manifest(3, A, B))
    sink.recover(HIDE, manifest(1, A))
    assert sink.next(4, 0) == HIDE
    assert not sink.succeeded(gang=3) and not sink.succeeded(epoch=1)
    assert sink.failed(0, "no", gang=4)
    assert sink.next(4, 10) == HIDE
    assert sink.succeeded(gang=4)
    assert sink.next(4, 10) == Publish(1, 4, (A,))
    assert sink.carried() == (A,)


def test_a_recovery_without_state_has_nothing_to_do() -> None:
    sink = publisher()
    sink.recover(None, None)
    assert sink.next(4, 0) is None


def test_answers_to_nothing_outstanding_are_not_taken() -> None:
    sink = publisher()
    assert not sink.succeeded(epoch=1)
    assert not sink.failed(0, "no", gang=1)
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    assert not sink.succeeded(epoch=2)
    assert not sink.failed(0, "no", epoch=2)
    assert sink.outstanding is not None


def test_a_recovery_while_a_step_is_under_way_is_a_bug() -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    with pytest.raises(AssertionError, match="under way"):
        sink.recover(None, None)


# -- sinks that wait -----------------------------------------------------------------------------------------

SLOW = PublishBudget(1, 1_000)


def of_epoch(epoch: int, operator: str = "out", subtask: int = 0) -> CommittableEntry:
    return CommittableEntry(operator, subtask, 0, epoch, {"file": f"{operator}{epoch}"}, epoch)


def waiting_publisher(*operators: str) -> PublishQueue:
    """Has used up its token."""
    sink = PublishQueue(10, 3, budgets=dict.fromkeys(operators or ("out",), SLOW))
    sink.committed(manifest(1, A))
    assert sink.next(0, 0) == Publish(1, 0, (A,))
    sink.succeeded(epoch=1)
    return sink


def test_epochs_wait_for_a_token_and_are_shown_together_and_named_meanwhile() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, of_epoch(2)))
    assert (sink.next(0, 1), sink.backlog, sink.deadline_ms(1)) == (None, 0, 1_000)
    sink.committed(manifest(3, of_epoch(2), of_epoch(3)))
    assert sink.carried() == (of_epoch(2), of_epoch(3))
    assert sink.next(0, 999) is None
    assert sink.next(0, 1_000) == Publish(3, 0, (of_epoch(2), of_epoch(3)))
    assert (sink.backlog, sink.deadline_ms(1_000)) == (1, None)
    assert sink.succeeded(epoch=3)
    assert (sink.carried(), sink.backlog) == ((), 0)


def test_what_somebody_wants_to_see_does_not_wait_and_costs_no_token() -> None:
    sink = PublishQueue(10, 3, budgets={"out": SLOW})
    sink.committed(manifest(1, A))
    sink.flush()
    assert sink.backlog == 1
    assert sink.next(0, 0) == Publish(1, 0, (A,))
    sink.succeeded(epoch=1)
    sink.committed(manifest(2, of_epoch(2)))
    assert sink.next(0, 0) is not None, "the token is still there"
    sink.succeeded(epoch=2)
    sink.committed(manifest(3, of_epoch(3)))
    assert sink.next(0, 0) is None


def test_nothing_waits_once_the_job_is_about_to_end() -> None:
    sink = waiting_publisher()
    sink.hurry()
    sink.committed(manifest(2, of_epoch(2)))
    assert sink.backlog == 1
    assert sink.next(0, 1) == Publish(2, 0, (of_epoch(2),))


def test_a_recovery_publishes_all_that_the_head_names() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, of_epoch(2)))
    sink.recover(HIDE, manifest(3, of_epoch(2), of_epoch(3)))
    assert sink.next(4, 1) == HIDE
    sink.succeeded(gang=4)
    assert sink.next(4, 1) == Publish(3, 4, (of_epoch(2), of_epoch(3)))


def test_sinks_without_a_budget_do_not_wait_for_those_with_one() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, of_epoch(2), of_epoch(2, "other")))
    assert sink.next(0, 1) == Publish(2, 0, (of_epoch(2, "other"),))
    sink.succeeded(epoch=2)
    sink.committed(manifest(3, of_epoch(2), of_epoch(3), of_epoch(3, "other")))
    assert sink.next(0, 1_000) == Publish(3, 0, (of_epoch(3, "other"), of_epoch(2), of_epoch(3)))


def test_sinks_with_equal_budgets_show_the_same_epochs() -> None:
    sink = waiting_publisher("out", "other")
    sink.committed(manifest(2, of_epoch(2), of_epoch(2, "other")))
    assert sink.next(0, 1) is None
    assert sink.next(0, 1_000) == Publish(2, 0, (of_epoch(2), of_epoch(2, "other")))


def test_so_much_may_wait_and_no_more() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, *(of_epoch(2, subtask=subtask) for subtask in range(WAITING_MAX - 1))))
    assert sink.next(0, 1) is None
    sink.committed(manifest(3, of_epoch(3)))
    effect = sink.next(0, 1)
    assert isinstance(effect, Publish) and len(effect.committables) == WAITING_MAX


def test_a_sink_that_does_not_come_to_an_end_holds_back_checkpoints() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, of_epoch(2)))
    sink.next(0, 1_000)
    sink.committed(manifest(3, *(of_epoch(3, subtask=subtask) for subtask in range(2 * WAITING_MAX))))
    assert not sink.crowded
    sink.committed(manifest(4, of_epoch(4)))
    assert sink.crowded


def test_a_failed_publish_is_not_overtaken_by_what_waits() -> None:
    sink = waiting_publisher()
    sink.committed(manifest(2, of_epoch(2)))
    sink.next(0, 1_000)
    sink.failed(1_000, "no", epoch=2)
    sink.committed(manifest(3, of_epoch(2), of_epoch(3)))
    assert sink.deadline_ms(1_000) == 1_010
    assert sink.next(0, 2_000) == Publish(2, 0, (of_epoch(2),))
    sink.succeeded(epoch=2)
    assert sink.next(0, 2_000) == Publish(3, 0, (of_epoch(3),))


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (events.Published(1), SinkAnswer.DONE),
        (events.PublishFailed(1, "busy"), SinkAnswer.FAILED),
        (events.Published(2), SinkAnswer.STALE),
        (events.Hidden(1), SinkAnswer.STALE),
        (events.HideFailed(1, "busy"), SinkAnswer.STALE),
    ],
)
def test_an_answer_counts_for_the_step_that_is_outstanding(event: SinkEvent, answer: SinkAnswer) -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    assert sink.answered(event, 0) is answer
    assert sink.is_public(1) == (answer is SinkAnswer.DONE)


def test_a_sink_answers_with_nothing_else() -> None:
    with pytest.raises(AssertionError):
        publisher().answered("answer", 0)  # type: ignore[arg-type]
