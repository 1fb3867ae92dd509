"""A fan-in: turns, receipt, deadlines, aborts, ends, watermarks and control signals."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.barrier.align import (
    Aligning,
    Idle,
    Recording,
    UnalignedCheckpointConfig,
    as_pinned,
)
from tidegate.core.barrier.effects import (
    AdvanceWatermark,
    CheckpointFailed,
    Ended,
    Fire,
    Forward,
    InFlightChannelData,
    InputsRecorded,
    ProcessEvent,
    SubtaskEffect,
    UnalignedSnapshot,
)
from tidegate.core.barrier.input import BEGINNING_OF_TIME
from tidegate.core.barrier.messages import (
    AWAKE,
    IDLE,
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.barrier.unaligned import UnalignedCheckpointer
from tidegate.core.control.signals import (
    BarrierControlSignal,
    BarrierControlSignalKind,
    InstantControlSignal,
)
from tidegate.errors import (
    BarrierOverlap,
    DuplicateBarrier,
    InFlightBufferTooLarge,
    InvalidUseError,
    ProtocolError,
)

Fan = UnalignedCheckpointer[str]
FORCED = UnalignedCheckpointConfig(force_unaligned=True)
END: StreamMessage[str] = End()


def event(name: str, size_bytes: int = 1) -> Event[str]:
    return Event(name, size_bytes)


def aligned(checkpoint_id: int) -> Barrier[str]:
    return Barrier(CheckpointBarrier(checkpoint_id, checkpoint_id))


def flagged(checkpoint_id: int) -> Barrier[str]:
    return Barrier(CheckpointBarrier.new_unaligned(checkpoint_id, checkpoint_id))


def feed(fan: Fan, input_id: int, *messages: StreamMessage[str] | str) -> list[SubtaskEffect]:
    """Receive messages on an input; a string is an event."""
    effects: list[SubtaskEffect] = []
    for message in messages:
        effects += fan.receive(input_id, event(message) if isinstance(message, str) else message)
    return effects


def run(fan: Fan) -> list[SubtaskEffect]:
    """Poll until nothing can run."""
    effects: list[SubtaskEffect] = []
    while fan.has_turn:
        effects += fan.poll()
    return effects


def names(effects: list[SubtaskEffect]) -> str:
    """The payloads that were passed to the operator, and a bar for each fire."""
    return "".join("|" if isinstance(e, Fire) else e.payload for e in effects if isinstance(e, (Fire, ProcessEvent)))


def fires(effects: list[SubtaskEffect]) -> list[CheckpointBarrier]:
    return [effect.barrier for effect in effects if isinstance(effect, Fire)]


def failures(effects: list[SubtaskEffect]) -> list[int]:
    return [effect.checkpoint_id for effect in effects if isinstance(effect, CheckpointFailed)]


def recorded(effects: list[SubtaskEffect]) -> dict[int, str]:
    """What the one snapshot among the effects recorded per input; watermarks as numbers."""
    (snapshot,) = [effect.snapshot for effect in effects if isinstance(effect, InputsRecorded)]
    return {data.input_id: "".join(map(_text, data.events)) for data in snapshot.inflight_data}


def _text(message: StreamMessage[Any]) -> str:
    return message.payload if isinstance(message, Event) else str(message.timestamp)  # type: ignore[attr-defined]


# -- aligned -------------------------------------------------------------------------------------------------


def test_an_early_input_is_held_until_the_others_arrive() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, "a", aligned(1), "b")
    feed(fan, 1, "x")
    assert names(run(fan)) == "ax"
    assert fan.state == Aligning(CheckpointBarrier(1, 1), frozenset((0,)))
    feed(fan, 1, aligned(1), "y")
    effects = run(fan)
    assert names(effects) == "|by"
    assert fires(effects) == [CheckpointBarrier(1, 1)]
    assert recorded(effects) == {}


def test_turns_go_round() -> None:
    fan = Fan([5, 2, 9])
    feed(fan, 5, "a", "b", "c")
    feed(fan, 2, "x")
    feed(fan, 9, "p", "q")
    assert names(run(fan)) == "axpbqc"
    assert fan.poll() == []
    assert fan.queued(5) == 0


def test_a_single_input_fires_at_the_barriers_turn() -> None:
    fan = Fan([0])
    assert feed(fan, 0, "a", aligned(1), "b") == []
    assert names(run(fan)) == "a|b"


@pytest.mark.parametrize("inputs", [[], [1, 1]])
def test_inputs_are_named_once(inputs: list[int]) -> None:
    with pytest.raises(InvalidUseError):
        Fan(inputs)


def test_an_impossible_message_changes_nothing() -> None:
    fan = Fan([0])
    feed(fan, 0, END)
    with pytest.raises(ProtocolError):
        fan.receive(0, event("late"))
    with pytest.raises(ProtocolError):
        fan.receive(1, event("stranger"))
    assert run(fan) == [Ended()]
    other = Fan([0])
    other.receive(0, StreamMessage())
    with pytest.raises(ProtocolError):
        other.poll()


# -- the unit tests named in F-DCKP-006 ----------------------------------------------------------------------


def test_immediate_unaligned_with_flag() -> None:
    """A flagged barrier acts at receipt. Its own queue is recorded too, not only the other inputs'."""
    fan = Fan([0, 1])
    feed(fan, 0, "a", "b")
    assert fires(feed(fan, 0, flagged(1))) == [CheckpointBarrier(1, 1, 1)]
    assert fan.state == Recording(CheckpointBarrier(1, 1, 1), frozenset((1,)))
    assert recorded(feed(fan, 1, flagged(1))) == {0: "ab"}


