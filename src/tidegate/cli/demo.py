"""``tidegate demo``: a live pipeline on local Spark, a worker killed on the way, the result proved exact."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.console import Console
from tidegate.cli.crash import kill_worker
from tidegate.cli.follow import WatchedJob, counted, follow
from tidegate.cli.progress import Progress
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.runtime.metrics import JobMetrics

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline
    from tidegate.cli.proof import ExpectedOutput, Proof
    from tidegate.spark.session import Session

HELP = "see a pipeline survive the death of a worker"
DESCRIPTION = (
    "Run a pipeline with two outputs on local Spark, kill -9 one of its workers on the way, and prove the "
    "result against Spark SQL. Everything happens in a temporary directory that is gone afterwards."
)
ROWS = 16_000_000
KEYS = 10_000
PARALLELISM = 2
INTERVAL = "250ms"
PER_KEY_MS, PER_KIND_MS = 10_000, 60_000
RUN_TIMEOUT_S = 300.0
LOOK_S = 0.02
LOG_TAIL_LINES = 20
# Not before this share of the rows is read, so that it shows that the job goes on and does not begin again.
KILL_AFTER = 0.25
# Most of the demo's time is Spark's start: the quick compiler alone makes that shorter, and long jobs slower.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"rows to make (default: {ROWS:,})")


@dataclass(slots=True)
class Story:
    """What happened to one run, as it happens."""

    killed: int | None = None
    killed_at_s: float = 0.0
    gang_before: object = None
    rows_seen: int | None = None
    recovered_s: float | None = None
    final: JobMetrics | None = None

    @property
    def restarts(self) -> int:
        """How often the gang was started again."""
        return 0 if self.final is None else self.final["restarts"]

    @property
    def tells_something(self) -> bool:
        """A worker died in the middle, and the job had to recover."""
        return self.killed is not None and self.restarts > 0


@dataclass(frozen=True, slots=True)
class Result:
    """The last line of ``demo --json``."""

    rows_in: int
    rows_out: int
    checkpoints_committed: int
    restarts: int
    exact: bool
    seconds: float
    recovery_seconds: float | None


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Blocks for about a minute. Exit code 1 when the result is not exact."""
    if arguments.rows < 1:
        raise InvalidUseError(f"--rows is a positive number rows={arguments.rows}")
    started = time.monotonic()
    with _work_folder() as folder:
        from tidegate.spark.session import local_session

        log = folder / "spark.log"
        output.say("starting Spark …")
        quick = {"spark.driver.extraJavaOptions": QUICK_JVM}
        spark = local_session(f"local[{PARALLELISM + 1}]", "tidegate demo", log=log, **quick)
        try:
            story, proofs, rows = _tell(spark, folder, arguments.rows, output)
        except JobFailedError:
            _show_tail(log)
            raise
        finally:
            spark.stop()
    result = _result(story, proofs, rows, time.monotonic() - started)
    _print(result, story, proofs, output)
    output.document(asdict(result))
    return 0 if result.exact else 1


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A directory that is gone afterwards. The job's warnings go there too: the demo tells its own story."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    logger, handler = logging.getLogger("tidegate"), logging.FileHandler(folder / "spark.log")
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, False
    try:
        yield folder
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)
        handler.close()
        shutil.rmtree(folder, ignore_errors=True)


def _tell(spark: Session, folder: Path, rows: int, output: Console) -> tuple[Story, list[Proof], int]:
    """One run; a second one with more rows when the first was over before a worker could be killed."""
    from tidegate.cli.proof import prove

    for attempt, size in enumerate((rows, rows * 3), start=1):
        own = folder / f"run-{attempt}"
        data = _make_data(size, own, output)
        story = _run(spark, data, own, size, output)
        if story.tells_something or attempt == 2:
            break
        output.say("the job was done before a worker could be killed: once more, with three times the rows")
    output.say("computing the same in batch with Spark SQL …")
    return story, prove(spark, data, claims(own)), size


def _make_data(rows: int, folder: Path, output: Console) -> Path:
    from tidegate.bench.data import DataSpec, ensure

    spec = DataSpec("events", rows, KEYS, "zipf", seed=7, rows_per_second=50_000)
    output.say(f"making {rows:,} rows in {counted(spec.files, 'Parquet file')} …")
    with Progress("making rows", rows) as progress:
        return ensure(spec, folder / "data", progress.update)


def pipeline(data: Path, folder: Path) -> Pipeline:
    """One source, read once, and two outputs that always show the same epochs."""
    import tidegate as tg

    events = tg.read_parquet(data, event_time="ts", out_of_orderness="2s")
    per_key = (
        events.filter(tg.col("kind") != 0)
        .key_by("key")
        .window(tg.tumbling(PER_KEY_MS))
        .aggregate(n=tg.count(), total=tg.sum("value"), peak=tg.max("value"))
    )
    per_kind = (
        events.key_by("kind")
        .window(tg.tumbling(PER_KIND_MS))
        .aggregate(n=tg.count(), lowest=tg.min("value"), average=tg.mean("value"))
    )
    return tg.Pipeline("demo", per_key.write_parquet(folder / "per_key"), per_kind.write_parquet(folder / "per_kind"))


