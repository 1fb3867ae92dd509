"""Each invariant that the core keeps is broken once, on purpose, and the scenario that guards it must come out differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from play import play
from test_scenarios import HERE, WORLDS

from tidegate.core.barrier.input import InputChannel
from tidegate.core.barrier.messages import Barrier, Event
from tidegate.core.barrier.output import OutputQueue
from tidegate.core.barrier.record import ChannelRecording
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.barrier.unaligned import UnalignedCheckpointer
from tidegate.core.checkpoint import checkpoints, events
from tidegate.core.checkpoint.attempt import CheckpointAttempt
from tidegate.core.checkpoint.checkpoints import Checkpoints
from tidegate.core.checkpoint.publish import PublishQueue
from tidegate.core.log.append import LogAppender
from tidegate.core.log.view import LogView
from tidegate.ids import CheckpointId

_start_recording, _put, _answered = InputChannel.start_recording, OutputQueue.put, LogAppender.answered
_live, _recover, _fired = Checkpoints._live, PublishQueue.recover, Subtask.fired


def records_nothing(self: Any, checkpoint_id: int, recording: Any) -> None:
    _start_recording(self, checkpoint_id, recording)
    recording.messages.clear()


def sends_later_data_first(self: Any, message: Any) -> None:
    if self._queue and isinstance(self._queue[-1], Barrier) and isinstance(message, Event):
        barrier = self._queue.pop()
        _put(self, message)
        self._queue.append(barrier)
    else:
        _put(self, message)


def takes_a_conflict_for_written(self: Any, event: Any, now_ms: int) -> Any:
    if isinstance(event.answer, events.Conflict):
        event = events.PutAnswered(event.slot, event.write_id, events.Written())
    return _answered(self, event, now_ms)


def counts_any_gang(self: Any, node: int, gang: int, term: int, checkpoint_id: int) -> Any:
    return _live(self, node, self._leadership.log.gang, term, checkpoint_id)


def counts_any_term(self: Any, node: int, gang: int, term: int, checkpoint_id: int) -> Any:
    attempt = self.attempt
    return attempt if attempt is not None and term != attempt.term else _live(self, node, gang, term, checkpoint_id)


def acknowledges_at_once(self: Any, barrier: Any) -> Any:
    effects = _fired(self, barrier)
    if self._snapshot is not None:
        self._snapshot.waiting.clear()
    return effects + self._complete()


@dataclass(frozen=True)
class Break:
    """What is broken, where, and the scenario that must notice."""

    invariant: str
    owner: Any
    name: str
    wrong: Any
    scenario: str


BREAKS = (
    Break("I1 queued data is not recorded", InputChannel, "start_recording", records_nothing, "04-single-input"),
    Break("I1 acknowledged before the barrier left", Subtask, "fired", acknowledges_at_once,
          "10-promoted-after-firing"),
    Break("I3 data before the barrier", OutputQueue, "put", sends_later_data_first, "18-fan-in"),
    Break("I5 committed before all have reported", CheckpointAttempt, "missing", property(lambda self: frozenset()),
          "11-reports"),
    Break("I5 aborted while the put is open", CheckpointAttempt, "can_abort", property(lambda self: True), "12-unknown-put"),
    Break("I6 ids begin again", Checkpoints, "next_id",
          property(lambda self: CheckpointId.of(0, self._counter + 1)), "12-leader-dies"),
    Break("I7 a lost slot counts as won", LogAppender, "answered", takes_a_conflict_for_written,
          "12-stalled-leader"),
    Break("I7 a report of an old term counts", Checkpoints, "_live", counts_any_term, "11-reports"),
    Break("I8 a report of another gang counts", Checkpoints, "_live", counts_any_gang,
          "15-killed-while-restoring"),
    Break("I9 the head is not published again", PublishQueue, "recover",
          lambda self, hide, head: _recover(self, hide, None), "14-two-sinks"),
    Break("I9 nothing is hidden", PublishQueue, "recover",
          lambda self, hide, head: _recover(self, None, head), "14-restore-older"),
    Break("I10 a savepoint is not kept", LogView, "retained", lambda self: self.restorables(), "16-garbage"),
    Break("I10 nothing is kept", checkpoints, "kept_objects", lambda view: frozenset(), "16-garbage"),
    Break("I11 the deadline does nothing", UnalignedCheckpointer, "deadline", lambda self, _: [], "02-silent-input"),
    Break("I11 recordings have no limit", ChannelRecording, "excess", lambda self, _: None, "02-too-much-in-flight"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BREAKS, ids=[broken.invariant for broken in BREAKS])
def test_a_broken_invariant_is_noticed(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    path = HERE / f"{broken.scenario}.txt"
    monkeypatch.setattr(broken.owner, broken.name, broken.wrong)
    try:
        played = play(path, WORLDS)  # type: ignore[arg-type]
    except (AssertionError, KeyError):
        return  # the wrong protocol gave an order that the file has no step for
    assert played != path.read_text()
