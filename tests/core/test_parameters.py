"""The value of a parameter as a checkpoint has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.core.control.parameters import INLINE_VALUE_BYTES, ParameterEntry
from tidegate.core.log.codec import decode, encode
from tidegate.errors import InvalidUseError

INLINE = ParameterEntry.of_bytes("rules", 3, b"value", 7)
STORED = ParameterEntry("rules", 3, "job/shared/x", 100_000, 7)


@pytest.mark.parametrize("entry", [INLINE, STORED])
def test_an_entry_survives_its_bytes(entry: ParameterEntry) -> None:
    assert decode(ParameterEntry, encode(entry), "p") == entry


def test_a_small_value_is_inline() -> None:
    assert (INLINE.path, INLINE.size_bytes, INLINE.inline_bytes()) == (None, 5, b"value")


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"version": 0},
        {"crc32c": 1 << 32},
        {"path": "job/shared/x"},
        {"inline": None},
        {"size_bytes": 6},
        {"inline": "no base64!"},
        {"inline": "A" * (2 * INLINE_VALUE_BYTES + 4)},
    ],
)
def test_what_no_leader_makes_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError):
        replace(INLINE, **change)
