"""Pipelines: checked as a whole when they are made and before they start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from tidegate import col
from tidegate.plan.connector import Committable, Offset, Split, SplitReader, WriterContext
from tidegate.plan.logical import LogicalPlan

ON = tg.CheckpointConfig(interval="1s")


class Shelf:
    """A sink in a place."""

    def __init__(self, path: str) -> None:
        self.path = path

    def writer(self, context: WriterContext) -> Any:
        raise NotImplementedError

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        raise NotImplementedError

    def abort(self, committables: Sequence[Committable]) -> None:
        raise NotImplementedError


class Clock:
    """A source of a user's own."""

    bounded = True
    out_of_orderness = 0

    def __init__(self, schema: pa.Schema, event_time: str | None = None) -> None:
        self.schema = schema
        self.event_time = event_time

    def splits(self) -> list[Split]:
        return [Split("only")]

    def open(self, split: Split, offset: Offset) -> SplitReader:
        raise NotImplementedError


@pytest.fixture
def made() -> tg.Stream:
    return tg.generate(rows=100)


def test_a_pipeline_keeps_its_name_and_plan(made: tg.Stream) -> None:
    pipeline = tg.Pipeline("bids-1.2_x", made.collect())
    assert pipeline.name == "bids-1.2_x"
    assert isinstance(pipeline.plan, LogicalPlan)
    assert len(pipeline.plan.sinks) == 1
    assert repr(pipeline) == "Pipeline('bids-1.2_x', 1 outputs)"
    assert pipeline.physical(3).job == "bids-1.2_x"
    assert pipeline.physical(3).notes["sinks"] == [pipeline.physical(1).stages[-1].operators[-1].name]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b", None])
def test_a_pipelines_name_is_safe_in_a_path(name: Any, made: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match="the name of a pipeline"):
        tg.Pipeline(name, made.collect())


def test_a_pipeline_is_made_of_outputs(made: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match="at least one output"):
        tg.Pipeline("job")
    with pytest.raises(tg.InvalidUseError, match="a stream needs a sink"):
        tg.Pipeline("job", made)  # type: ignore[arg-type]
    with pytest.raises(tg.InvalidUseError, match=r"made of outputs.*given=3"):
        tg.Pipeline("job", 3)  # type: ignore[arg-type]
    output = made.collect()
    assert "Output(ts int64" in repr(output)
    with pytest.raises(tg.InvalidUseError, match="given twice"):
        tg.Pipeline("job", output, output)


def test_two_outputs_may_not_share_a_path_or_name(made: tg.Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tg.InvalidUseError, match=f"same path.*path={tmp_path}/out"):
        tg.Pipeline("job", made.write_parquet("out"), made.filter(col("key") > 1).write_parquet(tmp_path / "out/"))
    with pytest.raises(tg.InvalidUseError, match=r"same name.*name=result"):
        tg.Pipeline("job", made.collect(), made.filter(col("key") > 1).collect())
    with pytest.raises(tg.InvalidUseError, match="path=s3://bucket/out"):
        tg.Pipeline("job", made.write(Shelf("s3://bucket/out")), made.write(Shelf("s3://bucket/out")).named("b"))
    tg.Pipeline("job", made.write(Shelf("s3://bucket/a")), made.write(Shelf("s3://bucket/b")), made.collect())
    tg.Pipeline("job", made.for_each_batch(lambda batch, epoch: None), made.for_each_batch(lambda b, e: 1))


def test_partial_columns_that_would_clash_are_refused_before_anything_starts(made: tg.Stream) -> None:
    clash = made.with_columns(n__n=col("key")).key_by("n__n").window(tg.tumbling("1s")).aggregate(n=tg.count())
    with pytest.raises(tg.InvalidUseError, match="clash"):
        tg.Pipeline("job", clash.collect())


# -- sources -----------------------------------------------------------------------------------------------------------