def test_force_unaligned_mode() -> None:
    fan = Fan([0, 1], FORCED)
    effects = feed(fan, 0, "a", aligned(1))
    assert fires(effects) == [CheckpointBarrier(1, 1, 1)]
    assert recorded(feed(fan, 1, "x", aligned(1))) == {0: "a", 1: "x"}
    assert fan.metrics().threshold_switches == 0


def test_threshold_switch_from_aligned() -> None:
    """The deadline fires by itself, without any further barrier."""
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "after")
    feed(fan, 1, "x")
    fan.poll()
    fan.poll()
    effects = fan.deadline(1)
    assert fires(effects) == [CheckpointBarrier(1, 1, 1)]
    assert fan.deadline(1) == []
    (done,) = feed(fan, 1, aligned(1))
    assert done == InputsRecorded(UnalignedSnapshot(CheckpointBarrier(1, 1, 1), (), 0, True, 1))
    assert names(run(fan)) == "after"


def test_inflight_capture_single_channel() -> None:
    """Queue [a, b] and a flagged barrier on a single input: both are recorded, and processed once."""
    fan = Fan([0])
    effects = feed(fan, 0, "a", "b", flagged(1), "c")
    assert names(effects) == "|"
    assert recorded(effects) == {0: "ab"}
    assert names(run(fan)) == "abc"


def test_inflight_capture_multiple_channels() -> None:
    """Three inputs, two arrived at the switch: only the third is recorded."""
    fan = Fan([0, 1, 2])
    for input_id in (0, 1):
        feed(fan, input_id, aligned(1), "after")
    run(fan)
    feed(fan, 2, "x", Watermark(7), "y")
    effects = fan.deadline(1) + feed(fan, 2, "z", aligned(1), "later")
    assert recorded(effects) == {2: "x7yz"}
    data = InFlightChannelData(2, (event("x"), Watermark(7), event("y"), event("z")), 11)
    assert [e.snapshot.inflight_data for e in effects if isinstance(e, InputsRecorded)] == [(data,)]


def test_late_barrier_consumed_after_snapshot() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    late = feed(fan, 1, aligned(1))
    assert fires(late) == []
    assert fires(run(fan) + feed(fan, 1, aligned(1), flagged(1)) + run(fan)) == []


def test_all_late_barriers_received_resets_state() -> None:
    """Each late barrier stops its own recording; the last one resets."""
    fan = Fan([0, 1, 2])
    feed(fan, 0, flagged(1))
    feed(fan, 1, aligned(1))
    assert fan.state == Recording(CheckpointBarrier(1, 1, 1), frozenset((2,)))
    feed(fan, 2, aligned(1))
    assert fan.state == Idle()


