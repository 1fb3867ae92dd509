"""Are two directories of Parquet files the same result? Row by row, in any order, float sums within 1e-9."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidegate.bench.duckdb_side import connect, quoted
from tidegate.bench.workloads import Shape

# The order of additions differs between engines, so sums differ in the last digits and nothing else may.
_AGGREGATE = """
    WITH a AS (SELECT * FROM read_parquet('{0}')), b AS (SELECT * FROM read_parquet('{1}'))
    SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), count(*),
           count(*) FILTER (WHERE (a.window_end, a.n, a.peak) IS DISTINCT FROM (b.window_end, b.n, b.peak)
               OR NOT coalesce(abs(a.total - b.total) <= 1e-9 * abs(b.total), false))
    FROM a FULL JOIN b ON a.key = b.key AND a.window_start = b.window_start"""
# Equal rows have equal hashes; the sum sees a row that comes twice, which a set would not.
_BAG = "SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0) FROM read_parquet('{path}')"
_COLUMNS = {
    "join": ("key::BIGINT, window_start::BIGINT, window_end::BIGINT, ts::BIGINT, value, ts_right::BIGINT, value_right"),
    "stateless": "ts::BIGINT, key::BIGINT, value, kind::TINYINT, cents",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Equal or not, and in what they differ."""

    equal: bool
    rows: int
    rows_expected: int
    wrong: int | None = None

    def __str__(self) -> str:
        if self.equal:
            return f"equal ({self.rows:,} rows)"
        wrong = "" if self.wrong is None else f", {self.wrong:,} wrong or missing"
        return f"NOT EQUAL ({self.rows:,} rows, expected {self.rows_expected:,}{wrong})"


def compare(shape: Shape, result: Path, expected: Path, threads: int = 2) -> Comparison:
    """Compare all rows of both. Blocks."""
    if not any(result.glob("[!_.]*.parquet")):
        return Comparison(False, 0, _count(expected, threads))
    if shape == "aggregate":
        return _aggregates(result, expected, threads)
    return _bags(_COLUMNS[shape], result, expected, threads)


def _aggregates(result: Path, expected: Path, threads: int) -> Comparison:
    with connect(threads) as connection:
        question = _AGGREGATE.format(*(_files(folder) for folder in (result, expected)))
        rows, wanted, joined, wrong = connection.execute(question).fetchone()
    return Comparison(wrong == 0 and rows == wanted == joined, rows, wanted, wrong)


def _bags(columns: str, result: Path, expected: Path, threads: int) -> Comparison:
    with connect(threads) as connection:
        bags = [connection.execute(_BAG.format(columns=columns, path=_files(folder))).fetchone() for folder in (result, expected)]
    return Comparison(bags[0] == bags[1], bags[0][0], bags[1][0])


def _count(folder: Path, threads: int) -> int:
    with connect(threads) as connection:
        answer = connection.execute(f"SELECT count(*) FROM read_parquet('{_files(folder)}')").fetchone()
        return int(answer[0])


def _files(folder: Path) -> str:
    """Visible files only: a name that begins with `_` or `.` is not part of a result."""
    return quoted(folder / "[!_.]*.parquet")
