"""``tidegate bench``: measurements that anybody can repeat, with how much they scatter."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.console import Console, rate
from tidegate.cli.progress import Progress

if TYPE_CHECKING:
    from tidegate.bench.pipeline import PipelineSettings

HELP = "measure tidegate beside Structured Streaming and DuckDB"
DESCRIPTION = (
    "Measure tidegate beside Spark Structured Streaming and DuckDB on the same files, in turns, and compare "
    "the results. At full size it takes about forty minutes; --rows 1000000 --rounds 1 --pairs 1 --seconds 5 "
    "--switches 1 shows a first idea in two minutes."
)
PACKAGES = ("tidegate", "pyspark", "pyarrow", "duckdb", "numpy")
# Structured Streaming lives in the JVM: with Spark's default of 1 GiB it would mostly collect garbage.
DRIVER_MEMORY = "4g"
BUSY_LOAD_PER_CORE = 0.25
NOISY_RATIO = 1.25


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    suites = ["pipeline", "unaligned", "core", "signals"]
    verb.add_argument("suite", metavar="SUITE", choices=suites, help=", ".join(suites))
    verb.add_argument("--rows", type=int, default=20_000_000, help="rows per workload (default: 20 million)")
    verb.add_argument("--rounds", type=int, default=3, help="turns of every engine per workload (default: 3)")
    verb.add_argument("--pairs", type=int, default=5, help="runs with and without checkpoints (default: 5)")
    verb.add_argument("--seconds", type=float, default=60.0, help="least length of a run of a pair (default: 60)")
    verb.add_argument("--switches", type=int, default=16, help="turns with and without checkpoints within one job (default: 16)")
    verb.add_argument(
        "--streaming-rows",
        type=int,
        help="rows for Structured Streaming, 0 to leave it out (default: all)",
    )
    verb.add_argument("--parallelism", type=int, default=2, help="nodes, and DuckDB's threads (default: 2)")
    verb.add_argument("--workload", action="append", default=[], help="only this one; may be repeated")
    verb.add_argument("--data", metavar="DIR", help="keep the made-up rows here for the next time (default: don't)")
    verb.add_argument("--backlog", type=int, action="append", default=[], help="unaligned: batches that wait")
    verb.add_argument("--plot", metavar="FILE", help="unaligned: draw the checkpoint times into this SVG file")
    verb.add_argument("--large", action="store_true", help="core: ten nodes with 1 GB too, for minutes")
    verb.add_argument("--spark", action="store_true", help="unaligned: nodes on Spark instead of threads")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks until everything is measured. Exit code 1 when a result differs from DuckDB's."""
    if arguments.suite == "unaligned":
        from tidegate.cli import bench_unaligned

        return bench_unaligned.execute(arguments, output)
    if arguments.suite == "core":
        from tidegate.cli import bench_core

        return bench_core.execute(output, large=arguments.large)
    if arguments.suite == "signals":
        from tidegate.cli import bench_signals

        return bench_signals.execute(output, parallelism=arguments.parallelism)
    from tidegate.bench.pipeline import PipelineSettings

    settings = PipelineSettings(
        rows=arguments.rows,
        rounds=arguments.rounds,
        pairs=arguments.pairs,
        seconds=arguments.seconds,
        switches=arguments.switches,
        streaming_rows=arguments.streaming_rows,
        parallelism=arguments.parallelism,
        workloads=tuple(arguments.workload),
    )
    work = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    try:
        data = Path(arguments.data) if arguments.data else work / "data"
        with Progress("bench", settings.steps) as progress:
            document = _measure(settings, data, work, progress)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _print(document, output)
    return 0 if all(result["equal"] for result in document["workloads"]) else 1


