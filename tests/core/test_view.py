"""The log: entries, and what a prefix of them adds up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driving import make_manifest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.log import entries
from tidegate.core.log.view import (
    Commit,
    LogEntry,
    LogRecord,
    LogView,
    Restore,
    Takeover,
    decode_entry,
    encode_entry,
)
from tidegate.errors import CorruptDataError, InvalidUseError


def takeover(slot: int) -> Takeover:
    return Takeover(slot=slot, term=slot, write_id=f"t{slot}", leader="me")


def restore(slot: int, parent: int | None, term: int = 0) -> Restore:
    return Restore(slot=slot, term=term, write_id=f"r{slot}", parent=parent, reason="lost")


def commit(slot: int, parent: int | None = None, term: int = 0, **changes: Any) -> Commit:
    manifest = make_manifest(slot, parent=parent, term=term, **changes)
    return Commit(slot=slot, term=term, write_id=f"c{slot}", manifest=manifest)


THREE: list[LogEntry] = [takeover(0), commit(1), commit(2, 1), commit(3, 2)]


@pytest.mark.parametrize("entry", [takeover(4), restore(5, None), restore(5, 3), commit(1)])
def test_an_entry_round_trips(entry: LogEntry) -> None:
    assert decode_entry(encode_entry(entry), "p", entry.slot) == entry


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b'{"kind":"compaction"}',
        b'{"kind":7}',
        b'{"kind":["takeover"]}',
        b'{"kind":"takeover"}',
        encode_entry(takeover(4)).replace(b'"format_version":1', b'"format_version":2'),
        encode_entry(takeover(4)).replace(b'"term":4', b'"term":3'),
        encode_entry(takeover(4)).replace(b'"t4"', b'""'),
        encode_entry(takeover(5)),
        encode_entry(commit(1)).replace(b'"slot":1', b'"slot":4'),
    ],
)
def test_an_entry_that_this_version_does_not_know_fails_closed(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode_entry(data, "job/log/4.json", 4)
    assert caught.value.path == "job/log/4.json"


@given(st.binary())
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_entry(data, "p", 0)


def test_an_entry_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 10)
    with pytest.raises(InvalidUseError, match="too long"):
        encode_entry(takeover(0))


def test_an_empty_log_says_nothing() -> None:
    view = LogView()
    assert (view.next_slot, view.term, view.gang, view.head, view.last_id) == (0, None, 0, None, 0)
    assert list(view.lineage()) == [] and view.restorables() == () and view.retained() == ()


def test_the_head_is_the_last_commit() -> None:
    view = LogView(THREE)
    assert view.head is not None and view.head.epoch == 3
    assert list(view.lineage()) == [3, 2, 1]
    assert (view.next_slot, view.term, view.gang, view.last_id) == (4, 0, 0, 3)


def test_the_head_is_the_parent_of_a_later_restore() -> None:
    view = LogView([*THREE, restore(4, 2)])
    assert view.head_epoch == 2 and view.gang == 4
    assert list(view.lineage()) == [2, 1]


def test_a_restore_is_not_undone_by_a_crash_and_a_new_leader() -> None:
    view = LogView([*THREE, restore(4, 1), takeover(5), restore(6, 1, term=5)])
    assert view.head_epoch == 1 and view.gang == 6 and view.term == 5
    view.apply(commit(7, 1, term=5, gang=6))
    assert list(view.lineage()) == [7, 1]


def test_a_restore_without_a_parent_begins_anew() -> None:
    view = LogView([*THREE, restore(4, None)])
    assert view.head is None and list(view.lineage()) == []
    view.apply(commit(5, None, gang=4))
    assert list(view.lineage()) == [5]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (takeover(5), "expected slot 4"),
        (takeover(3), "expected slot 4"),
        (commit(4, 3, term=1), "term was over"),
        (restore(4, 3, term=1), "term was over"),
        (restore(4, 9), "no checkpoint with this epoch"),
        (commit(4, 2), "not this manifest's parent"),
        (commit(4, 3, gang=2), "gang that was over"),
        (commit(4, 3, counter=3), "used again"),
    ],
)
def test_an_entry_that_does_not_follow_is_refused_and_changes_nothing(entry: LogEntry, message: str) -> None:
    view = LogView(THREE)
    with pytest.raises(CorruptDataError, match=message):
        view.apply(entry)
    assert (view.next_slot, view.head_epoch, view.term, view.gang) == (4, 3, 0, 0)


def test_a_commit_before_any_takeover_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="term was over"):
        LogView([restore(0, None)])


def test_nothing_follows_a_final_checkpoint_but_a_restore() -> None:
    view = LogView([takeover(0), commit(1), commit(2, 1, final=True)])
    with pytest.raises(CorruptDataError, match="final"):
        view.apply(commit(3, 2))
    view.apply(restore(3, 1))
    assert view.head_epoch == 1


def test_the_highest_oldest_restorable_in_the_log_is_in_force() -> None:
    view = LogView([takeover(0), commit(1), commit(2, 1, oldest_restorable=2), commit(3, 2, oldest_restorable=1)])
    assert view.oldest_restorable == 2
    assert [m.epoch for m in view.restorables()] == [3, 2]
    with pytest.raises(InvalidUseError, match="no longer retained"):
        view.restorable(1)
    with pytest.raises(CorruptDataError, match="no longer retained"):
        view.apply(restore(4, 1))


def test_an_epoch_outside_the_lineage_cannot_be_restored() -> None:
    view = LogView([*THREE, restore(4, 1)])
    with pytest.raises(InvalidUseError, match="left this checkpoint behind"):
        view.restorable(3)
    assert view.restorable(1).epoch == 1


def test_manifests_that_cannot_be_restored_leave_memory_and_savepoints_stay() -> None:
    entries: list[LogRecord] = [takeover(0), commit(1, savepoint="s"), commit(2, 1), commit(3, 2, oldest_restorable=3)]
    view = LogView(entries)
    assert [m.epoch for m in view.held()] == [1, 3]
    assert [m.epoch for m in view.retained()] == [1, 3]
    assert list(view.lineage()) == [3, 2], "nothing refers to epoch 1, and 2 is where a search ends"


def test_what_a_restore_left_behind_is_not_retained() -> None:
    view = LogView([*THREE, restore(4, 1)])
    assert [m.epoch for m in view.held()] == [1, 2, 3]
    assert [m.epoch for m in view.retained()] == [1]


def test_off_lineage_committables_are_those_first_named_by_a_lost_epoch() -> None:
    old = CommittableEntry("out", 0, 0, 1, {}, 1)
    new = CommittableEntry("out", 0, 0, 2, {}, 2)
    entries: list[LogRecord] = [takeover(0), commit(1, committables=(old,)), commit(2, 1, committables=(old, new))]
    assert LogView(entries).off_lineage() == ()
    assert LogView([*entries, restore(3, 1)]).off_lineage() == (new,)
    assert {c.epoch for c in LogView([*entries, restore(3, None)]).off_lineage()} == {1, 2}


def test_a_commit_entry_carries_the_manifest_of_its_slot() -> None:
    with pytest.raises(InvalidUseError, match="another slot or term"):
        replace(commit(1), slot=2)


def test_one_flipped_bit_anywhere_in_an_entry_is_noticed() -> None:
    entry = Takeover(slot=3, term=3, write_id="w/1", leader="l")
    data = bytearray(encode_entry(entry))
    for index in range(len(data)):
        for bit in range(8):
            data[index] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode_entry(bytes(data), "log/3", 3)
            data[index] ^= 1 << bit
    assert decode_entry(bytes(data), "log/3", 3) == entry
