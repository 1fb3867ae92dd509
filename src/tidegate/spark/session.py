"""A Spark session that suits a gang: quiet, on the loopback interface, and quick to say what is missing.

By Spark's defaults a lack of slots looks like a hang of ten minutes, a lack of Java like a crash.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from tidegate.errors import InvalidUseError
from tidegate.runtime.address import is_loopback
from tidegate.spark.daemon import CONF

Session: TypeAlias = SparkSession
"""For those who pass a session on and have no other business with pyspark."""

JAVA_VERSION_MIN = 17
JAVA_ANSWER_TIMEOUT_S = 60
MASTER_ANSWER_TIMEOUT_S = 3.0
CHECKOUT = Path(__file__).resolve().parents[3]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A gang that does not fit is refused after seconds, not after minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
    "spark.barrier.sync.timeout": "60s",
    "spark.python.task.killTimeout": "0s",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.dynamicAllocation.enabled": "false",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
}
LOOPBACK_ONLY = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://.+|k8s://.+|yarn")


def local_session(master: str = "local[3]", app: str = "tidegate", *, log: Path | None = None, **conf: str) -> Session:
    """A session with the settings above; ``conf`` adds to them or replaces them. On a local master workers are forked from a
    daemon that has everything imported.

    ``log`` is a file for what the JVM and its Python workers print; without it that goes to standard error.
    The file is used when this call starts the JVM, which happens once per process. Blocks until Spark is up;
    a missing Java or master is an ``InvalidUseError`` within seconds.
    """
    _check_master(master)
    _use_java(find_java())
    _prepare_environment(master)
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in {**_settings(master), **conf}.items():
        builder = builder.config(name, value)
    with _stderr_to(log):
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def offered_session(master: str, app: str) -> Iterator[None]:
    """A session that somebody else makes meanwhile is as ``local_session`` would make it, wherever he does not say otherwise.

    Starts nothing: it sets what Spark's launcher reads. A missing Java is found by whoever starts Spark.
    """
    _check_master(master)
    if not os.environ.get("JAVA_HOME") and not shutil.which("java"):
        for java in _candidates():
            _use_java(java)
    _prepare_environment(master)
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    options = ["--master", master, "--name", app]
    for name, value in _settings(master).items():
        options += ["--conf", f"{name}={value}"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def present_session() -> tuple[Session, str] | None:
    """The session that this process has, and its master; ``None`` when nobody has made one."""
    spark = SparkSession.getActiveSession()
    return None if spark is None else (spark, str(spark.sparkContext.master))


def _prepare_environment(master: str) -> None:
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers must be the Python that runs here: "python3" of PATH may be another one, without pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _settings(master: str) -> dict[str, str]:
    preload = CONF if master.startswith("local") else {}
    network = LOOPBACK_ONLY if _is_here(master) else {}
    return {**SETTINGS, **preload, **network, "spark.sql.shuffle.partitions": _partitions(master)}


def find_java() -> Path:
    """The first java of version 17 or newer: from JAVA_HOME, from PATH, from the checkout's own ``.java``."""
    tried = []
    for java in _candidates():
        version = _java_version(java)
        if version >= JAVA_VERSION_MIN:
            return java
        tried.append(f"{java} is version {version}" if version else f"{java} does not run")
    found = "; ".join(tried) if tried else "none found"
    raise InvalidUseError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer ({found}): install one and set JAVA_HOME, or run "
        "`make setup` in the checkout"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    shim = CHECKOUT / ".java" / "bin" / "java"
    if shim.exists():
        yield shim


def _java_version(java: Path) -> int:
    """The major version that this java prints; 0 when it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found.group(1)) if found else 0


def _use_java(java: Path) -> None:
    """Let Spark's launcher find this one: it looks at JAVA_HOME first, then at PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) / "bin" / "java" == java:
        return
    if not home and shutil.which("java") == str(java):
        return
    os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)


def _check_master(master: str) -> None:
    if not _MASTER.fullmatch(master):
        raise InvalidUseError(f"a Spark master looks like local[3] or spark://host:7077 master={master}")
    if master.startswith("spark://"):
        _check_reachable(master)


def _check_reachable(master: str) -> None:
    """One of the masters must take a connection: Spark itself would try for a minute."""
    for address in master.removeprefix("spark://").split(","):
        parts = urlsplit(f"//{address}")
        try:
            reached = (parts.hostname or "", parts.port or 7077)
            socket.create_connection(reached, timeout=MASTER_ANSWER_TIMEOUT_S).close()
        except (OSError, ValueError):
            continue
        return
    raise InvalidUseError(f"no Spark master answers there: start it or correct the address master={master}")


def _is_here(master: str) -> bool:
    """A cluster elsewhere must be able to reach this driver: by the address that Spark chooses, or by the one in ``conf``."""
    if not master.startswith("spark://"):
        return master.startswith("local")
    return is_loopback(urlsplit(f"//{master.removeprefix('spark://').split(',')[0]}").hostname or "")


def _partitions(master: str) -> str:
    cores = re.match(r"local\[(\d+)", master)
    return cores.group(1) if cores else str(os.cpu_count() or 2)


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """While the JVM starts, descriptor 2 is this file: the JVM inherits it and is quiet on the screen."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
