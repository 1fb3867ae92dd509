"""What a checkpoint holds and how it is written down (F-STREAM-013)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.session.snapshot import (
    Checkpoint,
    Inline,
    OperatorSnapshot,
    OperatorStateType,
    SstFile,
    checkpoint_name,
    parse_checkpoint_name,
)
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import EPOCH_LIMIT, U64_LIMIT

SAMPLE = Checkpoint(
    id=12,
    epoch=3,
    source_sequences={"bids": 1_000, "people": 0},
    sink_positions={"out": 17},
    operator_states={
        "per_key": OperatorSnapshot("per_key", OperatorStateType.WINDOW, Inline(b"\x00\xff state")),
        "matched": OperatorSnapshot("matched", OperatorStateType.JOIN, SstFile("state/12/matched.sst")),
    },
    watermarks={"bids": -5, "people": 1 << 40},
    wal_lsn=99,
)


def test_a_file_keeps_sequences_and_positions() -> None:
    """Of sources and of sinks, and the log's position: replay starts there."""
    loaded = Checkpoint.from_json(SAMPLE.to_json())
    assert loaded.source_sequences == {"bids": 1_000, "people": 0}
    assert loaded.sink_positions == {"out": 17}
    assert loaded.wal_lsn == 99


def test_a_file_keeps_watermarks() -> None:
    assert Checkpoint.from_json(SAMPLE.to_json()).watermarks == {"bids": -5, "people": 1 << 40}


def test_a_checkpoint_survives_its_file() -> None:
    assert Checkpoint.from_json(SAMPLE.to_json()) == SAMPLE
    assert Checkpoint.from_json(SAMPLE.to_json()).to_json() == SAMPLE.to_json()


