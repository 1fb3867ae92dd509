"""Unaligned checkpoints on real Spark: a node is killed right after one was committed with data in flight."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from conftest import Start
from tidegate.api.job import Job
from tidegate.connectors.generate import GenerateSource
from tidegate.testing.crash import assert_same_rows, kill_node, read_output, wait_until

ROWS = 2_000_000
UNALIGNED = tg.CheckpointConfig(interval="200ms", alignment_timeout="200ms")


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.1)
    return batch


def slower(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.4)
    return batch


def source(keys: int, rows: int = ROWS) -> GenerateSource:
    return GenerateSource(rows=rows, keys=keys, splits=8, event_rate=100_000)


def expected(rows: GenerateSource, window_ms: int) -> pa.Table:
    """Count and sum per key and window, of everything that the source emits."""
    batches = []
    for split in rows.splits():
        reader = rows.open(split, None)
        while not (polled := reader.poll(1 << 20)).finished:
            batches += [] if polled.batch is None else [polled.batch]
        batches += [] if polled.batch is None else [polled.batch]
    table = pa.Table.from_batches(batches)
    starts = pc.multiply(pc.divide(table["ts"], window_ms), window_ms)
    counted = table.append_column("window_start", starts).group_by(["key", "window_start"])
    found = counted.aggregate([("kind", "count"), ("kind", "sum")])
    return found.rename_columns(["key", "window_start", "n", "total"])


def overtaken(job: Job) -> dict[str, Any] | None:
    """The first unaligned checkpoint with data in flight."""
    found = (each for each in job.checkpoints() if each.get("inflight_events"))
    return next(found, None)


def per_key(stream: tg.Stream, window_ms: int) -> tg.Stream:
    keyed = stream.key_by("key").window(tg.tumbling(f"{window_ms}ms"))
    return keyed.aggregate(n=tg.count(), total=tg.sum("kind"))


@pytest.mark.parametrize(("where", "keys", "window_ms"), [("before", 500, 1_000), ("after", 300_000, 10_000)])
def test_a_kill_right_after_an_unaligned_commit_is_exact(
    start: Start, tmp_path: Path, where: str, keys: int, window_ms: int
) -> None:
    """The slow function is upstream of the aggregation or downstream; what is in flight is rows or results."""
    stream = tg.from_source(source(keys))
    if where == "before":
        results = per_key(stream.map_batches(slow), window_ms)
    else:
        results = per_key(stream, window_ms).map_batches(slower)
    job = start(tg.Pipeline(f"overtaken-{where}", results.write_parquet(tmp_path / "out")), checkpoint=UNALIGNED)
    record = wait_until("an unaligned checkpoint", lambda: overtaken(job))
    assert record["unaligned"]
    assert record["inflight_bytes"] > 0
    assert kill_node(job) is not None
    assert job.await_termination(90)
    assert job.metrics()["restarts"] >= 1
    found = read_output(tmp_path / "out").select(["key", "window_start", "n", "total"])
    assert_same_rows(found, expected(source(keys), window_ms).cast(found.schema))


def in_mode(record: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    return [task for task in record["tasks"] if task["mode"] == mode]


def test_a_kill_after_barriers_that_were_promoted_behind_their_cut_is_exact(start: Start, tmp_path: Path) -> None:
    """Sources cut aligned. Their barriers wait after rows that the slow function has no room for, and are promoted."""
    rows = source(500, 3 * ROWS)
    results = per_key(tg.from_source(rows).named("rows").map_batches(slower), 1_000)
    checkpoint = tg.CheckpointConfig(interval="200ms", alignment_timeout="100ms")
    job = start(tg.Pipeline("promoted", results.write_parquet(tmp_path / "out")), checkpoint=checkpoint)

    def promoted() -> list[dict[str, Any]]:
        tasks = [task for record in job.checkpoints() if record.get("tasks") for task in in_mode(record, "unaligned")]
        return [task for task in tasks if task["task"] == "rows" and task["inflight_events"]]

    assert all(task["alignment_ms"] == 0 for task in wait_until("a promoted barrier of a source", promoted))
    assert kill_node(job) is not None
    assert job.await_termination(90)
    assert job.metrics()["restarts"] >= 1
    found = read_output(tmp_path / "out").select(["key", "window_start", "n", "total"])
    assert_same_rows(found, expected(rows, 1_000).cast(found.schema))


def test_a_kill_when_inputs_have_ended_and_results_are_in_flight_is_exact(start: Start, tmp_path: Path) -> None:
    """The sources are done, their ends have come, and the last windows wait for the slow function."""
    results = per_key(tg.from_source(source(300_000)), 10_000).map_batches(slower)
    job = start(tg.Pipeline("ended", results.write_parquet(tmp_path / "out")), checkpoint=UNALIGNED)

    def ended() -> dict[str, Any] | None:
        records = (each for each in job.checkpoints() if each.get("inflight_events") and not each["final"])
        return next((each for each in records if in_mode(each, "finished")), None)

    record = wait_until("an unaligned checkpoint after the end", ended)
    assert record["unaligned"]
    assert kill_node(job) is not None
    assert job.await_termination(90)
    assert job.metrics()["restarts"] >= 1
    found = read_output(tmp_path / "out").select(["key", "window_start", "n", "total"])
    assert_same_rows(found, expected(source(300_000), 10_000).cast(found.schema))


def union(stream: tg.Stream) -> list[tg.Stream]:
    return [per_key(stream.map_batches(slow).union(stream), 1_000)]


def two_outputs(stream: tg.Stream) -> list[tg.Stream]:
    return [per_key(stream.map_batches(slow), 1_000), per_key(stream, 1_000)]


def join(stream: tg.Stream) -> list[tg.Stream]:
    """Both sides have one row per key and window, so the join has one too."""
    left, right = per_key(stream.map_batches(slow), 1_000), per_key(stream, 1_000)
    matched = left.join(right, on="key", window=tg.tumbling("1s"))
    return [matched.select("key", "n", "total", "n_right")]


@pytest.mark.parametrize(
    ("build", "times", "columns"),
    [
        (union, 2, ["key", "window_start", "n", "total"]),
        (two_outputs, 1, ["key", "window_start", "n", "total"]),
        (join, 1, ["key", "n", "total", "n_right"]),
    ],
    ids=["union", "two outputs", "join"],
)
def test_a_kill_with_rows_in_flight_on_several_inputs_or_outputs_is_exact(
    start: Start, tmp_path: Path, build: Callable[[tg.Stream], list[tg.Stream]], times: int, columns: list[str]
) -> None:
    streams = build(tg.from_source(source(500)))
    sinks = [stream.write_parquet(tmp_path / f"{number}") for number, stream in enumerate(streams)]
    job = start(tg.Pipeline(f"overtaken-{build.__name__}", *sinks), checkpoint=UNALIGNED)
    wait_until("an unaligned checkpoint", lambda: overtaken(job))
    assert kill_node(job) is not None
    assert job.await_termination(90)
    assert job.metrics()["restarts"] >= 1
    counted = expected(source(500), 1_000)
    for name in ("n", "total"):
        index = counted.column_names.index(name)
        counted = counted.set_column(index, name, pc.multiply(counted[name], times))
    counted = counted.append_column("n_right", counted["n"]).select(columns)
    for number in range(len(streams)):
        found = read_output(tmp_path / f"{number}").select(columns)
        assert_same_rows(found, counted.cast(found.schema))
