"""A user's script: a pipeline on local Spark. Run by tests that interrupt it as a terminal does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import tidegate as tg

ROWS, ROWS_PER_SECOND = 8_000, 2_000


def pipeline(out: Path) -> tg.Pipeline:
    rows = tg.generate(rows=ROWS, rows_per_second=ROWS_PER_SECOND)
    return tg.Pipeline("interrupted", rows.write_parquet(out))


def main(folder: Path, then: str) -> None:
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", quick)
    spark = session.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint = tg.CheckpointConfig(interval="100ms")
    job = pipeline(folder / "out").start(spark, parallelism=1, store=folder / "store", checkpoint=checkpoint)
    while job.metrics()["checkpoints_committed"] < 3:
        time.sleep(0.02)
    print(f"READY {job.restored_from}", file=sys.stderr, flush=True)
    if then == "wait":
        job.await_termination()
    elif then == "sleep":
        time.sleep(60)
    # else the program is over


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
