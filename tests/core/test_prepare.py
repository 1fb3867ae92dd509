"""Node reports, and what the plan demands of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordination import PATHS, SHAPE
from driving import make_ack, make_manifest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.manifest import (
    CommittableEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.checkpoint.prepare import ChannelRef, ChannelShape, PlanShape, PrepareAck, TaskReport
from tidegate.errors import CorruptDataError, InvalidUseError

ACK = make_ack(1, 5)
WIRED = replace(
    SHAPE,
    channels=frozenset({ChannelShape("read", "out", 0, "hash"), ChannelShape("read", "in", 1, "forward")}),
)
REPORTED = (ChannelRef("out", 0, 0), ChannelRef("out", 0, 1), ChannelRef("in", 1, 1))


def test_an_ack_round_trips() -> None:
    assert PrepareAck.from_json(ACK.to_json()) == ACK


@given(st.binary())
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        PrepareAck.from_json(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format_version": 9},
        {"term": 1},
        {"checkpoint_id": 0},
        {"committables": (CommittableEntry("out", 1, 9, 5, {}),)},
        {"committables": (CommittableEntry("out", 1, 0, 6, {}),)},
    ],
)
def test_an_ack_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError):
        replace(ACK, **wrong)


def test_a_complete_ack_has_no_faults() -> None:
    assert SHAPE.faults(ACK) == ()
    assert SHAPE.faults(replace(ACK, tasks=(TaskReport("read", 1, "finished"),))) == ()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tasks": ()}, "missing task read/1"),
        ({"operators": ()}, "missing operator window/1"),
        ({"sources": ()}, "missing source read/1"),
        ({"sinks": (), "committables": ()}, "missing sink out/1"),
        (
            {"operators": (*ACK.operators, OperatorSnapshotEntry("window", 0, {}))},
            "unexpected operator window/0",
        ),
        ({"sources": (*ACK.sources, SourceOffsetEntry("other", 1, {}))}, "unexpected source other/1"),
        ({"committables": (CommittableEntry("foreign", 1, 0, 5, {}),)}, "unexpected sink foreign/1"),
    ],
)
def test_a_part_too_few_or_too_many_is_a_fault(change: dict[str, Any], fault: str) -> None:
    assert SHAPE.faults(replace(ACK, **change)) == (fault,)


def test_every_channel_must_be_reported() -> None:
    whole = replace(ACK, tasks=(TaskReport("read", 1, "fired", REPORTED),))
    assert WIRED.faults(whole) == ()
    for left_out in REPORTED:
        channels = tuple(ref for ref in REPORTED if ref != left_out)
        faults = WIRED.faults(replace(ACK, tasks=(TaskReport("read", 1, "fired", channels),)))
        assert len(faults) == 1 and faults[0].startswith("missing channel read/1")


def test_a_node_that_hosts_nothing_has_nothing_to_report() -> None:
    idle = PrepareAck(node=7, gang=0, term=0, checkpoint_id=5)
    assert SHAPE.faults(idle) == ()


def test_the_manifest_keeps_what_the_named_channels_connect_and_no_others() -> None:
    shape: PlanShape = replace(SHAPE, edges={2: "read -> window:0", 10: "window -> out:0", 11: "read -> out:0"})
    assert list(shape.edges_of([10, 2, 10, 7]).items()) == [("2", "read -> window:0"), ("10", "window -> out:0")]


def test_uncovered_names_the_subtasks_without_a_node() -> None:
    assert SHAPE.uncovered({0, 1, 5}) == ()
    assert SHAPE.uncovered({1}) == (0,)


def test_objects_that_no_entry_names_are_left_out() -> None:
    extra = ObjectEntry(PATHS.state(5, 9), 1, 1)
    assert replace(ACK, objects=(*ACK.objects, extra)).used_objects() == ACK.objects
    source = SourceOffsetEntry("read", 1, {}, (RunEntry(extra.path, 0, extra.size_bytes, extra.crc32c, 1),))
    assert replace(ACK, sources=(source,), objects=(*ACK.objects, extra)).used_objects() == (*ACK.objects, extra)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_groups": 64}, "key groups were 128 and are now 64"),
        ({"fingerprint": {}}, "operator 'window' has saved state and is no longer in the plan"),
        ({"fingerprint": {"window": {"kind": "tumbling"}, "x": 1}}, "operator 'x' is new"),
        (
            {"fingerprint": {"window": {"kind": "sliding"}}},
            "operator 'window' was .*tumbling.* and is now .*sliding",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    found = replace(SHAPE, **changes).difference(make_manifest(3))
    assert found is not None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found)


def test_another_parallelism_fits() -> None:
    shape: PlanShape = replace(SHAPE, parallelism=7)
    assert shape.difference(make_manifest(3)) is None


def test_rows_that_no_operator_of_the_plan_would_take_are_named() -> None:
    held = replace(SHAPE, operators=frozenset()).difference(make_manifest(3))
    assert held is not None and "operator 'window' held rows" in held and ".named()" in held


def test_rows_in_flight_on_an_edge_that_is_gone_are_named() -> None:
    manifest = make_manifest(3, edges={"0": "source -> window:0"})
    assert replace(SHAPE, edges={4: "source -> window:0"}).difference(manifest) is None
    lost = replace(SHAPE, edges={4: "source -> other:0"}).difference(manifest)
    assert lost is not None and "in flight on the edge source -> window:0" in lost


def test_every_node_hosts_a_subtask_of_every_source() -> None:
    assert PlanShape(job="j", parallelism=3, sources=frozenset({"a", "b"})).source_count == 2
