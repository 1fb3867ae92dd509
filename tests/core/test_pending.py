"""A snapshot that is not complete yet: what it waits for, and what it hands out."""

from __future__ import annotations

import pytest

from tidegate.core.barrier.effects import InFlightChannelData, UnalignedSnapshot
from tidegate.core.barrier.messages import CheckpointBarrier, Event
from tidegate.core.barrier.pending import PendingSnapshot

BARRIER = CheckpointBarrier(3, 1)
RECORDED = UnalignedSnapshot(BARRIER, (InFlightChannelData(0, (Event("x", 5),), 5),), 5, True, 0)


def test_it_is_complete_when_barriers_are_placed_and_gone_and_inputs_recorded() -> None:
    snapshot: PendingSnapshot[str] = PendingSnapshot(BARRIER)
    assert not snapshot.is_complete
    snapshot.enqueued, snapshot.waiting = True, {0}
    snapshot.inputs = RECORDED
    assert not snapshot.is_complete
    snapshot.waiting.clear()
    assert snapshot.is_complete
    snapshot.inputs = None
    assert not snapshot.is_complete


def test_a_finished_subtask_has_no_inputs_to_record() -> None:
    assert PendingSnapshot[str](BARRIER, finished=True).is_complete


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_what_is_handed_out_names_everything_in_flight(recorded: UnalignedSnapshot[str] | None) -> None:
    snapshot: PendingSnapshot[str] = PendingSnapshot(BARRIER, finished=recorded is None)
    snapshot.inputs, snapshot.outputs = recorded, {1: (Event("y", 2),)}
    snapshot.overtook = True
    done = snapshot.complete(2)
    assert (done.checkpoint_id, done.unaligned, done.finished) == (3, True, recorded is None)
    assert done.inflight_bytes == (2 if recorded is None else 7) and done.outputs == {1: (Event("y", 2),)}
    assert done.inputs == ({} if recorded is None else {0: (Event("x", 5),)})
