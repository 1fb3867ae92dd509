"""One input's queue: what holds it, where a barrier stands in it, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.barrier.input import BEGINNING_OF_TIME, InputChannel
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, StreamMessage, Watermark
from tidegate.core.barrier.record import ChannelRecording

A, B, C = Event("a", 1), Event("b", 1), Event("c", 1)
ONE, TWO = Barrier(CheckpointBarrier(1, 1)), Barrier(CheckpointBarrier(2, 2))


def channel(*messages: StreamMessage[str]) -> InputChannel[str]:
    made: InputChannel[str] = InputChannel(3)
    made.queue.extend(messages)
    return made


def test_a_new_input_has_nothing_and_has_reached_no_time() -> None:
    new = channel()
    assert (new.input_id, new.is_readable, new.has_marker(1), new.watermark) == (3, False, False, BEGINNING_OF_TIME)


@pytest.mark.parametrize("hold", ["held", "held_by_control"])
def test_each_reason_to_hold_keeps_it_from_being_read(hold: str) -> None:
    full = channel(A)
    assert full.is_readable
    setattr(full, hold, True)
    assert not full.is_readable


@pytest.mark.parametrize(
    ("queue", "found"), [((), None), ((A, TWO), None), ((A, ONE, B, TWO), ONE.barrier), ((ONE, A), ONE.barrier)]
)
def test_a_barrier_is_found_by_its_id_wherever_it_stands(queue: Any, found: Any) -> None:
    full = channel(*queue)
    assert full.barrier(1) is found
    assert full.has_marker(1) == (found is not None)


def test_an_end_marks_the_point_for_every_id() -> None:
    ended = channel(A, End())
    ended.end_received = True
    assert ended.has_marker(1) and ended.has_marker(99) and ended.barrier(1) is None


@pytest.mark.parametrize(
    ("queue", "recorded", "left"),
    [
        ((A, ONE, B), (A,), (A, B)),
        ((ONE, A), (), (A,)),
        ((A, Watermark(5), ONE), (A, Watermark(5)), (A, Watermark(5))),
        ((A, TWO, B, ONE, C), (A, B), (A, TWO, B, C)),
        ((A, TWO, B), (A, B), (A, TWO, B)),
        ((A, End()), (A,), (A, End())),
        ((), (), ()),
    ],
)
def test_what_is_before_the_barrier_is_recorded_and_the_barrier_alone_is_taken_out(queue: Any, recorded: Any, left: Any) -> None:
    cut = channel(*queue)
    recording: ChannelRecording[str] = ChannelRecording("input 3", 100)
    cut.start_recording(1, recording)
    assert (tuple(recording.messages), tuple(cut.queue)) == (recorded, left)
    assert cut.recording is recording
