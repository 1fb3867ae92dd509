"""A standalone cluster on this machine: a whole executor dies, and the result is exact."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from conftest import END_WAIT_S, Start, start_session
from pyspark.sql import SparkSession
from workloads import BIDS, TUMBLING, Data

from tidegate.spark.session import find_java
from tidegate.testing.crash import wait_for_checkpoints, wait_for_nodes, wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PATIENCE_S = 120.0
EXECUTORS = 2


@pytest.fixture(scope="module")
def cluster(jvm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers of two cores each; gives the master's address. All are ended by pid afterwards."""
    folder = tmp_path_factory.mktemp("cluster")
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = _daemon(started, folder, "master.Master", "--port", "0", "--webui-port", "0")
        address = wait_until("the master", lambda: _address(master), PATIENCE_S)
        for number in range(EXECUTORS):
            place = ["-d", str(folder / f"work-{number}"), "--webui-port", "0"]
            log = _daemon(started, folder, "worker.Worker", *place, "-c", "2", "-m", "1g", address)
            wait_until("a worker", lambda log=log: "Successfully registered" in log.read_text(), PATIENCE_S)
        yield address
    finally:
        _end(started)


@pytest.fixture(scope="module")
def spark(jvm: Path, cluster: str) -> Iterator[SparkSession]:
    session = start_session(
        jvm,
        cluster,
        **{
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


def test_an_executor_is_killed_and_the_result_is_exact(
    spark: SparkSession, start: Start, data: Data, tmp_path: Path
) -> None:
    wait_until("both executors", lambda: _executors(spark) == EXECUTORS, PATIENCE_S)
    job = start(TUMBLING.pipeline(data, tmp_path / "out", seconds=8, parallelism=3), parallelism=3)
    wait_for_checkpoints(job, 3, PATIENCE_S)
    before = wait_for_nodes(job, timeout_s=PATIENCE_S)
    assert before is not None
    jvms = {_executor_of(node["pid"]) for node in before["nodes"]}
    assert len(jvms) == EXECUTORS
    victim = jvms.pop()
    victim.kill()
    after = wait_for_nodes(job, after_gang=before["gang"], timeout_s=PATIENCE_S)
    assert after is not None
    assert victim not in {_executor_of(node["pid"]) for node in after["nodes"]}
    assert job.await_termination(PATIENCE_S)
    metrics = job.metrics()
    print(f"executor killed, recovered after {metrics['recoveries_ms']} ms, restarts={metrics['restarts']}")
    assert metrics["restarts"] >= 1
    assert metrics["rows_read"] < BIDS == metrics["rows_in"]
    TUMBLING.check(data, tmp_path / "out")


def _daemon(started: list[subprocess.Popen[bytes]], folder: Path, name: str, *options: str) -> Path:
    """Start a master or a worker; gives the file that it writes its log to."""
    log = folder / f"{len(started)}.log"
    java = find_java().resolve().parent.parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(SPARK_CLASS.parent.parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *options]
    with log.open("wb") as file:
        started.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=folder))
    return log


def _address(log: Path) -> str | None:
    found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
    return found.group(1) if found else None


def _executors(spark: SparkSession) -> int:
    """The driver is in the list too."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def _executor_of(pid: int) -> psutil.Process:
    """The JVM that a node's process belongs to."""
    return next(each for each in psutil.Process(pid).parents() if each.name() == "java")


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """Workers first, with their executors; what does not go by itself is killed."""
    family = [child for each in started for child in psutil.Process(each.pid).children(recursive=True)]
    for each in reversed(started):
        each.terminate()
    for each in started:
        each.wait(END_WAIT_S)
    _, alive = psutil.wait_procs(family, timeout=END_WAIT_S)
    for each in alive:
        each.kill()
