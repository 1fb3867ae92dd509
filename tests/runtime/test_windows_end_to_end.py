"""Every keyed operator in one job on threads: at several parallelisms, through a restart, and restored at another
parallelism. Results equal one batch query."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from runtime_jobs import Jobs, MemorySink, failure, once, until

import tidegate as tg
from tidegate.plan.connector import Offset, Polled, Split

SPREAD = timedelta(milliseconds=400)
BEGIN = datetime(2024, 3, 31, tzinfo=UTC)
TIME = pa.timestamp("ms", "Europe/Berlin")
STATE = pa.schema([("seen", pa.int64())])
COUNTED = pa.schema([("name", pa.string()), ("added", pa.int64()), ("seen", pa.int64())])


def events(rows: int = 3_000, seed: int = 1) -> pa.Table:
    """Rows out of order within the spread, with zoned times, text and number keys, and nulls."""
    rng = random.Random(seed)
    late = [timedelta(milliseconds=rng.randrange(400)) for _ in range(rows)]
    times = [BEGIN + timedelta(milliseconds=5 * n) - late[n] for n in range(rows)]
    return pa.table(
        {
            "ts": pa.array(times, TIME),
            "name": pa.array([rng.choice(["ann", "bob", "cid", "", None]) for _ in range(rows)]),
            "key": pa.array([rng.randrange(30) for _ in range(rows)], pa.int32()),
            "value": pa.array([rng.randrange(1_000) if rng.random() > 0.1 else None for _ in range(rows)], pa.int64()),
        }
    )


class Rows:
    """A table in splits, a few rows at a time. ``on_poll`` may raise; ``gate`` says how many rows may be read."""

    event_time = "ts"
    name = "rows"
    bounded = True

    def __init__(self, table: pa.Table, *, out_of_orderness: int = 400, honest: bool = True) -> None:
        self.table = table.combine_chunks()
        self.schema = table.schema
        self.out_of_orderness = out_of_orderness
        self.honest = honest  # does it know of rows that come late?
        self.count = 8
        self.on_poll: Callable[[int], None] = lambda number: None
        self.gate = table.num_rows
        self.read = 0

    def splits(self) -> Sequence[Split]:
        edges = [self.table.num_rows * n // self.count for n in range(self.count + 1)]
        times = self.table.column("ts").cast(pa.int64())
        lowest = pc.min if self.honest else pc.max
        return [
            Split(f"{start}-{stop}", lowest(times.slice(start, stop - start)).as_py(), stop - start)
            for start, stop in pairwise(edges)
        ]

    def open(self, split: Split, offset: Offset) -> _Reader:
        start, stop = map(int, split.id.split("-"))
        return _Reader(self, start, stop, int(str(offset or 0)))


class _Reader:
    def __init__(self, source: Rows, start: int, stop: int, offset: int) -> None:
        self._source, self._start, self._stop, self.offset = source, start, stop, offset

    def poll(self, max_rows: int) -> Polled:
        source = self._source
        source.on_poll(source.read)
        rows = min(37, self._stop - self._start - self.offset)
        if source.read >= source.gate and rows:
            return Polled(None)
        at = self._start + self.offset
        self.offset += rows
        source.read += rows
        finished = self._start + self.offset >= self._stop
        if not rows:
            return Polled(None, finished=finished)
        batch = source.table.slice(at, rows).combine_chunks().to_batches()[0]
        return Polled(batch, rows, pc.max(batch.column("ts").cast(pa.int64())).as_py(), finished)

    def close(self) -> None:
        return None


def count_per_key(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """How many rows of a name this batch has, and how many there were so far."""
    names = batch.column("name").to_pylist()
    added = [names.count(name) for name in state.column("name").to_pylist()]
    seen = pc.add(pc.fill_null(state.column("seen"), 0), pa.array(added, pa.int64()))
    output = pa.record_batch([state.column("name"), pa.array(added, pa.int64()), seen], schema=COUNTED)
    return output, pa.record_batch([state.column("name"), seen], schema=state.schema)


AGGREGATES: dict[str, Any] = {
    "n": tg.count(),
    "total": tg.sum("value"),
    "opening": tg.first("value"),
    "closing": tg.last("value"),
    "values": tg.count_distinct("value"),
}
SQL = """count(*), sum(value)::BIGINT, first(value ORDER BY ts, value) FILTER (value IS NOT NULL),
         last(value ORDER BY ts, value) FILTER (value IS NOT NULL), count(DISTINCT value)"""
SINKS = ("tumbling", "sliding", "session", "stacked", "running", "process")


def pipeline(source: Rows, sinks: dict[str, MemorySink]) -> tg.Pipeline:
    rows = tg.from_source(source)
    keyed = rows.key_by("name", "key")
    tumbling = keyed.window(tg.tumbling("1s", allowed_lateness="3s")).aggregate(**AGGREGATES)
    streams = {
        "tumbling": tumbling,
        "sliding": keyed.window(tg.sliding("1s", "500ms")).aggregate(**AGGREGATES),
        "session": keyed.window(tg.session("700ms")).aggregate(**AGGREGATES),
        "stacked": tumbling.key_by("name").window(tg.tumbling("1s")).aggregate(rows=tg.sum("n")),
        "running": keyed.aggregate(**AGGREGATES),
        "process": rows.key_by("name").process(count_per_key, state=STATE, output=COUNTED),
    }
    return tg.Pipeline("all", *(stream.write(sinks[name]).named(name) for name, stream in streams.items()))


def expected(table: pa.Table) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("source", table.set_column(0, "ts", table.column("ts").cast(pa.int64())))
        db.execute("CREATE TABLE rows AS SELECT * FROM source")
        db.execute("CREATE TABLE slides AS SELECT *, ts // 500 * 500 - b * 500 AS s FROM rows, range(2) AS r(b)")
        db.execute(
            """CREATE TABLE sessions AS SELECT *, sum(new) OVER (PARTITION BY name, key ORDER BY ts) AS session FROM
               (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY name, key ORDER BY ts) < 700 THEN 0 ELSE 1 END AS new
                FROM rows)"""
        )
        queries = {
            "tumbling": f"SELECT name, key, ts // 1000 * 1000 AS s, s + 1000, {SQL} FROM rows GROUP BY name, key, s",
            "sliding": f"SELECT name, key, s, s + 1000, {SQL} FROM slides GROUP BY name, key, s",
            "session": f"SELECT name, key, min(ts), max(ts) + 700, {SQL} FROM sessions GROUP BY name, key, session",
            "stacked": "SELECT name, ts // 1000 * 1000 + 1000 AS s, s + 1000, count(*) FROM rows GROUP BY name, s",
            "running": f"SELECT name, key, {SQL} FROM rows GROUP BY name, key",
            "process": "SELECT name, count(*), count(*) FROM rows GROUP BY name",
        }
        return {name: in_order(db.sql(query).fetchall()) for name, query in queries.items()}


def in_order(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


def found(sinks: dict[str, MemorySink]) -> dict[str, list[tuple[Any, ...]]]:
    results = {name: published(sink) for name, sink in sinks.items()}
    last: dict[Any, tuple[Any, ...]] = {}
    for row in results["running"]:  # a key's newest row is the one with the most rows
        last[row[:2]] = max(last.get(row[:2], row), row, key=lambda each: each[2])
    added: dict[Any, list[int]] = {}
    for name, more, seen in results["process"]:
        total = added.setdefault(name, [0, 0])
        added[name] = [total[0] + more, max(total[1], seen)]
    results["running"] = list(last.values())
    results["process"] = [(name, *totals) for name, totals in added.items()]
    return {name: in_order(rows) for name, rows in results.items()}


def published(sink: MemorySink) -> list[tuple[Any, ...]]:
    with sink.lock:
        batches = [batch for _, part in sink.visible.values() for batch in part]
    rows = []
    for batch in batches:
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
        rows += list(zip(*(column.to_pylist() for column in columns), strict=True))
    return rows


@pytest.fixture
def sinks() -> dict[str, MemorySink]:
    return {name: MemorySink(name) for name in SINKS}


def check(job: Any, sinks: dict[str, MemorySink], table: pa.Table) -> None:
    wanted, got = expected(table), found(sinks)
    for name in SINKS:
        assert got[name] == wanted[name], name
    assert all(each["late_rows"] == 0 for each in job.metrics()["operators"].values())


@pytest.mark.parametrize("interval", ["20ms", None], ids=["checkpoints", "none"])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_results_equal_one_batch_query(parallelism: int, interval: str | None, jobs: Jobs, sinks: dict[str, MemorySink]) -> None:
    table = events()
    job = jobs.finish(pipeline(Rows(table), sinks), parallelism, interval=interval)
    check(job, sinks, table)


@pytest.mark.parametrize("unaligned", ["never", "always"])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_results_are_the_same_after_a_restart(parallelism: int, unaligned: str, jobs: Jobs, sinks: dict[str, MemorySink]) -> None:
    table = events()
    source = Rows(table)
    source.gate = 1_500
    source.on_poll = once(OSError("the disk is gone"), lambda read: read > 2_000)
    job = jobs.start(pipeline(source, sinks), parallelism, unaligned=unaligned)
    until(lambda: source.read >= source.gate)
    job.checkpoint()
    source.gate = 1 << 62
    assert job.await_termination(30)
    assert job.metrics()["restarts"] == 1
    check(job, sinks, table)


@pytest.mark.parametrize("unaligned", ["never", "always"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1), (2, 1)])
def test_results_are_the_same_when_restored_at_another_parallelism(
    before: int, after: int, unaligned: str, jobs: Jobs, sinks: dict[str, MemorySink]
) -> None:
    table = events()
    source = Rows(table)
    source.gate = 1_700
    job = jobs.start(pipeline(source, sinks), before, unaligned=unaligned)
    until(lambda: source.read >= source.gate)
    job.checkpoint()
    job.stop()
    job = jobs.finish(pipeline(Rows(table), sinks), after, unaligned=unaligned)
    assert job.restored_from is not None
    check(job, sinks, table)


@pytest.mark.parametrize("window", [tg.tumbling("1s"), tg.session("300ms")], ids=str)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_every_row_is_either_in_a_result_or_late(parallelism: int, window: Any, jobs: Jobs) -> None:
    table = events()
    old = pa.array([-5_000 if n % 10 == 9 else 0 for n in range(table.num_rows)], pa.duration("ms"))
    table = table.set_column(0, "ts", pc.add(table.column("ts"), old))
    source = Rows(table, honest=False)
    source.gate = 1_500
    source.on_poll = once(OSError("the disk is gone"), lambda read: read > 2_000)
    results, late = MemorySink("results"), MemorySink("late")
    counted = tg.from_source(source).key_by("key").window(window).aggregate(n=tg.count(), total=tg.sum("value"))
    job = jobs.start(tg.Pipeline("late", counted.write(results), counted.late().write(late)), parallelism)
    until(lambda: source.read >= source.gate)
    job.checkpoint()
    source.gate = 1 << 62
    assert job.await_termination(30)
    rows, thrown = published(results), published(late)
    assert sum(row[3] for row in rows) + len(thrown) == table.num_rows and thrown
    everything = [row[4] for row in rows] + [row[3] for row in thrown]
    assert sum(value or 0 for value in everything) == pc.sum(table.column("value")).as_py()
    operators = job.metrics()["operators"].values()
    assert sum(each["late_rows"] for each in operators) == len(thrown)


def test_an_exception_of_the_users_function_ends_the_job_with_its_traceback(jobs: Jobs) -> None:
    def broken(batch: pa.RecordBatch, state: pa.RecordBatch) -> Any:
        raise LookupError("no such thing")

    stream = tg.from_source(Rows(events(100))).key_by("name").process(broken, state=STATE, output=COUNTED)
    job = jobs.start(tg.Pipeline("broken", stream.write(MemorySink())))
    text = failure(job)
    assert "the function of process" in text and "in broken" in text and "no such thing" in text


def test_a_state_that_does_not_fit_is_refused_before_anything_runs(jobs: Jobs) -> None:
    def started(state: pa.Schema, source: Rows) -> Any:
        rows = tg.from_source(source)
        stream = rows.key_by("name").process(count_per_key, state=state, output=COUNTED).named("counts")
        return jobs.start(tg.Pipeline("fits", stream.write(MemorySink()).named("out")))

    source = Rows(events(500))
    source.gate = 200
    job = started(STATE, source)
    until(lambda: source.read >= source.gate)
    job.checkpoint()
    job.stop()
    with pytest.raises(tg.TidegateError, match=r"does not fit the plan: operator 'counts'.*seen int64.*seen double"):
        started(pa.schema([("seen", pa.float64())]), Rows(events(500)))
