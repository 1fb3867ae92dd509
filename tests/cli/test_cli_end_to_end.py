"""The verbs that need Spark, as a user calls them: in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIDEGATE = [sys.executable, "-m", "tidegate.cli.main"]


def tidegate(*argv: str, code: int = 0, temp: Path | None = None) -> list[dict[str, Any]]:
    environment = {**os.environ, **({} if temp is None else {"TMPDIR": str(temp)})}
    answer = subprocess.run(
        [*TIDEGATE, *argv, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    assert answer.returncode == code, answer.stderr[-4000:]
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_the_demo_kills_a_worker_and_is_exact(tmp_path: Path) -> None:
    result = tidegate("demo", temp=tmp_path)[-1]
    assert result["exact"] is True
    assert result["restarts"] >= 1
    assert result["checkpoints_committed"] >= 2
    assert result["rows_in"] >= 1_000_000
    assert result["rows_out"] > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tidegate")] == []


def test_a_pipeline_is_run_listed_and_shown(pipeline_file: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    options = ["--master", "local[2]", "--parallelism", "1", "--store", store, "--interval", "1s"]
    ran = tidegate("run", str(pipeline_file), *options)[-1]
    assert (ran["job"], ran["status"], ran["rows_in"], ran["restarts"]) == ("bids", "FINISHED", 3, 0)
    found = ds.dataset(tmp_path / "out").to_table().sort_by([("window_start", "ascending"), ("key", "ascending")])
    assert found.select(["key", "window_start", "n"]).to_pylist() == [
        {"key": 1, "window_start": 0, "n": 1},
        {"key": 2, "window_start": 0, "n": 1},
        {"key": 1, "window_start": 10_000, "n": 1},
    ]
    (job,) = tidegate("checkpoints", store)[0]["jobs"]
    last = job["checkpoints"][-1]
    assert (job["job"], last["kind"]) == ("bids", "final")
    assert tidegate("show", store, str(last["epoch"]))[0]["checkpoint_id"] == last["checkpoint_id"]


def test_an_endless_pipeline_is_stopped_by_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text(
        "import tidegate as tg\n"
        "rows = tg.generate(rows_per_second=1000)\n"
        f"pipeline = tg.Pipeline('endless', rows.write_parquet({str(tmp_path / 'out')!r}))\n"
    )
    options = [
        "--master",
        "local[2]",
        "--parallelism",
        "1",
        "--store",
        str(tmp_path / "store"),
        "--interval",
        "200ms",
    ]
    with subprocess.Popen(
        [*TIDEGATE, "run", str(path), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out").glob("[!_.]*.parquet")) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert list((tmp_path / "out").glob("[!_.]*.parquet"))


STREAM = """
import time
from pyspark.sql import SparkSession
import tidegate as tg

spark = SparkSession.builder{master}.getOrCreate()

def slowly(batches):
    time.sleep(0.3)
    yield from batches

rate = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
rate = rate.mapInArrow(slowly, rate.schema)
pipeline = tg.Pipeline("own", tg.from_dataframe(rate, event_time="timestamp").write_parquet({out!r}))
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No virtualenv is active: the python3 of PATH is one that can't run a worker."""
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_file_that_makes_its_own_session_gets_the_one_asked_for_and_its_stream_stops_in_good_order(elsewhere: Path) -> None:
    path, out = elsewhere / "own.py", elsewhere / "out"
    path.write_text(STREAM.format(master="", out=str(out)))
    options = ["--master", "local[2]", "--parallelism", "1", "--store", str(elsewhere / "store"), "--interval", "200ms"]
    log = elsewhere / "log"
    command = [*TIDEGATE, "run", str(path), *options]
    with log.open("w") as written, subprocess.Popen(command, stdout=written, stderr=written) as process:
        deadline = time.monotonic() + 120
        while not list(out.glob("[!_.]*.parquet")) and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    said = log.read_text()
    assert list(out.glob("[!_.]*.parquet")) and "master=local[2]" in said
    assert "StackOverflowError" not in said and "\tat " not in said, said[-4000:]


def test_a_file_that_insists_on_another_master_is_refused(elsewhere: Path) -> None:
    path = elsewhere / "own.py"
    path.write_text(STREAM.format(master=".master('local[3]')", out=str(elsewhere / "out")))
    command = [*TIDEGATE, "run", str(path), "--master", "local[2]", "--store", str(elsewhere / "store"), "--interval", "1s"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 2
    assert "leave .master(…) out of it" in answer.stderr and "file_master=local[3]" in answer.stderr


def test_the_benchmark_gives_one_document_and_equal_results() -> None:
    names = ["w1_zipf", "w2_join", "w3_stateless"]
    argv = ["--rows", "60000", "--rounds", "1", "--pairs", "1", "--seconds", "0", "--streaming-rows", "1000", "--switches", "1"]
    (document,) = tidegate("bench", "pipeline", *argv, *(f"--workload={name}" for name in names))
    assert [result["name"] for result in document["workloads"]] == names
    for result in document["workloads"]:
        assert result["equal"] is True, result
        assert set(result["engines"]) == {"tidegate", "duckdb", "structured_streaming"}
        assert all(set(engine["rows_per_second"]) == {"min", "median", "max"} for engine in result["engines"].values())
    assert len(document["checkpointing"]["cost_per_pair"]) == 1
    assert document["checkpointing"]["on"]["rows"] == document["checkpointing"]["off"]["rows"] >= 60_000
    within = document["checkpointing_within_one_job"]
    assert len(within["cost_per_pair"]) == 1 and within["on"]["median"] > 0