def test_events_pass_through_after_unaligned_snapshot() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1), "a")
    feed(fan, 1, "x")
    assert names(run(fan)) == "ax"
    assert recorded(feed(fan, 1, aligned(1))) == {1: "x"}


def test_inflight_buffer_size_limit() -> None:
    """Over the limit the checkpoint ends, the channel is named, and data goes on."""
    config = UnalignedCheckpointConfig(max_inflight_buffer_bytes=10)
    fan = Fan([0, 1], config)
    feed(fan, 1, event("x", 11))
    (failed,) = feed(fan, 0, flagged(1))
    assert isinstance(failed, CheckpointFailed)
    assert isinstance(failed.error, InFlightBufferTooLarge)
    assert "channel=input 1" in str(failed.error)
    assert fan.state == Idle()
    assert names(run(fan)) == "x"
    assert feed(fan, 1, aligned(1)) == []


def test_disabled_unaligned_stays_aligned() -> None:
    fan = Fan([0, 1], UnalignedCheckpointConfig(enabled=False))
    feed(fan, 0, "a", flagged(1))
    assert fan.deadline(1) == []
    assert names(run(fan)) == "a"
    assert fan.deadline(1) == []
    feed(fan, 1, "x", flagged(1))
    assert fires(run(fan)) == [CheckpointBarrier(1, 1)]


def test_metrics_count_unaligned_checkpoints() -> None:
    fan = Fan([0])
    feed(fan, 0, "a", flagged(1), aligned(2), "b", Watermark(1), flagged(3))
    metrics = fan.metrics()
    assert (metrics.unaligned_count, metrics.threshold_switches) == (2, 0)
    assert metrics.total_inflight_bytes == 1 + (1 + 1 + 8)
    assert not metrics.is_in_unaligned_mode


def test_metrics_count_threshold_switches() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1))
    run(fan)
    fan.deadline(1)
    assert fan.metrics().threshold_switches == 1
    assert fan.metrics().is_in_unaligned_mode
    feed(fan, 1, aligned(1))
    fan.deadline(2)
    feed(fan, 0, aligned(2))
    assert fan.metrics().threshold_switches == 2
    assert fan.metrics().unaligned_count == 2


# -- what is recorded ----------------------------------------------------------------------------------------


def test_an_event_after_the_snapshot_and_before_its_barrier_is_recorded_once() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    feed(fan, 1, "x")
    assert names(run(fan)) == "x"
    assert recorded(feed(fan, 1, "y", aligned(1), "z")) == {1: "xy"}
    assert names(run(fan)) == "yz"


def test_a_queue_is_cut_exactly_at_its_barrier() -> None:
    fan = Fan([0, 1])
    feed(fan, 1, "a", aligned(1), "c")
    effects = feed(fan, 0, flagged(1))
    assert recorded(effects) == {1: "a"}
    assert names(run(fan)) == "ac"
    assert fan.state == Idle()


def test_what_is_queued_after_a_barrier_that_had_its_turn_is_never_recorded() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "c")
    run(fan)
    effects = fan.deadline(1) + feed(fan, 1, aligned(1))
    assert recorded(effects) == {}
    assert names(run(fan)) == "c"


def test_an_event_after_an_aligned_barrier_received_while_recording_is_not_recorded() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    assert recorded(feed(fan, 1, "a", aligned(1), "b")) == {1: "a"}
    assert names(run(fan)) == "ab"


def test_a_recording_that_grows_over_the_limit_ends_the_checkpoint() -> None:
    fan = Fan([0, 1], UnalignedCheckpointConfig(max_inflight_buffer_bytes=10))
    feed(fan, 0, flagged(1))
    assert feed(fan, 1, event("x", 10)) == []
    assert failures(feed(fan, 1, event("y", 1))) == [1]
    assert fan.state == Idle()
    assert fires(feed(fan, 1, aligned(1)) + run(fan)) == []


