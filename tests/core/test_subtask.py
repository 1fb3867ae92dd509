"""A whole subtask: when its part of a checkpoint is complete, and what an ended one still owes."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.barrier.align import PINNED_FLAG, UnalignedCheckpointConfig
from tidegate.core.barrier.effects import (
    AdvanceWatermark,
    CheckpointFailed,
    Ended,
    Fire,
    Forward,
    ProcessEvent,
    SnapshotComplete,
    SubtaskEffect,
)
from tidegate.core.barrier.input import BEGINNING_OF_TIME
from tidegate.core.barrier.messages import (
    IDLE,
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.control.signals import BarrierControlSignalKind
from tidegate.errors import InFlightBufferTooLarge, InvalidUseError, ProtocolError

B1, B2, B3 = (CheckpointBarrier(n, n) for n in (1, 2, 3))
U1, U2 = B1.as_unaligned(), B2.as_unaligned()
A, B, C = (Event(name, 5) for name in "abc")
X, Y = Event("x", 5), Event("y", 5)
END: StreamMessage[str] = End()
FORCED = UnalignedCheckpointConfig(force_unaligned=True)


def subtask(inputs: int, outputs: int, config: UnalignedCheckpointConfig | None = None, **options: Any) -> Subtask[str]:
    return Subtask(range(inputs), range(outputs), config or UnalignedCheckpointConfig(), **options)


def shell(task: Subtask[str], effects: list[SubtaskEffect]) -> list[SubtaskEffect]:
    """Perform ``Fire`` as the real shell does, and say what else is to be done."""
    done: list[SubtaskEffect] = []
    for effect in effects:
        done.append(effect)
        if isinstance(effect, Fire):
            done += task.fired(effect.barrier)
    return done


def run(task: Subtask[str]) -> list[SubtaskEffect]:
    done: list[SubtaskEffect] = []
    while task.has_turn:
        done += shell(task, task.poll())
    return done


def send(task: Subtask[str], output_id: int = 0, count: int = 1) -> list[SubtaskEffect]:
    effects: list[SubtaskEffect] = []
    for _ in range(count):
        effects += task.taken(output_id)[1]
    return effects


def queue(task: Subtask[str], output_id: int = 0) -> list[StreamMessage[str]]:
    return list(task.outputs[output_id]._queue)


def whole(effects: list[SubtaskEffect]) -> list[SnapshotComplete[str]]:
    return [effect for effect in effects if isinstance(effect, SnapshotComplete)]


def failures(effects: list[SubtaskEffect]) -> list[int]:
    return [effect.checkpoint_id for effect in effects if isinstance(effect, CheckpointFailed)]


# -- sources -------------------------------------------------------------------------------------------------


def test_a_source_emits_its_barrier_on_all_outputs_and_is_complete_when_it_has_left_them() -> None:
    task = subtask(0, 2)
    task.emit(0, A)
    effects = shell(task, task.inject(B1))
    assert effects == [Fire(B1)]
    assert queue(task, 0) == [A, Barrier(B1)]
    assert queue(task, 1) == [Barrier(B1)]
    assert task.pending == 1
    assert send(task, 1) == []
    assert send(task, 0, 2) == [SnapshotComplete(1)]
    assert task.pending == 0


def test_a_command_for_a_dead_or_fired_id_changes_nothing() -> None:
    task = subtask(0, 1)
    shell(task, task.inject(B2))
    assert task.inject(B1) == []
    assert task.inject(B2) == []
    task.abort(3)
    assert task.inject(B3) == []


def test_a_command_after_its_deadline_or_a_forced_one_goes_to_the_head() -> None:
    late = subtask(0, 1)
    late.emit(0, A)
    late.deadline(1)
    forced = subtask(0, 1, FORCED)
    forced.emit(0, A)
    for task in (late, forced):
        shell(task, task.inject(B1))
        assert queue(task) == [Barrier(U1), A]
        assert send(task) == [SnapshotComplete(1, outputs={0: (A,)}, unaligned=True, inflight_bytes=5)]


def test_a_savepoints_barrier_is_pinned_at_the_source_and_never_promoted() -> None:
    task = subtask(0, 1, FORCED)
    task.started(1, aligned=True)
    task.emit(0, A)
    assert shell(task, task.inject(B1)) == [Fire(CheckpointBarrier(1, 1, PINNED_FLAG))]
    assert task.deadline(1) == []
    assert queue(task)[0] == A


def test_with_unaligned_mode_off_a_source_clears_the_flag() -> None:
    task = subtask(0, 1, UnalignedCheckpointConfig(enabled=False))
    task.started(1)
    assert task.inject(U1) == [Fire(B1)]


def test_only_a_source_is_commanded_and_only_a_fan_in_receives() -> None:
    with pytest.raises(ProtocolError):
        subtask(1, 1).inject(B1)
    with pytest.raises(ProtocolError):
        subtask(0, 1).receive(0, A)
    source = subtask(0, 1)
    assert source.poll() == []
    assert not source.has_turn
    assert not source.ended
    assert source.queued(0) == 0
    assert source.watermark == source.reached(0) == BEGINNING_OF_TIME
    assert source.metrics().unaligned_count == 0
    assert source.abort(1) == []


@pytest.mark.parametrize("options", [{"aligned_only_outputs": [7]}, {}])
def test_outputs_are_named_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError):
        Subtask([], [0, 0] if not options else [0], **options)


# -- fan-ins -------------------------------------------------------------------------------------------------


def test_a_sink_is_complete_as_soon_as_it_has_fired() -> None:
    task = subtask(2, 0)
    task.receive(0, A)
    task.receive(0, Barrier(B1))
    task.receive(1, Barrier(B1))
    assert run(task) == [ProcessEvent(0, "a", 5), Fire(B1), SnapshotComplete(1, last_input=0)]


def test_a_snapshot_waits_for_its_recordings_and_for_its_barriers() -> None:
    task = subtask(2, 1)
    task.receive(0, A)
    task.receive(1, X)
    task.emit(0, C)
    shell(task, task.receive(0, Barrier(U1)))
    assert send(task) == []
    task.receive(1, Y)
    (done,) = task.receive(1, Barrier(B1))
    assert done == SnapshotComplete(1, {0: (A,), 1: (X, Y)}, {0: (C,)}, unaligned=True, inflight_bytes=20, last_input=1)
    assert task.metrics().unaligned_count == 1


def test_fired_aligned_and_then_promoted_records_what_the_barrier_passes() -> None:
    task = subtask(1, 1)
    task.emit(0, X)
    task.receive(0, Barrier(B1))
    assert run(task) == [Fire(B1)]
    task.emit(0, Y)
    assert task.deadline(1) == []
    assert queue(task) == [Barrier(U1), X, Y]
    assert whole(send(task)) == [SnapshotComplete(1, outputs={0: (X,)}, unaligned=True, inflight_bytes=5, last_input=0)]


def test_a_snapshot_is_not_complete_before_its_barrier_has_left() -> None:
    task = subtask(1, 2)
    task.emit(1, X)
    task.receive(0, Barrier(B1))
    assert whole(run(task)) == []
    assert whole(send(task, 0)) == []
    assert whole(send(task, 1)) == []
    assert whole(send(task, 1)) != []


def test_a_deadline_fires_and_the_barrier_goes_to_the_head() -> None:
    task = subtask(2, 1)
    task.emit(0, X)
    task.receive(0, Barrier(B1))
    run(task)
    shell(task, task.deadline(1))
    assert queue(task) == [Barrier(U1), X]


def test_an_aligned_only_node_past_its_deadline_still_promotes_its_other_outputs() -> None:
    task = subtask(2, 2, aligned_only_inputs=True, aligned_only_outputs=[1])
    task.emit(0, X)
    task.emit(1, Y)
    task.receive(0, Barrier(B1))
    task.deadline(1)
    assert run(task) == []
    task.receive(1, Barrier(B1))
    assert run(task) == [Fire(B1)]
    assert queue(task, 0) == [Barrier(U1), X]
    assert queue(task, 1) == [Y, Barrier(B1)]


def test_nothing_has_a_turn_between_fire_and_fired() -> None:
    task = subtask(1, 1)
    task.receive(0, Barrier(B1))
    task.receive(0, A)
    assert task.poll() == [Fire(B1)]
    with pytest.raises(ProtocolError):
        task.poll()
    with pytest.raises(ProtocolError):
        task.fired(B2)
    task.fired(B1)
    with pytest.raises(ProtocolError):
        task.fired(B1)
    assert run(task) == [ProcessEvent(0, "a", 5)]


def test_data_watermarks_signals_and_ends_pass_through() -> None:
    task = subtask(2, 0)
    signal = BarrierControlSignalKind.SyncTest.with_id(1)
    task.receive(0, Control(signal))
    task.receive(0, Watermark(4))
    task.receive(1, Control(signal))
    assert run(task) == [Forward(signal)]
    assert task.idle(1, True) == [AdvanceWatermark(4)]
    assert task.watermark == task.reached(0) == 4
    assert task.reached(1) == BEGINNING_OF_TIME
    assert not task.ended
    task.receive(0, END)
    task.receive(1, END)
    assert task.queued(0) == 1
    assert run(task) == [AdvanceWatermark(IDLE), Ended()]
    assert task.ended


# -- aborts --------------------------------------------------------------------------------------------------


def test_an_abort_ends_an_alignment_or_an_unfinished_snapshot_once() -> None:
    task = subtask(2, 1)
    task.receive(0, Barrier(B1))
    run(task)
    assert failures(task.abort(1)) == [1]
    assert task.abort(1) == []
    task.receive(0, Barrier(B2))
    task.receive(1, Barrier(B2))
    run(task)
    assert task.abort(1) == []
    assert task.pending == 2
    assert failures(task.abort(2)) == [2]
    assert send(task) == []


def test_a_timer_after_an_abort_promotes_nothing() -> None:
    task = subtask(1, 1)
    task.emit(0, X)
    task.receive(0, Barrier(B1))
    run(task)
    task.abort(1)
    assert task.deadline(1) == []
    assert queue(task)[0] == X


def test_a_newer_snapshot_replaces_one_that_is_not_complete() -> None:
    task = subtask(1, 1)
    task.receive(0, Barrier(B1))
    run(task)
    task.receive(0, Barrier(B2))
    assert failures(run(task)) == [1]
    assert send(task) == []
    assert whole(send(task)) == [SnapshotComplete(2, last_input=0)]


def test_too_much_output_in_flight_ends_the_checkpoint_everywhere_in_the_subtask() -> None:
    task = subtask(2, 1, UnalignedCheckpointConfig(max_inflight_buffer_bytes=4))
    task.emit(0, X)
    effects = shell(task, task.receive(0, Barrier(U1)))
    (failed,) = [effect for effect in effects if isinstance(effect, CheckpointFailed)]
    assert isinstance(failed.error, InFlightBufferTooLarge)
    assert not task.metrics().is_in_unaligned_mode
    assert task.receive(1, Barrier(U1)) == []
    assert send(task, count=2) == []


# -- ended subtasks ------------------------------------------------------------------------------------------


def test_a_finished_source_is_reported_with_its_final_state_once_its_end_has_left() -> None:
    task = subtask(0, 1)
    task.emit(0, A)
    assert not task.finished
    assert task.finish() == []
    assert task.finish() == []
    assert task.ended and task.finished
    assert task.started(1) == []
    assert task.finished_without(1)
    assert send(task) == []
    assert send(task) == [SnapshotComplete(1, finished=True)]
    assert task.started(2) == [SnapshotComplete(2, finished=True)]


def test_a_finished_source_promotes_at_its_deadline() -> None:
    task = subtask(0, 1)
    task.emit(0, A)
    task.started(1, epoch=4)
    task.finish()
    assert task.deadline(1) == []
    assert task.deadline(1) == []
    flagged = CheckpointBarrier(1, 4, 1)
    assert queue(task) == [Barrier(flagged), A, END]
    assert send(task) == [SnapshotComplete(1, outputs={0: (A,)}, unaligned=True, finished=True, inflight_bytes=5)]
    assert send(task, count=2) == []


def test_a_finished_source_promotes_on_a_command_after_the_deadline() -> None:
    task = subtask(0, 1)
    task.emit(0, A)
    task.finish()
    task.deadline(1)
    assert queue(task) == [A, END]
    assert task.inject(B1) == []
    assert queue(task) == [Barrier(U1), A, END]


def test_a_finished_source_waits_for_its_deadline_before_it_promotes() -> None:
    task = subtask(0, 1)
    task.emit(0, A)
    task.finish()
    assert task.inject(B1) == []
    assert queue(task) == [A, END]


def test_forced_unaligned_promotes_a_finished_source_at_the_start() -> None:
    task = subtask(0, 1, FORCED)
    task.emit(0, A)
    task.finish()
    assert task.started(1) == []
    assert queue(task)[0] == Barrier(CheckpointBarrier(1, 0, 1))


def test_a_finished_source_never_promotes_a_savepoint_or_on_an_aligned_only_output() -> None:
    task = subtask(0, 1)
    task.emit(0, A)
    task.finish()
    task.started(1, aligned=True)
    task.deadline(1)
    other = subtask(0, 2, aligned_only_outputs=[1])
    other.emit(1, B)
    other.finish()
    other.started(1)
    other.deadline(1)
    assert queue(task) == [A, END]
    assert queue(other, 1) == [B, END]
    assert send(other, 0) == []
    assert whole(send(other, 1, 2)) == [SnapshotComplete(1, unaligned=True, finished=True)]


def test_a_subtask_that_fired_and_then_ended_is_not_reported_finished() -> None:
    task = subtask(1, 1)
    task.started(1)
    task.receive(0, Barrier(B1))
    task.receive(0, END)
    effects = run(task)
    assert effects == [Fire(B1), Ended()]
    task.finish()
    assert not task.finished_without(1)
    assert task.finished_without(2)
    assert whole(send(task)) == [SnapshotComplete(1, last_input=0)]
    assert send(task) == []


def test_an_older_unfinished_snapshot_of_an_ended_subtask_is_dropped() -> None:
    task = subtask(1, 1)
    task.receive(0, Barrier(B1))
    task.receive(0, END)
    run(task)
    task.finish()
    assert failures(task.started(2)) == [1]
    assert send(task) == []
    assert whole(send(task)) == [SnapshotComplete(2, finished=True)]


def test_a_finished_subtask_drops_what_still_comes() -> None:
    task = subtask(1, 1)
    task.finish()
    assert task.receive(0, Barrier(U1)) == []
    assert task.receive(0, END) == []
    assert task.poll() == []
    assert not task.has_turn
    assert task.started(1) == []
    assert task.deadline(1) == []
    assert whole(send(task)) == [SnapshotComplete(1, unaligned=True, finished=True)]


def still_giving(config: UnalignedCheckpointConfig | None = None, **options: Any) -> Subtask[str]:
    """All inputs have ended; the operator has more to emit than there is room for."""
    task = subtask(1, 1, config, **options)
    task.receive(0, END)
    run(task)
    task.emit(0, A)
    return task


def test_a_subtask_that_is_still_giving_cuts_at_the_deadline() -> None:
    task = still_giving()
    assert task.started(1, epoch=4) == []
    flagged = CheckpointBarrier(1, 4, 1)
    assert shell(task, task.deadline(1)) == [Fire(flagged)]
    task.emit(0, B)
    assert queue(task) == [Barrier(flagged), A, B]
    assert send(task) == [SnapshotComplete(1, outputs={0: (A,)}, unaligned=True, inflight_bytes=5)]
    assert task.deadline(1) == []
    assert task.finish() == []
    assert not task.finished_without(1)
    assert queue(task) == [A, B, END]


def test_a_subtask_that_is_still_giving_cuts_at_the_start_when_forced() -> None:
    task = still_giving(FORCED)
    assert shell(task, task.started(1)) == [Fire(CheckpointBarrier(1, 0, 1))]


def test_a_subtask_that_is_still_giving_waits_for_its_end_with_a_savepoint_or_in_aligned_mode() -> None:
    pinned = still_giving()
    off = still_giving(UnalignedCheckpointConfig(enabled=False))
    pinned.started(1, aligned=True)
    off.started(1)
    for task in (pinned, off):
        assert task.deadline(1) == []
        task.finish()
        assert whole(send(task, count=2)) == [SnapshotComplete(1, finished=True)]


def test_the_barrier_of_a_subtask_that_is_still_giving_stands_in_line_where_none_may_overtake() -> None:
    task = still_giving(aligned_only_inputs=True, aligned_only_outputs=[0])
    task.started(1)
    shell(task, task.deadline(1))
    assert queue(task) == [A, Barrier(CheckpointBarrier(1, 0))]


def test_an_abort_ends_the_cut_of_a_subtask_that_is_still_giving() -> None:
    task = still_giving()
    task.started(1)
    shell(task, task.deadline(1))
    assert failures(task.abort(1)) == [1]
    assert task.started(1) == [] and task.deadline(1) == []
    task.finish()
    assert failures(task.started(2)) == []
    assert whole(send(task, count=3)) == [SnapshotComplete(2, finished=True)]


def test_too_much_queued_before_the_end_ends_the_checkpoint() -> None:
    task = subtask(0, 1, UnalignedCheckpointConfig(max_inflight_buffer_bytes=4))
    task.emit(0, A)
    task.finish()
    task.started(1)
    assert failures(task.deadline(1)) == [1]
    assert send(task, count=3) == []


def test_the_start_of_a_dead_or_older_id_is_ignored() -> None:
    task = subtask(0, 1)
    task.abort(1)
    task.started(3)
    task.started(2)
    task.finish()
    assert whole(send(task)) == [SnapshotComplete(3, finished=True)]
    assert task.started(1) == []


def test_every_deadline_passed_and_no_message_processed_still_completes() -> None:
    task = subtask(2, 1)
    task.started(1)
    task.emit(0, C)
    task.receive(0, A)
    task.receive(0, END)
    task.receive(1, X)
    task.receive(1, Barrier(B1))
    shell(task, task.deadline(1))
    (done,) = whole(send(task))
    assert (done.inputs, done.outputs) == ({0: (A,), 1: (X,)}, {0: (C,)})
