"""The changelog buffer: bounded, never blocking, and honest about gaps (F-STREAM-013)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.session.changelog import (
    RECORD_BYTES,
    Change,
    ChangelogBuffer,
    ChangelogCut,
    ChangeRecord,
    OpType,
    replay,
)
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError
from tidegate.ids import U32_LIMIT, U64_LIMIT

INSERT, UPDATE, DELETE = OpType.INSERT, OpType.UPDATE, OpType.DELETE
RECORD = ChangeRecord(1, 2, INSERT, 3, 4, 5, 6)

changes = st.builds(
    Change,
    st.integers(0, (1 << 16) - 1),
    st.integers(0, U64_LIMIT - 1),
    st.sampled_from([INSERT, UPDATE]),
    st.binary(max_size=40),
    st.binary(max_size=40),
) | st.builds(Change, st.just(3), st.integers(0, 99), st.just(DELETE), st.binary(max_size=9))


# -- records -----------------------------------------------------------------------------------------


def test_a_record_has_25_bytes_and_survives_them() -> None:
    buffer = bytearray(2 * RECORD_BYTES)
    RECORD.pack_into(buffer, RECORD_BYTES)
    assert RECORD_BYTES == 25
    assert ChangeRecord.unpack_from(buffer, RECORD_BYTES) == RECORD
    assert buffer[RECORD_BYTES:] == bytes.fromhex("0100 0200000000000000 01 03000000 0400 05000000 06000000")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("source", 1 << 16), ("sequence", U64_LIMIT), ("key_offset", U32_LIMIT), ("key_len", 1 << 16),
        ("value_offset", U32_LIMIT), ("value_len", U32_LIMIT),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_refused_and_not_cut_off(name: str, limit: int) -> None:
    fields = {"source": 1, "sequence": 2, "key_offset": 3, "key_len": 4, "value_offset": 5, "value_len": 6}
    assert getattr(ChangeRecord(op_type=INSERT, **{**fields, name: limit - 1}), name) == limit - 1
    for value in (limit, -1):
        with pytest.raises(InvalidUseError, match=f"{name}={value}"):
            ChangeRecord(op_type=INSERT, **{**fields, name: value})


@pytest.mark.parametrize("offset", [-1, 1, 25])
def test_a_record_that_is_not_complete_is_corrupt(offset: int) -> None:
    with pytest.raises(CorruptDataError):
        ChangeRecord.unpack_from(bytes(RECORD_BYTES), offset)


@given(st.binary(max_size=30), st.integers(-3, 30))
def test_arbitrary_bytes_give_a_record_or_our_error(data: bytes, offset: int) -> None:
    try:
        record = ChangeRecord.unpack_from(data, offset)
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)
    else:
        buffer = bytearray(RECORD_BYTES)
        record.pack_into(buffer, 0)
        assert buffer == data[offset : offset + RECORD_BYTES]


# -- changes -----------------------------------------------------------------------------------------


@given(changes)
def test_a_change_survives_its_bytes(change: Change) -> None:
    assert Change.unpack(change.pack()) == change


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_a_change_or_our_error(data: bytes) -> None:
    try:
        change = Change.unpack(data)
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)
    else:
        assert change.pack() == data


@given(changes, st.data())
def test_a_change_that_is_cut_off_or_too_long_is_corrupt(change: Change, data: st.DataObject) -> None:
    whole = change.pack()
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"x"):
        with pytest.raises(CorruptDataError):
            Change.unpack(wrong)


def test_a_delete_with_a_value_is_refused_written_and_read() -> None:
    with pytest.raises(InvalidUseError, match="a delete has no value"):
        Change(1, 1, DELETE, b"k", b"v")
    forged = bytearray(Change(1, 1, UPDATE, b"k", b"v").pack())
    forged[10] = DELETE.value
    with pytest.raises(CorruptDataError, match="a delete has no value"):
        Change.unpack(bytes(forged))


def test_an_unknown_operation_is_corrupt() -> None:
    forged = bytearray(Change(1, 1, UPDATE, b"k", b"v").pack())
    forged[10] = 9
    with pytest.raises(CorruptDataError, match="op_type=9"):
        Change.unpack(bytes(forged))


def test_deletes_replay_as_deletes() -> None:
    tables: dict[int, dict[bytes, bytes]] = {0: {b"old": b"1"}, 1: {}}
    script = [
        Change(0, 1, INSERT, b"a", b"1"),
        Change(1, 7, INSERT, b"b", b"1"),
        Change(0, 2, UPDATE, b"a", b"2"),
        Change(0, 3, DELETE, b"old"),
        Change(1, 8, DELETE, b"b"),
    ]
    assert replay(script, tables.__getitem__) == {0: 3, 1: 8}
    assert tables == {0: {b"a": b"2"}, 1: {}}
    replay(script, tables.__getitem__)
    assert tables == {0: {b"a": b"2"}, 1: {}}, "a second replay changes nothing"


# -- the buffer --------------------------------------------------------------------------------------


def test_what_was_appended_comes_out_in_order_and_once() -> None:
    buffer = ChangelogBuffer(changes_max=4, data_bytes_max=100)
    assert buffer.append(0, 1, INSERT, b"key", b"value")
    assert buffer.append(9, 1, UPDATE, b"", b"")
    assert buffer.append(0, 2, DELETE, b"key")
    assert len(buffer) == 3
    assert buffer.drain() == [
        Change(0, 1, INSERT, b"key", b"value"), Change(9, 1, UPDATE, b""), Change(0, 2, DELETE, b"key")
    ]  # fmt: skip
    assert buffer.drain() == []
    assert not buffer.needs_full


@pytest.mark.parametrize("room", [{"changes_max": 2, "data_bytes_max": 100}, {"changes_max": 9, "data_bytes_max": 4}])
def test_overflow_never_blocks_and_marks_that_source_dirty(room: dict[str, int]) -> None:
    buffer = ChangelogBuffer(**room)
    assert buffer.append(0, 1, INSERT, b"a", b"1")
    assert buffer.append(1, 1, INSERT, b"b", b"1")
    assert not buffer.append(0, 2, INSERT, b"c", b"1")
    assert buffer.dirty == {0}
    assert buffer.needs_full


def test_after_a_gap_nothing_of_that_source_is_recorded() -> None:
    """Its later changes would be applied to a state that never was; the other sources go on."""
    buffer = ChangelogBuffer(changes_max=1)
    buffer.append(0, 1, INSERT, b"a", b"1")
    buffer.append(0, 2, INSERT, b"b", b"1")
    assert buffer.drain() == [Change(0, 1, INSERT, b"a", b"1")]
    assert not buffer.append(0, 3, INSERT, b"c", b"1"), "there is room again, and still a gap"
    assert buffer.append(1, 1, INSERT, b"d", b"1")
    assert buffer.dirty == {0}


def test_a_cut_takes_all_and_makes_sources_clean() -> None:
    buffer = ChangelogBuffer(changes_max=2)
    buffer.append(1, 1, INSERT, b"x", b"1")
    buffer.append(0, 1, INSERT, b"a", b"1")
    buffer.append(0, 2, INSERT, b"b", b"1")
    cut = buffer.cut()
    assert cut == ChangelogCut((Change(1, 1, INSERT, b"x", b"1"), Change(0, 1, INSERT, b"a", b"1")), frozenset({0}))
    assert cut.full
    assert not buffer.needs_full
    assert buffer.append(0, 3, INSERT, b"c", b"1")
    assert buffer.cut() == ChangelogCut((Change(0, 3, INSERT, b"c", b"1"),), frozenset())


def test_a_full_checkpoint_that_failed_leaves_its_sources_dirty() -> None:
    buffer = ChangelogBuffer(changes_max=1)
    buffer.append(0, 1, INSERT, b"a", b"1")
    buffer.append(0, 2, INSERT, b"b", b"1")
    buffer.mark_dirty(buffer.cut().dirty)
    assert buffer.dirty == {0}
    assert not buffer.append(0, 3, INSERT, b"c", b"1")


@pytest.mark.parametrize("source", [-1, 1 << 16])
def test_what_is_no_source_cannot_be_dirty(source: int) -> None:
    buffer = ChangelogBuffer()
    with pytest.raises(InvalidUseError):
        buffer.mark_dirty([1, source])
    assert buffer.dirty == frozenset()


@pytest.mark.parametrize(
    ("source", "sequence", "op_type", "key", "value"),
    [
        (1 << 16, 5, INSERT, b"k", b"v"), (-1, 5, INSERT, b"k", b"v"), (0, U64_LIMIT, INSERT, b"k", b"v"),
        (0, 5, INSERT, bytes(1 << 16), b""), (0, 5, DELETE, b"k", b"v"), (0, 4, INSERT, b"k", b"v"),
        (0, 3, INSERT, b"k", b"v"),
    ],
)  # fmt: skip
def test_a_refused_change_changes_nothing(source: int, sequence: int, op_type: OpType, key: bytes, value: bytes) -> None:
    buffer = ChangelogBuffer(changes_max=2)
    buffer.append(0, 4, INSERT, b"a", b"1")
    with pytest.raises(InvalidUseError):
        buffer.append(source, sequence, op_type, key, value)
    assert buffer.append(0, 5, INSERT, b"b", b"1")
    assert [change.key for change in buffer.drain()] == [b"a", b"b"]
    assert buffer.dirty == frozenset()


@pytest.mark.parametrize(("changes_max", "data_bytes_max"), [(0, 1), (-1, 1), (1, -1), (1, U32_LIMIT)])
def test_a_buffer_without_room_is_refused(changes_max: int, data_bytes_max: int) -> None:
    with pytest.raises(InvalidUseError, match="needs room"):
        ChangelogBuffer(changes_max=changes_max, data_bytes_max=data_bytes_max)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=6)) | st.just("drain"), max_size=60))
def test_the_log_of_a_clean_source_has_no_gap(script: list[tuple[int, bytes] | str]) -> None:
    """The drained log of each source is a prefix of its changes, and complete unless the source is dirty."""
    buffer = ChangelogBuffer(changes_max=3, data_bytes_max=16)
    sent: dict[int, list[int]] = {0: [], 1: [], 2: []}
    logged: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, step in enumerate([*script, "drain"]):
        if isinstance(step, tuple):
            sent[step[0]].append(number)
            buffer.append(step[0], number, INSERT, step[1], b"")
        else:
            for change in buffer.drain():
                logged[change.source].append(change.sequence)
    for source in sent:
        assert logged[source] == sent[source][: len(logged[source])]
        assert (logged[source] == sent[source]) == (source not in buffer.dirty)
