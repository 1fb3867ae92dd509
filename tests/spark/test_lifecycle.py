"""Starting is quick, waiting is cheap, refusing is clear, and the end of a job is the end of all of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from poison import explode, wrong_columns
from pyspark.sql import SparkSession
from seen import FAULTS, page_faults
from workloads import TUMBLING, TWO_SINKS, Data, read

import tidegate as tg
from conftest import OFTEN, Start
from tidegate.api.job import Job
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.testing.crash import wait_for_checkpoints, wait_for_status, wait_until

SECONDLY = tg.CheckpointConfig(interval="1s")


def endless(tmp_path: Path, rows_per_second: float = 1_000) -> tg.Pipeline:
    rows = tg.generate(rows_per_second=rows_per_second)
    return tg.Pipeline("endless", rows.write_parquet(tmp_path / "out"))


def started(job: Job) -> Job:
    """The same job, once it runs."""
    wait_for_status(job, "RUNNING")
    return job


# -- starting ------------------------------------------------------------------------------------------------------


def test_a_job_starts_quickly_on_a_warm_session(start: Start, tmp_path: Path) -> None:
    started(start(endless(tmp_path / "cold"), store=tmp_path / "cold" / "store")).stop()
    began = time.monotonic()
    started(start(endless(tmp_path / "warm"), store=tmp_path / "warm" / "store"))
    seconds = time.monotonic() - began
    print(f"start on a warm session: {seconds:.2f} s")
    assert seconds < 10


def test_a_pipeline_that_runs_is_not_started_a_second_time(start: Start, tmp_path: Path) -> None:
    """A notebook's cell that is run again: the first job goes on, and after its end the cell works."""
    pipeline, store = endless(tmp_path), tmp_path / "store"
    first = started(start(pipeline, store=store))
    with pytest.raises(InvalidUseError, match=r"running in this process already.*job=endless status=RUNNING"):
        start(pipeline, store=store)
    assert first.status == "RUNNING"
    first.stop()
    started(start(pipeline, store=store))


def test_the_default_parallelism_leaves_a_slot_free(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    job = started(start(endless(tmp_path), parallelism=None))
    assert len(job.metrics()["nodes"]) == 4
    assert spark.range(10).count() == 10  # Spark still answers


def test_explain_shows_the_barriers_and_channels_of_what_is_started(data: Data, tmp_path: Path) -> None:
    text = TWO_SINKS.pipeline(data, tmp_path).explain(parallelism=4, checkpoint=OFTEN)
    assert "PhysicalResultCollect" in text
    assert "PhysicalBarrier upstream_count=4" in text
    assert "channels=4 checkpoint=aligned" in text


# -- refusing ------------------------------------------------------------------------------------------------------


def test_too_few_slots_are_refused_at_once(start: Start, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidUseError, match=r"5 tasks at once.*needs 9.*local\[10\]"):
        start(endless(tmp_path), parallelism=9)
    assert time.monotonic() - began < 5


def test_slots_that_another_job_holds_are_refused_in_seconds(start: Start, tmp_path: Path) -> None:
    started(start(endless(tmp_path), parallelism=3))
    other, store = endless(tmp_path / "other"), tmp_path / "other" / "store"
    began = time.monotonic()
    with pytest.raises(InvalidUseError, match=r"other jobs hold 3 of the 5.*parallelism=4"):
        start(other, parallelism=4, store=store)
    assert time.monotonic() - began < 15
    started(start(other, parallelism=2, store=store))


@pytest.mark.parametrize(
    ("function", "words"),
    [(explode, ["ValueError: row", "is poison", "in check_rows", "poison.py"]), (wrong_columns, ["key: int64"])],
)
def test_a_poison_pipeline_fails_fast_with_its_own_traceback(
    start: Start, data: Data, tmp_path: Path, function: Any, words: list[str]
) -> None:
    stream = read(data.bids, None, 2).map_batches(function)
    began = time.monotonic()
    job = start(tg.Pipeline("poison", stream.write_parquet(tmp_path / "out")))
    with pytest.raises(JobFailedError) as caught:
        job.await_termination(60)
    seconds = time.monotonic() - began
    text = str(caught.value)
    assert [word for word in words if word not in text] == [], text
    assert [word for word in ("org.apache", "Py4J", "SparkException") if word in text] == [], text
    assert (job.status, seconds < 30) == ("FAILED", True)


# -- waiting -------------------------------------------------------------------------------------------------------


def test_an_idle_job_costs_next_to_nothing(start: Start, tmp_path: Path) -> None:
    """No rows for seconds: what is left is the loop's waiting, heartbeats, reports and empty checkpoints."""
    job = started(start(endless(tmp_path, 0.1), checkpoint=SECONDLY))
    wait_for_checkpoints(job, 2)
    nodes = [psutil.Process(node["pid"]) for node in job.metrics()["nodes"]]
    shares = [_cpu_share(nodes, seconds=3.0) for _ in range(2)]
    print(f"an idle node uses {[f'{share:.1%}' for share in shares[0] + shares[1]]} of a core")
    assert min(max(share) for share in shares) < 0.04


def _cpu_share(processes: list[psutil.Process], seconds: float) -> list[float]:
    def spent() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in processes]

    before, started = spent(), time.monotonic()
    threading.Event().wait(seconds)
    return [(b - a) / (time.monotonic() - started) for a, b in zip(before, spent(), strict=True)]


