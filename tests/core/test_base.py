"""An entry that says what all before it add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.core.log.base import Base
from tidegate.core.log.entries import decode_entry, encode_entry
from tidegate.errors import InvalidUseError

BASE = Base(
    slot=12,
    write_id="w/9",
    term=8,
    gang=9,
    last_id=(8 << 32) + 2,
    oldest_restorable=4,
    lineage=(2, 4, 5, 10, 11),
    left=(6, 7),
    held=(2, 4, 6, 7, 10, 11),
    lost=(5,),
    unread=(3,),
)
FIRST = Base(slot=1, write_id="w/1", term=0, gang=0, last_id=0, oldest_restorable=0)


@pytest.mark.parametrize("base", [BASE, FIRST])
def test_a_base_round_trips(base: Base) -> None:
    assert decode_entry(encode_entry(base), "p", base.slot) == base


def test_a_base_names_the_slots_that_are_still_to_be_read() -> None:
    assert BASE.needed == (2, 3, 4, 5, 6, 7, 10, 11) and FIRST.needed == ()


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
        ({"lost": (5, 5)}, "slots ascend"),
        ({"unread": (3, 1)}, "slots ascend"),
        ({"left": (5, 7)}, "or left behind"),
        ({"held": (2, 4, 5, 6, 7, 10, 11)}, "is not damaged"),
        ({"held": (2, 4, 6, 7, 11)}, "held or lost"),
        ({"lost": ()}, "held or lost"),
    ],
)
def test_a_base_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUseError, match=message):
        replace(BASE, **changes)
