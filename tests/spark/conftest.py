"""One Spark for these tests: one JVM for the run, one context at a time, and nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from workloads import Data, make_data

import tidegate as tg
from tidegate.api.job import Job
from tidegate.spark.session import local_session

HERE = Path(__file__).resolve().parent
MASTER = "local[5]"
END_WAIT_S = 20.0
OFTEN = tg.CheckpointConfig(interval="100ms")

# Class loading and JIT are most of a cold start. Never for measuring speed.
QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
STRICT = {"spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of the JVM and where its output goes; ends the JVM and its Python workers afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)  # the workers import the functions and sources of these tests
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("PYSPARK_PYTHON", raising=False)
        yield tmp_path_factory.mktemp("jvm") / "spark.log"
        end_jvm()


@pytest.fixture(scope="module")
def spark(jvm: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session for one module; ``CONF`` in the module adds to its settings."""
    session = start_session(jvm, **getattr(request.module, "CONF", {}))
    yield session
    session.stop()


def start_session(log: Path, master: str = MASTER, **conf: str) -> SparkSession:
    return local_session(master, "tidegate tests", log=log, **{**QUICK_START, **STRICT, **conf})


def end_jvm() -> None:
    """Stop what this process started as Spark, by pid."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    process = gateway.proc
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    gateway.shutdown()
    process.stdin.close()  # the JVM ends when its launcher's end of this pipe is closed
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    process.wait(END_WAIT_S)
    psutil.wait_procs([psutil.Process(pid) for pid in family if psutil.pid_exists(pid)], timeout=END_WAIT_S)
    left = [pid for pid in family if psutil.pid_exists(pid)]
    assert not left, f"these processes of Spark are still there: {left}"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """The Parquet files that the pipelines read."""
    return make_data(tmp_path_factory.mktemp("data"))


class Start(Protocol):
    """Starts a pipeline on the module's session: two nodes and frequent checkpoints unless told otherwise."""

    def __call__(self, pipeline: tg.Pipeline, **options: Any) -> Job: ...


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Whatever becomes of the test, its jobs are stopped, and nothing of them is left in this process."""
    jobs: list[Job] = []

    def begin(pipeline: tg.Pipeline, **options: Any) -> Job:
        given = {"parallelism": 2, "store": tmp_path / "store", "checkpoint": OFTEN, **options}
        jobs.append(pipeline.start(given.pop("spark", spark), **given))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.stop()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("tidegate")]
    assert not left, f"these threads of a job are still there: {left}"
