"""``tidegate doctor``: what this machine lacks to run jobs, and what to do about it."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeAlias

from tidegate.cli.console import Console
from tidegate.errors import TidegateError

HELP = "say what is missing on this machine and what to do"
DESCRIPTION = (
    "Check Python, Java, Spark, slots, ports and the store. Exit code 1 when something is wrong. "
    "With --master a Spark session is started and a small job is run on it."
)
UNSOUND = 1
PACKAGES = ("pyspark", "pyarrow", "pandas", "grpcio", "obstore", "numpy", "google-crc32c")
DISK_BYTES_MIN = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``advice`` when something should be done."""

    check: str
    state: Literal["ok", "warning", "wrong"]
    detail: str
    advice: str = ""


Check: TypeAlias = Callable[[], Iterator[Finding]]


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("--store", metavar="STORE", help="also write, read and delete a small object there")
    verb.add_argument("--master", metavar="MASTER", help="also start a session there, for example local[3]")
    verb.add_argument("--parallelism", metavar="N", type=int, default=2, help="the job that should fit; default: 2")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Starts nothing that stays; a session is stopped again."""
    checks: list[Check] = [_python, _packages, _java, lambda: _cores(arguments.parallelism), _ports, _disk]
    if arguments.store:
        checks.append(lambda: _store(arguments.store))
    if arguments.master:
        checks.append(lambda: _session(arguments.master, arguments.parallelism))
    findings = [finding for check in checks for finding in _sheltered(check)]
    wrong = [finding for finding in findings if finding.state == "wrong"]
    rows = [{"check": f.check, "state": f.state, "detail": f.detail, "advice": f.advice} for f in findings]
    output.document({"sound": not wrong, "checks": rows})
    for finding in findings:
        output.say(f"{finding.state:8} {finding.check:12} {finding.detail}")
        if finding.advice:
            output.say(f"{'':21} -> {finding.advice}")
    output.say(_verdict(findings, len(wrong)))
    return UNSOUND if wrong else 0


def _verdict(findings: list[Finding], wrong: int) -> str:
    if wrong:
        return f"{wrong} of {len(findings)} checks are wrong"
    advised = any(finding.advice for finding in findings)
    return "nothing is wrong; see the advice above" if advised else "everything that was checked is fine"


def _sheltered(check: Check) -> list[Finding]:
    """A check that fails by itself is a finding, not the end."""
    try:
        return list(check())
    except TidegateError as error:
        return [Finding("check", "wrong", str(error), "do what the sentence says")]


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{found} at {sys.executable}")
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen and shutil.which(chosen) != sys.executable:
        yield Finding(
            "workers", "warning", f"PYSPARK_PYTHON={chosen}", "nodes run that Python: tidegate must be installed there too"
        )


def _packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(name, "wrong", "not installed", f"pip install {name}, or pip install tidegate anew")
            continue
        supported = name != "pyspark" or found.startswith("4.3.")
        advice = "" if supported else "tidegate is made for pyspark 4.3: pip install 'pyspark==4.3.*'"
        yield Finding(name, "ok" if supported else "wrong", found, advice)


def _java() -> Iterator[Finding]:
    from tidegate.spark.session import find_java

    try:
        yield Finding("java", "ok", str(find_java()))
    except TidegateError as error:
        yield Finding("java", "wrong", str(error), "install Java 17 or newer and set JAVA_HOME, or run `make setup`")


def _cores(parallelism: int) -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    if cores <= parallelism:
        yield Finding(
            "cores",
            "warning",
            f"{cores} cores for {parallelism} nodes and the driver",
            f"local[{parallelism + 1}] works, but nodes share cores; lower --parallelism for speed",
        )
        return
    yield Finding("cores", "ok", f"{cores} cores for {parallelism} nodes and the driver")


def _ports() -> Iterator[Finding]:
    """Nodes and driver talk over TCP on ports that the system picks."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=3).close()
    except OSError as error:
        yield Finding("ports", "wrong", f"no connection over loopback: {error}", "let processes open ports on 127.0.0.1")
        return
    yield Finding("ports", "ok", "a port on 127.0.0.1 can be opened and reached")
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield Finding("host name", "warning", f"{name} has no address", "set SPARK_LOCAL_IP=127.0.0.1, or add it to /etc/hosts")


def _disk() -> Iterator[Finding]:
    import tempfile

    folder = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).partition(",")[0]
    free = shutil.disk_usage(folder).free
    short = free < DISK_BYTES_MIN
    advice = "make room, or set SPARK_LOCAL_DIRS to another disk" if short else ""
    yield Finding("disk", "warning" if short else "ok", f"{free / (1 << 30):.1f} GiB free at {folder}", advice)


def _store(url: str) -> Iterator[Finding]:
    from tidegate.runtime.inspect import shown
    from tidegate.store.open import check_writable, open_store

    try:
        check_writable(open_store(url))
    except TidegateError as error:
        yield Finding("store", "wrong", str(error), f"correct the address or its permissions: {shown(url)}")
        return
    yield Finding("store", "ok", f"{shown(url)} can be written, and refuses to create an object twice")


def _session(master: str, parallelism: int) -> Iterator[Finding]:
    from tidegate.spark.cluster import slots
    from tidegate.spark.session import local_session

    try:
        spark = local_session(master, "tidegate doctor")
    except TidegateError as error:
        yield Finding("spark", "wrong", str(error), "correct --master, or what the sentence names")
        return
    try:
        found = slots(spark)
        fits = found > parallelism
        advice = "" if fits else f"give the session {parallelism + 1} cores or more, for example local[{parallelism + 1}]"
        yield Finding("spark", "ok", f"{spark.version} on {master}")
        yield Finding("slots", "ok" if fits else "wrong", f"{found} slots for {parallelism} nodes and one to spare", advice)
    finally:
        spark.stop()
