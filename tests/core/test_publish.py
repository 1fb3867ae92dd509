"""Which committables become visible next."""

from __future__ import annotations

import pytest
from driving import make_manifest

from tidegate.core.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.orders import Hide, Publish
from tidegate.core.publish import Publisher

A = CommittableEntry("out", 0, 0, 1, {"file": "a"}, 1)
B = CommittableEntry("out", 0, 0, 2, {"file": "b"}, 2)
HIDE = Hide(4, (B,))


def manifest(epoch: int, *committables: CommittableEntry) -> CheckpointManifest:
    return make_manifest(epoch, committables=committables)


def publisher() -> Publisher:
    return Publisher(retry_ms=10, tries_max=3)


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
        assert sink.deadline_ms == 1_000 * tries + wait_ms
        assert sink.next(0, 1_000 * tries + wait_ms - 1) is None
    assert sink.exhausted
    assert sink.carried() == (A,)


def test_a_success_forgets_the_failures() -> None:
    sink = publisher()
    sink.committed(manifest(1, A))
    sink.next(0, 0)
    sink.failed(0, "no", epoch=1)
    sink.next(0, 100)
    sink.succeeded(epoch=1)
    assert not sink.exhausted
    assert sink.deadline_ms is None


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
