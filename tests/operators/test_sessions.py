"""Session windows from rows to results, against DuckDB and against plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest
from keyed import Gang, windowed_gang
from windowed import in_batches, random_events, sorted_rows

from tidegate.errors import CorruptDataError
from tidegate.operators import preaggregate, session
from tidegate.operators.session import SessionWindow
from tidegate.plan.schemas import LATE, late_name
from tidegate.state import sessionruns
from tidegate.state.functions import AggregateColumn
from tidegate.state.run import Restored, Run

GAP = 300
SESSION = SessionWindow(GAP)
AGGREGATES = (
    AggregateColumn.of("n", "count"),
    AggregateColumn.of("values", "count", "value"),
    AggregateColumn.of("total", "sum", "count"),
    AggregateColumn.of("low", "min", "value"),
    AggregateColumn.of("high", "max", "name"),
    AggregateColumn.of("average", "mean", "count"),
    AggregateColumn.of("opening", "first", "value"),
    AggregateColumn.of("closing", "last", "name"),
    AggregateColumn.of("names", "count_distinct", "name"),
)
SQL = """count(*), count(value), sum("count")::BIGINT, min(value), max(name), avg("count"),
         first(value ORDER BY ts, value) FILTER (value IS NOT NULL),
         last(name ORDER BY ts, name) FILTER (name IS NOT NULL), count(DISTINCT name)"""


def expected(events: pa.Table, keys: Sequence[str], gap: int = GAP) -> list[tuple[object, ...]]:
    """The same query as one batch."""
    names = ", ".join(keys)
    with duckdb.connect() as connection:
        connection.register("events", events)
        found = connection.sql(
            f"""WITH marked AS (SELECT *, CASE WHEN ts - lag(ts) OVER w < {gap} THEN 0 ELSE 1 END AS new FROM events
                                WINDOW w AS (PARTITION BY {names} ORDER BY ts)),
                     numbered AS (SELECT *, sum(new) OVER (PARTITION BY {names} ORDER BY ts) AS session FROM marked)
                SELECT {names}, min(ts), max(ts) + {gap}, {SQL} FROM numbered GROUP BY {names}, session"""
        ).to_arrow_table()
    return sorted_rows(found)


def run(events: pa.Table, gang: Gang, batch_rows: int, spread: int = 500) -> pa.Table:
    highest = -(1 << 62)
    for batch in in_batches(events, batch_rows):
        gang.feed(batch)
        highest = max(highest, max(batch.column("ts").to_pylist()))
        gang.watermark(highest - spread)
    return gang.finish()


@pytest.mark.parametrize("keys", [("key",), ("name",), ("key", "name")], ids="+".join)
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_results_equal_one_batch_query(keys: tuple[str, ...], parallelism: int) -> None:
    events = random_events(7, 4000)
    gang = windowed_gang(events.schema, keys, SESSION, AGGREGATES, parallelism)
    assert sorted_rows(run(events, gang, 97)) == expected(events, keys)
    assert gang.late_rows == 0 and gang.receivers[0].state_rows == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(6))
def test_results_do_not_depend_on_merges_and_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessionruns, "RUNS_PER_TIER", 2 + seed)
    monkeypatch.setattr(sessionruns, "MERGE_ROWS_MAX", 20 * seed)
    monkeypatch.setattr(session, "CLOSE_KEYS", 1 + 3 * seed)
    monkeypatch.setattr(preaggregate, "BUFFER_ROWS", 50 * (seed + 1))
    events = random_events(seed, 1500)
    gang = windowed_gang(events.schema, ("key",), SESSION, AGGREGATES, 2)
    assert sorted_rows(run(events, gang, 41)) == expected(events, ("key",))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (3, 7), (4, 1)])
def test_sessions_go_on_after_a_restore(before: int, after: int) -> None:
    events = random_events(11, 3000)
    gangs = [windowed_gang(events.schema, ("key", "name"), SESSION, AGGREGATES, n) for n in (before, after, before)]
    batches = in_batches(events, 100)
    current = gangs[0]
    for index, batch in enumerate(batches):
        if index in (len(batches) // 3, len(batches) // 2):
            frozen = current.barrier()
            current = gangs[1 + (index > len(batches) // 3)]
            current.restore(frozen)
        current.feed(batch)
        current.watermark(-20_000 + 400 * index - 500)
    current.finish()
    assert all(gang.result().num_rows for gang in gangs)
    together = pa.concat_tables([gang.result() for gang in gangs])
    assert sorted_rows(together) == expected(events, ("key", "name"))


def rows(*times: int | None, key: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array(times, pa.int64()), "key": pa.array([key] * len(times), pa.int64())})


def counting(parallelism: int = 1, *, lateness: int = 0, late: bool = False) -> Gang:
    window = SessionWindow(10, lateness)
    return windowed_gang(rows().schema, ("key",), window, (AggregateColumn.of("n", "count"),), parallelism, late=late)


def test_rows_a_gap_apart_are_two_sessions_and_closer_ones_are_one() -> None:
    gang = counting()
    gang.feed(rows(0, 10, 29, 20))
    assert sorted_rows(gang.finish()) == [(1, 0, 10, 1), (1, 10, 20, 1), (1, 20, 39, 2)]


def test_a_row_in_between_makes_one_session_of_two() -> None:
    gang = counting()
    gang.feed(rows(0))
    gang.watermark(-1)
    gang.feed(rows(15))
    gang.watermark(1)
    gang.feed(rows(8))
    gang.watermark(24)
    assert gang.result().num_rows == 0
    gang.watermark(25)
    assert sorted_rows(gang.result()) == [(1, 0, 25, 3)]


def test_a_late_row_is_dropped_and_counted() -> None:
    gang = counting()
    gang.feed(rows(0, 100))
    gang.watermark(50)
    gang.feed(rows(40, None))  # 40 + 10 is closed; the other has no time at all
    gang.watermark(51)
    gang.feed(rows(42, key=2))  # before the watermark, but its session would still be open
    assert sorted_rows(gang.finish()) == [(1, 0, 10, 1), (1, 100, 110, 1), (2, 42, 52, 1)]
    assert gang.late_rows == 2


def test_lateness_keeps_sessions_open_and_holds_the_watermark_back() -> None:
    gang = counting(lateness=20)
    gang.feed(rows(0))
    gang.watermark(29)
    assert gang.result().num_rows == 0 and gang.receivers[0].watermark_delay == 20  # type: ignore[attr-defined]
    gang.feed(rows(5))
    gang.watermark(30)
    assert gang.result().num_rows == 0
    gang.watermark(35)
    assert sorted_rows(gang.result()) == [(1, 0, 15, 2)] and gang.late_rows == 0


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_late_row_after_a_restore_does_not_reopen_a_session(after: int) -> None:
    old, new = counting(2), counting(after)
    for key in range(20):
        old.feed(rows(0, 90, key=key))
    old.watermark(50)
    new.restore(old.barrier())
    for key in range(20):
        new.feed(rows(5, key=key))
    assert {row[1] for row in sorted_rows(new.finish())} == {90} and new.late_rows == 20
    assert old.result().num_rows == 20


def one_by_one(events: Sequence[tuple[int, int, int]], gap: int, lateness: int) -> tuple[list[object], int]:
    """Rows (ts, key, watermark afterwards) in plain Python: sessions emitted, and late rows."""
    open_sessions: dict[int | None, list[list[int]]] = {}
    emitted: list[object] = []
    late, now = 0, -(1 << 62)
    for ts, key, watermark in (*events, (None, None, 1 << 62)):
        if ts is not None and ts + gap + lateness <= now:
            late += 1
        elif ts is not None:
            mine = [ts, ts + gap, 1]
            apart = []
            for other in open_sessions.get(key, []):
                if other[0] < mine[1] and mine[0] < other[1]:
                    mine = [min(mine[0], other[0]), max(mine[1], other[1]), mine[2] + other[2]]
                else:
                    apart.append(other)
            open_sessions[key] = [*apart, mine]
        now = max(now, watermark)
        for each, sessions in open_sessions.items():
            emitted += [(each, *s) for s in sessions if s[1] + lateness <= now]
            open_sessions[each] = [s for s in sessions if s[1] + lateness > now]
    return emitted, late


@pytest.mark.parametrize("late", [False, True], ids=["dropped", "emitted"])
@pytest.mark.parametrize("seed", range(5))
def test_late_and_out_of_order_rows_are_judged_one_by_one(seed: int, late: bool) -> None:
    rng = random.Random(seed)
    lateness = rng.choice([0, 15])
    events = [(4 * n - rng.randrange(120), rng.randrange(4), 4 * n - 40) for n in range(600)]
    gang = counting(2, lateness=lateness, late=late)
    for ts, key, watermark in events:
        gang.feed(rows(ts, key=key))
        gang.watermark(watermark)
    found = gang.finish()
    sessions, late_rows = one_by_one(events, 10, lateness)
    if late:
        thrown = found.filter(found.column(LATE)).select([late_name("ts"), late_name("key")])
        found = found.filter(pa.compute.invert(found.column(LATE))).select(gang.output.names[1:5])
        assert thrown.num_rows == late_rows
    assert gang.late_rows == late_rows > 0
    assert sorted_rows(found) == sorted(sessions, key=lambda row: [(True, str(type(v)), str(v)) for v in row])  # type: ignore[attr-defined]


def test_freezing_takes_no_longer_with_more_state() -> None:
    gang = windowed_gang(rows().schema, ("key",), SessionWindow(10), (AggregateColumn.of("n", "count"),))
    for start in range(0, 4_000, 100):
        gang.feed(pa.record_batch({"ts": [start] * 100, "key": list(range(start, start + 100))}))
        gang.watermark(start - 2_000)
    runs = gang.barrier()[0].runs
    again = gang.barrier()[0].runs
    whole = [run for run in runs if run.batch.schema != sessionruns.HOLES]
    assert [run.uid for run in again][: len(whole)] == [run.uid for run in whole] and len(whole) > 1


def test_state_that_does_not_fit_is_refused() -> None:
    gang = counting()
    gang.feed(rows(1))
    (frozen,) = gang.barrier()
    wrong = Run(pa.record_batch({"x": [1]}))
    holes = Run(pa.record_batch([pa.array([0], pa.int32()), pa.array([7], pa.int64())], schema=sessionruns.HOLES))
    torn = pa.RecordBatch.from_pylist([{"__window": None, "__end": 3, "key": 1, "n__n": 1}], frozen.runs[0].batch.schema)
    for broken in ((wrong,), (*frozen.runs, holes), (Run(torn),)):
        with pytest.raises(CorruptDataError):
            counting().receivers[0].restore([Restored(0, frozen.meta, broken)])
