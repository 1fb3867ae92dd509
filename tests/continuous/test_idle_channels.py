"""Idle channels at a fan-in: they hold nobody back, say so downstream when all are idle, and count again when they wake."""

from __future__ import annotations

import pyarrow as pa

from tidegate.core.barrier.effects import AdvanceWatermark, SubtaskEffect
from tidegate.core.barrier.messages import AWAKE, IDLE, End, Event, Watermark
from tidegate.core.barrier.unaligned import UnalignedCheckpointer
from tidegate.runtime.snapshotfile import encode_inflight, read_inflight

Fan = UnalignedCheckpointer[str]


def gives(fan: Fan, input_id: int, timestamp: int) -> list[SubtaskEffect]:
    fan.receive(input_id, Watermark(timestamp))
    return fan.poll()


def test_an_idle_channel_does_not_hold_back_the_others() -> None:
    fan = Fan([0, 1])
    assert gives(fan, 0, 10) == []
    assert gives(fan, 1, IDLE) == [AdvanceWatermark(10)]
    assert gives(fan, 0, 20) == [AdvanceWatermark(20)]


def test_a_channel_that_wakes_up_counts_again_and_never_turns_time_back() -> None:
    fan = Fan([0, 1])
    gives(fan, 0, 10)
    gives(fan, 1, IDLE)
    assert gives(fan, 1, 5) == []
    assert gives(fan, 0, 30) == [] and fan.watermark == 10
    assert gives(fan, 1, 25) == [AdvanceWatermark(25)]


def test_a_fan_in_whose_channels_are_all_idle_is_idle_itself_until_one_wakes() -> None:
    fan = Fan([0, 1])
    gives(fan, 0, 10)
    assert gives(fan, 0, IDLE) == []
    assert gives(fan, 1, IDLE) == [AdvanceWatermark(10), AdvanceWatermark(IDLE)], "nobody holds it back any more"
    assert gives(fan, 1, IDLE) == [], "said once"
    assert gives(fan, 1, AWAKE) == [AdvanceWatermark(10)]
    assert gives(fan, 1, 17) == [AdvanceWatermark(17)]


def test_an_end_that_leaves_only_idle_channels_makes_the_fan_in_idle() -> None:
    fan = Fan([0, 1])
    gives(fan, 1, IDLE)
    fan.receive(0, End())
    assert AdvanceWatermark(IDLE) in fan.poll()


def test_idleness_is_not_part_of_recorded_data() -> None:
    """A source that is restored says anew whether it is idle."""
    schema = pa.schema([("n", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"n": [1]}, schema=schema)
    data = encode_inflight([Watermark(3), Event(batch), Watermark(IDLE)], schema, None).joined
    assert [type(message) for message in read_inflight(data, schema, "x")] == [Watermark, Event]
