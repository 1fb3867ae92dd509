"""The same questions to Spark Structured Streaming, set up as well as its documentation knows.

That is RocksDB state with changelog checkpoints, as many shuffle partitions as cores, a complete file per batch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.bench.workloads import OUT_OF_ORDERNESS_MS, WINDOW_MS, RunPaths, RunResult, Shape
from tidegate.spark.session import Session

_WINDOW = f"window(time, '{WINDOW_MS} milliseconds')"
_AGGREGATE = f"""
    SELECT key, unix_millis(window.start) AS window_start, unix_millis(window.end) AS window_end,
           count(*) AS n, sum(value) AS total, max(value) AS peak
    FROM bench_0 WHERE kind <> 0 GROUP BY key, {_WINDOW}"""
_JOIN = f"""
    SELECT l.key, unix_millis(l.win.start) AS window_start, unix_millis(l.win.end) AS window_end,
           l.ts, l.value, r.ts AS ts_right, r.value AS value_right
    FROM (SELECT *, {_WINDOW} AS win FROM bench_0) l JOIN (SELECT *, {_WINDOW} AS win FROM bench_1) r
    ON l.key = r.key AND l.win = r.win"""
_STATELESS = "SELECT ts, key, value, kind, value * 100 AS cents FROM bench_0 WHERE kind <> 0"

QUESTIONS: dict[Shape, str] = {"aggregate": _AGGREGATE, "join": _JOIN, "stateless": _STATELESS}
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def run(spark: Session, shape: Shape, paths: RunPaths, rows: int, partitions: int) -> RunResult:
    """Read every file once, one per input and micro-batch, until all input is processed. Blocks."""
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(partitions)}.items():
        spark.conf.set(name, value)
    for number, folder in enumerate(paths.inputs):
        _events(spark, folder, shape).createOrReplaceTempView(f"bench_{number}")
    started = time.perf_counter()
    query = (
        spark.sql(QUESTIONS[shape])
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(paths.scratch))
        .trigger(availableNow=True)
        .start(str(paths.output))
    )
    query.awaitTermination()
    seconds = time.perf_counter() - started
    batches = len(list((paths.scratch / "commits").glob("[0-9]*")))
    return RunResult(rows, seconds, spark.read.parquet(str(paths.output)).count(), batches)


def _events(spark: Session, folder: Path, shape: Shape) -> Any:
    stream = (
        spark.readStream.schema("ts LONG, key LONG, value DOUBLE, kind BYTE").option("maxFilesPerTrigger", 1).parquet(str(folder))
    )
    if shape == "stateless":
        return stream
    return stream.selectExpr("*", "timestamp_millis(ts) AS time").withWatermark("time", f"{OUT_OF_ORDERNESS_MS} milliseconds")


def link_files(files: Sequence[Path], folder: Path, copy: Callable[[Path, Path], object] = os.link) -> Path:
    """A directory with just these files, without a second copy of the bytes where that can be."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        try:
            copy(path, folder / path.name)
        except OSError:
            shutil.copy2(path, folder / path.name)
    return folder
