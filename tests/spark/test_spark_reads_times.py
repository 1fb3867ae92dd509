"""Spark reads what the Parquet sink writes of times finer than its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidegate as tg

pytestmark = pytest.mark.spark


def test_spark_reads_timestamps_that_were_nanoseconds(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([-1_001, 1_999, 1_000_000_000], pa.timestamp("ns", "UTC"))
    rows = {"t": times, "nested": pa.StructArray.from_arrays([times], ["t"])}
    pq.write_table(pa.table(rows), tmp_path / "in.parquet")
    out = tg.read_parquet(tmp_path / "in.parquet").write_parquet(tmp_path / "out")
    assert tg.Pipeline("times", out).start(spark, parallelism=1).await_termination(60)
    micros = spark.read.parquet(str(tmp_path / "out")).selectExpr("unix_micros(t) as a", "unix_micros(nested.t) as b").collect()
    assert sorted((row.a, row.b) for row in micros) == [(-2, -2), (1, 1), (1_000_000, 1_000_000)]
    assert out.to_dataframe(spark).count() == 3
