"""The same questions to DuckDB, in one shot over all files: what a batch engine reaches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tidegate.bench.workloads import WINDOW_MS, RunPaths, RunResult, Shape
from tidegate.errors import InvalidUseError

_AGGREGATE = f"""
    SELECT key, ts - ts % {WINDOW_MS} AS window_start, ts - ts % {WINDOW_MS} + {WINDOW_MS} AS window_end,
           count(*) AS n, sum(value) AS total, max(value) AS peak
    FROM read_parquet('{{0}}') WHERE kind <> 0 GROUP BY ALL"""
_JOIN = f"""
    SELECT l.key, l.ts - l.ts % {WINDOW_MS} AS window_start,
           l.ts - l.ts % {WINDOW_MS} + {WINDOW_MS} AS window_end,
           l.ts, l.value, r.ts AS ts_right, r.value AS value_right
    FROM read_parquet('{{0}}') l JOIN read_parquet('{{1}}') r
    ON l.key = r.key AND l.ts // {WINDOW_MS} = r.ts // {WINDOW_MS}"""
_STATELESS = """
    SELECT ts, key, value, kind, value * 100 AS cents FROM read_parquet('{0}') WHERE kind <> 0"""

QUESTIONS: dict[Shape, str] = {"aggregate": _AGGREGATE, "join": _JOIN, "stateless": _STATELESS}


def connect(threads: int) -> Any:
    """A fresh database in memory with this many threads."""
    try:
        import duckdb
    except ImportError as error:
        raise InvalidUseError("the benchmark compares with DuckDB: pip install 'tidegate[dev]'") from error
    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    # A stream has no order either; keeping one would only cost DuckDB time.
    connection.execute("SET preserve_insertion_order = false")
    return connection


def run(shape: Shape, paths: RunPaths, rows: int, threads: int) -> RunResult:
    """Answer it and write Parquet, with DuckDB's defaults. Blocks."""
    paths.output.mkdir(parents=True, exist_ok=True)
    question = QUESTIONS[shape].format(*(quoted(folder / "*.parquet") for folder in paths.inputs))
    target = paths.output / "result.parquet"
    with connect(threads) as connection:
        started = time.perf_counter()
        (written,) = connection.execute(f"COPY ({question}) TO '{quoted(target)}' (FORMAT parquet)").fetchone()
        return RunResult(rows, time.perf_counter() - started, int(written))


def quoted(path: Path) -> str:
    """A path inside an SQL string."""
    return str(path).replace("'", "''")