def test_dead_barriers_in_a_queue_are_passed_over() -> None:
    fan = Fan([0, 1])
    feed(fan, 1, "a", aligned(1), "b")
    fan.abort(1)
    feed(fan, 0, flagged(2))
    assert recorded(feed(fan, 1, "c", flagged(2))) == {1: "abc"}
    assert names(run(fan)) == "abc"


def test_forced_unaligned_with_one_input_takes_four_snapshots_of_four_barriers() -> None:
    fan = Fan([0], FORCED)
    effects = feed(fan, 0, *(aligned(n) for n in (1, 2, 3, 4)))
    assert [barrier.checkpoint_id for barrier in fires(effects)] == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [63, 64, 65])
def test_any_number_of_inputs_switches_and_completes(count: int) -> None:
    fan = Fan(range(count))
    for input_id in range(count - 1):
        feed(fan, input_id, aligned(1))
    assert fires(run(fan)) == []
    assert len(fires(fan.deadline(1))) == 1
    assert recorded(feed(fan, count - 1, "x", aligned(1))) == {count - 1: "x"}


# -- deadlines -----------------------------------------------------------------------------------------------


def test_with_one_input_silent_the_deadline_fires_by_itself() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1))
    run(fan)
    assert len(fires(fan.deadline(1))) == 1
    assert fan.state == Recording(CheckpointBarrier(1, 1), frozenset((1,)))


def test_a_deadline_pulls_a_queued_barrier_forward() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, "a", aligned(1), "b")
    effects = fan.deadline(1)
    assert names(effects) == "|"
    effects += feed(fan, 1, aligned(1))
    assert recorded(effects) == {0: "a"}


def test_the_first_barrier_after_the_deadline_acts_at_receipt() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, "a")
    assert fan.deadline(1) == []
    assert len(fires(feed(fan, 0, aligned(1)))) == 1
    assert recorded(feed(fan, 1, aligned(1))) == {0: "a"}


def test_a_barrier_exactly_at_the_deadline_makes_one_snapshot() -> None:
    before, after = Fan([0, 1]), Fan([0, 1])
    for fan in (before, after):
        feed(fan, 0, aligned(1))
        run(fan)
    first = feed(before, 1, aligned(1)) + run(before) + before.deadline(1)
    second = after.deadline(1) + feed(after, 1, aligned(1)) + run(after)
    assert len(fires(first)) == len(fires(second)) == 1


def test_a_timer_after_the_last_barrier_or_after_an_abort_does_nothing() -> None:
    fan = Fan([0])
    feed(fan, 0, aligned(1))
    assert len(fires(run(fan))) == 1
    assert fan.deadline(1) == []
    feed(fan, 0, aligned(2))
    fan.abort(2)
    assert fan.deadline(2) == []
    assert fires(run(fan)) == []


def test_a_barrier_made_overdue_by_a_newer_deadline_fires_unaligned_at_its_turn() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "a")
    fan.deadline(2)
    assert fires(run(fan)) == [CheckpointBarrier(1, 1, 1)]
    assert recorded(feed(fan, 1, aligned(1))) == {}
    feed(fan, 0, aligned(2))
    assert fan.state == Recording(CheckpointBarrier(2, 2), frozenset((1,)))


def test_an_overdue_barrier_that_died_in_the_queue_is_consumed_at_its_turn() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "a")
    fan.deadline(2)
    fan.abort(1)
    assert names(run(fan)) == "a"


def test_a_newer_deadline_promotes_its_barrier_past_a_held_one() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "a", aligned(2))
    run(fan)
    effects = fan.deadline(2)
    assert failures(effects) == [1]
    assert [barrier.checkpoint_id for barrier in fires(effects)] == [2]
    assert recorded(feed(fan, 1, aligned(2))) == {0: "a"}


# -- aborts and newer ids ------------------------------------------------------------------------------------


def test_an_abort_while_the_next_id_starts_on_another_input() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1))
    run(fan)
    feed(fan, 1, "x", aligned(2))
    assert failures(fan.abort(1)) == [1]
    run(fan)
    assert fan.state == Aligning(CheckpointBarrier(2, 2), frozenset((1,)))
    feed(fan, 0, "a", aligned(2))
    assert names(run(fan)) == "a|"


