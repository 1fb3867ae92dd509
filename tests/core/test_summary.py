"""The stored form of what a prefix of the log adds up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core import summary as module
from tidegate.core.codec import encode, seal
from tidegate.core.summary import KnownDamage, LogSummary, decode_summary, encode_summary
from tidegate.errors import CorruptDataError, InvalidUseError

SUMMARY = LogSummary(
    next_slot=12,
    write_id="w/9",
    term=8,
    gang=9,
    last_id=(8 << 32) + 2,
    oldest_restorable=4,
    lineage=(2, 4, 5, 10, 11),
    left=(6, 7),
    held=(2, 4, 6, 7, 10, 11),
    damage=(KnownDamage(1, "restore", None), KnownDamage(3, "restore", 2), KnownDamage(5, "commit")),
)
FIRST = LogSummary(next_slot=1, write_id="w/1", term=0, gang=0, last_id=0, oldest_restorable=0)


@pytest.mark.parametrize("summary", [SUMMARY, FIRST])
def test_a_summary_round_trips(summary: LogSummary) -> None:
    assert decode_summary(encode_summary(summary), "p") == summary


def test_a_summary_names_the_slots_that_are_still_to_be_read() -> None:
    assert SUMMARY.slots == (1, 2, 3, 4, 5, 6, 7, 10, 11)
    assert FIRST.slots == (0,), "the last entry tells whose log it is"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "another version"),
        ({"write_id": ""}, "write id"),
        ({"term": 12}, "have had their slots"),
        ({"gang": 12}, "have had their slots"),
        ({"oldest_restorable": 12}, "have had their slots"),
        ({"lineage": (4, 2, 5, 10, 11)}, "slots ascend"),
        ({"lineage": (4, 4, 5, 10, 11)}, "slots ascend"),
        ({"lineage": (4, 5, 12)}, "slots ascend"),
        ({"left": (7, 6)}, "slots ascend"),
        ({"held": (2, 4, 6, 7, 10, 11, 12)}, "slots ascend"),
        ({"damage": (KnownDamage(5, "commit"), KnownDamage(5, "commit"))}, "slots ascend"),
        ({"left": (5, 7)}, "or left behind"),
        ({"held": (2, 4, 5, 6, 7, 10, 11)}, "is not damaged"),
        ({"held": (2, 4, 6, 7, 11)}, "held or damaged"),
        ({"damage": (KnownDamage(5, "takeover"),)}, "held or damaged"),
    ],
)
def test_a_summary_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUseError, match=message):
        replace(SUMMARY, **changes)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        encode(SUMMARY).replace(b'"term":8', b'"term":-1'),
        encode(SUMMARY).replace(b'"term":8', b'"term":99'),
        encode(SUMMARY).replace(b'"format_version":1', b'"format_version":2'),
        encode(SUMMARY).replace(b'"effect":"commit"', b'"effect":"unclear"'),
        encode(SUMMARY).replace(b'"left":[6,7]', b'"left":[6,"7"]'),
    ],
)
def test_other_things_under_a_whole_seal_are_refused(body: bytes) -> None:
    assert body != encode(SUMMARY)
    with pytest.raises(CorruptDataError) as caught:
        decode_summary(seal(body), "job/_summary")
    assert caught.value.path == "job/_summary"


def test_one_flipped_bit_anywhere_is_noticed() -> None:
    whole = encode_summary(SUMMARY)
    for place in range(len(whole)):
        for bit in range(8):
            flipped = whole[:place] + bytes((whole[place] ^ 1 << bit,)) + whole[place + 1 :]
            with pytest.raises(CorruptDataError, match="checksum"):
                decode_summary(flipped, "p")


@given(st.binary())
def test_arbitrary_bytes_are_no_summary(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_summary(data, "p")


def test_a_summary_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_summary(SUMMARY)
    monkeypatch.setattr(module, "SUMMARY_BYTES_MAX", len(whole) - 1)
    with pytest.raises(InvalidUseError, match="too long"):
        encode_summary(SUMMARY)
    with pytest.raises(CorruptDataError, match="too long"):
        decode_summary(whole, "p")
