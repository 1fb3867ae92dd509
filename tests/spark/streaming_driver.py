"""A driver to be killed: a streaming DataFrame through a job into Parquet, until somebody ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import tidegate as tg
from tidegate.spark.session import local_session


def main(folder: str, out: str, store: str, log: str) -> None:
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = local_session("local[3]", "tidegate killed driver", log=Path(log), **quick)
    files = spark.readStream.schema("n long, ts long").option("maxFilesPerTrigger", 1).parquet(folder)
    stream = tg.from_dataframe(files, event_time="ts", trigger="20ms")
    pipeline = tg.Pipeline("stream", stream.write_parquet(out, publish_every="1s"))
    job = pipeline.start(spark, parallelism=2, store=store, checkpoint=tg.CheckpointConfig(interval="100ms"))
    job.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