def test_the_late_barrier_of_an_aborted_id_changes_nothing() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), aligned(2))
    run(fan)
    fan.abort(1)
    feed(fan, 1, aligned(1), "x", aligned(2))
    effects = run(fan)
    assert names(effects) == "x|"
    assert [barrier.checkpoint_id for barrier in fires(effects)] == [2]


def test_an_abort_of_another_id_leaves_the_alignment_alone() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(2))
    run(fan)
    assert fan.abort(1) == []
    feed(fan, 1, aligned(2))
    assert len(fires(run(fan))) == 1


def test_abort_of_the_newer_before_the_older_ends_the_alignment() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "a")
    run(fan)
    (failed,) = fan.abort(2, "cancelled by the user")
    assert isinstance(failed, CheckpointFailed)
    assert "cancelled by the user" in str(failed.error)
    assert fan.abort(1) == []
    assert names(run(fan)) == "a"


def test_an_abort_while_recording_drops_the_recording() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    feed(fan, 1, "x")
    assert failures(fan.abort(1)) == [1]
    feed(fan, 1, "y", aligned(1))
    feed(fan, 0, flagged(2))
    assert recorded(feed(fan, 1, flagged(2))) == {1: "xy"}


def test_a_newer_barrier_subsumes_at_its_turn() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "a", aligned(2))
    feed(fan, 1, aligned(2))
    effects = run(fan)
    assert failures(effects) == [1]
    assert "newer=2" in "".join(str(e.error) for e in effects if isinstance(e, CheckpointFailed))
    assert names(effects) == "a|"


def test_a_newer_barrier_received_while_recording_ends_the_recording_at_once() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    assert failures(feed(fan, 1, "x", aligned(2))) == [1]
    assert fan.state == Idle()
    assert fires(run(fan) + feed(fan, 0, aligned(2)) + run(fan)) == [CheckpointBarrier(2, 2)]


def test_an_older_barrier_is_ignored_in_every_state() -> None:
    fan = Fan([0, 1, 2])
    feed(fan, 0, aligned(2))
    run(fan)
    assert feed(fan, 1, flagged(1)) == []
    run(fan)
    assert fan.state == Aligning(CheckpointBarrier(2, 2), frozenset((0,)))
    fan.deadline(2)
    assert feed(fan, 2, aligned(1)) == []
    assert fan.state == Recording(CheckpointBarrier(2, 2), frozenset((1, 2)))


def test_a_second_barrier_of_the_same_id_from_a_held_input_is_consumed() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1))
    run(fan)
    assert feed(fan, 0, flagged(1)) == []
    assert fan.queued(0) == 0
    assert fan.state == Aligning(CheckpointBarrier(1, 1), frozenset((0,)))


# -- ends ----------------------------------------------------------------------------------------------------


def test_an_input_that_ended_before_is_not_waited_for() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, END)
    feed(fan, 1, aligned(1))
    assert len(fires(run(fan))) == 1


def test_an_input_that_ends_during_the_alignment_counts_as_arrived() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), "b")
    feed(fan, 1, "x", END)
    assert names(run(fan)) == "x|b"


def test_an_input_that_ends_after_its_barrier_ends_after_the_snapshot() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), END)
    run(fan)
    assert not fan.ended
    feed(fan, 1, aligned(1), END)
    effects = run(fan)
    assert isinstance(effects[0], Fire)
    assert effects[-1] == Ended()
    assert fan.ended


def test_an_end_received_while_recording_stops_the_recording() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, flagged(1))
    assert recorded(feed(fan, 1, "x", END)) == {1: "x"}
    assert names(run(fan)) == "x"


def test_an_end_queued_after_events_stops_the_recording_when_the_other_input_fires() -> None:
    fan = Fan([0, 1])
    feed(fan, 1, "x", END)
    assert recorded(feed(fan, 0, flagged(1))) == {1: "x"}
    assert fan.state == Idle()


def test_an_end_counts_only_at_its_turn() -> None:
    fan = Fan([0, 1])
    feed(fan, 1, "x", "y", END)
    feed(fan, 0, aligned(1), "a")
    assert names(run(fan)) == "xy|a"


