"""What a recording takes, and when it is too much."""

from __future__ import annotations

from tidegate.core.messages import Barrier, CheckpointBarrier, End, Event, Watermark
from tidegate.core.record import WATERMARK_BYTES, ChannelRecording

MESSAGES = [Event("a", 5), Barrier(CheckpointBarrier(1, 1)), Watermark(7), End()]


def test_events_and_watermarks_are_taken_one_by_one_or_all_at_once() -> None:
    one_by_one: ChannelRecording[str] = ChannelRecording("input 0", 100)
    for message in MESSAGES:
        one_by_one.add(message)
    at_once: ChannelRecording[str] = ChannelRecording("input 0", 100)
    at_once.add_all(MESSAGES)
    assert one_by_one.messages == at_once.messages == [Event("a", 5), Watermark(7)]
    assert one_by_one.size_bytes == at_once.size_bytes == 5 + WATERMARK_BYTES


def test_a_recording_over_its_limit_names_the_channel() -> None:
    recording: ChannelRecording[str] = ChannelRecording("input 3", 4)
    recording.add(Event("a", 4))
    assert recording.excess(9) is None
    recording.add(Event("b", 1))
    error = recording.excess(9)
    assert error is not None and "input 3" in str(error) and error.checkpoint_id == 9
