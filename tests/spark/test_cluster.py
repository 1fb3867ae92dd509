"""A standalone cluster of two workers on this machine, used as a user would: submitted to, encrypted, without tidegate installed,
and with an executor that dies.

The tests that bring a driver of their own come first: a session takes all cores of the cluster until it is stopped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession
from workloads import BIDS, TUMBLING, Data

from conftest import END_WAIT_S, OFTEN, Start, start_session
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.spark.cluster import check_reachable
from tidegate.spark.gang import SparkGang
from tidegate.spark.session import find_java
from tidegate.spark.ship import WorkerCode, archive, inspector, needs_code
from tidegate.testing.crash import wait_for_checkpoints, wait_for_nodes, wait_until

sys.path.append(str(Path(__file__).resolve().parent.parent))

from certificates import Authority

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_S = 120.0
EXECUTORS = 2
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

FILE = """
    import pyarrow.compute as pc
    import tidegate as tg

    def doubled(batch):
        return batch.set_column(batch.schema.get_field_index("value"), "value", pc.multiply(batch["value"], 2.0))

    def halved(batch):
        return batch.set_column(batch.schema.get_field_index("value"), "value", pc.divide(batch["value"], 2.0))

    bids = tg.read_parquet({bids!r}, event_time="ts", out_of_orderness="2s").map_batches(doubled).map_batches(halved)
    windows = bids.filter(tg.col("kind") != 0).key_by("key").window(tg.tumbling("10s"))
    counted = windows.aggregate(n=tg.count(), total=tg.sum("value"), peak=tg.max("value"))
    pipeline = tg.Pipeline("tumbling", counted.write_parquet({out!r}))

    if __name__ == "__main__":
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.appName("bids").getOrCreate()
        job = pipeline.start(spark, parallelism=3, store={store!r}, checkpoint=tg.CheckpointConfig(interval="200ms"))
        job.await_termination()
        print(job.status, job.metrics()["rows_in"])
        spark.stop()
"""

HIDING = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {hidden!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    def installed(folder):
        import os
        return os.path.isdir(os.path.join(folder, "tidegate"))

    sys.path[:] = [folder for folder in sys.path if not installed(folder)]
    sys.meta_path.insert(0, Hidden())
"""


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


@pytest.fixture
def defaults(tmp_path: Path) -> dict[str, str]:
    """The environment of a driver of its own, small and quick to start."""
    folder = tmp_path / "conf"
    folder.mkdir()
    lines = [
        "spark.ui.enabled false",
        "spark.executor.memory 512m",
        "spark.driver.host 127.0.0.1",
        f"spark.driver.extraJavaOptions {QUICK_JVM}",
        f"spark.executor.extraJavaOptions {QUICK_JVM}",
    ]
    (folder / "spark-defaults.conf").write_text("\n".join(lines))
    return {**_environment(), "SPARK_CONF_DIR": str(folder)}


