"""One attempt: phases, reports, deadlines, manifest."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from coordination import CONFIG, PATHS, SHAPE
from driving import EVERYONE, make_ack, make_manifest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.adapt import AlignmentTimeout, Observed
from tidegate.core.checkpoint.attempt import (
    LEGAL_PHASES,
    CheckpointAttempt,
    CheckpointPhase,
    Expired,
    Promote,
    assemble,
    uuid7,
)
from tidegate.core.checkpoint.manifest import CommittableEntry, InFlightEntry, ObjectEntry
from tidegate.core.control.ask import ControlChanged
from tidegate.errors import (
    BarrierInjectionFailed,
    CheckpointTimeout,
    ManifestSerializationFailed,
    UnexpectedPhase,
)

P = CheckpointPhase


def attempt(**changes: Any) -> CheckpointAttempt:
    fields: dict[str, Any] = {
        "checkpoint_id": 5,
        "epoch": 3,
        "parent": None,
        "gang": 0,
        "term": 0,
        "nodes": EVERYONE,
        "sources": EVERYONE,
        "started_ms": 100,
    }
    return CheckpointAttempt(**(fields | changes))


def waiting() -> CheckpointAttempt:
    live = attempt()
    for node in EVERYONE:
        live.injection_acked(node, 150)
    return live


@pytest.mark.parametrize(("here", "there"), list(product(CheckpointPhase, repeat=2)))
def test_only_legal_moves_are_made_and_illegal_ones_change_nothing(here: P, there: P) -> None:
    live = attempt()
    live.phase = here
    if there in LEGAL_PHASES[here]:
        live.move(there)
        assert live.phase is there
    else:
        with pytest.raises(UnexpectedPhase):
            live.move(there)
        assert live.phase is here


def test_injection_is_over_when_every_source_has_taken_the_barrier() -> None:
    live = attempt()
    live.injection_acked(0, 110)
    live.injection_acked(0, 115)
    assert live.phase is P.INJECTING_BARRIERS
    live.injection_acked(1, 120)
    assert live.phase is P.WAITING_FOR_PREPARE and live.progress_ms == 120
    live.injection_acked(1, 130)
    assert live.progress_ms == 120


@pytest.mark.parametrize("changes", [{"final": True}, {"sources": frozenset()}])
def test_without_barriers_to_inject_it_waits_for_reports_at_once(changes: dict[str, Any]) -> None:
    assert attempt(**changes).phase is P.WAITING_FOR_PREPARE


def test_a_report_may_come_before_its_injection_ack_and_implies_it() -> None:
    live = attempt()
    assert live.prepared(make_ack(0, 5), 110)
    assert live.prepared(make_ack(1, 5), 120)
    assert live.phase is P.WAITING_FOR_PREPARE and live.missing == frozenset()


def test_a_second_report_of_a_node_does_not_count() -> None:
    live = attempt()
    assert live.prepared(make_ack(0, 5), 110)
    assert not live.prepared(make_ack(0, 5, rows=False), 120)
    assert live.acks[0].committables and live.missing == {1}


def test_sources_that_do_not_take_the_barrier_in_time_are_named() -> None:
    live = attempt()
    live.injection_acked(0, 110)
    late = live.overdue(replace(CONFIG, unaligned_threshold_ms=900), 500)
    assert isinstance(late, Expired) and isinstance(late.error, BarrierInjectionFailed)
    assert "nodes=[1]" in str(late.error)


def test_nodes_that_stay_silent_for_too_long_are_named() -> None:
    live = waiting()
    live.promoted = True
    live.prepared(make_ack(1, 5), 200)
    assert live.overdue(CONFIG, 799) is None
    assert live.deadline_ms(CONFIG) == 800
    late = live.overdue(CONFIG, 800)
    assert isinstance(late, Expired) and isinstance(late.error, CheckpointTimeout)
    assert "nodes=[0]" in str(late.error)


def test_the_timeout_ends_it_whatever_progress_there_was() -> None:
    live = waiting()
    live.prepared(make_ack(1, 5), 1_000)
    live.promoted = True
    assert live.deadline_ms(CONFIG) == 1_100
    late = live.overdue(CONFIG, 1_100)
    assert isinstance(late, Expired) and "too long" in str(late.error)


def test_the_threshold_promotes_once() -> None:
    live = waiting()
    assert live.deadline_ms(CONFIG) == 400
    assert live.overdue(CONFIG, 399) is None
    assert live.overdue(CONFIG, 400) == Promote()
    live.promoted = True
    assert live.overdue(CONFIG, 400) is None


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({"savepoint": "s"}, CONFIG),
        ({"final": True}, CONFIG),
        ({"control": ControlChanged(pinned=True)}, CONFIG),
        ({}, replace(CONFIG, enable_unaligned_fallback=False)),
    ],
)
def test_savepoints_final_and_aligned_only_checkpoints_are_never_promoted(changes: dict[str, Any], config: Any) -> None:
    live = attempt(**changes)
    assert live.alignment_timeout_ms(config) is None
    assert live.overdue(config, 450) is None or not isinstance(live.overdue(config, 450), Promote)


def test_a_commit_teaches_how_long_its_last_report_took() -> None:
    live, begin = attempt(learned_alignment_timeout_ms=300), AlignmentTimeout.around(300, 10_000)
    for node in EVERYONE:
        live.prepared(make_ack(node, 5), 600)
    assert live.learned(begin, unaligned=False) == begin.learned(Observed(False, 500, 300)) != begin
    assert live.learned(begin, unaligned=True) == begin.learned(Observed(True, 500, 300))
    assert live.learned(None, unaligned=False) is None


@pytest.mark.parametrize(
    "changes",
    [{"learned_alignment_timeout_ms": None}, {"final": True}, {"savepoint": "s"}, {"control": ControlChanged(pinned=True)}],
)
def test_what_may_not_overtake_teaches_nothing(changes: dict[str, Any]) -> None:
    live, begin = attempt(**({"learned_alignment_timeout_ms": 300} | changes)), AlignmentTimeout.around(300, 10_000)
    live.progress_ms = 10_000
    assert live.learned(begin, unaligned=False) is begin


def test_what_may_overtake_from_the_start_needs_no_promotion() -> None:
    config = replace(CONFIG, unaligned_threshold_ms=0)
    live = waiting()
    assert live.alignment_timeout_ms(config) == 0
    assert live.overdue(config, 450) is None


def test_once_the_put_is_under_way_no_deadline_exists() -> None:
    live = waiting()
    live.move(P.COMMITTING)
    assert not live.can_abort
    assert live.deadline_ms(CONFIG) is None
    assert live.overdue(CONFIG, 10**9) is None


def test_while_injecting_the_injection_deadline_counts() -> None:
    assert attempt().deadline_ms(replace(CONFIG, unaligned_threshold_ms=900)) == 500


def complete(**changes: Any) -> CheckpointAttempt:
    live = attempt()
    for node in EVERYONE:
        live.prepared(make_ack(node, 5, **changes), 110)
    return live


def build(live: CheckpointAttempt, committables: tuple[CommittableEntry, ...] = ()) -> Any:
    return assemble(live, SHAPE, committables, oldest=1, leader="me", wall_ms=1_700_000_000_000)


def test_the_manifest_has_every_nodes_entries() -> None:
    manifest = build(complete())
    assert {(e.operator, e.subtask) for e in manifest.operators} == {("window", 0), ("window", 1)}
    assert {(e.operator, e.subtask) for e in manifest.sources} == {("read", 0), ("read", 1)}
    assert {o.path for o in manifest.objects} == {PATHS.state(5, 0), PATHS.state(5, 1)}
    assert [stats.node for stats in manifest.nodes] == [0, 1]
    assert manifest.plan == SHAPE.fingerprint and manifest.oldest_restorable == 1
    assert not manifest.is_unaligned


def test_a_committable_gets_the_epoch_that_names_it_first_and_keeps_it() -> None:
    old, new = CommittableEntry("out", 0, 0, 4, {}, 2), CommittableEntry("out", 0, 0, 5, {})
    manifest = build(complete(), (old, new))
    assert [c.epoch for c in manifest.committables] == [2, 3]


def test_recorded_data_makes_it_unaligned() -> None:
    path = PATHS.inflight(5, "window", 0, "1-0")
    flight = InFlightEntry("window", 0, "in", 1, 0, path, 0, 4, 9, 1, 4)
    live = attempt()
    ack = make_ack(0, 5)
    live.prepared(replace(ack, inflight=(flight,), objects=(*ack.objects, ObjectEntry(path, 4, 9))), 110)
    live.prepared(make_ack(1, 5), 110)
    assert build(live).is_unaligned
    assert build(complete(unaligned=True)).is_unaligned


def test_reports_that_disagree_about_an_object_make_no_manifest() -> None:
    live = attempt()
    live.prepared(make_ack(0, 5), 110)
    other = make_ack(1, 5)
    run = replace(other.operators[0].runs[0], path=PATHS.state(5, 0))
    operator = replace(other.operators[0], runs=(run,))
    live.prepared(replace(other, operators=(operator,), objects=(ObjectEntry(PATHS.state(5, 0), 11, 1),)), 110)
    with pytest.raises(ManifestSerializationFailed, match="disagree"):
        build(live)


def test_a_run_uploaded_for_an_attempt_that_did_not_commit_cannot_be_named() -> None:
    live = attempt(parent=make_manifest(2))
    ack = make_ack(0, 5)
    run = replace(ack.operators[0].runs[0], path=PATHS.shared(4, "run"))
    reused = replace(ack.operators[0], runs=(run,))
    live.prepared(replace(ack, operators=(reused,), objects=(ObjectEntry(PATHS.shared(4, "run"), 10, 1),)), 110)
    live.prepared(make_ack(1, 5), 110)
    with pytest.raises(ManifestSerializationFailed, match="neither it nor its parent"):
        build(live)


@given(st.integers(0, 2**48 - 1), st.text(max_size=20))
def test_a_uuid_is_of_version_7_and_carries_the_time(wall_ms: int, seed: str) -> None:
    text = uuid7(wall_ms, seed)
    assert replace(make_manifest(3), uuid=text).uuid == text
    assert int(text[:8] + text[9:13], 16) == wall_ms


def test_uuids_of_different_seeds_differ() -> None:
    assert uuid7(1, "a") != uuid7(1, "b")
