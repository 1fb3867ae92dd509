"""Spark in and out: DataFrames as sources, committed rows and checkpoints as DataFrames."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidegate as tg
from tidegate.api.job import Job
from tidegate.errors import InvalidUseError
from tidegate.spark.gang import register_format, use_this_python

OFTEN = tg.CheckpointConfig(interval="200ms")


def until(condition: Callable[[], bool], job: Job, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if job.error is not None:
            raise job.error
        assert time.monotonic() < deadline, f"it did not happen in time status={job.status} cause={job._leader.cause}"
        time.sleep(0.02)


def numbers(out: Path) -> list[int]:
    return sorted(pq.read_table(out).column("n").to_pylist()) if any(out.glob("*.parquet")) else []


def frame(spark: SparkSession, rows: int) -> DataFrame:
    """Times, text, decimals: what Spark SQL makes."""
    made = spark.range(0, rows, 1, 4).withColumn("ts", sf.timestamp_millis(sf.col("id") * 100))
    made = made.withColumn("name", sf.concat(sf.lit("k"), sf.col("id") % 3))
    return made.withColumn("price", (sf.col("id") / 4).cast("decimal(12,2)")).withColumnRenamed("id", "n")


def test_a_batch_frame_is_computed_once_and_its_rows_are_all_there(spark: SparkSession, tmp_path: Path) -> None:
    computed = tmp_path / "computed"
    computed.mkdir()

    def noted(batches):  # type: ignore[no-untyped-def]
        (computed / f"{os.getpid()}-{time.time_ns()}").touch()
        yield from batches

    source = frame(spark, 1_000)
    source = source.mapInArrow(noted, source.schema)
    for parallelism in (2, 3):
        stream = tg.from_dataframe(source, event_time="ts", name="prices")
        per_key = stream.key_by("name").window(tg.tumbling("10s")).aggregate(k=tg.count(), s=tg.sum("price"))
        outputs = (per_key.write_parquet(tmp_path / "windows"), stream.write_parquet(tmp_path / "rows"))
        pipeline = tg.Pipeline("frames", *outputs)
        job = pipeline.start(spark, parallelism=parallelism, store=tmp_path / "store", checkpoint=OFTEN)
        assert job.await_termination(60)
    assert len(list(computed.iterdir())) == 4, "once per partition"
    assert numbers(tmp_path / "rows") == list(range(1_000))
    expected = frame(spark, 1_000).groupBy("name", sf.window("ts", "10 seconds")).agg(sf.count("*"), sf.sum("price"))
    found = outputs[0].to_dataframe(spark)
    assert sorted((r.name, r.k, r.s) for r in found.collect()) == sorted((r[0], r[2], r[3]) for r in expected.collect())
    assert job.to_dataframe(spark, _sink(job, "windows")).count() == found.count()


def _sink(job: Job, part: str) -> str:
    return next(name for name, _, _ in job._leader.publisher.outputs if part in name)


def drop(folder: Path, number: int, first: int, rows: int) -> None:
    """A file that appears whole."""
    numbers = list(range(first, first + rows))
    pq.write_table(pa.table({"n": numbers, "ts": [n * 10 for n in numbers]}), folder / f"_{number}")
    os.rename(folder / f"_{number}", folder / f"{number:05d}.parquet")


def spooled(store: Path, batch: int) -> list[Path]:
    """What the spool has of one micro-batch."""
    return [path for part in ("batches", "chunks") for path in store.rglob(f"{part}/{batch:020d}*")]


def kill_one(job: Job, chance: random.Random) -> None:
    """A node of the running job, at some moment."""
    until(lambda: job.status == "RUNNING" and bool(job.metrics()["nodes"]), job)
    time.sleep(chance.random() / 2)
    nodes = job.metrics()["nodes"]
    if nodes:
        with suppress(ProcessLookupError):  # it went by itself just now: the gang is on its way out
            os.kill(chance.choice(nodes)["pid"], signal.SIGKILL)


def test_no_row_of_a_streaming_frame_is_late_that_structured_streaming_would_take(spark: SparkSession, tmp_path: Path) -> None:
    """Files of one trigger are read side by side and are all about the same hours."""
    chance, folder = random.Random(5), tmp_path / "in"
    folder.mkdir()
    for number in range(8):
        hours = number // 4 * 3_600_000
        times = [hours + chance.randrange(3_600_000) for _ in range(12_500)]
        pq.write_table(pa.table({"n": [chance.randrange(50) for _ in times], "ts": times}), folder / f"{number}.parquet")
    files = spark.readStream.schema("n long, ts long").option("maxFilesPerTrigger", 4).parquet(str(folder))
    stream = tg.from_dataframe(files, event_time="ts", trigger="available_now")
    per_minute = stream.key_by("n").window(tg.tumbling("1m")).aggregate(c=tg.count())
    pipeline = tg.Pipeline("late", per_minute.write_parquet(tmp_path / "out"))
    job = pipeline.start(spark, parallelism=2, store=tmp_path / "store", checkpoint=OFTEN)
    assert job.await_termination(120)
    rows = spark.read.parquet(str(folder)).groupBy("n", (sf.floor(sf.col("ts") / 60_000) * 60_000).alias("w")).count()
    found = pq.read_table(tmp_path / "out").select(["n", "window_start", "c"]).to_pylist()
    assert job.metrics()["late_rows"] == 0
    assert sorted(tuple(row.values()) for row in found) == sorted(tuple(row) for row in rows.collect())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_streaming_frame_killed_at_random_moments_delivers_every_row_once(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    folder, out, store = tmp_path / "in", tmp_path / "out", tmp_path / "store"
    folder.mkdir()
    sent = 0

    def started(parallelism: int) -> Job:
        files = spark.readStream.schema("n long, ts long").option("maxFilesPerTrigger", 2).parquet(str(folder))
        stream = tg.from_dataframe(files.withColumn("twice", sf.col("n") * 2), event_time="ts", trigger="50ms")
        pipeline = tg.Pipeline("stream", stream.write_parquet(out))
        return pipeline.start(spark, parallelism=parallelism, store=store, checkpoint=OFTEN)

    job = started(2)
    for number in range(12):
        drop(folder, number, sent, 200)
        sent += 200
        if number in (3, 6, 9):
            kill_one(job, chance)
        if number == 7:
            job.stop()
            job = started(3)
    until(lambda: len(numbers(out)) >= sent, job)
    until(lambda: not spooled(store, 0), job)  # what no checkpoint needs any more is deleted, lists and rows
    job.stop()
    assert numbers(out) == list(range(sent))
    assert pq.read_table(out).column("twice").to_pylist() == [n * 2 for n in pq.read_table(out).column("n").to_pylist()]
    assert not spark.streams.active, "the query ends with the job"


def test_a_streaming_frame_that_ends_finishes_its_job(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        drop(folder, number, number * 100, 100)
    files = spark.readStream.schema("n long, ts long").option("maxFilesPerTrigger", 1).parquet(str(folder))
    stream = tg.from_dataframe(files, event_time="ts", trigger="available_now")
    counts = stream.with_columns(one=1).key_by("one").window(tg.tumbling("1s")).aggregate(n=tg.count())
    pipeline = tg.Pipeline("ends", counts.write_parquet(tmp_path / "out"))
    job = pipeline.start(spark, parallelism=2, store=tmp_path / "store", checkpoint=OFTEN)
    assert job.await_termination(60) and job.status == "FINISHED"
    assert numbers(tmp_path / "out") == [100, 100, 100]


def test_what_can_not_work_is_refused_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    stream = tg.from_dataframe(rate, event_time="timestamp")
    with pytest.raises(InvalidUseError, match="needs a free slot"):
        tg.Pipeline("full", stream.collect()).start(spark, parallelism=5, store=tmp_path, checkpoint=OFTEN)
    with pytest.raises(InvalidUseError, match="DataFrame"):
        tg.from_dataframe("table")
    with pytest.raises(InvalidUseError, match="trigger is for streaming"):
        tg.from_dataframe(spark.range(3), trigger="1s")
    with pytest.raises(InvalidUseError, match="nope"):
        tg.from_dataframe(spark.range(3), event_time="nope")
    assert not spark.streams.active


def test_checkpoints_and_state_are_dataframes_without_registration(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    rows = tg.generate(rows_per_second=20_000, keys=50, splits=2)
    sums = rows.key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count(), total=tg.sum("value")).named("per_key")
    job = tg.Pipeline("live", sums.write_parquet(tmp_path / "out")).start(spark, parallelism=2, store=store, checkpoint=OFTEN)
    until(lambda: job.metrics()["rows_in"] > 5_000, job)
    epoch = job.checkpoint()
    job.stop()

    def read(**options: str) -> DataFrame:
        return spark.read.format("tidegate").options(store=str(store), **options).load()

    checkpoints = read(table="checkpoints")
    assert epoch in {row.epoch for row in checkpoints.where("restorable").collect()}
    state = read(operator="per_key", epoch=str(epoch))
    expected = tg.read_state(store, "per_key", epoch=epoch)
    assert state.columns == expected.column_names == ["window_start", "key", "n", "total"]
    assert state.rdd.getNumPartitions() == 2, "one task per subtask"
    assert sorted((r.key, r.n) for r in state.collect()) == sorted((r["key"], r["n"]) for r in expected.to_pylist())
    assert read(table="inflight", epoch=str(epoch)).count() == 0
    with pytest.raises(Exception, match="there are: per_key"):
        read(operator="nope")
    with pytest.raises(Exception, match="needs option"):
        read()
    with pytest.raises(Exception, match="no such option"):
        read(operator="per_key", epcoh="1")


def test_collected_rows_are_a_dataframe_and_an_output_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    rows = tg.generate(rows=100, keys=5)
    empty = rows.filter(tg.col("key") < 0).write_parquet(tmp_path / "out")
    assert empty.to_dataframe(spark).columns == ["ts", "key", "value", "kind"], "before anything ran"
    job = tg.Pipeline("collected", rows.collect("all"), empty).start(spark, parallelism=2)
    assert job.await_termination(60)
    assert job.to_dataframe(spark, "all").count() == 100
    assert empty.to_dataframe(spark).count() == 0
    with pytest.raises(InvalidUseError, match="name one of"):
        job.to_dataframe(spark)


def test_a_stream_can_end_in_a_dataframe(spark: SparkSession) -> None:
    with pytest.raises(InvalidUseError, match="needs a Spark session"):
        tg.generate(rows=10).to_dataframe("spark")
    job = tg.Pipeline("frame", tg.generate(rows=10).to_dataframe(spark)).start(spark, parallelism=1)
    assert job.await_termination(60)
    assert job.to_dataframe(spark).count() == job.collect().num_rows == 10


@pytest.mark.parametrize(("path", "registered"), [("/nowhere", 1), (os.path.dirname(sys.executable), 0)])
def test_the_format_is_registered_where_spark_would_look_for_it_in_vain(
    path: str, registered: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM asks the python3 of PATH, unless PYSPARK_PYTHON names another."""
    formats: list[Any] = []
    context = SimpleNamespace(master="local[2]", pythonExec="python3")
    session: Any = SimpleNamespace(sparkContext=context, dataSource=SimpleNamespace(register=formats.append))
    monkeypatch.setenv("PATH", path)
    use_this_python(session)
    register_format(session)
    assert (context.pythonExec, formats) == ("python3", []), "whoever set PYSPARK_PYTHON knows better"
    monkeypatch.delenv("PYSPARK_PYTHON")
    use_this_python(session)
    register_format(session)
    assert (context.pythonExec, len(formats)) == (sys.executable, registered)