def test_at_the_deadline_an_end_is_pulled_forward_like_a_barrier() -> None:
    fan = Fan([0, 1])
    fan.started(1, epoch=9)
    feed(fan, 0, "a", END)
    effects = fan.deadline(1)
    assert fires(effects) == [CheckpointBarrier(1, 9, 1)]
    assert recorded(feed(fan, 1, "x", END)) == {0: "a", 1: "x"}
    assert run(fan)[-1] == Ended()


def test_an_end_received_after_the_deadline_acts_at_receipt() -> None:
    fan = Fan([0, 1])
    fan.started(1)
    fan.deadline(1)
    feed(fan, 0, "a")
    assert len(fires(feed(fan, 0, END))) == 1
    assert recorded(feed(fan, 1, aligned(1))) == {0: "a"}


def test_without_news_of_the_start_an_end_is_not_pulled_forward() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, END)
    assert fan.deadline(1) == []
    fan.started(2)
    assert fan.deadline(1) == []


def test_the_start_of_a_dead_id_is_forgotten() -> None:
    fan = Fan([0])
    fan.abort(1)
    assert fan.started(1) == []
    fan.deadline(1)
    assert feed(fan, 0, END) == []


def test_every_deadline_passed_and_no_message_processed_still_completes() -> None:
    fan = Fan([0, 1, 2])
    fan.started(1)
    feed(fan, 0, "a", aligned(1), "b")
    feed(fan, 1, "x", END)
    feed(fan, 2, "p")
    effects = fan.deadline(1) + feed(fan, 2, "q", aligned(1))
    assert names(effects) == "|"
    assert recorded(effects) == {0: "a", 1: "x", 2: "pq"}


# -- aligned only --------------------------------------------------------------------------------------------


def test_an_aligned_only_fan_in_aligns_on_flagged_barriers_and_has_no_deadline() -> None:
    fan = Fan([0, 1], aligned_only=True)
    assert feed(fan, 0, "a", flagged(1)) == []
    assert names(run(fan)) == "a"
    assert fan.deadline(1) == []
    feed(fan, 1, flagged(1))
    assert fires(run(fan)) == [CheckpointBarrier(1, 1)]


def test_a_savepoint_stays_aligned_even_when_unaligned_is_forced() -> None:
    fan = Fan([0, 1], FORCED)
    assert fan.started(1, aligned=True) == []
    feed(fan, 0, "a", aligned(1))
    assert names(run(fan)) == "a"
    assert fan.deadline(1) == []
    feed(fan, 1, aligned(1))
    assert fires(run(fan)) == [CheckpointBarrier(1, 1)]


def test_a_pinned_barrier_stays_aligned_where_the_start_is_not_known_yet() -> None:
    fan = Fan([0, 1], FORCED)
    pinned = as_pinned(CheckpointBarrier(1, 1))
    assert feed(fan, 0, "a", Barrier(pinned)) == []
    assert names(run(fan)) == "a"
    assert fan.deadline(1) == []
    feed(fan, 1, Barrier(pinned))
    assert fires(run(fan)) == [pinned]


def test_forced_unaligned_is_past_its_deadline_from_the_start() -> None:
    fan = Fan([0, 1], FORCED)
    feed(fan, 0, "a", END)
    assert len(fires(fan.started(1))) == 1


# -- watermarks ----------------------------------------------------------------------------------------------


def test_the_watermark_is_the_minimum_over_open_inputs() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Watermark(10))
    assert run(fan) == []
    feed(fan, 1, Watermark(5))
    assert fan.reached(1) == BEGINNING_OF_TIME, "it has not had its turn"
    assert run(fan) == [AdvanceWatermark(5)]
    assert (fan.reached(0), fan.reached(1)) == (10, 5)
    feed(fan, 1, Watermark(4), END)
    assert run(fan) == [AdvanceWatermark(10)]
    assert fan.watermark == 10


def test_a_held_inputs_watermark_waits_with_its_data() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, aligned(1), Watermark(10))
    feed(fan, 1, Watermark(10))
    assert run(fan) == []
    feed(fan, 1, aligned(1))
    effects = run(fan)
    assert isinstance(effects[0], Fire)
    assert effects[-1] == AdvanceWatermark(10)


