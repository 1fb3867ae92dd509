"""Deliberately wrong variants of the protocol. Each must be caught, by the explorer or by a named check.

A mutant that survives means that a real defect of that kind would too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import test_align
import test_output
import test_subtask
import test_unaligned
from explorer import Explorer, System
from systems import JOIN_TIMER, QUICK, chain, diamond, lasting, pair, two

from tidegate.core.barrier import align
from tidegate.core.barrier.align import Aligning, BarrierAligner, Cut, RecordingDone, UnalignedCheckpointConfig
from tidegate.core.barrier.effects import Fire, SnapshotComplete
from tidegate.core.barrier.input import InputChannel
from tidegate.core.barrier.messages import Barrier, Event, Watermark
from tidegate.core.barrier.output import OutputQueue
from tidegate.core.barrier.pending import PendingSnapshot
from tidegate.core.barrier.record import ChannelRecording
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.barrier.unaligned import UnalignedCheckpointer
from tidegate.errors import TidegateError

Check = Callable[[], object]


@dataclass(frozen=True)
class Mutant:
    """A defect, how to put it in, and who is to find it."""

    defect: str
    owner: type
    method: str
    wrong: Callable[..., Any]
    check: Check
    promise: str = ""  # the promise that must be seen broken first; any, if it is not said


def explored(system: System) -> Check:
    return lambda: Explorer(system).run()


def real(owner: type, method: str) -> Callable[..., Any]:
    """The method as it is before any mutant replaces it."""
    return vars(owner)[method]  # type: ignore[no-any-return]


# -- the systems that find most of them ----------------------------------------------------------------------

PAIR = explored(pair(1, name="pair"))
TIGHT = explored(pair(2, name="pair, tight", credit=1, room=2))
CHAIN = explored(chain(1, name="chain", credit=1, wire=False))
TWO = explored(two(1, 1, name="two", **QUICK))
TWO_MARKS = explored(two(1, 1, True, name="two, watermarks", **JOIN_TIMER))
TWO_ENDS = explored(two(1, 0, name="two, ends", **QUICK))
ALIGNED = explored(two(2, 1, name="two, aligned", deadlines=(), wire=False))
LASTING = explored(lasting(0, 2, name="rows at the end", credit=1, wire=False))
DIAMOND = explored(diamond(2, name="diamond", deadlines=(), **QUICK))
ABORTED = explored(pair(2, name="pair, aborted", aborts=1, room=3))


# -- the defects ---------------------------------------------------------------------------------------------

_arrive, _cut, _ended = (real(BarrierAligner, name) for name in ("_arrive", "_cut", "ended"))
_turn, _abort = real(BarrierAligner, "turn"), real(BarrierAligner, "abort")
_poll, _receive_end = real(UnalignedCheckpointer, "poll"), real(UnalignedCheckpointer, "_receive_end")
_receive, _let_go = real(UnalignedCheckpointer, "receive"), real(UnalignedCheckpointer, "_let_go")
_put, _abort_queue = real(OutputQueue, "put"), real(OutputQueue, "abort")
_settle = real(Subtask, "_settle")


def counts_barriers(self: Any, input_id: int, barrier: Any) -> Any:
    """Any barrier counts for the one that is pending."""
    pending = self.state.barrier if isinstance(self.state, Aligning) else barrier
    return _turn(self, input_id, pending)


def masks_with_64_bits(self: Any, barrier: Any, arrived: frozenset[int], input_id: int) -> Any:
    return _arrive(self, barrier, frozenset(i for i in self.open if any(i % 64 == a % 64 for a in arrived)), input_id)


def fires_one_turn_late(self: Any) -> Any:
    held = self.__dict__.pop("_late", [])
    effects = _poll(self)
    if any(isinstance(effect, Fire) for effect in effects) and self._ready:
        self._late = effects
        return held
    return [*effects, *held]


def records_nothing(self: Any, checkpoint_id: int, recording: Any) -> None:
    real_start(self, checkpoint_id, recording)
    recording.messages.clear()


def records_after_the_barrier(self: Any, checkpoint_id: int, recording: Any) -> None:
    recording.add_all(self.queue)
    self.recording = recording
    self.queue = deque(m for m in self.queue if not _is(m, checkpoint_id))


real_start = real(InputChannel, "start_recording")


def _is(message: Any, checkpoint_id: int) -> bool:
    return isinstance(message, Barrier) and message.barrier.checkpoint_id == checkpoint_id


def records_arrived_inputs(self: Any, barrier: Any, arrived: frozenset[int], known: frozenset[int]) -> Any:
    outcomes = _cut(self, barrier, arrived, known)
    return [Cut(outcomes[0].barrier, self.open), *outcomes[1:]]


def records_no_triggering_input(self: Any, barrier: Any, arrived: frozenset[int], known: frozenset[int]) -> Any:
    outcomes = _cut(self, barrier, arrived, known)
    return [Cut(outcomes[0].barrier, outcomes[0].record - known), *outcomes[1:]]


def settles_without_burying(self: Any, barrier: Any, last_input: Any) -> Any:
    self.state = align.Idle()
    return RecordingDone(barrier.checkpoint_id, last_input)


def obeys_any_abort(self: Any, checkpoint_id: int) -> Any:
    current = 0 if isinstance(self.state, align.Idle) else self.state.barrier.checkpoint_id
    return _abort(self, max(checkpoint_id, current))


def looks_at_the_deadline_on_arrival_only(self: Any, checkpoint_id: int) -> Any:
    self._overdue = max(self._overdue, checkpoint_id)
    return []


def holds_nobody(self: Any, input_id: int, barrier: Any) -> Any:
    return [outcome for outcome in _turn(self, input_id, barrier) if not isinstance(outcome, align.Hold)]


def puts_data_before_the_barrier(self: Any, message: Any) -> None:
    if self._queue and isinstance(self._queue[-1], Barrier) and isinstance(message, Event):
        barrier = self._queue.pop()
        _put(self, message)
        self._queue.append(barrier)
    else:
        _put(self, message)


def passes_without_recording(self: Any, checkpoint_id: int, passed: Any) -> Any:
    return []


def counts_an_end_at_receipt(self: Any, channel: Any) -> Any:
    effects = _receive_end(self, channel)
    return effects + self._perform(self._aligner.ended(channel.input_id))


def never_counts_an_end(self: Any, input_id: int) -> Any:
    return []


def applies_watermarks_at_receipt(self: Any, input_id: int, message: Any) -> Any:
    effects = _receive(self, input_id, message)
    if isinstance(message, Watermark):
        self._channels[input_id].watermark = message.timestamp
        effects = effects + self._time.advance()
    return effects


def forgets_the_dead(self: Any, barrier: Any) -> bool:
    current = 0 if isinstance(self.state, align.Idle) else self.state.barrier.checkpoint_id
    return bool(barrier.checkpoint_id < current)


def never_subsumes(self: Any, barrier: Any) -> Any:
    return []


def has_no_limit(self: Any, checkpoint_id: int) -> None:
    return None


def never_acts_at_receipt(self: Any, barrier: Any) -> bool:
    return False


def ignores_ends_in_queues(self: Any, checkpoint_id: int) -> bool:
    return self.barrier(checkpoint_id) is not None


def never_promotes_ends(self: Any, barrier: Any) -> Any:
    return []


def waits_for_the_end(self: Any) -> Any:
    return _settle(self) if self._finished else []


def cuts_without_a_barrier(self: Any, barrier: Any) -> Any:
    """Whoever has read everything reports what it has, and goes on."""
    return [SnapshotComplete(barrier.checkpoint_id, finished=True)]


def keeps_holding(self: Any) -> None:
    held = {channel.input_id: channel.held for channel in self._channels.values()}
    _let_go(self)
    for channel in self._channels.values():
        channel.held = held[channel.input_id]


def records_events_only(self: Any, messages: Any) -> None:
    for message in messages:
        if isinstance(message, Event):
            self.messages.append(message)
            self.size_bytes += message.size_bytes


def overtakes_with_savepoints(self: Any, barrier: Any) -> bool:
    return not self.enabled


def keeps_recording_at_an_end(self: Any, input_id: int) -> Any:
    return []


def takes_its_turn_while_recording(self: Any, channel: Any, message: Any) -> Any:
    """An aligned barrier waits in the queue although the snapshot has been taken."""
    self._enqueue(channel, message)
    return self._overtake(message.barrier) if message.barrier.is_unaligned else []


def lets_data_pass_an_aborted_barrier(self: Any, checkpoint_id: int) -> Any:
    """The checkpoint is over, so nobody would miss the position of its barrier: but I3 knows no exception."""
    _abort_queue(self, checkpoint_id)
    dead = [m for m in self._queue if isinstance(m, Barrier) and m.barrier.checkpoint_id <= checkpoint_id]
    self._queue = deque([m for m in self._queue if m not in dead] + dead)
    return []


def enqueues_on_the_first_output_only(self: Any, barrier: Any) -> Any:
    self._firing = False
    snapshot = self._snapshot
    snapshot.enqueued, snapshot.waiting = True, set(list(self.outputs)[:1])
    for queue in list(self.outputs.values())[:1]:
        queue.enqueue(barrier)
    return self._complete()


MUTANTS = (
    Mutant("counts barriers instead of inputs", BarrierAligner, "turn", counts_barriers,
           test_unaligned.test_a_newer_barrier_subsumes_at_its_turn),
    Mutant("tracks inputs in 64 bits", BarrierAligner, "_arrive", masks_with_64_bits,
           lambda: test_align.test_any_number_of_inputs_is_aligned_by_identity(65)),
    Mutant("takes the snapshot too late, after data that follows the barrier", UnalignedCheckpointer, "poll", fires_one_turn_late,
           ALIGNED),
    Mutant("records no in-flight data", InputChannel, "start_recording", records_nothing, PAIR),
    Mutant("records after the barrier too", InputChannel, "start_recording", records_after_the_barrier, TWO),
    Mutant("records inputs that had arrived", BarrierAligner, "_cut", records_arrived_inputs, TWO),
    Mutant("a single unaligned input records nothing", BarrierAligner, "_cut", records_no_triggering_input, PAIR),
    Mutant("a completed id fires again", BarrierAligner, "_settle", settles_without_burying, TWO_ENDS),
    Mutant("an abort is ignored", BarrierAligner, "abort", lambda self, _: [],
           test_unaligned.test_abort_of_the_newer_before_the_older_ends_the_alignment),
    Mutant("an abort of another id is obeyed", BarrierAligner, "abort", obeys_any_abort,
           test_unaligned.test_an_abort_of_another_id_leaves_the_alignment_alone),
    Mutant("the deadline is looked at only when a barrier comes", UnalignedCheckpointer, "deadline",
           looks_at_the_deadline_on_arrival_only, TWO),
    Mutant("a held input is read", BarrierAligner, "turn", holds_nobody, ALIGNED),
    Mutant("the barrier goes out after later data", OutputQueue, "put", puts_data_before_the_barrier, PAIR,
           promise="I3"),
    Mutant("the barrier goes to one output only", Subtask, "fired", enqueues_on_the_first_output_only, DIAMOND,
           promise="I3"),
    Mutant("a promotion records nothing", OutputQueue, "_record", passes_without_recording, CHAIN),
    Mutant("acknowledged before the barrier has left", PendingSnapshot, "is_complete",
           property(lambda self: self.enqueued and (self.finished or self.inputs is not None)), CHAIN),
    Mutant("an end counts before its turn", UnalignedCheckpointer, "_receive_end", counts_an_end_at_receipt,
           ALIGNED),
    Mutant("an end never counts", BarrierAligner, "ended", never_counts_an_end, ALIGNED),
    Mutant("a held input's watermark passes its data", UnalignedCheckpointer, "receive",
           applies_watermarks_at_receipt, TWO_MARKS),
    Mutant("a dead id fires", BarrierAligner, "_is_stale", forgets_the_dead,
           test_unaligned.test_a_timer_after_the_last_barrier_or_after_an_abort_does_nothing),
    Mutant("a newer barrier does not subsume", BarrierAligner, "subsume", never_subsumes,
           test_unaligned.test_a_newer_barrier_subsumes_at_its_turn),
    Mutant("in-flight data has no limit", ChannelRecording, "excess", has_no_limit,
           test_unaligned.test_inflight_buffer_size_limit),
    Mutant("a flagged barrier waits for its turn", UnalignedCheckpointer, "_acts_at_receipt",
           never_acts_at_receipt, PAIR),
    Mutant("an aligned barrier waits its turn while recording", UnalignedCheckpointer, "_receive_barrier",
           takes_its_turn_while_recording, TWO),
    Mutant("an end is not pulled forward", InputChannel, "has_marker", ignores_ends_in_queues, TWO_ENDS),
    Mutant("an end does not stop a recording", BarrierAligner, "end_received", keeps_recording_at_an_end,
           test_unaligned.test_an_end_received_while_recording_stops_the_recording),
    Mutant("an ended subtask never promotes", Subtask, "_promote_ends", never_promotes_ends, TIGHT),
    Mutant("an ended subtask is reported before its end has left", OutputQueue, "end_queued",
           property(lambda self: False), TIGHT),
    Mutant("a subtask that is still emitting waits for its end", Subtask, "_settle", waits_for_the_end, LASTING),
    Mutant("a subtask that is still emitting is reported without a barrier", Subtask, "_cut_here",
           cuts_without_a_barrier, LASTING),
    Mutant("inputs stay held after the cut", UnalignedCheckpointer, "_let_go", keeps_holding, ALIGNED),
    Mutant("watermarks are not recorded", ChannelRecording, "add_all", records_events_only,
           test_unaligned.test_inflight_capture_multiple_channels),
    Mutant("a savepoint overtakes data", UnalignedCheckpointConfig, "keeps_aligned", overtakes_with_savepoints,
           test_unaligned.test_a_pinned_barrier_stays_aligned_where_the_start_is_not_known_yet),
    Mutant("a waiting barrier is not promoted", OutputQueue, "deadline", lambda self, _: [], CHAIN),
    Mutant("an aborted barrier is promoted", OutputQueue, "abort", lambda self, _: [],
           test_output.test_an_aborted_barrier_keeps_its_position_and_is_promoted_no_more),
    Mutant("a newer snapshot does not end an unfinished one", Subtask, "_begin",
           lambda self, snapshot: setattr(self, "_snapshot", snapshot) or [],
           test_subtask.test_a_newer_snapshot_replaces_one_that_is_not_complete),
    Mutant("data may pass the barrier of an aborted checkpoint", OutputQueue, "abort",
           lets_data_pass_an_aborted_barrier, ABORTED, promise="I3"),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.defect for mutant in MUTANTS])
def test_no_mutant_survives(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.method, mutant.wrong)
    with pytest.raises((AssertionError, TidegateError, ValueError)) as caught:  # ValueError: not the one expected
        mutant.check()
    assert str(caught.value).startswith(mutant.promise)


def test_the_checks_pass_on_the_real_classes() -> None:
    """Else a mutant would be 'caught' by a check that always fails."""
    for check in {mutant.check for mutant in MUTANTS}:
        check()