def _measure(settings: PipelineSettings, data: Path, work: Path, progress: Progress) -> dict[str, Any]:
    from tidegate.bench.duckdb_side import connect
    from tidegate.bench.pipeline import PipelineBench
    from tidegate.spark.session import local_session

    connect(settings.parallelism).close()
    load_before, started = os.getloadavg()[0], time.monotonic()
    spark = local_session(
        f"local[{settings.parallelism + 1}]",
        "tidegate bench",
        log=work / "spark.log",
        **{"spark.driver.memory": DRIVER_MEMORY},
    )
    try:
        steps = count()
        measured = PipelineBench(
            spark,
            settings,
            data,
            work,
            step=lambda note: progress.show(next(steps), note),
            tell=lambda note: progress.update(None, note),
        ).run()
    finally:
        spark.stop()
    return {
        "suite": "pipeline",
        "machine": {**machine(), "load_before": load_before, "load_after": os.getloadavg()[0]},
        "seconds": round(time.monotonic() - started, 1),
        **measured,
    }


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _print(document: dict[str, Any], output: Console) -> None:
    output.document({**document, "warnings": warnings(document)})
    facts = document["machine"]
    output.say(
        f"{facts['cores']} cores, load {facts['load_before']:.1f} before, {facts['load_after']:.1f} after, "
        f"pyspark {facts['pyspark']}, duckdb {facts['duckdb']}, pyarrow {facts['pyarrow']}"
    )
    for result in document["workloads"]:
        _print_workload(result, output)
    if document["checkpointing"] is not None:
        _print_checkpointing(document["checkpointing"], output)
    if document["checkpointing_within_one_job"] is not None:
        _print_switching(document["checkpointing_within_one_job"], output)
    for warning in warnings(document):
        output.say(f"NOTE: {warning}")


def warnings(document: dict[str, Any]) -> list[str]:
    """Why these figures should not be believed as they are."""
    found = []
    facts = document["machine"]
    if facts["load_before"] > BUSY_LOAD_PER_CORE * (facts["cores"] or 1):
        found.append(f"the machine was busy before the start (load {facts['load_before']:.1f}): measure again")
    for result in document["workloads"]:
        for name, engine in result["engines"].items():
            speed = engine["rows_per_second"]
            if speed["max"] > NOISY_RATIO * speed["min"]:
                apart = speed["max"] / speed["min"]
                found.append(f"{result['name']}: {name}'s runs are {apart:.1f} x apart")
    return found + _checkpointing_warnings(document["checkpointing"])


def _checkpointing_warnings(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return []
    found = []
    cost = result["cost"]
    if len(result["cost_per_pair"]) > 1 and cost["max"] - cost["min"] > abs(cost["median"]):
        points = (cost["max"] - cost["min"]) * 100
        found.append(f"the pairs scatter by {points:.1f} points, more than the cost itself")
    shortest = min(result[name]["seconds"]["min"] for name in ("on", "off"))
    if shortest < result["seconds_asked"]:
        found.append(f"a run of a pair took {shortest:.1f} s only, not {result['seconds_asked']:.0f} s")
    return found


def _print_workload(result: dict[str, Any], output: Console) -> None:
    output.say(f"\n{result['name']}: {result['title']}; against DuckDB: {result['comparison']}")
    rows = []
    for name, engine in result["engines"].items():
        faster = result["times_faster_than"].get(name)
        rows.append(
            {
                "engine": name,
                "rows": engine["rows"],
                **_rates(engine),
                "tidegate_is": "" if faster is None else f"{faster:.2f} x as fast",
            }
        )
    output.table(rows)


def _print_checkpointing(result: dict[str, Any], output: Console) -> None:
    output.say(
        f"\ncheckpoint every {result['interval']} against off, {len(result['cost_per_pair'])} pairs of "
        f"{result['rows']:,} rows ({result['workload']})"
    )
    output.table([{"checkpoints": name, **_rates(result[name])} for name in ("on", "off")])
    cost = result["cost"]
    output.say(f"cost: median {cost['median']:.1%}, lowest {cost['min']:.1%}, highest {cost['max']:.1%}")


def _print_switching(result: dict[str, Any], output: Console) -> None:
    error = result["standard_error"]
    output.say(
        f"\ncheckpoint every {result['interval']} against off within one job, {len(result['cost_per_pair'])} times "
        f"{result['seconds']} s each ({result['workload']}): {rate(result['on']['median'])} against "
        f"{rate(result['off']['median'])}\n"
        f"cost: {result['cost']:.1%}, standard error {'unknown' if error is None else format(error, '.1%')}"
    )


def _rates(engine: dict[str, Any]) -> dict[str, str]:
    speed = engine["rows_per_second"]
    return {
        "lowest": rate(speed["min"]),
        "median": rate(speed["median"]),
        "highest": rate(speed["max"]),
        "seconds": f"{engine['seconds']['median']:.1f}",
    }
