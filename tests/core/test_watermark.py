"""The event time of a fan-in."""

from __future__ import annotations

from typing import Any

from tidegate.core.barrier.effects import AdvanceWatermark
from tidegate.core.barrier.input import BEGINNING_OF_TIME, InputChannel
from tidegate.core.barrier.messages import AWAKE, IDLE
from tidegate.core.barrier.watermark import MergedWatermark


def merged(inputs: int = 2) -> tuple[MergedWatermark, dict[int, InputChannel[Any]]]:
    channels: dict[int, InputChannel[Any]] = {i: InputChannel(i) for i in range(inputs)}
    return MergedWatermark(channels), channels


def test_the_slowest_input_decides() -> None:
    time, inputs = merged()
    assert time.turn(inputs[0], 10) == [] and time.watermark == BEGINNING_OF_TIME
    assert time.turn(inputs[1], 7) == [AdvanceWatermark(7)]
    assert time.turn(inputs[1], 20) == [AdvanceWatermark(10)]


def test_time_never_goes_back() -> None:
    time, inputs = merged(1)
    time.turn(inputs[0], 10)
    assert time.turn(inputs[0], 5) == [] and time.watermark == 10


def test_an_idle_input_holds_nothing_back() -> None:
    time, inputs = merged()
    time.turn(inputs[0], 10)
    assert time.turn(inputs[1], IDLE) == [AdvanceWatermark(10)]


def test_a_fan_in_whose_inputs_are_all_idle_says_so_once_and_when_it_wakes() -> None:
    time, inputs = merged(1)
    time.turn(inputs[0], 10)
    assert time.turn(inputs[0], IDLE) == [AdvanceWatermark(IDLE)]
    assert time.turn(inputs[0], IDLE) == []
    assert time.turn(inputs[0], 3) == [AdvanceWatermark(10)]


def test_one_that_wakes_before_there_was_any_time_is_awake() -> None:
    time, inputs = merged(1)
    time.turn(inputs[0], IDLE)
    assert time.turn(inputs[0], AWAKE) == [AdvanceWatermark(AWAKE)]


def test_an_input_that_ends_lets_the_others_go_on() -> None:
    time, inputs = merged()
    time.turn(inputs[0], 10)
    del inputs[1]
    assert time.ended() == [AdvanceWatermark(10)]
    assert time.ended() == []
    inputs[0].idle = True
    assert time.ended() == [AdvanceWatermark(IDLE)]
    del inputs[0]
    assert time.ended() == [], "whoever has no inputs is not idle but at its end"


def test_when_all_are_idle_time_goes_on_to_the_furthest_whoever_went_first() -> None:
    for order in ((0, 1), (1, 0)):
        time, inputs = merged()
        time.turn(inputs[0], 299)
        time.turn(inputs[1], 10)
        for each in order:
            time.turn(inputs[each], IDLE)
        assert time.watermark == 299, "rows that wait for 299 would wait for ever"
    time, inputs = merged()
    time.turn(inputs[0], 299)
    time.turn(inputs[1], 10)
    time.turn(inputs[0], IDLE)
    assert time.turn(inputs[1], IDLE) == [AdvanceWatermark(299), AdvanceWatermark(IDLE)]


def test_an_end_that_leaves_only_idle_inputs_lets_time_catch_up() -> None:
    time, inputs = merged()
    time.turn(inputs[0], 299)
    time.turn(inputs[1], 10)
    time.turn(inputs[0], IDLE)
    del inputs[1]
    assert time.ended() == [AdvanceWatermark(299), AdvanceWatermark(IDLE)]
