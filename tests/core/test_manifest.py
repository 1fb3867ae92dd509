"""The manifest: its form, its own consistency, and what it may take from its parent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from coordination import PATHS
from driving import make_manifest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.manifest import (
    INLINE_BYTES_MAX,
    CheckpointManifest,
    CommittableEntry,
    InFlightEntry,
    NodeStats,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
    inline_bytes_max,
)
from tidegate.core.control.parameters import ParameterEntry
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError

OWN = PATHS.state(3, 0)
FLIGHT_PATH = PATHS.inflight(3, "window", 0, "1-1")
FLIGHT = InFlightEntry("window", 0, "in", 1, 1, FLIGHT_PATH, 0, 5, 7, 2, 5)
FULL: dict[str, Any] = {
    "is_unaligned": True,
    "operators": (
        OperatorSnapshotEntry("window", 0, {"closed": 5}, (RunEntry(OWN, 0, 10, 1, 3), RunEntry.of_bytes(b"ab", 9, 1))),
        OperatorSnapshotEntry("window", 1, {}),
    ),
    "sources": (SourceOffsetEntry("read", 0, {"a#0": 7}),),
    "inflight": (FLIGHT,),
    "committables": (CommittableEntry("out", 0, 0, 3, {"file": "x"}, 3),),
    "objects": (ObjectEntry(OWN, 10, 1), ObjectEntry(FLIGHT_PATH, 5, 7)),
    "nodes": (NodeStats(0, 15, 20, True),),
}


INLINE = ParameterEntry.of_bytes("inline", 2, b"value", 7)


def full(**changes: Any) -> CheckpointManifest:
    return replace(make_manifest(3, **FULL), **changes)


def test_a_manifest_round_trips() -> None:
    assert CheckpointManifest.from_json(full().to_json(), "p") == full()
    assert not full().is_savepoint
    assert make_manifest(3, savepoint="s").is_savepoint


def test_the_stored_form_is_versioned_json() -> None:
    plain = json.loads(full().to_json())
    assert plain["format_version"] == 1
    assert plain["operators"][0]["runs"][1]["inline"] == "YWI="


def test_an_inline_run_returns_its_bytes() -> None:
    assert RunEntry.of_bytes(b"ab", 9, 1).inline_bytes() == b"ab"
    assert RunEntry(OWN, 0, 1, 1, 1).inline_bytes() == b""


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": None, "inline": None},
        {"path": OWN, "inline": "YWI="},
        {"path": None, "inline": "YWI=", "length": 3},
        {"path": None, "inline": "YWI=", "length": 2, "offset": 1},
        {"path": None, "inline": "?", "length": 1},
        {"path": None, "inline": "ä", "length": 1},
        {"path": None, "inline": "A" * (2 * INLINE_BYTES_MAX + 4), "length": 1},
        {"path": OWN, "crc32c": 2**32},
    ],
)
def test_a_run_that_is_nowhere_or_stored_twice_is_refused(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"path": None, "offset": 0, "length": 0, "crc32c": 0, "rows": 0, "inline": None}
    with pytest.raises(InvalidUseError):
        RunEntry(**(fields | wrong))


def test_an_inline_run_has_a_limit() -> None:
    assert RunEntry.of_bytes(bytes(INLINE_BYTES_MAX), 0, 1).length == INLINE_BYTES_MAX
    with pytest.raises(InvalidUseError, match="too long"):
        RunEntry.of_bytes(bytes(INLINE_BYTES_MAX + 1), 0, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"format_version": 2}, "another version"),
        ({"term": 1}, "the id's term"),
        ({"checkpoint_id": 1 << 32, "term": 1}, "the id's term"),
        ({"epoch": 0}, "an epoch comes after"),
        ({"epoch": 1 << 48}, "an epoch comes after"),
        ({"gang": 3}, "an epoch comes after"),
        ({"parent": 3}, "a parent is an earlier"),
        ({"parent": 0}, "a parent is an earlier"),
        ({"oldest_restorable": 4}, "oldest restorable"),
        ({"parallelism": 0}, "subtask and a key group"),
        ({"key_groups": 0}, "subtask and a key group"),
        ({"uuid": "x"}, "version 7"),
        ({"job": "a/b"}, "job name"),
        ({"operators": FULL["operators"] * 2}, "operator state comes twice"),
        ({"sources": FULL["sources"] * 2}, "source offset comes twice"),
        ({"inflight": (FLIGHT, FLIGHT)}, "in-flight data comes twice"),
        ({"committables": FULL["committables"] * 2}, "committable comes twice"),
        ({"objects": (*FULL["objects"], ObjectEntry(OWN, 9, 1))}, "object comes twice"),
        ({"sources": (SourceOffsetEntry("read", 2, None),)}, "no such subtask"),
        ({"sources": (SourceOffsetEntry("read", 0, 7, (RunEntry(OWN, 5, 6, 1, 1),)),)}, "no listed object"),
        ({"committables": (CommittableEntry("out", 0, 0, 3, {}, 0),)}, "of another epoch"),
        ({"committables": (CommittableEntry("out", 0, 0, 3, {}, 4),)}, "of another epoch"),
        ({"committables": (CommittableEntry("out", 0, 0, 4, {}, 3),)}, "of another epoch"),
        ({"parameters": (INLINE, INLINE)}, "parameter comes twice"),
        ({"parameters": (ParameterEntry("p", 1, PATHS.shared(1, "v"), 9, 1),)}, "no listed object"),
        ({"objects": FULL["objects"][1:]}, "no listed object"),
        ({"objects": (ObjectEntry(OWN, 9, 1), FULL["objects"][1])}, "no listed object"),
        ({"objects": (*FULL["objects"], ObjectEntry("job/_latest", 9, 1))}, "not an object of this job"),
        ({"objects": (*FULL["objects"], ObjectEntry(PATHS.state(4, 0), 9, 1))}, "not an object of this job"),
        ({"is_unaligned": False}, "in-flight data"),
        ({"final": True}, "in-flight data"),
        ({"savepoint": "s"}, "in-flight data"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUseError, match=message):
        full(**wrong)


def test_a_manifest_of_an_earlier_version_has_no_parameters() -> None:
    plain = json.loads(full().to_json())
    assert plain.pop("parameters") == []
    assert CheckpointManifest.from_json(json.dumps(plain).encode(), "p") == full()
    with pytest.raises(CorruptDataError):
        CheckpointManifest.from_json(b"[]", "p")


def test_the_value_of_a_parameter_may_be_older_than_the_checkpoint() -> None:
    """It was uploaded once, when it was set, and the attempt that it was uploaded for may not have committed."""
    value = ObjectEntry(PATHS.shared(1, "signal-r1"), 9, 1)
    entry = ParameterEntry("rules", 1, value.path, 9, 1)
    manifest = make_manifest(3, operators=(), objects=(value,), parameters=(entry, INLINE))
    manifest.check_parent(None)
    assert value.path in manifest.object_paths()
    assert CheckpointManifest.from_json(manifest.to_json(), "p") == manifest
    with pytest.raises(InvalidUseError, match="neither it nor its parent"):
        make_manifest(3, operators=(), objects=(value,)).check_parent(None)


def test_objects_of_the_parent_may_be_named_and_no_others() -> None:
    old = ObjectEntry(PATHS.shared(2, "r"), 4, 5)
    run = OperatorSnapshotEntry("window", 0, {}, (RunEntry(old.path, 0, 4, 5, 1),))
    parent = make_manifest(2, operators=(run,), objects=(old,))
    child = make_manifest(3, parent=2, operators=(run,), objects=(old,))
    child.check_parent(parent)
    stranger = make_manifest(2)
    with pytest.raises(InvalidUseError, match="neither it nor its parent"):
        child.check_parent(stranger)
    changed = make_manifest(2, operators=(run,), objects=(ObjectEntry(old.path, 4, 6),))
    with pytest.raises(InvalidUseError, match="neither it nor its parent"):
        child.check_parent(changed)


def test_after_a_lost_parent_objects_are_newer_than_the_nearest_known_or_its_own() -> None:
    def child(of: int, crc: int = 5) -> CheckpointManifest:
        entry = ObjectEntry(PATHS.shared(of, "r"), 4, crc)
        run = OperatorSnapshotEntry("window", 0, {}, (RunEntry(entry.path, 0, 4, crc, 1),))
        return make_manifest(4, parent=3, operators=(run,), objects=(entry,))

    known = replace(child(2), epoch=2, parent=None, checkpoint_id=2)
    for fine in (child(2), child(3), child(4)):
        fine.check_lost_parent(3, known)
    child(1).check_lost_parent(3, None)
    for wrong in (child(1), child(2, crc=6)):
        with pytest.raises(InvalidUseError, match="neither it nor its parent"):
            wrong.check_lost_parent(3, known)
    with pytest.raises(InvalidUseError, match="not this manifest's parent"):
        child(3).check_lost_parent(2, known)


def test_a_manifest_knows_its_parent() -> None:
    make_manifest(3).check_parent(None)
    for manifest, parent in ((make_manifest(3, parent=2), None), (make_manifest(3), make_manifest(2))):
        with pytest.raises(InvalidUseError, match="not this manifest's parent"):
            manifest.check_parent(parent)


def test_corrupt_bytes_name_the_path() -> None:
    data = full().to_json().replace(b'"epoch":3', b'"epoch":-3')
    with pytest.raises(CorruptDataError) as caught:
        CheckpointManifest.from_json(data, "job/log/3.json")
    assert caught.value.path == "job/log/3.json"


@given(st.data())
def test_a_damaged_manifest_never_raises_anything_but_our_error(data: st.DataObject) -> None:
    stored = bytearray(full().to_json())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(stored) - 1))
        stored[index] = data.draw(st.integers(0, 255))
    try:
        CheckpointManifest.from_json(bytes(stored), "p")
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)


@given(st.binary())
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        CheckpointManifest.from_json(data, "p")


def test_object_paths_are_all_it_needs() -> None:
    assert full().object_paths() == {OWN, FLIGHT_PATH}


def test_all_nodes_together_stay_below_what_a_manifest_may_hold_inline() -> None:
    assert [inline_bytes_max(nodes) for nodes in (1, 16, 64)] == [4096, 4096, 1024]
    assert all(inline_bytes_max(nodes) * nodes <= INLINE_BYTES_MAX for nodes in range(1, 2_000))
