"""The questions as a user of tidegate writes them, and one measured run of a pipeline."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, assert_never

import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidegate as tg
from tidegate.bench.replay import ReplaySource
from tidegate.bench.switching import Switching
from tidegate.bench.workloads import OUT_OF_ORDERNESS_MS, WINDOW_MS, RunPaths, RunResult, Shape
from tidegate.connectors.parquet_source import ParquetSource
from tidegate.errors import JobFailedError
from tidegate.spark.session import Session

RUN_TIMEOUT_S = 3600.0
NEVER = "24h"


def pipeline(shape: Shape, paths: RunPaths, name: str) -> tg.Pipeline:
    """The workload on tidegate."""
    streams = [tg.read_parquet(folder, event_time="ts", out_of_orderness=OUT_OF_ORDERNESS_MS) for folder in paths.inputs]
    match shape:
        case "aggregate":
            asked = per_key(streams[0])
        case "join":
            left, right = (stream.select("ts", "key", "value") for stream in streams)
            asked = left.join(right, on="key", window=tg.tumbling(WINDOW_MS))
        case "stateless":
            asked = streams[0].filter(tg.col("kind") != 0).with_columns(cents=tg.col("value") * 100)
        case _:
            assert_never(shape)
    return tg.Pipeline(name, asked.write_parquet(paths.output))


def per_key(stream: tg.Stream) -> tg.Stream:
    """Count, sum and maximum per key and window."""
    return (
        stream.filter(tg.col("kind") != 0)
        .key_by("key")
        .window(tg.tumbling(WINDOW_MS))
        .aggregate(n=tg.count(), total=tg.sum("value"), peak=tg.max("value"))
    )


def steady(paths: RunPaths, name: str, times: int, span_ms: int) -> tg.Pipeline:
    """The aggregate over its files read several times, for runs that last."""
    files = ParquetSource(paths.inputs[0], event_time="ts", out_of_orderness=OUT_OF_ORDERNESS_MS)
    return tg.Pipeline(name, per_key(tg.from_source(ReplaySource(files, times, span_ms))).write_parquet(paths.output))


def run(spark: Session, asked: tg.Pipeline, paths: RunPaths, rows: int, parallelism: int, interval: str | None) -> RunResult:
    """Start it and wait for its end; ``interval=None`` is without checkpoints. Blocks, an hour at most."""
    checkpoint = tg.CheckpointConfig(interval=interval)
    store = None if interval is None else str(paths.scratch)
    started = time.perf_counter()
    job = asked.start(spark, parallelism=parallelism, store=store, checkpoint=checkpoint, restore="latest")
    try:
        _await(job)
        seconds = time.perf_counter() - started
    finally:
        shutil.rmtree(paths.scratch, ignore_errors=True)
    metrics = job.metrics()
    done = (metrics["checkpoints_committed"], metrics["restarts"])
    return RunResult(rows, seconds, rows_in(paths.output), *done)


def switched(spark: Session, asked: tg.Pipeline, paths: RunPaths, parallelism: int, switches: int) -> dict[str, Any]:
    """Start it, and switch checkpoints on and off while it runs. Blocks."""
    checkpoint = tg.CheckpointConfig(interval=NEVER)
    job = asked.start(spark, parallelism=parallelism, store=str(paths.scratch), checkpoint=checkpoint)
    try:
        while job.status == "STARTING" or not job.metrics()["rows_in"]:
            if job.await_termination(0.1):
                raise JobFailedError(f"the job ended before it was measured job={job.name}")
        return Switching(job).run(switches)
    finally:
        job.stop()


def rows_in(folder: Path) -> int:
    """How many rows the visible files of a directory have."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("[!_.]*.parquet"))


def rows_asked(folder: Path) -> int:
    """How many rows of the input pass the filter."""
    kinds = (pq.read_table(path, columns=["kind"])["kind"] for path in folder.glob("[!_.]*.parquet"))
    return sum(len(kind) - (pc.sum(pc.equal(kind, 0)).as_py() or 0) for kind in kinds)


def rows_counted(folder: Path) -> int:
    """How many rows the counts of a result add up to: fewer than asked were lost, more came twice."""
    counts = (pq.read_table(path, columns=["n"])["n"] for path in folder.glob("[!_.]*.parquet"))
    return sum(pc.sum(count).as_py() or 0 for count in counts)


def _await(job: Any) -> None:
    if not job.await_termination(RUN_TIMEOUT_S):
        job.stop()
        raise JobFailedError(f"the run took longer than {RUN_TIMEOUT_S:.0f} s and was stopped job={job.name}")
