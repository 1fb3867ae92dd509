"""Recorded in-flight data as rows."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.errors import InvalidUseError
from tidegate.runtime import inspect
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return batch


def test_what_was_overtaken_by_a_barrier_can_be_read(tmp_path: Path) -> None:
    rows = tg.generate(keys=100, splits=2)
    mapped = rows.map_batches(slowly).key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count())
    pipeline = tg.Pipeline("job", mapped.write_parquet(tmp_path / "out"))
    config = tg.CheckpointConfig(interval="100ms", unaligned="always")
    options = JobOptions(parallelism=2, store=str(tmp_path / "store"), checkpoint=config)
    job = Job(launch_job(pipeline.physical(2), ThreadGang(2), options))
    deadline = time.monotonic() + 20
    recorded: list[int] = []
    while not recorded:
        assert job.error is None and time.monotonic() < deadline
        recorded = [c["epoch"] for c in job.checkpoints() if c["status"] == "committed" and c["inflight_events"]]
        time.sleep(0.02)
    job.stop()
    found = inspect.find(tmp_path / "store", epoch=recorded[-1])
    listing = inspect.list_inflight(found)
    assert listing.schema.equals(inspect.INFLIGHT) and sum(listing.column("events").to_pylist()) > 0
    operator = next(row["operator"] for row in listing.to_pylist() if row["events"])
    table = inspect.read_inflight(found, operator)
    assert table.column_names[:4] == ["inflight_subtask", "inflight_direction", "inflight_channel", "inflight_peer"]
    assert table.num_rows > 0
    with pytest.raises(InvalidUseError, match="nothing was in flight there"):
        inspect.read_inflight(found, "nope")
