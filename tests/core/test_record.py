"""What a recording takes, and when it is too much."""

from __future__ import annotations

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, Watermark
from tidegate.core.barrier.record import WATERMARK_BYTES, ChannelRecording, FanInRecord

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


FLAGGED = CheckpointBarrier(4, 4).as_unaligned()


def test_a_fan_in_hands_out_the_inputs_that_recorded_something() -> None:
    record: FanInRecord[str] = FanInRecord(limit_bytes=10)
    assert record.checkpoint_id == 0
    record.begin(FLAGGED, by_deadline=False)
    quiet, busy = record.open(0), record.open(1)
    quiet.add(End())
    busy.add_all(MESSAGES)
    snapshot = record.close(last_input=1)
    assert (snapshot.barrier, snapshot.last_input, snapshot.total_size_bytes) == (FLAGGED, 1, 5 + WATERMARK_BYTES)
    assert [(data.input_id, data.events) for data in snapshot.inflight_data] == [(1, (Event("a", 5), Watermark(7)))]
    assert record.close(None).inflight_data == (), "what was handed out is forgotten"
    assert record.total_inflight_bytes == snapshot.total_size_bytes


def test_a_fan_in_names_the_first_input_over_the_limit_and_forgets_what_is_dropped() -> None:
    record: FanInRecord[str] = FanInRecord(limit_bytes=10)
    record.begin(FLAGGED, by_deadline=True)
    record.open(1).add(Event("a", 10))
    assert record.excess() is None
    record.open(0).add(Event("a", 11))
    error = record.excess()
    assert error is not None and "input 0" in str(error) and error.checkpoint_id == record.checkpoint_id == 4
    record.drop()
    assert record.excess() is None
    assert record.close(None).total_size_bytes == 0


def test_a_cut_counts_as_unaligned_and_as_switched_only_when_it_is() -> None:
    record: FanInRecord[str] = FanInRecord(limit_bytes=10)
    for barrier, by_deadline, counted in (
        (CheckpointBarrier(1, 1), True, (0, 0)),
        (CheckpointBarrier(2, 2).as_unaligned(), False, (1, 0)),
        (CheckpointBarrier(3, 3).as_unaligned(), True, (2, 1)),
    ):
        record.begin(barrier, by_deadline)
        record.count()
        assert (record.unaligned_count, record.threshold_switches) == counted
        assert record.close(None).was_threshold_triggered == (barrier.is_unaligned and by_deadline)
