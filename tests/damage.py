"""What can become of stored or sent bytes: bits flip, an end is missing, a piece comes twice, something foreign is inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """These bytes with one to three kinds of damage. Now and then they come out as they were."""
    data = bytearray(whole)
    for how in draw(st.lists(st.sampled_from(("flip", "cut", "repeat", "insert")), min_size=1, max_size=3)):
        index = draw(st.integers(0, max(0, len(data) - 1)))
        if how == "flip" and data:
            data[index] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[index:]
        elif how == "repeat":
            data[index:index] = data[index : index + draw(st.integers(1, 16))]
        else:
            data[index:index] = draw(st.binary(max_size=8))
    return bytes(data)


texts = st.text(max_size=6) | st.sampled_from(("", "0", "../up", "/root", ".hidden", "a/b", "a\0b"))
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@st.composite
def with_wrong_parts(draw: st.DrawFn, record: dict[str, Any]) -> dict[str, Any]:
    """A JSON object in which one or two parts, at any depth, are missing or something else."""
    wrong: dict[str, Any] = json.loads(json.dumps(record))
    for _ in range(draw(st.integers(1, 2))):
        parts = list(_parts(wrong))
        if parts:
            holder, key = parts[draw(st.integers(0, len(parts) - 1))]
            if draw(st.integers(0, 3)):
                holder[key] = draw(json_values)
            else:
                del holder[key]
    return wrong


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a JSON value, as what holds it and its key there."""
    for key in sorted(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _parts(value[key])
