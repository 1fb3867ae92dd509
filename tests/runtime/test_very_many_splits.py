"""A job over very many splits: what is shipped to its nodes is columns, and none is read twice or never."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tidegate as tg
from tidegate.api.job import Job
from tidegate.bench.replay import ReplaySource
from tidegate.connectors.parquet import ParquetSource
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job


def test_a_start_ships_columns_and_the_job_goes_on_at_another_parallelism(tmp_path: Path) -> None:
    times = 3_000
    pq.write_table(pa.table({"ts": [0, 1, 2]}), tmp_path / "in.parquet")
    source = ReplaySource(ParquetSource(tmp_path / "in.parquet", event_time="ts"), times, 10)
    out, steps = tmp_path / "out", []

    def noted(launch: Launch, node: int) -> str:
        steps.append(sum(1 for _ in pickletools.genops(pickle.dumps(launch))))
        return run_node(launch, node)

    def start(parallelism: int) -> Job:
        plan = tg.Pipeline("many", tg.from_source(source).write_parquet(out)).physical(parallelism)
        options = JobOptions(parallelism, tg.CheckpointConfig(interval="50ms"), str(tmp_path / "store"))
        return Job(launch_job(plan, ThreadGang(parallelism, noted), options))

    job = start(2)
    job.checkpoint()
    job.stop()
    assert start(3).await_termination(60)
    assert max(steps) < times, "fewer steps than splits"
    assert sorted(pq.read_table(out).column("ts").to_pylist()) == [n * 10 + k for n in range(times) for k in range(3)]