def test_any_source_can_begin_a_stream() -> None:
    stream = tg.from_source(Clock(pa.schema([("t", pa.timestamp("us")), ("x", pa.int8())]), "t"))
    assert (stream.schema.names, stream.event_time) == (["t", "x"], "t")
    assert tg.Pipeline("job", stream.collect()).bounded


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.from_source(3), "from_source needs a Source"),  # type: ignore[arg-type]
        (lambda: tg.from_source(Clock(pa.schema([]))), "at least one column"),
        (lambda: tg.from_source(Clock(pa.schema([("a", pa.int8()), ("a", pa.int8())]))), "called 'a'"),
        (
            lambda: tg.from_source(Clock(pa.schema([("a", pa.int8())]), "b")),
            "event_time: there is no column 'b'",
        ),
        (
            lambda: tg.from_source(Clock(pa.schema([("a", pa.int8())]), "a")),
            "int64 milliseconds or a timestamp.*int8",
        ),
        (lambda: tg.generate(rows=-1), "rows"),
        (lambda: tg.generate(colour="red"), "generate: .*colour"),
        (lambda: tg.read_parquet("no/such/place"), "no/such/place"),
        (lambda: tg.read_parquet("x", continuous=True), "no such directory"),
    ],
)
def test_a_source_that_can_not_work_is_refused(call: Any, words: str) -> None:
    with pytest.raises(tg.InvalidUseError, match=words):
        call()


# -- start -------------------------------------------------------------------------------------------------------------


class Reached(Exception):
    """Every check of the pipeline was passed: the session was asked something."""


class Session(SparkSession):
    """Stands in for Spark's session; the first question to it ends the test."""

    def __init__(self) -> None:
        pass

    @property
    def conf(self) -> Any:
        raise Reached


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parallelism": 0}, "parallelism is a whole number"),
        ({"checkpoint": "1s"}, "checkpoint takes a CheckpointConfig"),
        ({"restore": -1}, "restore is"),
        ({"restore": ""}, "restore is"),
        ({"restore": True}, "restore is"),
        ({"restore": None}, "restore is"),
        ({"paralelism": 2}, "start: there is no option 'paralelism', did you mean 'parallelism'. options=spark, parallelism"),
        ({"bnd": "0.0.0.0"}, "start: .*'bnd', did you mean 'bind'"),
        ({"store": 5}, "store is a path or a URL"),
        ({"overwrite": "yes"}, "overwrite is True or False"),
        ({"append": 1}, "append is True or False"),
        ({"allow_plaintext": "no"}, "allow_plaintext is True or False"),
        ({"bind": "0.0.0.0"}, r"give tls=tg.Tls\(...\), or allow_plaintext=True .* bind=0.0.0.0"),
        ({"bind": "192.0.2.77", "allow_plaintext": False}, "give tls=.* bind=192.0.2.77"),
    ],
)
def test_start_refuses_what_makes_no_sense(options: dict[str, Any], words: str, made: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match=words):
        tg.Pipeline("job", made.collect()).start(Session(), **options)


@pytest.mark.parametrize("restore", ["latest", "none", 0, 7, "file:///savepoints/a", Path("savepoints/a")])
def test_start_takes_every_kind_of_restore_to_spark(restore: Any, made: tg.Stream) -> None:
    with pytest.raises(Reached):
        tg.Pipeline("job", made.collect()).start(Session(), parallelism=3, restore=restore)


def test_a_pipeline_without_end_needs_checkpoints() -> None:
    endless = tg.Pipeline("job", tg.generate(rows=5).union(tg.generate()).collect())
    assert not endless.bounded
    for off in (None, tg.CheckpointConfig()):
        with pytest.raises(tg.InvalidUseError, match=r"without end.*interval='1s'.*pipeline=job"):
            endless.start(Session(), checkpoint=off)
    with pytest.raises(Reached):
        endless.start(Session(), checkpoint=ON)


def test_a_setting_without_an_effect_is_refused() -> None:
    pipeline = tg.Pipeline("job", tg.generate(rows=1).collect())
    config = tg.CheckpointConfig(interval="1s", data_dir="somewhere", wal_mode="sync")
    with pytest.raises(tg.InvalidUseError, match="wal_mode is for rows that an application pushes"):
        pipeline.start(None, checkpoint=config)
