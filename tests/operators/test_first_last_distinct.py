"""first, last and count_distinct in windows, late rows emitted, and keys and times of every type."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from keyed import Gang, windowed_gang
from test_window_aggregate import WINDOWS
from windowed import in_batches, random_events, sorted_rows, starts_of

from tidegate.operators import closing, preaggregate
from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.plan.schemas import LATE, late_name
from tidegate.state import panes
from tidegate.state.functions import AggregateColumn

AGGREGATES = (
    AggregateColumn.of("n", "count"),
    AggregateColumn.of("opening", "first", "value"),
    AggregateColumn.of("closing", "last", "value"),
    AggregateColumn.of("first_name", "first", "name"),
    AggregateColumn.of("last_name", "last", "name"),
    AggregateColumn.of("names", "count_distinct", "name"),
    AggregateColumn.of("counts", "count_distinct", "count"),
    AggregateColumn.of("total", "sum", "count"),
)
SQL = """count(*), first(value ORDER BY ts, value) FILTER (value IS NOT NULL),
         last(value ORDER BY ts, value) FILTER (value IS NOT NULL),
         first(name ORDER BY ts, name) FILTER (name IS NOT NULL), last(name ORDER BY ts, name) FILTER (name IS NOT NULL),
         count(DISTINCT name), count(DISTINCT "count"), sum("count")::BIGINT"""


def expected(events: pa.Table, window: Any) -> list[tuple[object, ...]]:
    placed = [(row, start) for row in range(events.num_rows) for start in starts_of(events["ts"][row].as_py(), window)]
    table = events.take([row for row, _ in placed]).append_column("start", pa.array([s for _, s in placed], pa.int64()))
    with duckdb.connect() as connection:
        connection.register("assigned", table)
        query = f"SELECT key, start, start + {window.size}, {SQL} FROM assigned GROUP BY key, start"
        return sorted_rows(connection.sql(query).to_arrow_table())


def run(events: pa.Table, gang: Gang, rows: int, lag: int) -> pa.Table:
    highest = -(1 << 62)
    for batch in in_batches(events, rows):
        gang.feed(batch)
        highest = max(highest, max(batch.column("ts").to_pylist()))
        gang.watermark(highest - lag)
    return gang.finish()


@pytest.mark.parametrize("late", [False, True], ids=["partials", "raw"])
@pytest.mark.parametrize("window", WINDOWS[:3], ids=lambda window: f"{window.kind}-{window.size}")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_results_equal_one_batch_query(window: Any, parallelism: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "RUNS_PER_TIER", 3)
    monkeypatch.setattr(closing, "CLOSE_ROWS", 40)
    monkeypatch.setattr(preaggregate, "BUFFER_ROWS", 150)
    events = random_events(5, 2000)
    # Few different times, so that first and last have ties to break.
    events = events.set_column(0, "ts", pc.multiply(pc.divide(events.column("ts"), 40), 40))
    gang = windowed_gang(events.schema, ("key",), window, AGGREGATES, parallelism, late=late)
    found = run(events, gang, 61, 600)
    if late:
        assert not pc.any(found.column(LATE)).as_py()
        found = found.select(found.schema.names[1 : -len(events.schema)])
    assert sorted_rows(found) == expected(events, window) and gang.late_rows == 0


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 1), (2, 7)])
def test_windows_go_on_after_a_restore(before: int, after: int) -> None:
    events = random_events(11, 2000)
    window = WINDOWS[1]
    first, second = (windowed_gang(events.schema, ("key",), window, AGGREGATES, n) for n in (before, after))
    batches = in_batches(events, 100)
    for index, batch in enumerate(batches):
        if index == 10:
            second.restore(first.barrier())
        current = first if index < 10 else second
        current.feed(batch)
        current.watermark(-20_000 + 400 * index - 500)
    second.finish()
    assert sorted_rows(pa.concat_tables([first.result(), second.result()])) == expected(events, window)


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
@pytest.mark.parametrize("lateness", [0, 700])
def test_rows_that_come_too_late_are_emitted_as_they_came(kind: str, lateness: int) -> None:
    events = random_events(3, 2000, spread=3000)
    window = FixedWindow(kind, 1000 if kind == "tumbling" else 2000, 1000, lateness)  # type: ignore[arg-type]
    counts = (AggregateColumn.of("n", "count"),)
    dropping = windowed_gang(events.schema, ("key", "name"), window, counts, 2)
    emitting = windowed_gang(events.schema, ("key", "name"), window, counts, 2, late=True)
    results, found = run(events, dropping, 1, 500), run(events, emitting, 1, 500)
    late = found.filter(found.column(LATE)).select([late_name(name) for name in events.schema.names])
    kept = found.filter(pc.invert(found.column(LATE))).select(results.schema.names)
    assert sorted_rows(kept) == sorted_rows(results)
    assert late.num_rows == emitting.late_rows == dropping.late_rows > 0
    assert set(sorted_rows(late)) <= set(sorted_rows(events))


KEYS = {
    "binary": (pa.binary(), [b"a", b"\x00", None, b""]),
    "zoned": (pa.timestamp("ns", "America/New_York"), [1, 2, None, -5]),
    "decimal": (pa.decimal128(20, 3), [Decimal("1.5"), Decimal("-2"), None, Decimal(0)]),
    "float": (pa.float64(), [0.0, float("nan"), None, 1.5]),
}
TIMES = [pa.int64(), pa.timestamp("s"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("ns", "UTC")]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("time", TIMES, ids=str)
@pytest.mark.parametrize("window", [SessionWindow(10), FixedWindow("tumbling", 10, 10)], ids=str)
def test_keys_and_times_of_any_type(kind: str, time: pa.DataType, window: Any) -> None:
    of, values = KEYS[kind]
    schema = pa.schema([("ts", time), ("key", of), ("other", pa.string())])
    batch = pa.record_batch(
        [
            pa.array([1, 2, 3, 4] * 3, pa.int64()).cast(time),
            pa.array(values * 3, of),
            pa.array(["x", "y", None] * 4),
        ],
        schema=schema,
    )
    aggregates = (
        AggregateColumn.of("n", "count"),
        AggregateColumn.of("v", "last", "key"),
        AggregateColumn.of("k", "count_distinct", "key"),
    )
    gang, other = (windowed_gang(schema, ("key", "other"), window, aggregates, n) for n in (2, 3))
    gang.feed(batch)
    other.restore(gang.barrier())
    other.feed(batch)
    found = other.finish()
    assert found.schema.field("window_end").type == time
    assert found.num_rows == 12 and set(found.column("n").to_pylist()) == {2}
    assert sum(found.column("k").to_pylist()) == 9
