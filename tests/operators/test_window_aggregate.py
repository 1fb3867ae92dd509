"""Windowed aggregates from rows to results, against DuckDB and against plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from windowed import AggregateGang, in_batches, random_events, sorted_rows, starts_of

from tidegate.errors import InvalidUseError
from tidegate.operators import closing, preaggregate
from tidegate.operators.fixed import FixedWindow
from tidegate.state import panes
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import partial_schema

AGGREGATES = (
    AggregateColumn.of("n", "count"),
    AggregateColumn.of("values", "count", "value"),
    AggregateColumn.of("total", "sum", "value"),
    AggregateColumn.of("whole", "sum", "count"),
    AggregateColumn.of("low", "min", "value"),
    AggregateColumn.of("high", "max", "value"),
    AggregateColumn.of("first_name", "min", "name"),
    AggregateColumn.of("last_name", "max", "name"),
    AggregateColumn.of("average", "mean", "value"),
    AggregateColumn.of("average_count", "mean", "count"),
)
SQL = """count(*), count(value), sum(value), sum("count")::BIGINT, min(value), max(value), min(name), max(name),
         avg(value), avg("count")"""
TUMBLING = FixedWindow("tumbling", 1000, 1000)
WINDOWS = [TUMBLING, *(FixedWindow("sliding", size, 1000) for size in (3000, 2500, 300))]


def expected(events: pa.Table, keys: Sequence[str], window: Any) -> list[tuple[object, ...]]:
    """The same query as one batch."""
    with duckdb.connect() as connection:
        connection.register("events", events)
        names = ", ".join(keys)
        floored = f"(ts - ((ts % {window.slide}) + {window.slide}) % {window.slide})"
        back = math.ceil(window.size / window.slide)
        found = connection.sql(
            f"""WITH assigned AS (SELECT *, {floored} - back * {window.slide} AS start
                                FROM events, range({back}) AS r(back))
                SELECT {names}, start, start + {window.size}, {SQL} FROM assigned
                WHERE ts < start + {window.size} GROUP BY {names}, start"""
        ).to_arrow_table()
    return sorted_rows(found)


def run(events: pa.Table, gang: AggregateGang, batch_rows: int, spread: int = 500) -> pa.Table:
    highest = -(1 << 62)
    for batch in in_batches(events, batch_rows):
        gang.feed(batch)
        highest = max(highest, max(batch.column("ts").to_pylist()))
        gang.watermark(highest - spread)
    return gang.finish()


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.kind}-{window.size}-{window.slide}")
@pytest.mark.parametrize("keys", [("key",), ("name",), ("key", "name")], ids="+".join)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_results_equal_one_batch_query(window: Any, keys: tuple[str, ...], parallelism: int) -> None:
    events = random_events(7, 6000)
    gang = AggregateGang(events.schema, keys, window, AGGREGATES, parallelism)
    assert sorted_rows(run(events, gang, 257)) == expected(events, keys, window)
    assert gang.late_rows == 0


@pytest.mark.parametrize("seed", range(5))
def test_results_do_not_depend_on_merges_and_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "RUNS_PER_TIER", 2 + seed)
    monkeypatch.setattr(panes, "MERGE_ROWS_MAX", 60)
    monkeypatch.setattr(closing, "CLOSE_ROWS", 40)
    monkeypatch.setattr(preaggregate, "BUFFER_ROWS", 100 * (seed + 1))
    events = random_events(seed, 3000)
    window = WINDOWS[seed % len(WINDOWS)]
    gang = AggregateGang(events.schema, ("key", "name"), window, AGGREGATES, 2)
    assert sorted_rows(run(events, gang, 61)) == expected(events, ("key", "name"), window)


def test_every_window_is_emitted_as_soon_as_the_watermark_reaches_its_end() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("n", "count"),))
    gang.feed(pa.record_batch({"ts": [1, 9, 10, -1], "key": [1, 1, 1, 1]}))
    gang.watermark(9)
    assert gang.result().column("window_start").to_pylist() == [-10]
    gang.watermark(10)
    assert gang.result().to_pylist()[1:] == [{"key": 1, "window_start": 0, "window_end": 10, "n": 2}]
    gang.watermark(10)
    gang.watermark(3)
    assert gang.result().num_rows == 2


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.kind}-{window.size}-{window.slide}")
@pytest.mark.parametrize("lateness", [0, 700])
def test_late_rows_are_dropped_and_counted_and_the_rest_is_exact(window: Any, lateness: int) -> None:
    window = FixedWindow(window.kind, window.size, window.slide, lateness)
    events = random_events(3, 3000, spread=4000)
    gang = AggregateGang(events.schema, ("key",), window, (AggregateColumn.of("n", "count"),), 2)
    kept: dict[tuple[object, int], int] = {}
    late, watermark = 0, -(1 << 62)
    for batch in in_batches(events, 50):
        for row in batch.to_pylist():
            starts = starts_of(row["ts"], window)
            still_open = [start for start in starts if start + window.size + lateness > watermark]
            late += bool(starts) and not still_open
            for start in still_open:
                kept[row["key"], start] = kept.get((row["key"], start), 0) + 1
        gang.feed(batch)
        watermark = max(watermark, max(batch.column("ts").to_pylist()) - 500)
        gang.watermark(watermark)
    found = {(row["key"], row["window_start"]): row["n"] for row in gang.finish().to_pylist()}
    assert found == kept
    assert gang.late_rows == late > 0


def test_late_rows_are_counted_without_a_count_aggregate() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", pa.float64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("top", "max", "v"),))
    gang.watermark(20)
    gang.feed(pa.record_batch({"ts": [1, 2, 25], "key": [1, 1, 1], "v": [1.0, None, 3.0]}))
    assert gang.finish().to_pylist() == [{"key": 1, "window_start": 20, "window_end": 30, "top": 3.0}]
    assert gang.late_rows == 2


def test_rows_without_an_event_time_are_counted_as_late() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("n", "count"),))
    gang.feed(pa.record_batch({"ts": pa.array([None, 1, None, 2**63 - 1]), "key": [1, 1, 2, 1]}, schema))
    assert gang.finish().column("n").to_pylist() == [1]
    assert gang.late_rows == 3


def test_window_bounds_have_the_type_of_the_event_time() -> None:
    kind = pa.timestamp("us", "UTC")
    schema = pa.schema([("ts", kind), ("key", pa.string())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 1_000_000, 1_000_000), (AggregateColumn.of("n", "count"),))
    gang.feed(pa.record_batch({"ts": pa.array([-1, 1_500_000], kind), "key": ["a", "a"]}))
    result = gang.finish()
    assert result.schema.field("window_start").type == kind
    assert result.column("window_start").cast(pa.int64()).to_pylist() == [-1_000_000, 1_000_000]
    assert result.column("window_end").cast(pa.int64()).to_pylist() == [0, 2_000_000]


def test_pieces_are_bounded() -> None:
    rows = 200_000
    batch = pa.record_batch({"ts": pa.array([5] * rows), "key": pa.array(range(rows))})
    gang = AggregateGang(batch.schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("n", "count"),))
    gang.feed(batch)
    result = gang.finish()
    assert result.num_rows == rows
    assert len(gang.emitted) >= 4 and max(piece.num_rows for piece in gang.emitted) <= 65_536


def test_windows_are_let_go_of_while_others_are_still_being_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 50)
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("n", "count"),))
    gang.feed(pa.record_batch({"ts": list(range(200)), "key": list(range(200))}))
    gang.watermark(0)
    (receiver,) = gang.receivers
    left = [receiver.state_rows for _ in receiver.watermark(1000)]  # type: ignore[attr-defined]
    assert left == [150, 100, 50, 0]


def test_both_zeros_and_all_nans_are_one_key_each() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.float64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("n", "count"),), 4)
    gang.feed(pa.record_batch({"ts": [1] * 6, "key": [0.0, -0.0, math.nan, -math.nan, None, None]}, schema))
    assert sorted(gang.finish().column("n").to_pylist()) == [2, 2, 2]


def test_dictionary_keys_and_values_work_over_batches_with_other_dictionaries() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("ts", pa.int64()), ("key", kind), ("v", kind)])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("top", "max", "v"),), 2)
    for keys, values in ((["a", "b"], ["x", "y"]), (["b", None], ["z", "q"])):
        columns = [pa.array([1, 2]), pa.array(keys).cast(kind), pa.array(values).cast(kind)]
        gang.feed(pa.RecordBatch.from_arrays(columns, schema=schema))
    result = gang.finish()
    assert result.schema.field("key").type == kind
    assert sorted(zip(result["key"].to_pylist(), result["top"].to_pylist(), strict=True), key=str) == [
        ("a", "x"),
        ("b", "z"),
        (None, "q"),
    ]


def one_sum(values: Sequence[object], kind: pa.DataType, function: str = "sum") -> object:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", kind)])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("s", function, "v"),))  # type: ignore[arg-type]
    for value in values:
        gang.feed(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([1]), pa.array([value], kind)], schema=schema))
        gang.watermark(0)
    return gang.finish().column("s")[0].as_py()


def test_an_integer_sum_that_leaves_64_bits_is_an_error_and_one_that_fits_is_exact() -> None:
    large = 2**62
    assert one_sum([large, large - 1, -large, 5], pa.int64()) == large + 4
    with pytest.raises(InvalidUseError, match="too large"):
        one_sum([large, large], pa.int64())
    with pytest.raises(InvalidUseError, match="too large"):
        one_sum([2**64 - 1], pa.uint64())


def test_an_overflow_inside_one_batch_is_an_error() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", pa.int64())])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("s", "sum", "v"),))
    gang.feed(pa.record_batch({"ts": [1, 1], "key": [1, 1], "v": [2**62, 2**62]}))
    with pytest.raises(InvalidUseError, match="too large"):
        gang.finish()


@pytest.mark.parametrize(("kind", "digits"), [(pa.decimal128(38, 2), 38), (pa.decimal256(76, 2), 76)], ids=str)
def test_a_decimal_sum_that_leaves_its_digits_is_an_error_and_one_that_fits_is_exact(kind: pa.DataType, digits: int) -> None:
    largest = "9" * (digits - 2) + ".99"
    half = Decimal("4" * (digits - 2) + ".44")
    assert one_sum([half, half], kind) == Decimal("8" * (digits - 2) + ".88")
    for sign in ("", "-"):
        with pytest.raises(InvalidUseError, match="too large"):
            one_sum([Decimal(sign + largest), Decimal(sign + "0.01")], kind)
    with pytest.raises(InvalidUseError, match="too large"):
        one_sum([Decimal(largest), Decimal(largest)], kind)


def test_an_overflow_of_decimals_inside_one_batch_is_an_error() -> None:
    kind = pa.decimal128(38, 0)
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", kind)])
    gang = AggregateGang(schema, ("key",), FixedWindow("tumbling", 10, 10), (AggregateColumn.of("s", "sum", "v"),))
    values = pa.array([Decimal("9" * 38)] * 2, kind)
    gang.feed(pa.RecordBatch.from_arrays([pa.array([1, 1]), pa.array([1, 1]), values], schema=schema))
    with pytest.raises(InvalidUseError, match="too large"):
        gang.finish()


def test_means_of_large_integers_do_not_overflow() -> None:
    assert one_sum([2**62, 2**62, 2**62], pa.int64(), "mean") == float(2**62)


def test_narrow_types_are_summed_in_wide_ones() -> None:
    assert one_sum([100, 100], pa.int8()) == 200
    assert one_sum([True], pa.bool_(), "max") is True
    assert one_sum([Decimal("1.25"), Decimal("2.50")], pa.decimal128(38, 2)) == Decimal("3.75")
    assert one_sum([None, None], pa.float64()) is None


def test_partials_have_the_promised_columns() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("v", pa.int8()), ("f", pa.float32())])
    plain = (AggregateColumn.of("n", "count"), AggregateColumn.of("t", "sum", "v"), AggregateColumn.of("a", "mean", "f"))
    assert partial_schema(("k",), plain, schema) == pa.schema(
        [
            ("__window", pa.int64()),
            ("k", pa.string()),
            ("n__n", pa.int64()),
            ("t__s", pa.int64()),
            ("a__s", pa.float64()),
            ("a__n", pa.int64()),
        ]
    )
    hidden = partial_schema(("k",), (AggregateColumn.of("lo", "min", "f"), AggregateColumn.of("c", "count", "v")), schema)
    assert hidden.names == ["__window", "k", "__rows", "lo__lo", "c__n"]
    assert hidden.field("lo__lo").type == pa.float32()


@pytest.mark.parametrize(
    ("keys", "aggregate", "message"),
    [
        (("k",), AggregateColumn.of("x", "sum", "s"), "sum does not work on string"),
        (("k",), AggregateColumn.of("x", "first", "list"), "first does not work on list"),
        (("k",), AggregateColumn.of("x", "count_distinct", "list"), "count_distinct does not work on list"),
        (("k",), AggregateColumn.of("x", "sum", "missing"), "column=missing"),
        (("missing",), AggregateColumn.of("x", "count"), "column=missing"),
        (("x__n",), AggregateColumn.of("x", "count"), "different names"),
    ],
)
def test_partials_that_cannot_be_are_refused(keys: tuple[str, ...], aggregate: AggregateColumn, message: str) -> None:
    fields = [("k", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("x__n", pa.int64())]
    schema = pa.schema([*fields, ("list", pa.list_(pa.int64()))])
    with pytest.raises(InvalidUseError, match=message):
        partial_schema(keys, (aggregate,), schema)


def test_only_count_does_without_a_column() -> None:
    with pytest.raises(InvalidUseError, match="sum needs a column"):
        AggregateColumn.of("x", "sum")
    with pytest.raises(InvalidUseError, match="no such aggregate function"):
        AggregateColumn.of("x", "product", "v")
