"""Columns called like our own: they work, or are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runtime_jobs import GatedSource, Jobs, rows_of

import tidegate as tg

OURS = [
    *("row", "run", "side", "value", "n__n", "__left", "__right", "__late", "__late_k", "__window", "__end"),
    *("__rows", "__session", "__row"),
]


def source(names: list[str], key: str = "k") -> GatedSource:
    columns = {"ts": pa.array(range(0, 4_000, 1_000)), key: pa.array([1, 2, 1, 2])}
    return GatedSource(pa.table(columns | {name: pa.array([1, 2, 3, 3]) for name in names}))


def test_a_join_carries_columns_called_like_its_own(jobs: Jobs) -> None:
    left, right = tg.from_source(source(OURS)), tg.from_source(source(OURS))
    joined = left.join(right, on="k", window=tg.tumbling("1s"))
    job = jobs.finish(tg.Pipeline("names", joined.collect()))
    table = job.collect()
    assert table.num_rows == 4
    for name in OURS:
        assert table.column(name).to_pylist() == table.column(f"{name}_right").to_pylist()
    assert sorted(table.column("__left").to_pylist()) == [1, 2, 3, 3]


@pytest.mark.parametrize("name", ["row", "run", "t", "v", "k0", "rank 0", "new d__d"])
def test_a_key_may_be_called_like_a_column_of_the_work(name: str, jobs: Jobs) -> None:
    keyed = tg.from_source(source(["x"], key=name)).key_by(name)
    calls = {"d": tg.count_distinct("x"), "last": tg.last("x")}
    running, windowed = keyed.aggregate(**calls), keyed.window(tg.session("1h")).aggregate(**calls)
    job = jobs.finish(tg.Pipeline("keys", running.collect("running"), windowed.select(name, "d", "last").collect("windowed")))
    assert rows_of(job.collect("running"))[-1:] == rows_of(job.collect("windowed"))[-1:] == [(2, 2, 3)]


def test_late_rows_carry_columns_called_like_ours(jobs: Jobs) -> None:
    rows = source(OURS)
    result = tg.from_source(rows).key_by("k").window(tg.tumbling("1s")).aggregate(n=tg.count(), late=tg.count())
    job = jobs.finish(tg.Pipeline("late", result.collect("results"), result.late().collect("late")))
    assert job.collect("results").num_rows == 4
    assert job.collect("late").schema.names == rows.schema.names


REFUSED: dict[str, tuple[Any, str]] = {
    "a result like ours": (lambda s: s.key_by("k").aggregate(__late=tg.count()), "two underscores are kept for tidegate"),
    "a windowed one": (
        lambda s: s.key_by("k").window(tg.tumbling("1s")).aggregate(__late_ts=tg.count()),
        "two underscores are kept for tidegate",
    ),
    "a result like a bound": (
        lambda s: s.key_by("k").window(tg.tumbling("1s")).aggregate(window_start=tg.count()),
        "two columns of the result would be called 'window_start'",
    ),
    "a result without a name": (lambda s: s.key_by("k").aggregate(**{"": tg.count()}), "every column needs a name"),
    "a column without a name": (lambda s: s.with_columns(**{"": tg.col("x")}), "every column needs a name"),
    "a key like a part of a result": (
        lambda s: tg.Pipeline("p", s.with_columns(n__n=tg.col("k")).key_by("n__n").aggregate(n=tg.count()).collect()),
        "keys and aggregates need different names",
    ),
    "a suffix that is taken": (
        lambda s: s.with_columns(x_right=tg.col("x")).join(s, on="k", window=tg.tumbling("1s")),
        "would be called 'x_right', rename one",
    ),
    "a function's columns": (lambda s: s.map_batches(lambda b: b, pa.schema([("a", pa.int8())] * 2)), "called 'a'"),
    "a function's state": (
        lambda s: s.key_by("k").process(lambda b, t: (b, t), pa.schema([("", pa.int8())]), pa.schema([("a", pa.int8())])),
        "every column needs a name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_name_that_would_clash_is_refused_at_once(what: str) -> None:
    call, sentence = REFUSED[what]
    with pytest.raises(tg.InvalidUseError, match=sentence):
        call(tg.from_source(source(["x"])))


@pytest.mark.parametrize("event_time", [None, "ts", "a"])
@pytest.mark.parametrize(
    ("names", "sentence"), [(["ts", "a", "a"], "called 'a'"), (["ts", "a", ""], "every column needs a name")]
)
def test_a_file_that_repeats_a_name_or_has_none_is_named(
    names: list[str], sentence: str, event_time: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2])] * 3, names=names), path)
    with pytest.raises(tg.InvalidUseError, match=sentence) as caught:
        tg.read_parquet(path, event_time=event_time)
    assert str(path) in str(caught.value)
