"""The alignment as tables: (state, fact) becomes (state, outcomes)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.core.barrier.align import (
    PINNED_FLAG,
    Aligning,
    AlignmentState,
    BarrierAligner,
    Complete,
    Cut,
    Drop,
    Hold,
    Idle,
    KeyAligner,
    Outcome,
    Recording,
    RecordingDone,
    StopRecording,
    UnalignedCheckpointConfig,
    Waiting,
    as_aligned,
    as_pinned,
)
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.errors import BarrierOverlap, DuplicateBarrier, InvalidUseError, ProtocolError

B1, B2, B3 = (CheckpointBarrier(n, n) for n in (1, 2, 3))
U1, U2, U3 = (barrier.as_unaligned() for barrier in (B1, B2, B3))


def only(*inputs: int) -> frozenset[int]:
    return frozenset(inputs)


# -- the configuration ---------------------------------------------------------------------------------------


def test_unaligned_config_defaults() -> None:
    config = UnalignedCheckpointConfig()
    assert config.enabled
    assert config.alignment_timeout_threshold_ms == 30_000
    assert config.max_inflight_buffer_bytes == 512 * 1024 * 1024
    assert not config.force_unaligned


@pytest.mark.parametrize(
    "wrong",
    [
        {"alignment_timeout_threshold_ms": -1},
        {"max_inflight_buffer_bytes": 0},
        {"enabled": False, "force_unaligned": True},
    ],
)
def test_a_config_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUseError):
        UnalignedCheckpointConfig(**wrong)  # type: ignore[arg-type]


def test_a_barrier_keeps_aligned_when_it_is_pinned_or_unaligned_mode_is_off() -> None:
    assert UnalignedCheckpointConfig(enabled=False).keeps_aligned(U1)
    assert UnalignedCheckpointConfig().keeps_aligned(as_pinned(B1))
    assert not UnalignedCheckpointConfig().keeps_aligned(B1)


def test_flags_are_set_and_cleared_without_touching_the_rest() -> None:
    assert as_aligned(U1) == B1
    assert as_aligned(B1) is B1
    assert as_pinned(U2) == CheckpointBarrier(2, 2, PINNED_FLAG)


# -- one key over a set of inputs ----------------------------------------------------------------------------


def test_a_key_is_complete_when_every_input_has_delivered_it() -> None:
    aligner = KeyAligner([7, 3, 9])
    assert aligner.arrive(3, "k") == Waiting("k", only(7, 9))
    assert aligner.arrive(9, "k") == Waiting("k", only(7))
    assert aligner.held == only(3, 9)
    assert aligner.arrive(7, "k") == Complete("k")
    assert aligner.held == only()


def test_a_refused_arrival_leaves_the_key_aligner_unchanged() -> None:
    aligner = KeyAligner([0, 1])
    aligner.arrive(0, "k")
    with pytest.raises(BarrierOverlap):
        aligner.arrive(1, "other")
    with pytest.raises(DuplicateBarrier):
        aligner.arrive(0, "k")
    with pytest.raises(ProtocolError):
        aligner.arrive(5, "k")
    assert aligner.held == only(0)
    assert aligner.arrive(1, "k") == Complete("k")


def test_an_ended_input_holds_no_key_back() -> None:
    aligner = KeyAligner([0, 1, 2])
    assert aligner.ended(2) is None
    assert aligner.arrive(0, "k") == Waiting("k", only(1))
    assert aligner.ended(2) == Waiting("k", only(1))
    assert aligner.ended(1) == Complete("k")


# -- checkpoint barriers: the table --------------------------------------------------------------------------

INPUTS = (0, 1, 2)
ALIGNING = Aligning(B2, only(0))
ALMOST = Aligning(B2, only(0, 1))
RECORDING = Recording(B2, only(1, 2))
LAST = Recording(B2, only(2))
NONE: list[Outcome] = []
Act = Callable[[BarrierAligner], list[Outcome]]
Row = tuple[str, AlignmentState, Act, AlignmentState, list[Outcome], int]

TABLE: list[Row] = [
    # an aligned barrier has its turn
    ("idle, first barrier", Idle(), lambda a: a.turn(0, B2), ALIGNING, [Hold(0)], 0),
    ("aligning, same id", ALIGNING, lambda a: a.turn(1, B2), ALMOST, [Hold(1)], 0),
    ("aligning, last", ALMOST, lambda a: a.turn(2, B2), Idle(), [Cut(B2, only()), RecordingDone(2, 2)], 2),
    ("aligning, newer", ALIGNING, lambda a: a.turn(1, B3), Aligning(B3, only(1)), [Drop(2, 3), Hold(1)], 2),
    ("aligning, older", ALIGNING, lambda a: a.turn(1, B1), ALIGNING, NONE, 0),
    ("recording, same id", RECORDING, lambda a: a.turn(1, B2), LAST, [StopRecording(1)], 0),
    ("recording, last", LAST, lambda a: a.turn(2, B2), Idle(), [StopRecording(2), RecordingDone(2, 2)], 2),
    ("recording, not missing", LAST, lambda a: a.turn(0, B2), LAST, NONE, 0),
    ("recording, newer", LAST, lambda a: a.turn(0, B3), Aligning(B3, only(0)), [Drop(2, 3), Hold(0)], 2),
    ("recording, older", LAST, lambda a: a.turn(2, B1), LAST, NONE, 0),
    # a barrier acts at receipt
    ("idle, flagged", Idle(), lambda a: a.overtake(U2, only(0)), Recording(U2, only(1, 2)), [Cut(U2, only(0, 1, 2)), StopRecording(0)], 0),  # noqa: E501
    ("idle, flagged, all known", Idle(), lambda a: a.overtake(U2, only(0, 1, 2)), Idle(), [Cut(U2, only(0, 1, 2)), StopRecording(0), StopRecording(1), StopRecording(2), RecordingDone(2, None)], 2),  # noqa: E501
    ("aligning, flagged", ALIGNING, lambda a: a.overtake(U2, only(1)), Recording(U2, only(2)), [Cut(U2, only(1, 2)), StopRecording(1)], 0),  # noqa: E501
    ("aligning, flagged, last", ALMOST, lambda a: a.overtake(U2, only(2)), Idle(), [Cut(U2, only(2)), StopRecording(2), RecordingDone(2, 2)], 2),  # noqa: E501
    ("aligning, flagged newer", ALIGNING, lambda a: a.overtake(U3, only(0)), Recording(U3, only(1, 2)), [Drop(2, 3), Cut(U3, only(0, 1, 2)), StopRecording(0)], 2),  # noqa: E501
    ("aligning, flagged older", ALIGNING, lambda a: a.overtake(U1, only(1)), ALIGNING, NONE, 0),
    ("recording, flagged", RECORDING, lambda a: a.overtake(U2, only(1)), LAST, [StopRecording(1)], 0),
    ("recording, flagged newer", LAST, lambda a: a.overtake(U3, only(0)), Recording(U3, only(1, 2)), [Drop(2, 3), Cut(U3, only(0, 1, 2)), StopRecording(0)], 2),  # noqa: E501
    # the deadline passes
    ("idle, nothing known", Idle(), lambda a: a.deadline(B2, only()), Idle(), NONE, 0),
    ("idle, one known", Idle(), lambda a: a.deadline(B2, only(1)), Recording(B2, only(0, 2)), [Cut(U2, only(0, 1, 2)), StopRecording(1)], 0),  # noqa: E501
    ("aligning, deadline", ALIGNING, lambda a: a.deadline(B2, only()), Recording(B2, only(1, 2)), [Cut(U2, only(1, 2))], 0),
    ("aligning, other deadline", ALIGNING, lambda a: a.deadline(B3, only()), ALIGNING, NONE, 0),
    ("recording, deadline", RECORDING, lambda a: a.deadline(B2, only()), RECORDING, NONE, 0),
    # an input ends
    ("idle, end received", Idle(), lambda a: a.end_received(0), Idle(), NONE, 0),
    ("aligning, end received", ALMOST, lambda a: a.end_received(2), ALMOST, NONE, 0),
    ("recording, end received", RECORDING, lambda a: a.end_received(1), LAST, [StopRecording(1)], 0),
    ("recording, last end received", LAST, lambda a: a.end_received(2), Idle(), [StopRecording(2), RecordingDone(2, 2)], 2),
    ("idle, end", Idle(), lambda a: a.ended(0), Idle(), NONE, 0),
    ("aligning, end", ALIGNING, lambda a: a.ended(1), ALIGNING, NONE, 0),
    ("aligning, last end", ALMOST, lambda a: a.ended(2), Idle(), [Cut(B2, only()), RecordingDone(2, 2)], 2),
    ("recording, end", RECORDING, lambda a: a.ended(1), LAST, [StopRecording(1)], 0),
    # an abort
    ("idle, abort", Idle(), lambda a: a.abort(2), Idle(), NONE, 2),
    ("aligning, abort", ALIGNING, lambda a: a.abort(2), Idle(), [Drop(2)], 2),
    ("aligning, abort above", ALIGNING, lambda a: a.abort(3), Idle(), [Drop(2)], 3),
    ("aligning, abort below", ALIGNING, lambda a: a.abort(1), ALIGNING, NONE, 1),
    ("recording, abort", RECORDING, lambda a: a.abort(2), Idle(), [Drop(2)], 2),
    ("recording, abort below", RECORDING, lambda a: a.abort(1), RECORDING, NONE, 1),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_each_fact_in_each_state(row: Row) -> None:
    _, before, act, after, outcomes, dead = row
    aligner = BarrierAligner(INPUTS)
    aligner.state = before
    assert act(aligner) == outcomes
    assert aligner.state == after
    assert aligner.dead == dead


DEAD: list[tuple[str, Act]] = [
    ("turn", lambda a: a.turn(0, B2)),
    ("overtake", lambda a: a.overtake(U2, only(0))),
    ("deadline", lambda a: a.deadline(B2, only(0, 1))),
    ("abort", lambda a: a.abort(1)),
]


@pytest.mark.parametrize("act", [act for _, act in DEAD], ids=[name for name, _ in DEAD])
def test_a_dead_id_changes_nothing(act: Act) -> None:
    aligner = BarrierAligner(INPUTS)
    aligner.abort(2)
    assert act(aligner) == []
    assert aligner.state == Idle()
    assert aligner.dead == 2


def test_ended_inputs_are_not_waited_for() -> None:
    aligner = BarrierAligner([4, 5])
    aligner.ended(5)
    assert aligner.turn(4, B1) == [Cut(B1, only()), RecordingDone(1, 4)]


def test_an_ended_input_is_not_recorded() -> None:
    aligner = BarrierAligner([4, 5, 6])
    aligner.ended(5)
    assert aligner.overtake(U1, only(4)) == [Cut(U1, only(4, 6)), StopRecording(4)]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_any_number_of_inputs_is_aligned_by_identity(count: int) -> None:
    aligner = BarrierAligner(range(count))
    for input_id in range(count - 1):
        assert aligner.turn(input_id, B1) == [Hold(input_id)]
    assert aligner.turn(count - 1, B1) == [Cut(B1, only()), RecordingDone(1, count - 1)]
    assert aligner.state == Idle()


def test_aborting_the_newer_id_first_ends_the_older_alignment() -> None:
    aligner = BarrierAligner([0, 1])
    aligner.turn(0, B1)
    assert aligner.abort(2) == [Drop(1)]
    assert aligner.abort(1) == []
    assert aligner.turn(1, B1) == []
    assert aligner.turn(1, B2) == []
    assert aligner.turn(1, B3) == [Hold(1)]