def claims(folder: Path) -> list[ExpectedOutput]:
    """The pipeline's outputs in Spark's SQL."""
    from tidegate.cli.proof import ExpectedOutput

    def windows(size_ms: int) -> str:
        return f"ts - ts % {size_ms} AS window_start, ts - ts % {size_ms} + {size_ms} AS window_end"

    per_key = f"""SELECT key, {windows(PER_KEY_MS)}, count(*) AS n, sum(value) AS total, max(value) AS peak
                  FROM events WHERE kind <> 0 GROUP BY key, window_start, window_end"""
    per_kind = f"""SELECT kind, {windows(PER_KIND_MS)}, count(*) AS n, min(value) AS lowest,
                          avg(value) AS average FROM events GROUP BY kind, window_start, window_end"""
    bounds = ("window_start", "window_end")
    return [
        ExpectedOutput("per key", folder / "per_key", ("key", *bounds), ("n", "peak"), ("total",), per_key),
        ExpectedOutput("per kind", folder / "per_kind", ("kind", *bounds), ("n", "lowest"), ("average",), per_kind),
    ]


def _run(spark: Session, data: Path, folder: Path, rows: int, output: Console) -> Story:
    import tidegate as tg

    output.say(f"running the pipeline on {PARALLELISM} Spark tasks, a checkpoint every {INTERVAL} …")
    job = pipeline(data, folder).start(
        spark,
        parallelism=PARALLELISM,
        store=str(folder / "store"),
        checkpoint=tg.CheckpointConfig(interval=INTERVAL),
    )
    return watch_and_kill(job, rows, output)


def watch_and_kill(job: WatchedJob, rows: int, output: Console) -> Story:
    """Kill a worker as soon as there is something to recover from; time what follows."""
    story = Story()

    def look(metrics: JobMetrics) -> None:
        if story.killed is None:
            _kill(story, job, metrics, rows, output)
        elif story.recovered_s is None and _running_again(story, job, metrics):
            story.recovered_s = time.monotonic() - story.killed_at_s
            output.say(f"processing again after {story.recovered_s:.1f} s")

    with Progress("running", rows) as progress:
        if not follow(job, progress, on_look=look, timeout_s=RUN_TIMEOUT_S, poll_s=LOOK_S):
            raise JobFailedError(f"the demo's job did not end in {RUN_TIMEOUT_S:.0f} s status={job.status}")
    story.final = job.metrics()
    return story


def _kill(story: Story, job: WatchedJob, metrics: JobMetrics, rows: int, output: Console) -> None:
    committed, read = metrics["checkpoints_committed"], metrics["rows_in"]
    if job.status != "RUNNING" or not committed or read < rows * KILL_AFTER:
        return
    story.killed_at_s = time.monotonic()
    story.killed = kill_worker(metrics)
    story.gang_before = metrics["gang"]
    if story.killed is not None:
        done = counted(committed, "checkpoint")
        output.say(f"kill -9 {story.killed}: a worker is dead; {read:,} rows read, {done} committed so far")


def _running_again(story: Story, job: WatchedJob, metrics: JobMetrics) -> bool:
    """All nodes of a new gang are there and report that they read on; they do so twice a second."""
    if not metrics["restarts"] or job.status != "RUNNING" or metrics["gang"] == story.gang_before:
        return False
    read = metrics["rows_read"]
    if story.rows_seen is None:
        story.rows_seen = read  # may still be what the old gang said last
    return len(metrics["nodes"]) == PARALLELISM and 0 < read != story.rows_seen


def _result(story: Story, proofs: list[Proof], rows: int, seconds: float) -> Result:
    return Result(
        rows_in=rows,
        rows_out=sum(proof.rows for proof in proofs),
        checkpoints_committed=0 if story.final is None else story.final["checkpoints_committed"],
        restarts=story.restarts,
        exact=all(proof.exact for proof in proofs),
        seconds=round(seconds, 1),
        recovery_seconds=None if story.recovered_s is None else round(story.recovered_s, 2),
    )


def _print(result: Result, story: Story, proofs: list[Proof], output: Console) -> None:
    output.say()
    output.say(f"rows       {result.rows_in:,} read once for both outputs, {result.rows_out:,} written")
    committed = counted(result.checkpoints_committed, "checkpoint")
    output.say(f"recovery   {committed} committed, {counted(result.restarts, 'restart')}{_resumed(result, story)}")
    if not story.tells_something:
        output.say("           no worker could be killed in time: try --rows with a larger number")
    for proof in proofs:
        verdict = "every row equal" if proof.exact else f"{proof.wrong:,} of {proof.rows_expected:,} rows differ"
        output.say(f"{proof.name:<10} {proof.rows:,} rows against Spark SQL in batch: {verdict}")
    output.say(f"exact      {'yes' if result.exact else 'NO'}, {result.seconds:.0f} s in all")


def _resumed(result: Result, story: Story) -> str:
    again = 0 if story.final is None else max(0, story.final["rows_read"] - result.rows_in)
    after = "" if story.recovered_s is None else f" after {story.recovered_s:.1f} s"
    return f"; went on{after} from the checkpoint, {again:,} rows read again" if story.restarts else ""


def _show_tail(log: Path) -> None:
    """What Spark and the job said last, for whoever has to find out why."""
    for line in log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]:
        print(line, file=sys.stderr)