@pytest.fixture(scope="module")
def spark(jvm: Path, cluster: str) -> Iterator[SparkSession]:
    conf = {"spark.executor.cores": "2", "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JVM}
    session = start_session(jvm, cluster, **conf)
    wait_until("both executors", lambda: _executors(session) == EXECUTORS, PATIENCE_S)
    yield session
    session.stop()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """This Python, but it can't import tidegate."""
    return hiding(tmp_path / "bare")


# -- rules, without a cluster --------------------------------------------------------------------------------------


def test_executors_elsewhere_and_a_driver_on_loopback_are_refused_at_once() -> None:
    check_reachable("127.0.0.1", "127.0.0.1", ["127.0.0.1"])
    check_reachable("203.0.113.1", "0.0.0.0", ["203.0.113.9"])
    with pytest.raises(InvalidUseError, match=r"at 127\.0\.0\.1: give start\(\) bind='0\.0\.0\.0' .* executors=203\.0\.113\.9$"):
        check_reachable("127.0.0.1", "127.0.0.1", ["127.0.0.1", "203.0.113.9"])
    with pytest.raises(InvalidUseError, match=r"set spark\.driver\.host to this machine's address"):
        check_reachable("localhost", "0.0.0.0", ["203.0.113.9"])


def test_code_is_shipped_to_whoever_has_none_or_another() -> None:
    assert not needs_code([WorkerCode("a", (), "ours", False), WorkerCode("b", (), "ours", True)], "ours")
    assert needs_code([WorkerCode("a", (), "ours", False), WorkerCode("b", (), "", False)], "ours")
    assert needs_code([WorkerCode("a", (), "older", False)], "ours")
    with pytest.raises(InvalidUseError, match=r"has imported another tidegate .* host=a"):
        needs_code([WorkerCode("a", (), "older", True)], "ours")
    with pytest.raises(InvalidUseError, match="pip install grpcio google-crc32c host=b"):
        needs_code([WorkerCode("a", (), "", False), WorkerCode("b", ("grpc", "google_crc32c"), "", False)], "ours")


def test_the_archive_alone_runs_tidegate(bare: Path) -> None:
    missing, code, loaded = inspector()(("pyarrow", "no_such_module", "no.such"))
    assert (missing, loaded) == ("no_such_module no.such", True)
    path = archive(code)
    program = "import tidegate.spark.gang as g, pyspark_tidegate; print(g.__file__, g.__cached__)"
    without = subprocess.run([bare, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "No module named 'tidegate'" in without.stderr
    program = f"import sys; sys.path.insert(1, {str(path)!r}); {program}"
    answer = subprocess.run([bare, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert f"{path}/tidegate/spark/gang.pyc" in answer.stdout  # compiled already


# -- a driver of its own -------------------------------------------------------------------------------------------


def test_a_file_is_submitted_and_its_result_is_exact(
    cluster: str, defaults: dict[str, str], bare: Path, data: Data, tmp_path: Path
) -> None:
    """The executors run a Python without tidegate; the file's own functions travel with the job."""
    environment = {**defaults, "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable}
    command: list[str | Path] = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster, pipeline_file(data, tmp_path)]
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert answer.stdout.split() == ["FINISHED", str(BIDS)]
    TUMBLING.check(data, tmp_path / "out")


def test_the_command_runs_a_file_on_the_cluster(cluster: str, defaults: dict[str, str], data: Data, tmp_path: Path) -> None:
    options: list[str | Path] = ["--master", cluster, "--store", tmp_path / "store", "--interval", "200ms", "--json"]
    options += ["--bind", "0.0.0.0", "--allow-plaintext"]
    command = [sys.executable, "-m", "tidegate.cli.main", "run", pipeline_file(data, tmp_path), *options]
    answer = subprocess.run(command, env=defaults, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr[-4000:]
    report = json.loads(answer.stdout.splitlines()[-1])
    assert (report["status"], report["rows_in"], report["restarts"]) == ("FINISHED", BIDS, 0)
    TUMBLING.check(data, tmp_path / "out")


# -- one session ---------------------------------------------------------------------------------------------------


def test_a_job_runs_under_tls_at_the_addresses_that_spark_knows(start: Start, data: Data, tmp_path: Path) -> None:
    """The certificates are made out to these addresses alone: dialling any other would fail."""
    tls = Authority().tls("127.0.0.1")
    job = start(TUMBLING.pipeline(data, tmp_path / "out"), parallelism=3, bind="0.0.0.0", tls=tls)
    assert job.await_termination(PATIENCE_S)
    assert job.metrics()["restarts"] == 0
    TUMBLING.check(data, tmp_path / "out")


def test_executors_that_lack_a_dependency_are_named_with_what_they_lack(
    spark: SparkSession, start: Start, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = hiding(tmp_path / "lacking", "obstore", "grpc")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(lacking))
    with pytest.raises(InvalidUseError, match="pip install obstore grpcio host="):
        start(TUMBLING.pipeline(data, tmp_path / "out"))
    assert not (tmp_path / "store").exists()


def test_nodes_that_can_not_reach_the_driver_end_the_job_within_seconds(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    began = time.monotonic()
    plan = TUMBLING.pipeline(data, tmp_path / "out").physical(2)
    options = JobOptions(2, checkpoint=OFTEN, store=str(tmp_path / "store"), advertise="127.0.0.2")
    leader = launch_job(plan, SparkGang(spark, 2), options)
    assert leader.ended.wait(PATIENCE_S)
    assert isinstance(leader.error, JobFailedError)
    assert re.search(r"node \d on 127\.0\.0\.1 never heard from the driver: .*address=127\.0\.0\.2:\d+", str(leader.error))
    assert time.monotonic() - began < 30


def test_an_executor_is_killed_and_the_result_is_exact(spark: SparkSession, start: Start, data: Data, tmp_path: Path) -> None:
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
    assert metrics["rows_in"] == BIDS
    TUMBLING.check(data, tmp_path / "out")


def pipeline_file(data: Data, folder: Path) -> Path:
    path = folder / "bids.py"
    places = {"bids": str(data.bids), "out": str(folder / "out" / "0"), "store": str(folder / "store")}
    path.write_text(dedent(FILE).format(**places))
    return path


def hiding(folder: Path, *modules: str) -> Path:
    """This Python, but it can't import tidegate from where it is installed, nor these modules at all."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(dedent(HIDING).format(hidden=modules))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{folder}:$PYTHONPATH"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _environment() -> dict[str, str]:
    java = find_java().resolve().parent.parent
    return {**os.environ, "JAVA_HOME": str(java), "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}


def _daemon(started: list[subprocess.Popen[bytes]], folder: Path, name: str, *options: str) -> Path:
    """Start a master or a worker; gives the file that it writes its log to."""
    log = folder / f"{len(started)}.log"
    environment = {**_environment(), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *options]
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
