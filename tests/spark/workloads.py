"""The pipelines of these tests, and the same results in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from paced import PacedSource
from seen import DRESSED, OUTPUT, STATE, count_rows, dress

import tidegate as tg
from tidegate import col
from tidegate.connectors.parquet import ParquetSource
from tidegate.testing.crash import assert_same_rows, read_output

BIDS, PEOPLE = 60_000, 12_000
KEYS = 300
ROWS_PER_SECOND = 400
FILES = 4
GROUP_ROWS = 2_500
JITTER_MS = 1_500


@dataclass(frozen=True, slots=True)
class Data:
    """Where the input is."""

    bids: Path
    people: Path


def make_data(folder: Path) -> Data:
    """Rows in order of time but for some jitter, in several files of several row groups."""
    data = Data(folder / "bids", folder / "people")
    _write(data.bids, BIDS, ROWS_PER_SECOND, seed=1, value="value")
    _write(data.people, PEOPLE, ROWS_PER_SECOND * PEOPLE / BIDS, seed=2, value="weight")
    return data


def _write(folder: Path, rows: int, per_second: float, seed: int, value: str) -> None:
    folder.mkdir()
    dice = np.random.default_rng(seed)
    times = (np.arange(rows) * 1000 / per_second).astype("i8") + dice.integers(0, JITTER_MS, rows)
    table = pa.table(
        {
            "ts": times,
            "key": dice.integers(0, KEYS, rows),
            value: dice.random(rows) * 100,
            "kind": dice.integers(0, 4, rows).astype("i1"),
        }
    )
    per_file = rows // FILES
    for number in range(FILES):
        part = table.slice(number * per_file, per_file)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=GROUP_ROWS)


def read(folder: Path, seconds: float | None, parallelism: int, out_of_orderness: str = "2s") -> tg.Stream:
    """Rows of these files, at full speed or over some seconds."""
    name = f"read-{folder.name}"
    if seconds is None:
        return tg.read_parquet(folder, event_time="ts", out_of_orderness=out_of_orderness).named(name)
    source = ParquetSource(folder, event_time="ts", out_of_orderness=out_of_orderness)
    return tg.from_source(PacedSource(source, seconds, parallelism)).named(name)


# -- pipelines and what they must emit -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """``build`` makes one stream per sink; ``queries`` the same in SQL over the views bids and people, and sink0, sink1 and so
    on: which rows are late is a matter of timing, so what must hold of the others is said with the late ones at hand."""

    name: str
    build: Callable[[tg.Stream, tg.Stream], Sequence[tg.Stream]]
    queries: Sequence[str]
    close: Sequence[str] = ()
    needs_people: bool = False
    shown: Sequence[str] = ()
    """What to compare of each sink, in SQL over the view ``output``; empty: all of it."""
    has_late_rows: bool = False

    def pipeline(self, data: Data, out: Path, *, seconds: float | None = None, parallelism: int = 1) -> tg.Pipeline:
        disorder = "0ms" if self.has_late_rows else "2s"
        if self.has_late_rows:  # in one batch none would be late: a whole row group is known before its watermark
            seconds = seconds or 0.5
        bids = read(data.bids, seconds, parallelism, disorder)
        people = read(data.people, seconds, parallelism) if self.needs_people else bids
        streams = self.build(bids, people)
        return tg.Pipeline(self.name, *(s.write_parquet(out / f"{i}") for i, s in enumerate(streams)))

    def rows_in(self) -> int:
        return BIDS + (PEOPLE if self.needs_people else 0)

    def check(self, data: Data, out: Path) -> None:
        """Every sink has exactly the rows that DuckDB returns."""
        sinks = [read_output(out / f"{number}") for number in range(len(self.queries))]
        for number, (query, found) in enumerate(zip(self.queries, sinks, strict=True)):
            expected = sql(data, query, sinks)
            close = [name for name in self.close if name in expected.column_names]
            shown = _view(found, self.shown[number]) if self.shown else found
            assert_same_rows(shown, expected, close=close)


def sql(data: Data, query: str, sinks: Sequence[pa.Table] = ()) -> pa.Table:
    """What DuckDB says."""
    with duckdb.connect() as connection:
        connection.execute("SET threads=1")
        for name, folder in (("bids", data.bids), ("people", data.people)):
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{folder}/*.parquet'")
        for number, sink in enumerate(sinks):
            connection.register(f"sink{number}", sink)
        found: Any = connection.sql(query).to_arrow_table()
        return found


def _view(output: pa.Table, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("output", output)
        found: Any = connection.sql(query).to_arrow_table()
        return found


def _tumbling(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    windows = bids.filter(col("kind") != 0).key_by("key").window(tg.tumbling("10s"))
    return [windows.aggregate(n=tg.count(), total=tg.sum("value"), peak=tg.max("value"))]


def _sliding(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    windows = bids.key_by("kind", "key").window(tg.sliding("20s", "5s"))
    return [windows.aggregate(n=tg.count(), low=tg.min("value"), average=tg.mean("value"))]


def _join(bids: tg.Stream, people: tg.Stream) -> list[tg.Stream]:
    left, right = bids.select("ts", "key", "value"), people.select("ts", "key", "weight")
    return [left.join(right, on="key", window=tg.tumbling("10s")).select("key", "window_start", "value", "weight")]


def _union(bids: tg.Stream, people: tg.Stream) -> list[tg.Stream]:
    other = people.select("ts", "key", "kind", value=col("weight"))
    both = bids.select("ts", "key", "kind", "value").union(other)
    return [both.key_by("key").window(tg.tumbling("10s")).aggregate(n=tg.count(), total=tg.sum("value"))]


def _two_sinks(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    per_kind = bids.key_by("kind").window(tg.tumbling("5s")).aggregate(n=tg.count(), peak=tg.max("value"))
    return [per_kind, bids.filter(col("value") < 50).with_columns(cents=col("value") * 100)]


def _two_copies(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    return [bids, bids.filter(col("kind") == 1)]


def _keyed(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    by_key = bids.key_by("key")
    sessions = by_key.window(tg.session("3s")).aggregate(n=tg.count(), peak=tg.max("value"))
    distinct = bids.key_by("kind").window(tg.tumbling("10s")).aggregate(keys=tg.count_distinct("key"))
    running = by_key.aggregate(n=tg.count(), total=tg.sum("value"))
    return [sessions, distinct, running, by_key.process(count_rows, state=STATE, output=OUTPUT)]


def _typed(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    """Keys of text, decimals, timestamps and several columns; first and last; windows that stay open for late rows."""
    rows = bids.select("ts", "key", "value").map_batches(dress, DRESSED)
    both = rows.key_by("name", "price").window(tg.tumbling("10s"))
    per_minute = rows.key_by("minute").window(tg.sliding("20s", "5s", allowed_lateness="3s"))
    sessions = rows.key_by("name").window(tg.session("1s", allowed_lateness="2s"))
    return [
        both.aggregate(n=tg.count(), opening=tg.first("value"), closing=tg.last("value")),
        per_minute.aggregate(n=tg.count("name"), names=tg.count_distinct("name"), low=tg.min("price"), last=tg.last("key")),
        sessions.aggregate(n=tg.count(), opening=tg.first("price"), closing=tg.last("price")),
        rows.key_by("minute", "name").aggregate(n=tg.count(), opening=tg.first("value"), closing=tg.last("value")),
        rows.filter(col("value") < 25).select("ts", "price", whose=col("name")),
    ]


def _late(bids: tg.Stream, _: tg.Stream) -> list[tg.Stream]:
    """Rows come up to 1.5 s out of order, and the source promises none: many are late."""
    rows = bids.with_columns(cents=(col("value") * 100).cast(pa.int64(), safe=False)).select("ts", "key", "kind", "cents")
    tumbling = rows.key_by("key").window(tg.tumbling("500ms")).aggregate(n=tg.count(), total=tg.sum("cents"))
    sessions = rows.key_by("key").window(tg.session("400ms")).aggregate(n=tg.count(), total=tg.sum("cents"))
    running = rows.key_by("key").aggregate(n=tg.count(), opening=tg.first("cents"), closing=tg.last("cents"))
    return [tumbling, tumbling.late(), sessions, sessions.late(), running]


TEN = "ts // 10000 * 10000"
TUMBLING = Workload(
    "tumbling",
    _tumbling,
    [
        f"""SELECT key, {TEN} AS window_start, {TEN} + 10000 AS window_end, count(*) AS n, sum(value) AS total,
                   max(value) AS peak FROM bids WHERE kind <> 0 GROUP BY ALL"""
    ],
    close=["total"],
)
SLIDING = Workload(
    "sliding",
    _sliding,
    [
        """SELECT kind, key, s AS window_start, s + 20000 AS window_end, count(*) AS n, min(value) AS low,
                  avg(value) AS average
           FROM (SELECT *, unnest([ts // 5000 * 5000 - i * 5000 FOR i IN range(4)]) AS s FROM bids) GROUP BY ALL"""
    ],
    close=["average"],
)
JOIN = Workload(
    "join",
    _join,
    [
        """SELECT b.key, b.ts // 10000 * 10000 AS window_start, value, weight FROM bids b JOIN people p
           ON b.key = p.key AND b.ts // 10000 = p.ts // 10000"""
    ],
    needs_people=True,
)
UNION = Workload(
    "union",
    _union,
    [
        f"""SELECT key, {TEN} AS window_start, {TEN} + 10000 AS window_end, count(*) AS n, sum(value) AS total
            FROM (SELECT ts, key, value FROM bids UNION ALL SELECT ts, key, weight FROM people) GROUP BY ALL"""
    ],
    close=["total"],
    needs_people=True,
)
TWO_SINKS = Workload(
    "two_sinks",
    _two_sinks,
    [
        """SELECT kind, ts // 5000 * 5000 AS window_start, window_start + 5000 AS window_end, count(*) AS n,
                  max(value) AS peak FROM bids GROUP BY ALL""",
        "SELECT *, value * 100 AS cents FROM bids WHERE value < 50",
    ],
)
TWO_COPIES = Workload(
    "two_copies",
    _two_copies,
    ["SELECT * FROM bids", "SELECT * FROM bids WHERE kind = 1"],
)
KEYED = Workload(
    "keyed",
    _keyed,
    [
        """WITH o AS (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY key ORDER BY ts) < 3000 THEN 0 ELSE 1 END AS new
                      FROM bids),
                s AS (SELECT *, sum(new) OVER (PARTITION BY key ORDER BY ts ROWS UNBOUNDED PRECEDING) AS id FROM o)
           SELECT key, min(ts) AS window_start, max(ts) + 3000 AS window_end, count(*) AS n, max(value) AS peak
           FROM s GROUP BY key, id""",
        f"""SELECT kind, {TEN} AS window_start, {TEN} + 10000 AS window_end, count(DISTINCT key) AS keys
            FROM bids GROUP BY ALL""",
        "SELECT key, count(*) AS n, sum(value) AS total FROM bids GROUP BY key",
        "SELECT key, count(*) AS added, count(*) AS seen FROM bids GROUP BY key",
    ],
    close=["total"],
    shown=[
        "SELECT * FROM output",
        "SELECT * FROM output",
        # Every epoch shows the keys that changed; the last row of a key is the one that stands.
        "SELECT key, max(n) AS n, arg_max(total, n) AS total FROM output GROUP BY key",
        "SELECT key, sum(added)::BIGINT AS added, max(seen) AS seen FROM output GROUP BY key",
    ],
)
DRESS = """(SELECT ts, key, value, CASE WHEN key % 50 = 0 THEN NULL ELSE 'n-' || (key // 3) END AS name,
                   key::DECIMAL(21, 2) AS price, epoch_ms(ts // 60000 * 60000) AS minute FROM bids)"""
ENDS = "count(*) AS n, first({0} ORDER BY ts, {0}) AS opening, last({0} ORDER BY ts, {0}) AS closing"
TYPED = Workload(
    "typed",
    _typed,
    [
        f"""SELECT name, price, {TEN} AS window_start, {TEN} + 10000 AS window_end, {ENDS.format("value")} FROM {DRESS}
            GROUP BY ALL""",
        f"""SELECT minute, s AS window_start, s + 20000 AS window_end, count(name) AS n, count(DISTINCT name) AS names,
                   min(price) AS low, last(key ORDER BY ts, key) AS last
            FROM (SELECT *, unnest([ts // 5000 * 5000 - i * 5000 FOR i IN range(4)]) AS s FROM {DRESS}) GROUP BY ALL""",
        f"""WITH o AS (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY name ORDER BY ts) < 1000 THEN 0 ELSE 1 END AS new
                       FROM {DRESS}),
                 s AS (SELECT *, sum(new) OVER (PARTITION BY name ORDER BY ts ROWS UNBOUNDED PRECEDING) AS id FROM o)
            SELECT name, min(ts) AS window_start, max(ts) + 1000 AS window_end, {ENDS.format("price")} FROM s
            GROUP BY name, id""",
        f"SELECT minute, name, {ENDS.format('value')} FROM {DRESS} GROUP BY minute, name",
        f"SELECT ts, price, name AS whose FROM {DRESS} WHERE value < 25",
    ],
    shown=[
        *["SELECT * FROM output"] * 3,
        """SELECT minute, name, max(n) AS n, arg_max(opening, n) AS opening, arg_max(closing, n) AS closing FROM output
           GROUP BY minute, name""",
        "SELECT * FROM output",
    ],
)
CENTS = "(SELECT ts, key, kind, trunc(value * 100)::BIGINT AS cents FROM bids)"
LATE = Workload(
    "late",
    _late,
    [
        f"""SELECT key, ts // 500 * 500 AS window_start, window_start + 500 AS window_end, count(*) AS n,
                   sum(cents)::BIGINT AS total FROM (FROM {CENTS} EXCEPT ALL FROM sink1) GROUP BY ALL""",
        f"FROM sink1 INTERSECT ALL FROM {CENTS}",
        # A row that is in time after its neighbours' session was closed begins another. So sessions of a key never share a
        # stretch of time, and every row in time belongs to the one session that spans it.
        f"""SELECT s.key, window_start, window_end, count(*) AS n, sum(cents)::BIGINT AS total
            FROM (FROM {CENTS} EXCEPT ALL FROM sink3) r JOIN sink2 s
            ON r.key = s.key AND r.ts BETWEEN window_start AND window_end - 400 GROUP BY ALL""",
        f"FROM sink3 INTERSECT ALL FROM {CENTS}",
        f"SELECT key, {ENDS.format('cents')} FROM {CENTS} GROUP BY key",
    ],
    shown=[
        *["SELECT * FROM output"] * 4,
        "SELECT key, max(n) AS n, arg_max(opening, n) AS opening, arg_max(closing, n) AS closing FROM output GROUP BY key",
    ],
    has_late_rows=True,
)
WORKLOADS = [TUMBLING, SLIDING, JOIN, UNION, TWO_SINKS, KEYED, TYPED, LATE]
