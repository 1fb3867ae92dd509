"""``tidegate run``: a pipeline from a file, on Spark, until it ends or is interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.console import Console, shown
from tidegate.cli.follow import follow, summary
from tidegate.cli.load import DEFAULT_MASTER, load_for_spark, split_target
from tidegate.cli.progress import Progress
from tidegate.errors import InvalidUseError
from tidegate.runtime.interrupt import plain_interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.api.job import Job
    from tidegate.api.pipeline import Pipeline
    from tidegate.core.checkpoint.config import CheckpointConfig

HELP = "run a pipeline from a Python file"
DESCRIPTION = "Run the pipeline that FILE defines, and resume it from its latest checkpoint if the store has one."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("file", metavar="FILE[:name]", help="Python that defines `pipeline`, or another name after a colon")
    verb.add_argument("--master", help=f"the Spark master (default: that of a session which FILE makes, else {DEFAULT_MASTER})")
    verb.add_argument("--parallelism", type=int, metavar="N", help="nodes of the gang (default: slots - 1)")
    verb.add_argument("--store", metavar="DIR", help="where checkpoints go: a directory or file://, s3://, gs://, az://")
    verb.add_argument("--interval", metavar="1s", help="time between checkpoints (default: no checkpoints)")
    verb.add_argument("--unaligned", choices=["auto", "always", "never"], default="auto", help="default: auto")
    verb.add_argument("--restore", default="latest", metavar="EPOCH", help="latest (default), none, an epoch or a path")
    verb.add_argument("--bind", metavar="ADDRESS", help="where to listen for nodes: 0.0.0.0 on a cluster (default: 127.0.0.1)")
    verb.add_argument("--tls", nargs=3, metavar=("CERTIFICATE", "KEY", "AUTHORITY"), help="PEM files, to encrypt what nodes send")
    verb.add_argument(
        "--allow-plaintext", action="store_true", help="with --bind, without --tls: all on that network may read the rows"
    )
    verb.add_argument("--py-files", default="", metavar="A.py,B.zip", help="code that the nodes need besides FILE")
    contend = verb.add_mutually_exclusive_group()
    contend.add_argument("--standby", action="store_true", help="wait beside a job that runs, and take over when it is gone")
    contend.add_argument("--takeover", action="store_true", help="replace a job that runs")
    verb.add_argument("--token-file", metavar="FILE", help="where the job's token is, for who operates it (default: ~/.tidegate)")
    verb.add_argument("--election", metavar="URL", help="etcd://… or store (default: as before, at first in the store)")
    verb.add_argument("--overwrite", action="store_true", help="with --restore none: empty the sinks first")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until the job has ended. Interrupting it stops the job in good order."""
    from tidegate.core.checkpoint.config import CheckpointConfig

    path, _ = split_target(arguments.file)
    if arguments.interval is not None and arguments.store is None:
        raise InvalidUseError(f"checkpoints need a store: give --store with a directory or a URL interval={arguments.interval}")
    checkpoint = CheckpointConfig(interval=arguments.interval, unaligned=arguments.unaligned)
    _workers_find_modules_beside(path)
    pipeline = load_for_spark(arguments.file, arguments.master)
    _check_resources(arguments.parallelism, checkpoint.store_url(arguments.store))
    spark = _session(arguments.master, pipeline.name, output)
    try:
        for file in filter(None, arguments.py_files.split(",")):
            spark.sparkContext.addPyFile(file)
        return _run(pipeline, spark, checkpoint, arguments, output)
    finally:
        spark.stop()


def _session(master: str | None, name: str, output: Console) -> SparkSession:
    """The session that FILE has made, or one of ours. Another master than was asked for is refused, not taken in silence."""
    from tidegate.spark.session import local_session, present_session

    found = present_session()
    if found is None:
        return local_session(master or DEFAULT_MASTER, f"tidegate {name}")
    spark, its_master = found
    if master is not None and master != its_master:
        spark.stop()
        raise InvalidUseError(
            "the file makes its own Spark session at another master: leave .master(…) out of it, or run without --master "
            f"master={master} file_master={its_master}"
        )
    output.say(f"session of FILE  master={its_master}")
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _check_resources(parallelism: int | None, url: str | None) -> None:
    """What the start would refuse too, but only once Spark is up."""
    from tidegate.planner.stages import check_parallelism
    from tidegate.store.open import check_writable, open_store

    if parallelism is not None:
        check_parallelism(parallelism)
    if url is not None:
        check_writable(open_store(url))


def _run(
    pipeline: Pipeline,
    spark: SparkSession,
    checkpoint: CheckpointConfig,
    arguments: argparse.Namespace,
    output: Console,
) -> int:
    options = _start_options(arguments)
    started = time.monotonic()
    job = pipeline.start(
        spark,
        parallelism=arguments.parallelism,
        store=arguments.store,
        checkpoint=checkpoint,
        restore=restore_of(arguments.restore),
        **options,
    )
    with _stopping(job), Progress(pipeline.name) as progress:
        follow(job, progress)
    report = summary(job, time.monotonic() - started)
    output.say("  ".join(f"{name}={shown(value)}" for name, value in report.items()))
    output.document(report)
    return 0


def _start_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Only what was asked for: the rest is the API's business."""
    from tidegate.runtime.security import Tls

    options: dict[str, Any] = {}
    if arguments.overwrite:
        options["overwrite"] = True
    for name in ("standby", "takeover"):
        if getattr(arguments, name):
            options[name] = True
    for name in ("token_file", "election"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if arguments.bind is not None:
        options["bind"] = arguments.bind
    if arguments.tls is not None:
        options["tls"] = Tls(*arguments.tls)
    if arguments.allow_plaintext:
        options["allow_plaintext"] = True
    return options


@contextmanager
def _stopping(job: Job) -> Iterator[None]:
    """Whatever ends the watching ends the job too, and a termination signal counts as an interrupt."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with plain_interrupts():
            yield
    except KeyboardInterrupt:
        job.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def restore_of(text: str) -> str | int:
    """``--restore`` as the API takes it: an epoch is a number."""
    return int(text) if text.isdigit() else text


def _workers_find_modules_beside(path: Path) -> None:
    """The file may import its neighbours; Spark's local workers inherit this variable."""
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(path.parent), *([others] if others else [])])
