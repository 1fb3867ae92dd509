"""``tidegate bench unaligned``: what overtaking costs and what it gains."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.console import Console, sized
from tidegate.cli.progress import Progress
from tidegate.errors import InvalidUseError

if TYPE_CHECKING:
    from tidegate.bench.unaligned import StartJob


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until everything is measured. Exit code 1 when an unaligned checkpoint took too long."""
    from tidegate.bench.unaligned import UnalignedBench, UnalignedSettings
    from tidegate.cli.bench import machine

    settings = UnalignedSettings(parallelism=arguments.parallelism)
    if arguments.backlog:
        settings = replace(settings, backlog=tuple(arguments.backlog))
    plot = None if arguments.plot is None else _writable(Path(arguments.plot))
    work = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    load_before = os.getloadavg()[0]
    try:
        with (
            Progress("bench", settings.steps) as progress,
            _launcher(arguments.spark, settings.parallelism, work) as launch,
        ):
            steps = count()
            measured = UnalignedBench(settings, work, launch, lambda note: progress.show(next(steps), note)).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    facts = {**machine(), "load_before": load_before, "load_after": os.getloadavg()[0]}
    document = {
        "suite": "unaligned",
        "machine": facts,
        "nodes": "spark" if arguments.spark else "threads",
        "parallelism": settings.parallelism,
        **measured,
    }
    if plot is not None:
        plot.write_text(_picture(document))
    _print(document, output, plot)
    return 0 if document["bounded"] else 1


def _writable(path: Path) -> Path:
    """Refuse before measuring what could not be written after it."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InvalidUseError(f"--plot needs a file in a directory that exists plot={path}")
    return path


@contextmanager
def _launcher(on_spark: bool, parallelism: int, work: Path) -> Iterator[StartJob]:
    from tidegate.bench import unaligned

    if not on_spark:
        yield unaligned.on_threads
        return
    from tidegate.spark.session import local_session

    spark = local_session(f"local[{parallelism + 1}]", "tidegate bench", log=work / "spark.log")
    try:
        yield unaligned.on_spark(spark)
    finally:
        spark.stop()


def _picture(document: dict[str, Any]) -> str:
    from tidegate.bench.plot import svg
    from tidegate.bench.unaligned import summary

    rows = summary(document["checkpoints"])
    return svg(
        "Checkpoint time against backlog",
        "batches that wait for a function of 50 ms",
        "checkpoint time, ms",
        {
            "aligned": [(row["backlog"], row["aligned_ms"]) for row in rows],
            f"unaligned after {document['alignment_timeout_ms']} ms": [(row["backlog"], row["unaligned_ms"]) for row in rows],
        },
    )


def _print(document: dict[str, Any], output: Console, plot: Path | None) -> None:
    from tidegate.bench.unaligned import summary

    output.document(document)
    facts = document["machine"]
    output.say(
        f"{facts['cores']} cores, load {facts['load_before']:.1f} before, {facts['load_after']:.1f} after, "
        f"pyarrow {facts['pyarrow']}, nodes: {document['parallelism']} on {document['nodes']}"
    )
    output.say("\nsingle steps, the best of several rounds")
    output.table([{**row, "value": float(f"{row['value']:.4g}")} for row in document["steps"]])
    missed = [row["name"] for row in document["steps"] if not row["met"]]
    output.say(f"missed: {', '.join(missed)}" if missed else "every target is met")
    output.say(
        f"\none checkpoint while results wait for a function of 50 ms; alignment timeout {document['alignment_timeout_ms']} ms"
    )
    rows = summary(document["checkpoints"])
    output.table([{**row, "inflight_bytes": sized(row["inflight_bytes"])} for row in rows])
    if plot is not None:
        output.say(f"plot: {plot}")
