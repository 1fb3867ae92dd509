"""Direct-address grouping returns what Arrow's hash table returns, or says that it can't."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.state import dense
from tidegate.state.partial import grouped

CALLS: list[dense.Call] = [
    ([], "count_all"),
    ("f", "count"),
    ("f", "sum"),
    ("f", "min"),
    ("f", "max"),
    ("i", "sum"),
    ("i", "min"),
    ("i", "max"),
]
KEY_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "ROWS_MIN", 1)


def table(keys: dict[str, pa.Array], rows: int, floats: Any = None, ints: Any = None) -> pa.Table:
    floats = np.arange(rows) / 4 if floats is None else floats
    ints = np.arange(rows) * 3 - 100 if ints is None else ints
    columns = {**keys, "f": pa.array(floats, pa.float64(), from_pandas=False), "i": pa.array(ints, pa.int64())}
    whole = pa.table(columns)
    return pa.concat_tables([whole.slice(0, rows // 3), whole.slice(rows // 3)])  # two chunks


def by_arrow(rows: pa.Table, keys: list[str]) -> dict[tuple[Any, ...], list[Any]]:
    found = pa.TableGroupBy(rows, keys, use_threads=False).aggregate(CALLS)
    return as_dict([column.combine_chunks() for column in found.columns], len(keys))


def as_dict(columns: list[pa.Array], keys: int) -> dict[tuple[Any, ...], list[Any]]:
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert len({row[:keys] for row in rows}) == len(rows), "every key once"
    return {row[:keys]: ["nan" if isinstance(v, float) and math.isnan(v) else v for v in row[keys:]] for row in rows}


def check(rows: pa.Table, keys: list[str]) -> None:
    found = dense.grouped(rows, keys, CALLS)
    assert found is not None
    assert [column.type for column in found[: len(keys)]] == [rows.column(key).type for key in keys]
    arrow = pa.TableGroupBy(rows, keys).aggregate(CALLS)
    assert [column.type for column in found] == arrow.schema.types
    assert as_dict(found, len(keys)) == by_arrow(rows, keys)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_every_type_of_whole_numbers_to_its_ends(kind: pa.DataType) -> None:
    bits = kind.bit_width
    low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (bits - 1))
    high = low + (1 << bits) - 1
    check(table({"k": pa.array([low, high] * 20, kind)}, 40), ["k"])
    for start in (low, high - 9):
        check(table({"k": pa.array([start + n % 10 for n in range(40)], kind)}, 40), ["k"])
    if bits == 8:
        for span in (201, 256):  # differences that the type itself can't hold
            check(table({"k": pa.array([low + n % span for n in range(512)], kind)}, 512), ["k"])


@pytest.mark.usefixtures("few_rows")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_numbers_close_together_are_grouped_as_arrow_groups_them(data: st.DataObject) -> None:
    rows = data.draw(st.integers(8, 60))
    keys = {}
    for number in range(data.draw(st.integers(1, 3))):
        low = data.draw(st.sampled_from([-(1 << 63), -3, 0, 7, 10_000, (1 << 63) - 3]))
        size = 2 if number else 3
        step = 1 if number == 0 else data.draw(st.sampled_from([0, 1]))
        if number and step and low <= 10_000:
            step = 10_000  # as windows are: two values far apart
        values = [low + step * n for n in data.draw(st.lists(st.integers(0, size - 1), min_size=rows, max_size=rows))]
        keys[f"k{number}"] = pa.array(values, pa.int64())
    floats = data.draw(st.lists(st.sampled_from([0.5, -2.0, 1e300, math.nan, math.inf, -math.inf]), min_size=rows, max_size=rows))
    ints = data.draw(st.lists(st.integers(-(1 << 57), 1 << 57), min_size=rows, max_size=rows))
    check(table(keys, rows, floats, ints), list(keys))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"k": pa.array([0, 1, 1_000_000] * 10)}, "far apart"),
        ({"k": pa.array([0, None, 1] * 10)}, "nulls"),
        ({"k": pa.array(["a", "b", "c"] * 10)}, "text"),
        ({"k": pa.array([0.0, 1.0, 2.0] * 10)}, "floats"),
        ({"k": pa.array([0, 1, 2] * 10, pa.uint64())}, "the largest may not fit"),
        ({"a": pa.array(range(30)), "k": pa.array(range(30))}, "close together, but not both at once"),
    ],
)
def test_what_does_not_fit_is_left_to_arrow(keys: dict[str, pa.Array], why: str) -> None:
    assert dense.grouped(table(keys, 30), list(keys), CALLS) is None, why
    assert as_dict(grouped(table(keys, 30), list(keys), CALLS), len(keys)) == by_arrow(table(keys, 30), list(keys))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("column", "function"),
    [
        (pa.array([1.0, None] * 20), "sum"),
        (pa.array([1, None] * 20), "count"),
        (pa.array([1.5] * 40, pa.float32()), "sum"),
        (pa.array([1] * 40, pa.int32()), "max"),
        (pa.array([1.5] * 40), "first"),
        (pa.array(["a"] * 40), "max"),
    ],
)
def test_values_and_functions_that_do_not_fit_are_left_to_arrow(column: pa.Array, function: str) -> None:
    rows = pa.table({"k": pa.array([0, 1] * 20), "v": column})
    assert dense.grouped(rows, ["k"], [("v", function)]) is None


def test_few_rows_very_many_and_too_many_buckets_are_left_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    few = table({"k": pa.array(np.arange(dense.ROWS_MIN - 1) % 7)}, dense.ROWS_MIN - 1)
    assert dense.grouped(few, ["k"], CALLS) is None
    enough = table({"k": pa.array(np.arange(dense.ROWS_MIN) % 7)}, dense.ROWS_MIN)
    assert dense.grouped(enough, ["k"], CALLS) is not None
    with monkeypatch.context() as patched:
        patched.setattr(dense, "BUCKETS_MAX", 6)
        assert dense.grouped(enough, ["k"], CALLS) is None
    monkeypatch.setattr(dense, "ROWS_MAX", dense.ROWS_MIN - 1)
    assert dense.grouped(enough, ["k"], CALLS) is None


def test_results_are_not_overwritten_by_the_next_grouping() -> None:
    first = table({"k": pa.array(np.arange(5_000) % 50)}, 5_000)
    kept = dense.grouped(first, ["k"], CALLS)
    assert kept is not None
    before = as_dict(kept, 1)
    dense.grouped(table({"k": pa.array(np.arange(6_000) % 60)}, 6_000), ["k"], CALLS)
    assert as_dict(kept, 1) == before


def test_threads_do_not_share_buckets() -> None:
    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(20):
            rows = table({"k": pa.array(random.integers(0, 2_000, 20_000))}, 20_000)
            assert as_dict(dense.grouped(rows, ["k"], CALLS) or [], 1) == by_arrow(rows, ["k"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