names = st.text(min_size=1, max_size=8)
sequences = st.dictionaries(names, st.integers(0, U64_LIMIT - 1), max_size=3)
states = st.dictionaries(
    names,
    st.tuples(st.sampled_from(OperatorStateType), st.binary(max_size=9).map(Inline) | st.just(SstFile("a/b"))),
    max_size=3,
).map(lambda table: {name: OperatorSnapshot(name, *rest) for name, rest in table.items()})
checkpoints = st.builds(
    Checkpoint,
    id=st.integers(1, U64_LIMIT - 1),
    epoch=st.integers(0, EPOCH_LIMIT - 1),
    source_sequences=sequences,
    sink_positions=sequences,
    operator_states=states,
    watermarks=st.dictionaries(names, st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    wal_lsn=st.integers(0, U64_LIMIT - 1),
)


@given(checkpoints)
def test_any_checkpoint_survives_its_file(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_one_flipped_bit_is_found_wherever_it_is() -> None:
    whole = SAMPLE.to_json()
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                Checkpoint.from_json(bytes(damaged))


def test_a_file_cut_anywhere_is_corrupt_and_named() -> None:
    whole = SAMPLE.to_json()
    for cut in range(len(whole)):
        with pytest.raises(CorruptDataError, match="path=dir/file") as caught:
            Checkpoint.from_json(whole[:cut], path="dir/file")
        assert caught.value.path == "dir/file"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def file_of(body: Any, **top: Any) -> bytes:
    """A file with a right checksum over whatever body."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    head = {"format": "tidegate-checkpoint", "version": 1, "sha256": hashlib.sha256(canonical).hexdigest()}
    return json.dumps({**head, "checkpoint": body, **top}).encode()


def body_with(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(SAMPLE.to_json())["checkpoint"]
    return {**body, **fields}


@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        Checkpoint.from_json(data)


@given(st.sampled_from(sorted(body_with())), json_values)
def test_arbitrary_fields_give_a_checkpoint_or_our_error(field: str, value: Any) -> None:
    data = file_of(body_with(**{field: value}))
    try:
        checkpoint = Checkpoint.from_json(data)
    except CorruptDataError:
        return
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


@given(json_values)
def test_an_arbitrary_body_with_a_right_checksum_is_corrupt(body: Any) -> None:
    with pytest.raises(CorruptDataError):
        Checkpoint.from_json(file_of(body))


def state(**fields: Any) -> dict[str, Any]:
    return {"per_key": {"state_type": "window", "inline": "", **fields}}


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 0}, {"id": -1}, {"id": U64_LIMIT}, {"id": "12"}, {"id": True}, {"id": 1.0},
        {"epoch": EPOCH_LIMIT}, {"epoch": -1}, {"wal_lsn": -1}, {"wal_lsn": U64_LIMIT},
        {"wal_lsn": None}, {"more": 1},
        {"source_sequences": []}, {"source_sequences": {"a": -1}}, {"source_sequences": {"a": "1"}},
        {"sink_positions": {"a": U64_LIMIT}}, {"watermarks": {"a": 1 << 63}}, {"watermarks": {"a": 1.5}},
        {"operator_states": []}, {"operator_states": {"a": None}}, {"operator_states": {"a": {}}},
        {"operator_states": state(state_type="rocket")}, {"operator_states": state(state_type=None)},
        {"operator_states": state(inline="!")}, {"operator_states": state(inline=5)},
        {"operator_states": state(inline="é")}, {"operator_states": state(sst_file="a")},
        {"operator_states": {"a": {"state_type": "join", "sst_file": "../a"}}},
        {"operator_states": {"a": {"state_type": "join", "sst_file": 7}}},
    ],
)  # fmt: skip
def test_a_field_that_no_checkpoint_has_is_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        Checkpoint.from_json(file_of(body_with(**fields)))
    assert Checkpoint.from_json(file_of(body_with())) == SAMPLE, "the frame itself is right"


@pytest.mark.parametrize(
    ("top", "why"),
    [
        ({"format": "other"}, "format"), ({"version": 2}, "version=2"), ({"version": True}, "version=True"),
        ({"sha256": "0" * 64}, "checksum"), ({"sha256": None}, "checksum"),
        ({"more": 1}, "exactly the fields"),
    ],
)  # fmt: skip
def test_another_format_version_or_checksum_is_refused(top: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptDataError, match=why):
        Checkpoint.from_json(file_of(body_with(), **top))


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"-Infinity", b'{"a":1,"a":2}', b"9" * 5_000, b"\xff\xfe",
     b"\xef\xbb\xbf{}"],
)  # fmt: skip
def test_hostile_json_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        Checkpoint.from_json(data)


def test_a_field_that_comes_twice_is_corrupt() -> None:
    twice = SAMPLE.to_json().replace(b'"version":1', b'"version":1,"version":1')
    with pytest.raises(CorruptDataError, match="twice"):
        Checkpoint.from_json(twice)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b"])
def test_a_state_file_stays_below_its_directory(path: str) -> None:
    with pytest.raises(InvalidUseError):
        SstFile(path)


def test_state_is_under_its_operators_name() -> None:
    snapshot = OperatorSnapshot("a", OperatorStateType.PROCESS, Inline(b""))
    with pytest.raises(InvalidUseError, match="operator=b"):
        Checkpoint(1, 1, operator_states={"b": snapshot})


def test_a_checkpoint_does_not_change_with_what_it_was_made_from() -> None:
    positions = {"out": 1}
    checkpoint = Checkpoint(1, 1, sink_positions=positions)
    positions["out"] = 2
    assert checkpoint.sink_positions == {"out": 1}


def test_inline_state_is_base64() -> None:
    body = json.loads(SAMPLE.to_json())["checkpoint"]
    assert base64.b64decode(body["operator_states"]["per_key"]["inline"]) == b"\x00\xff state"


# -- names -------------------------------------------------------------------------------------------


@given(st.integers(1, U64_LIMIT - 1), st.integers(1, U64_LIMIT - 1))
def test_names_sort_like_ids(one: int, other: int) -> None:
    assert parse_checkpoint_name(checkpoint_name(one)) == one
    assert (checkpoint_name(one) < checkpoint_name(other)) == (one < other)


@pytest.mark.parametrize("checkpoint_id", [0, -1, U64_LIMIT])
def test_what_is_no_id_has_no_name(checkpoint_id: int) -> None:
    with pytest.raises(InvalidUseError):
        checkpoint_name(checkpoint_id)


@pytest.mark.parametrize(
    "name",
    ["", "checkpoint-1.json", f"checkpoint-{0:020d}.json", "checkpoint-" + "9" * 20 + ".json", "x" * 30,
     f"checkpoint-{1:020d}.json\n", f"_checkpoint-{1:020d}.json"],
)  # fmt: skip
def test_other_names_have_no_id(name: str) -> None:
    assert parse_checkpoint_name(name) is None
