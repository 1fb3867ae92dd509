"""One order for all barriers at the head (schedule 18)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.barrier.align import Complete, KeyAligner
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.control.sequence import (
    CheckpointKey,
    ControlKey,
    Emit,
    HeadBarrier,
    HeadSequencer,
    Queued,
    key_of,
)
from tidegate.core.control.signals import BarrierControlSignalKind
from tidegate.errors import (
    BarrierOverlap,
    ChannelFull,
    DuplicateBarrier,
    EpochMismatch,
    InvalidUseError,
    ProtocolError,
    TidegateError,
)

SYNC = BarrierControlSignalKind.SyncTest
GRACEFUL_END = BarrierControlSignalKind.StreamGracefulEnd


def picture(head: HeadSequencer) -> tuple[HeadBarrier | None, tuple[HeadBarrier, ...]]:
    return head.in_flight, head.waiting


def test_the_first_request_goes_and_the_others_wait_their_turn() -> None:
    head = HeadSequencer()
    checkpoint, sync, later = CheckpointBarrier(1, 1), SYNC.with_id(1), CheckpointBarrier(2, 1)
    assert head.request(checkpoint) == Emit(checkpoint)
    assert head.request(sync) == Queued(before=1)
    assert head.request(later) == Queued(before=2)
    assert head.done(key_of(checkpoint)) == Emit(sync)
    assert head.done(key_of(sync)) == Emit(later)
    assert head.done(key_of(later)) is None
    assert picture(head) == (None, ())


def test_control_and_checkpoint_barrier_requested_at_once_reach_a_fan_in_in_one_order() -> None:
    """Two sources that each take the requests in their own order leave a fan-in stuck; the head does not."""
    checkpoint, sync = CheckpointBarrier(1, 1), SYNC.with_id(1)
    raw = KeyAligner([0, 1])
    raw.arrive(0, key_of(checkpoint))
    with pytest.raises(BarrierOverlap):
        raw.arrive(1, key_of(sync))

    barriers: list[Any] = [checkpoint, sync]
    for requests in itertools.permutations(barriers):
        head, fan_in = HeadSequencer(), KeyAligner([0, 1])
        answers = [head.request(barrier) for barrier in requests]
        emit: object = answers[0]
        seen = []
        while isinstance(emit, Emit):
            key = key_of(emit.barrier)
            fan_in.arrive(0, key)
            assert fan_in.arrive(1, key) == Complete(key)
            seen.append(emit.barrier)
            emit = head.done(key)
        assert seen == list(requests)


def test_an_aborted_checkpoint_lets_the_next_barrier_go() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(SYNC.with_id(1))
    assert head.abort(CheckpointKey(1)) == Emit(SYNC.with_id(1))
    assert head.abort(CheckpointKey(1)) is None, "a second abort changes nothing"
    assert head.done(CheckpointKey(1)) is None, "nor does a late answer"
    assert head.in_flight == SYNC.with_id(1)


def test_a_waiting_barrier_can_be_given_up() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(SYNC.with_id(1))
    head.request(CheckpointBarrier(2, 1))
    assert head.abort(ControlKey(1, SYNC)) is None
    assert head.waiting == (CheckpointBarrier(2, 1),)


def test_a_control_barrier_in_flight_cannot_be_given_up() -> None:
    head = HeadSequencer()
    head.request(SYNC.with_id(1))
    with pytest.raises(InvalidUseError, match="restart"):
        head.abort(ControlKey(1, SYNC))
    assert head.in_flight == SYNC.with_id(1)


def test_a_barrier_that_waits_cannot_be_done() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(CheckpointBarrier(2, 1))
    before = picture(head)
    with pytest.raises(ProtocolError):
        head.done(CheckpointKey(2))
    assert picture(head) == before


def test_a_second_request_for_the_same_barrier_is_refused() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(SYNC.with_id(1))
    before = picture(head)
    for again in (CheckpointBarrier.new_unaligned(1, 1), SYNC.with_id(1)):
        with pytest.raises(DuplicateBarrier):
            head.request(again)
    assert picture(head) == before


def test_ids_only_grow_for_checkpoints_and_controls_apart() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(5, 1))
    head.abort(CheckpointKey(5))
    for checkpoint_id in (4, 5):
        with pytest.raises(EpochMismatch):
            head.request(CheckpointBarrier(checkpoint_id, 9))
    assert head.request(SYNC.with_id(2)) == Emit(SYNC.with_id(2))
    head.done(ControlKey(2, SYNC))
    with pytest.raises(EpochMismatch):
        head.request(GRACEFUL_END.with_id(2))
    assert picture(head) == (None, ())


def test_the_line_is_bounded() -> None:
    head = HeadSequencer(waiting_max=1)
    head.request(CheckpointBarrier(1, 1))
    head.request(CheckpointBarrier(2, 1))
    before = picture(head)
    with pytest.raises(ChannelFull):
        head.request(CheckpointBarrier(3, 1))
    assert picture(head) == before
    head.done(CheckpointKey(1))
    assert head.request(CheckpointBarrier(3, 1)) == Queued(before=1), "a refused request uses up nothing"


def test_a_line_of_no_length_still_lets_one_barrier_through() -> None:
    head = HeadSequencer(waiting_max=0)
    assert head.request(CheckpointBarrier(1, 1)) == Emit(CheckpointBarrier(1, 1))
    with pytest.raises(InvalidUseError):
        HeadSequencer(waiting_max=-1)


def test_no_signal_follows_the_end_of_the_stream_but_checkpoints_go_on() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(GRACEFUL_END.with_id(1))
    with pytest.raises(InvalidUseError, match="ends"):
        head.request(SYNC.with_id(2))
    assert head.request(CheckpointBarrier(2, 1)) == Queued(before=2)
    assert head.done(CheckpointKey(1)) == Emit(GRACEFUL_END.with_id(1))
    assert head.done(ControlKey(1, GRACEFUL_END)) == Emit(CheckpointBarrier(2, 1))


def test_an_end_that_was_given_up_in_time_ends_nothing() -> None:
    head = HeadSequencer()
    head.request(CheckpointBarrier(1, 1))
    head.request(GRACEFUL_END.with_id(1))
    head.abort(ControlKey(1, GRACEFUL_END))
    assert head.request(SYNC.with_id(2)) == Queued(before=1)


steps = st.lists(
    st.tuples(st.sampled_from(["checkpoint", "sync", "done", "abort"]), st.integers(1, 6)), max_size=40
)  # fmt: skip


@given(steps)
def test_at_most_one_is_in_flight_and_everything_asked_for_goes_or_is_given_up(
    script: list[tuple[str, int]],
) -> None:
    head = HeadSequencer(waiting_max=3)
    asked: list[HeadBarrier] = []
    emitted: list[HeadBarrier] = []
    dropped: set[object] = set()
    for verb, number in script:
        barrier: HeadBarrier = CheckpointBarrier(number, 1) if verb != "sync" else SYNC.with_id(number)
        key = key_of(barrier)
        before, answer = picture(head), None
        try:
            if verb in ("checkpoint", "sync"):
                answer = head.request(barrier)
                asked.append(barrier)
            elif verb == "done":
                answer = head.done(key)
            else:
                if any(key_of(waiting) == key for waiting in head.waiting):
                    dropped.add(key)
                answer = head.abort(key)
        except TidegateError:
            assert picture(head) == before
        if isinstance(answer, Emit):
            emitted.append(answer.barrier)
            assert head.in_flight == answer.barrier
    while head.in_flight is not None:
        after = head.done(key_of(head.in_flight))
        if after is not None:
            emitted.append(after.barrier)
    assert emitted == [barrier for barrier in asked if key_of(barrier) not in dropped]
