"""Brings tidegate to executors that do not have it, and says what else they lack.

Executors of a cluster are asked once per session, by a small job, what they can import. When tidegate is not there or is not the
code that the driver runs, the driver's own package is zipped and added to the session. What tidegate needs is not shipped: it
is compiled code, made for one platform.
"""

from __future__ import annotations

import logging
import py_compile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tidegate
from tidegate.errors import InvalidUseError
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.lifecycle import temporary_directory
from tidegate.spark.cluster import is_cluster, slots
from tidegate.spark.failure import reason

log = logging.getLogger("tidegate")

NEEDED = {
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "obstore": "obstore",
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "google_crc32c": "google-crc32c",
}
"""What executors must have: module and the package that brings it."""
PACKAGES = ("tidegate", "pyspark_tidegate")
ANSWER = "host string, missing string, code string, loaded boolean"

_asked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class WorkerCode:
    """What one Python process of an executor has."""

    host: str
    missing: tuple[str, ...]
    """Modules that are not there."""
    code: str
    """A hash of its tidegate, or the name of the archive that it is in; empty without one."""
    loaded: bool
    """True when its tidegate is imported already, by a preloading daemon: then another one can't replace it."""


def check_sendable(plan: PhysicalPlan) -> None:
    """Refuse what can't be pickled for the nodes before there is anything to restart."""
    for spec in (spec for stage in plan.stages for spec in stage.operators):
        try:
            cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]  # PySpark ships it without types
        except Exception as error:  # pickling runs code of the user's objects, which may raise anything
            raise InvalidUseError(
                f"the operator {spec.name!r} can't be sent to the nodes, make what it needs inside its function: {error}"
            ) from error


def ship_code(spark: SparkSession) -> bool:
    """Make sure that executors run the driver's tidegate; True when it was shipped now. Runs a Spark job; blocks.

    Does nothing on a local master, or when this session's executors were asked before.
    """
    context: Any = spark.sparkContext
    asked = _asked.setdefault(context, set())
    if not is_cluster(spark) or context.pythonExec in asked:
        return False
    ours = inspector()(tuple(NEEDED))[1]
    shipped = needs_code(ask(spark), ours)
    if shipped:
        path = archive(ours)
        log.info("shipping tidegate to the executors size_bytes=%d", path.stat().st_size)
        context.addPyFile(str(path))
    asked.add(context.pythonExec)
    return shipped


def needs_code(answers: Sequence[WorkerCode], ours: str) -> bool:
    """Whether any of them has other code than ``ours``. What can't be fixed is an ``InvalidUseError``."""
    for answer in answers:
        if answer.missing:
            packages = " ".join(NEEDED[module] for module in answer.missing)
            raise InvalidUseError(
                "the executors' Python lacks what tidegate needs; install it there, or set PYSPARK_PYTHON to one that has it: "
                f"pip install {packages} host={answer.host}"
            )
        if answer.loaded and answer.code != ours:
            raise InvalidUseError(
                "the executors' Python daemon has imported another tidegate than the driver runs: install the same one there, or "
                f"unset spark.python.daemon.module host={answer.host}"
            )
    return any(answer.code != ours for answer in answers)


def ask(spark: SparkSession) -> list[WorkerCode]:
    """What executors have, from as many tasks as there are slots. Blocks for one Spark job."""
    count = max(1, slots(spark))
    try:
        rows = spark.range(0, count, 1, count).mapInArrow(_answering(inspector(), tuple(NEEDED)), ANSWER).collect()
    except PySparkException as error:
        raise InvalidUseError(f"the executors' Python does not work: {reason(error).text}") from error
    found = {WorkerCode(row.host, tuple(row.missing.split()), row.code, row.loaded) for row in rows}
    return sorted(found, key=lambda answer: answer.host)


def _answering(
    inspect: Callable[[tuple[str, ...]], tuple[str, str, bool]], needed: tuple[str, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Inner functions travel as code, others by the name of their module, which executors may not have.
    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket

        import pyarrow

        for _ in batches:
            pass
        missing, code, loaded = inspect(needed)
        row = {"host": [socket.gethostname()], "missing": [missing], "code": [code], "loaded": [loaded]}
        yield pyarrow.RecordBatch.from_pydict(row)

    return answer


def inspector() -> Callable[[tuple[str, ...]], tuple[str, str, bool]]:
    """A function that travels as code: the modules it can't find, the hash of tidegate, and whether that is imported."""

    def found(module: str) -> Any:
        from importlib.util import find_spec

        try:
            return find_spec(module)
        except (ImportError, ValueError):  # the package around it is missing, or refuses to be imported
            return None

    def inspect(needed: tuple[str, ...]) -> tuple[str, str, bool]:
        import hashlib
        import sys
        from pathlib import Path

        missing = " ".join(module for module in needed if found(module) is None)
        spec = found("tidegate")
        if spec is None or not spec.submodule_search_locations:
            return missing, "", False
        folder = Path(next(iter(spec.submodule_search_locations)))
        if not folder.is_dir():
            return missing, folder.parent.name, "tidegate" in sys.modules
        digest = hashlib.sha256()
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
        return missing, digest.hexdigest()[:16], "tidegate" in sys.modules

    return inspect


def archive(code: str) -> Path:
    """The driver's own package as an archive that lasts as long as this process: executors that come later fetch it too."""
    home = Path(tidegate.__path__[0]).parent
    if not home.is_dir():
        return home  # the driver itself runs from an archive
    path = Path(temporary_directory("code")) / f"tidegate-{code}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as into, TemporaryDirectory() as scratch:
        for source in sorted(file for package in PACKAGES for file in (home / package).rglob("*.py")):
            name = source.relative_to(home)
            into.write(source, name)
            into.write(_compiled(source, Path(scratch)), name.with_suffix(".pyc"))
    return path


def _compiled(source: Path, scratch: Path) -> str:
    """Every worker process would compile for itself: Python keeps nothing of what it compiles from an archive."""
    compiled = py_compile.compile(
        str(source),
        cfile=str(scratch / "module.pyc"),
        dfile=source.name,
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert compiled is not None
    return compiled