def test_an_idle_input_does_not_hold_back_the_watermark_and_never_turns_it_back() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Watermark(10))
    run(fan)
    assert fan.idle(1, True) == [AdvanceWatermark(10)]
    assert fan.idle(1, False) == []
    assert fan.watermark == 10
    assert fan.idle(0, True) == []
    assert fan.idle(1, True) == []


def test_an_input_that_says_it_is_idle_is_not_waited_for_until_it_wakes() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Watermark(IDLE))
    assert run(fan) == []
    feed(fan, 1, Watermark(10))
    assert run(fan) == [AdvanceWatermark(10)]
    feed(fan, 0, Watermark(AWAKE))
    feed(fan, 1, Watermark(20))
    assert run(fan) == []
    feed(fan, 0, Watermark(15))
    assert run(fan) == [AdvanceWatermark(15)]


def test_a_fan_in_without_active_inputs_says_so_once_and_says_when_it_wakes() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Watermark(10), Watermark(IDLE))
    feed(fan, 1, Watermark(10), Watermark(IDLE), Watermark(IDLE))
    assert run(fan) == [AdvanceWatermark(10), AdvanceWatermark(IDLE)]
    assert fan.watermark == 10
    feed(fan, 0, Watermark(AWAKE))
    assert run(fan) == [AdvanceWatermark(10)]


def test_the_end_of_the_last_active_input_makes_the_fan_in_idle() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Watermark(IDLE))
    feed(fan, 1, END)
    assert run(fan) == [AdvanceWatermark(IDLE)]
    feed(fan, 0, Watermark(7))
    assert run(fan) == [AdvanceWatermark(7)]


# -- control signals -----------------------------------------------------------------------------------------


def control(number: int) -> tuple[BarrierControlSignal, Control[str]]:
    signal = BarrierControlSignalKind.SyncTest.with_id(number)
    return signal, Control(signal)


def test_a_control_barrier_is_forwarded_once_and_nothing_passes_it() -> None:
    fan = Fan([0, 1])
    signal, message = control(1)
    feed(fan, 0, "a", message, "b")
    feed(fan, 1, "x")
    assert names(run(fan)) == "ax"
    feed(fan, 1, message, "y")
    effects = run(fan)
    assert effects[0] == Forward(signal)
    assert names(effects) == "by"


def test_an_end_counts_for_a_control_barrier() -> None:
    fan = Fan([0, 1])
    signal, message = control(1)
    feed(fan, 0, message)
    feed(fan, 1, END)
    assert run(fan) == [Forward(signal)]


def test_an_instant_signal_among_the_data_is_refused_and_changes_nothing() -> None:
    fan = Fan([0, 1])
    feed(fan, 0, Control(InstantControlSignal(BarrierControlSignalKind.SyncTest, 1)))
    for _ in range(2):
        with pytest.raises(ProtocolError, match="instant"):
            fan.poll()
    assert fan.queued(0) == 1


def test_a_wrong_control_barrier_is_an_error_and_changes_nothing() -> None:
    fan = Fan([0, 1])
    _, first = control(1)
    _, second = control(2)
    feed(fan, 0, first)
    run(fan)
    feed(fan, 1, second)
    for _ in range(2):
        with pytest.raises(BarrierOverlap):
            fan.poll()
    assert fan.queued(1) == 1
    with pytest.raises(DuplicateBarrier):
        fan._control.arrive(0, first.signal.key)


def test_control_and_checkpoint_barriers_are_aligned_apart() -> None:
    fan = Fan([0, 1])
    signal, message = control(1)
    feed(fan, 0, message, aligned(1), "a")
    feed(fan, 1, message, aligned(1), "x")
    effects = run(fan)
    assert effects[0] == Forward(signal)
    assert names(effects) == "|ax"


def test_a_flagged_barrier_passes_an_input_held_by_control() -> None:
    fan = Fan([0, 1])
    _, message = control(1)
    feed(fan, 0, message, "a")
    run(fan)
    assert len(fires(feed(fan, 0, flagged(1)))) == 1
    assert fan.poll() == []
