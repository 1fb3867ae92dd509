"""Windowed joins against DuckDB and against plain Python."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from windowed import JoinGang, in_batches, join_spec, random_events, sorted_rows, starts_of

from specs import build
from tidegate.errors import InvalidUseError
from tidegate.operators import closing
from tidegate.operators.fixed import FixedWindow
from tidegate.operators.join import WindowJoin
from tidegate.state import panes

WINDOWS = [FixedWindow("tumbling", 1000, 1000), FixedWindow("sliding", 2500, 1000), FixedWindow("sliding", 300, 1000)]


def sides(seed: int, rows: int = 1500) -> tuple[pa.Table, pa.Table]:
    left = random_events(seed, rows).select(["ts", "key", "name", "value"])
    right = random_events(seed + 1000, rows // 2, low=-19_000).select(["count", "name", "key", "ts"])
    return left, right


def expected(left: pa.Table, right: pa.Table, spec: WindowJoin) -> list[tuple[object, ...]]:
    """The same join as one batch."""
    window: Any = spec.window
    floored = f"(ts - ((ts % {window.slide}) + {window.slide}) % {window.slide})"
    back = math.ceil(window.size / window.slide)
    assigned = f"SELECT *, {floored} - back * {window.slide} AS start FROM {{}}, range({back}) AS r(back)"
    columns = [f"l.{key}" for key in spec.keys] + ["l.start", f"l.start + {window.size}"]
    columns += [f"l.{name}" for name in spec.inputs[0].schema.names if name not in spec.keys]
    columns += [f'r."{name}"' for name in spec.inputs[1].schema.names if name not in spec.keys]
    matches = " AND ".join(f"l.{key} = r.{key}" for key in spec.keys)
    with duckdb.connect() as connection:
        connection.register("a", left)
        connection.register("b", right)
        found = connection.sql(
            f"""SELECT {", ".join(f"{column} AS c{index}" for index, column in enumerate(columns))}
                FROM ({assigned.format("a")}) l JOIN ({assigned.format("b")}) r ON l.start = r.start AND {matches}
                WHERE l.ts < l.start + {window.size} AND r.ts < r.start + {window.size}"""
        ).to_arrow_table()
    return sorted_rows(found)


def run(gang: JoinGang, left: pa.Table, right: pa.Table, batch_rows: int, spread: int = 500) -> pa.Table:
    """Both sides in turns, the watermark of the slower one."""
    highest = [-(1 << 62), -(1 << 62)]
    streams = [in_batches(left, batch_rows), in_batches(right, batch_rows // 2)]
    while any(streams):
        for port, stream in enumerate(streams):
            if stream:
                batch = stream.pop(0)
                gang.feed(port, batch)
                highest[port] = max(highest[port], max(batch.column("ts").to_pylist()))
        gang.watermark(min(highest) - spread)
    return gang.finish()


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.kind}-{window.size}-{window.slide}")
@pytest.mark.parametrize("keys", [("key",), ("name",), ("key", "name")], ids="+".join)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_pairs_equal_one_batch_join(window: Any, keys: tuple[str, ...], parallelism: int) -> None:
    left, right = sides(5, 500)
    spec = join_spec(left.schema, right.schema, keys, window)
    gang = JoinGang(spec, parallelism)
    result = run(gang, left, right, 100)
    assert result.schema == spec.schema
    assert sorted_rows(result) == expected(left, right, spec)
    assert gang.late_rows == 0 and result.num_rows


@pytest.mark.parametrize("seed", range(3))
def test_pairs_do_not_depend_on_merges_and_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "RUNS_PER_TIER", 2 + seed)
    monkeypatch.setattr(panes, "MERGE_ROWS_MAX", 100)
    monkeypatch.setattr(closing, "CLOSE_ROWS", 50)
    left, right = sides(seed)
    spec = join_spec(left.schema, right.schema, ("key",), WINDOWS[seed])
    assert sorted_rows(run(JoinGang(spec, 2), left, right, 40)) == expected(left, right, spec)


def test_columns_that_clash_are_those_of_the_right_side() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", pa.string())])
    gang = JoinGang(join_spec(schema, schema, ("key",), FixedWindow("tumbling", 10, 10)))
    gang.feed(0, pa.record_batch({"ts": [1], "key": [7], "v": ["left"]}))
    gang.feed(1, pa.record_batch({"ts": [2], "key": [7], "v": ["right"]}))
    row = {
        "key": 7,
        "window_start": 0,
        "window_end": 10,
        "ts": 1,
        "v": "left",
        "ts_right": 2,
        "v_right": "right",
    }
    assert gang.finish().to_pylist() == [row]


def test_null_keys_never_match_and_are_not_kept() -> None:
    schema = pa.schema([("ts", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
    gang = JoinGang(join_spec(schema, schema, ("a", "b"), FixedWindow("tumbling", 10, 10)))
    rows = pa.record_batch({"ts": [1, 1, 1], "a": [None, 1, None], "b": ["x", None, None]}, schema)
    gang.feed(0, rows)
    gang.feed(1, rows)
    assert gang.receivers[0].state_rows == 0  # type: ignore[attr-defined]
    assert gang.finish().num_rows == 0
    assert gang.late_rows == 0


def test_float_keys_match_by_value() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.float64())])
    gang = JoinGang(join_spec(schema, schema, ("key",), FixedWindow("tumbling", 10, 10)), 4)
    gang.feed(0, pa.record_batch({"ts": [1, 1], "key": [0.0, math.nan]}))
    gang.feed(1, pa.record_batch({"ts": [2, 2], "key": [-0.0, -math.nan]}))
    assert gang.finish().num_rows == 2


def test_nested_columns_pass_through() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("tags", pa.list_(pa.string()))])
    gang = JoinGang(join_spec(schema, schema, ("key",), FixedWindow("tumbling", 10, 10)))
    for port in (0, 1):
        gang.feed(port, pa.record_batch({"ts": [1], "key": [1], "tags": [["a", None]]}, schema))
    assert gang.finish().column("tags_right").to_pylist() == [["a", None]]


def test_a_window_with_far_more_pairs_than_rows_comes_in_bounded_pieces() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    gang = JoinGang(join_spec(schema, schema, ("key",), FixedWindow("tumbling", 10, 10)))
    rows = pa.record_batch({"ts": pa.array([1] * 100_000), "key": pa.array([5] * 100_000)})
    gang.feed(0, rows)
    gang.feed(1, rows)
    pieces = iter(gang.receivers[0].watermark(100))
    sizes = [piece.num_rows for piece in islice(filter(len, pieces), 6)]  # of ten thousand million pairs
    assert sizes == [65_536, 34_464] * 3, "a row of the left side begins a piece, so that a cut may come before it"


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.kind}-{window.size}-{window.slide}")
def test_late_rows_are_dropped_and_counted_and_the_rest_is_exact(window: Any) -> None:
    left, right = random_events(1, 1200, spread=4000), random_events(2, 1200, spread=4000)
    left, right = (side.select(["ts", "key"]).drop_null() for side in (left, right))
    gang = JoinGang(join_spec(left.schema, right.schema, ("key",), window), 2)
    kept: list[list[tuple[int, int, int]]] = [[], []]
    late, watermark = 0, -(1 << 62)
    for batches in zip(in_batches(left, 40), in_batches(right, 40), strict=False):
        for port, batch in enumerate(batches):
            for row in batch.to_pylist():
                starts = starts_of(row["ts"], window)
                still_open = [start for start in starts if start + window.size > watermark]
                late += bool(starts) and not still_open
                kept[port] += [(row["key"], start, row["ts"]) for start in still_open]
            gang.feed(port, batch)
        watermark = max(watermark, *(max(batch.column("ts").to_pylist()) - 500 for batch in batches))
        gang.watermark(watermark)
    pairs = sorted(
        (key, start, start + window.size, mine, theirs)
        for key, start, mine in kept[0]
        for other, second, theirs in kept[1]
        if (key, start) == (other, second)
    )
    assert sorted(tuple(row.values()) for row in gang.finish().to_pylist()) == pairs
    assert gang.late_rows == late > 0


def test_joins_that_cannot_be_are_refused() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    other_key = pa.schema([("ts", pa.int64()), ("key", pa.string())])
    other_time = pa.schema([("ts", pa.timestamp("ms")), ("key", pa.int64())])
    window = FixedWindow("tumbling", 10, 10)
    for left, right, keys, message in (
        (schema, other_key, ("key",), "two types"),
        (schema, other_time, ("key",), "event times"),
        (schema, schema, (), "needs a key"),
    ):
        with pytest.raises(InvalidUseError, match=message):
            build(join_spec(left, right, keys, window), 0, 1)
