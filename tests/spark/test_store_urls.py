"""Nodes are other processes, with another memory and another working directory: a job must not notice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from conftest import Start
from tidegate.errors import InvalidUseError
from tidegate.testing.crash import kill_node, wait_for_checkpoints

ROWS = 400_000
KEYS = 20_000  # their state is too large for a manifest


def counted(out: Path) -> tg.Pipeline:
    rows = tg.generate(rows=ROWS, rows_per_second=200_000, keys=KEYS)
    return tg.Pipeline("counted", rows.key_by("key").aggregate(n=tg.count()).write_parquet(out))


def total(out: Path) -> int:
    newest = pq.read_table(out).group_by("key").aggregate([("n", "max")])
    return int(pc.sum(newest["n_max"]).as_py())


@pytest.mark.parametrize("store", ["memory://", "memory://named", "relative"])
def test_a_store_has_the_same_url_for_all_processes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    job = start(counted(tmp_path / "out"), store=store)
    wait_for_checkpoints(job, 2)
    kill_node(job, 0)
    assert job.await_termination(60)
    assert (job.status, job.metrics()["restarts"], total(tmp_path / "out")) == ("FINISHED", 1, ROWS)


def locked() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    lock = threading.Lock()

    def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    return pass_on


def test_a_function_that_can_not_be_sent_is_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    stream = tg.generate(rows=10).map_batches(locked()).named("careful")
    with pytest.raises(InvalidUseError, match=r"'careful' can't be sent to the nodes.*lock"):
        start(tg.Pipeline("unsent", stream.write_parquet(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("session", [None, "spark"])
def test_a_session_is_needed(session: object, spark: SparkSession) -> None:
    for wrong in (session, spark.sparkContext):
        with pytest.raises(InvalidUseError, match="start needs a Spark session"):
            tg.Pipeline("p", tg.generate(rows=1).collect()).start(wrong)
