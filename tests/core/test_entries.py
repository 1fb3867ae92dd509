"""Entries whose bytes have changed: what they were, and what later entries tell of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import pytest
from test_view import commit, restore, takeover
from torn import LOG, torn, unknown

from tidegate.core.log import entries as stored
from tidegate.core.log.codec import encode, seal
from tidegate.core.log.entries import Damaged, LogEntry, decode_entry, encode_entry, explained, missing_entry, read_entry
from tidegate.core.log.view import LogView
from tidegate.errors import CorruptDataError, InvalidUseError


@pytest.mark.parametrize("entry", [takeover(4), restore(5, 3), commit(1)], ids=lambda entry: entry.kind)
def test_whatever_bit_is_flipped_the_kind_is_still_told(entry: LogEntry) -> None:
    data = bytearray(encode_entry(entry))
    expected = torn(entry)
    assert expected.kind == entry.kind
    for index in range(len(data)):
        for bit in range(8):
            data[index] ^= 1 << bit
            assert read_entry(bytes(data), f"log/{entry.slot}", entry.slot) == expected
            data[index] ^= 1 << bit


def test_openings_are_so_different_that_flips_cannot_turn_one_into_another() -> None:
    for one, other in combinations(stored._OPENINGS.values(), 2):
        size = min(len(one), len(other))
        pairs = zip(one[:size], other[:size], strict=True)
        assert sum((a ^ b).bit_count() for a, b in pairs) > 2 * stored.FLIPS_MAX


@pytest.mark.parametrize("data", [b"", b"{", b'{"kind":"commit"', b"\x00" * 500, b'{"kind":"merge","slot":4}'])
def test_what_has_lost_its_opening_is_of_no_known_kind(data: bytes) -> None:
    assert unknown(4) == read_entry(data, "log/4", 4)


WHOLE = encode(takeover(4))


@pytest.mark.parametrize(
    "body",
    [
        b"[}",
        b'{"kind":"merge"}',
        b'{"kind":7}',
        b'{"kind":"takeover"}',
        WHOLE.replace(b'"format_version":1', b'"format_version":2'),
        WHOLE.replace(b'"term":4', b'"term":3'),
        WHOLE.replace(b'"t4"', b'""'),
        encode(commit(1)).replace(b'"slot":1', b'"slot":4'),
    ],
    ids=str,
)
def test_what_is_sealed_and_not_understood_is_no_damage_but_an_error(body: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        read_entry(seal(body), "log/4", 4)
    assert caught.value.path == "log/4"


def test_an_intact_entry_of_another_slot_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="another slot"):
        read_entry(encode_entry(takeover(5)), "log/4", 4)


@pytest.mark.parametrize(
    ("entry", "follower", "effect"),
    [
        (takeover(4), commit(5, 3, term=4), "takeover"),
        (takeover(4), restore(5, 3, term=4), "takeover"),
        (commit(4, 3), commit(5, 4), "commit"),
        (commit(4, 3), restore(5, 4), "commit"),
        (commit(4, 3), restore(5, 3), "none"),
        (restore(4, 3), commit(5, 3, gang=4), "restore"),
        (restore(4, 3), restore(5, 3), "none"),
        (commit(4, 3), takeover(5), "unclear"),
    ],
)
def test_what_nothing_is_left_of_is_told_by_what_follows(entry: LogEntry, follower: LogEntry, effect: str) -> None:
    (_, _, _, _, told, _) = explained([*LOG, unknown(4), follower])
    assert isinstance(told, Damaged) and told.effect == effect
    assert list(LogView([*LOG, unknown(4), follower]).lineage())[-3:] == [3, 2, 1]
    whole = LogView([*LOG, entry, follower])
    assert effect == "unclear" or list(LogView([*LOG, unknown(4), follower]).lineage()) == list(whole.lineage())


def test_a_gang_whose_first_commit_is_damaged_too_stays_unexplained() -> None:
    records = [*LOG, torn(restore(4, 1)), torn(commit(5, 1, gang=4)), commit(6, 5, gang=4)]
    assert [r.effect for r in explained(records) if isinstance(r, Damaged)] == ["unclear", "commit"]


# -- whole ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [takeover(4), restore(5, 3), commit(1)], ids=lambda entry: entry.kind)
def test_an_intact_entry_comes_back_and_a_torn_one_can_be_an_error(entry: LogEntry) -> None:
    data = encode_entry(entry)
    assert decode_entry(data, "log/x", entry.slot) == read_entry(data, "log/x", entry.slot) == entry
    with pytest.raises(CorruptDataError, match="damaged"):
        decode_entry(data[:-1], "log/x", entry.slot)


def test_an_entry_too_long_to_be_sent_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "ENTRY_BYTES_MAX", 100)
    with pytest.raises(InvalidUseError, match="too long"):
        encode_entry(commit(1))


def test_what_may_have_been_a_commit_may_have_published_rows() -> None:
    records = explained([*LOG[:3], torn(LOG[3]), torn(takeover(4)), unknown(5)])
    assert [r.may_be_commit for r in records if isinstance(r, Damaged)] == [True, False, True]


def test_a_takeover_of_an_earlier_version_does_not_say_who_it_was() -> None:
    plain = json.loads(encode_entry(replace(takeover(4), host="there", pid=7, wall_ms=5)))
    for key in ("host", "pid", "wall_ms", "sha256"):
        del plain[key]
    data = seal(json.dumps(plain, separators=(",", ":")).encode())
    assert decode_entry(data, "p", 4) == takeover(4)


def test_a_commit_of_an_earlier_version_has_no_parameters() -> None:
    plain = json.loads(encode_entry(commit(4)))
    del plain["sha256"], plain["manifest"]["parameters"]
    assert decode_entry(seal(json.dumps(plain, separators=(",", ":")).encode()), "p", 4) == commit(4)


def test_a_damaged_base_did_nothing_and_one_that_is_gone_does_not_tell_what_it_was() -> None:
    base = LogView(LOG).summed_up("b")
    assert base is not None
    (*_, damaged) = explained([*LOG, torn(base)])
    assert isinstance(damaged, Damaged) and (damaged.kind, damaged.effect) == ("base", "none")
    assert not damaged.may_be_commit
    gone = missing_entry("log/4", 4)
    assert gone.kind is None and "is missing path=log/4" in gone.why


def test_what_was_before_a_commit_and_none_of_its_ancestors_was_nothing_that_matters() -> None:
    """A base, say."""
    (*_, record, _) = explained([*LOG, unknown(4), commit(5, 3)])
    assert isinstance(record, Damaged) and record.effect == "none"