def test_a_node_keeps_the_memory_it_frees(start: Start, tmp_path: Path) -> None:
    counted = tg.generate(rows=10).map_batches(page_faults, FAULTS)
    start(tg.Pipeline("faults", counted.write_parquet(tmp_path / "out")), parallelism=1).await_termination(60)
    faults = pq.read_table(tmp_path / "out")["faults"].to_pylist()
    assert len(faults) == 10
    assert max(faults) < 1_000  # without it 25,000


# -- ending --------------------------------------------------------------------------------------------------------


def test_a_stopped_job_leaves_nothing_running(start: Start, data: Data, tmp_path: Path) -> None:
    before_threads, before_ports = _threads(), _ports(psutil.Process())
    pipeline = TUMBLING.pipeline(data, tmp_path / "out", seconds=20, parallelism=2)
    job = started(start(pipeline))
    wait_for_checkpoints(job, 3)
    nodes = [psutil.Process(node["pid"]) for node in job.metrics()["nodes"]]
    assert all(_ports(node) for node in nodes)
    job.stop()
    assert (job.status, job.metrics()["nodes"]) == ("STOPPED", [])
    assert _threads() <= before_threads
    assert _ports(psutil.Process()) <= before_ports
    _check_quiet(nodes)
    assert _pending(tmp_path / "out") == []


def test_a_stop_right_after_a_kill_leaves_nothing_pending(start: Start, data: Data, tmp_path: Path) -> None:
    pipeline = TWO_SINKS.pipeline(data, tmp_path / "out", seconds=20, parallelism=2)
    job = started(start(pipeline))
    wait_for_checkpoints(job, 3)
    nodes = [psutil.Process(node["pid"]) for node in job.metrics()["nodes"]]
    nodes[0].kill()
    job.stop()
    assert job.status == "STOPPED"
    assert _pending(tmp_path / "out") == []
    _check_quiet(nodes[1:])


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "tidegate" in thread.name or "grpc" in thread.name}


def _ports(process: psutil.Process) -> set[int]:
    """Where a process listens, and the addresses that it is connected to, as far as they are not Spark's."""
    return {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def _check_quiet(nodes: list[psutil.Process]) -> None:
    """Workers are Spark's and may live on to be used again: then they have no sockets of ours and do nothing."""

    def quiet() -> bool:
        alive = [node for node in nodes if node.is_running() and node.status() != psutil.STATUS_ZOMBIE]
        return all(not _ports(node) and len(node.net_connections("tcp")) <= 1 for node in alive)

    wait_until("workers without sockets", quiet, timeout_s=10)
    alive = [node for node in nodes if node.is_running()]
    _cpu_share(alive, 0.3)  # a last collection of garbage
    assert max(_cpu_share(alive, seconds=0.5), default=0) < 0.1


def _pending(out: Path) -> list[str]:
    return [str(path) for path in out.rglob("*.pending")]
