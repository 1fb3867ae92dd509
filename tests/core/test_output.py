"""What one output has to send, and how a barrier gets to its head."""

from __future__ import annotations

import pytest

from tidegate.core.barrier.align import UnalignedCheckpointConfig, as_pinned
from tidegate.core.barrier.effects import BarrierLeft, CheckpointFailed, InFlightChannelData
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, StreamMessage, Watermark
from tidegate.core.barrier.output import OutputQueue
from tidegate.errors import InFlightBufferTooLarge, ProtocolError

B1, B2 = CheckpointBarrier(1, 1), CheckpointBarrier(2, 2)
A, B, C = (Event(name, 5) for name in "abc")


def filled(*messages: StreamMessage[str], **options: object) -> OutputQueue[str]:
    queue: OutputQueue[str] = OutputQueue(3, **options)  # type: ignore[arg-type]
    for message in messages:
        queue.put(message)
    return queue


def drain(queue: OutputQueue[str]) -> list[StreamMessage[str]]:
    return [queue.take()[0] for _ in range(len(queue))]


def left(checkpoint_id: int, *overtaken: StreamMessage[str], size_bytes: int = 0) -> BarrierLeft[str]:
    return BarrierLeft(3, checkpoint_id, InFlightChannelData(3, overtaken, size_bytes))


def test_an_aligned_barrier_stands_in_line() -> None:
    queue = filled(A)
    assert queue.enqueue(B1) == []
    queue.put(B)
    assert queue.queued_bytes == 10
    assert queue.head() == A
    assert queue.take() == (A, [])
    assert queue.take() == (Barrier(B1), [left(1)])
    assert queue.take() == (B, [])
    assert (queue.head(), len(queue), queue.queued_bytes) == (None, 0, 0)


def test_a_flagged_barrier_goes_to_the_head_and_records_what_it_passes() -> None:
    queue = filled(A, Watermark(7), B)
    assert queue.enqueue(B1.as_unaligned()) == []
    queue.put(C)
    assert queue.head() == Barrier(B1.as_unaligned())
    assert queue.take() == (Barrier(B1.as_unaligned()), [left(1, A, Watermark(7), B, size_bytes=18)])
    assert drain(queue) == [A, Watermark(7), B, C]


def test_a_waiting_barrier_is_promoted_at_its_deadline() -> None:
    queue = filled(A)
    queue.enqueue(B1)
    queue.put(B)
    assert queue.deadline(1) == []
    assert queue.deadline(1) == []
    assert queue.take() == (Barrier(B1.as_unaligned()), [left(1, A, size_bytes=5)])
    assert drain(queue) == [A, B]


def test_a_barrier_enqueued_after_its_deadline_goes_to_the_head() -> None:
    queue = filled(A)
    queue.deadline(1)
    queue.enqueue(B1)
    assert queue.take()[1] == [left(1, A, size_bytes=5)]


def test_another_ids_deadline_promotes_nothing() -> None:
    queue = filled(A)
    queue.deadline(1)
    queue.enqueue(B2)
    queue.deadline(1)
    assert queue.head() == A


@pytest.mark.parametrize(
    ("options", "barrier"),
    [
        ({"aligned_only": True}, B1.as_unaligned()),
        ({"config": UnalignedCheckpointConfig(enabled=False)}, B1.as_unaligned()),
        ({}, as_pinned(B1)),
    ],
    ids=["aligned-only output", "unaligned mode off", "savepoint"],
)
def test_some_barriers_never_leave_their_position(options: dict[str, object], barrier: CheckpointBarrier) -> None:
    queue = filled(A, **options)
    queue.deadline(1)
    queue.enqueue(barrier)
    queue.deadline(1)
    first, second = drain(queue)
    assert first == A
    assert isinstance(second, Barrier)
    assert second.barrier.is_aligned


def test_an_aborted_barrier_keeps_its_position_and_is_promoted_no_more() -> None:
    queue = filled(A)
    queue.enqueue(B1)
    queue.abort(1)
    queue.deadline(1)
    assert queue.take() == (A, [])
    assert queue.take() == (Barrier(B1), [])


def test_an_abort_drops_what_was_recorded() -> None:
    queue = filled(A)
    queue.enqueue(B1.as_unaligned())
    queue.abort(1)
    assert queue.take() == (Barrier(B1.as_unaligned()), [])
    assert drain(queue) == [A]


def test_an_abort_of_an_older_id_drops_nothing() -> None:
    queue = filled(A)
    queue.enqueue(B2.as_unaligned())
    queue.abort(1)
    assert queue.take()[1] == [left(2, A, size_bytes=5)]


def test_a_newer_barrier_at_the_head_replaces_an_older_one() -> None:
    queue = filled(A)
    queue.enqueue(B1)
    queue.put(B)
    queue.enqueue(B2)
    queue.put(C)
    queue.deadline(2)
    assert queue.take() == (Barrier(B2.as_unaligned()), [left(2, A, B, size_bytes=10)])
    assert drain(queue) == [A, B, C]


def test_an_older_barrier_leaves_silently_when_a_newer_one_waits() -> None:
    queue = filled()
    queue.enqueue(B1)
    queue.enqueue(B2)
    assert queue.take() == (Barrier(B1), [])
    assert queue.take() == (Barrier(B2), [left(2)])


def test_the_end_is_passed_but_not_recorded() -> None:
    queue = filled(A, End())
    assert queue.end_queued
    queue.enqueue(B1.as_unaligned())
    assert queue.take()[1] == [left(1, A, size_bytes=5)]
    assert drain(queue) == [A, End()]
    assert not queue.end_queued


def test_nothing_follows_the_end() -> None:
    queue = filled(End())
    with pytest.raises(ProtocolError):
        queue.put(A)
    with pytest.raises(ProtocolError):
        queue.enqueue(B1)
    assert drain(queue) == [End()]


def test_nothing_can_be_taken_from_an_empty_queue() -> None:
    with pytest.raises(ProtocolError):
        filled().take()


def test_passing_too_much_ends_the_checkpoint_and_names_the_output() -> None:
    queue = filled(A, B, config=UnalignedCheckpointConfig(max_inflight_buffer_bytes=9))
    queue.enqueue(B1)
    (failed,) = queue.deadline(1)
    assert isinstance(failed, CheckpointFailed)
    assert isinstance(failed.error, InFlightBufferTooLarge)
    assert "channel=output 3" in str(failed.error)
    assert queue.take() == (Barrier(B1.as_unaligned()), [])
    assert drain(queue) == [A, B]
