"""The gang on Spark: one barrier-mode stage whose tasks are the nodes.

Spark schedules it, ships the code, notices when a task dies and cancels the rest. It never retries such a stage, so every start
is a fresh job, fenced by its gang number.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from tidegate.core.failure.restart import FailureKind
from tidegate.errors import InvalidUseError, ThreadDied
from tidegate.runtime.gang import Exit
from tidegate.runtime.host import Launch, run_node
from tidegate.spark.cluster import await_slots
from tidegate.spark.failure import reason
from tidegate.supervise import guarded

log = logging.getLogger("tidegate")

RESULT = "node long, outcome string"
SLOTS_WAIT_S = 6.0
SLOTS_LOOK_S = 0.05
STOPPED = Exit(
    FailureKind.SETUP,
    "SparkStopped: the Spark session was stopped under the job; start the job again on a new one to go on",
)


def warm_up(spark: SparkSession, parallelism: int) -> None:
    """Have Spark run a stage of the gang's kind, so that a standby's first gang finds everything loaded. Blocks for seconds."""
    rows = spark.range(0, parallelism, 1, parallelism)
    rows.mapInArrow(_nothing, "id long", barrier=True).collect()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class SparkGang:
    """Starts and cancels gangs. One at a time."""

    def __init__(self, spark: SparkSession, parallelism: int) -> None:
        self._spark = spark
        self._parallelism = parallelism
        self._group: str | None = None
        use_this_python(spark)
        self._thread: InheritableThread | None = None

    def start(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        """Submit the gang. ``on_exit`` gets ``None`` when every node returned, else what Spark said; from another thread."""
        group = f"tidegate-{launch.setup.plan.job}-gang-{launch.setup.gang}"
        self._group = group
        if is_stopped(self._spark):
            on_exit(STOPPED)
            return
        work = partial(self._run, group, launch, on_exit)
        died = partial(_died, on_exit)
        self._thread = InheritableThread(target=guarded(group, work, died), name=group)
        self._thread.daemon = True
        self._thread.start()

    def _run(self, group: str, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        try:
            about = f"tidegate job {launch.setup.plan.job}"
            self._spark.sparkContext.setJobGroup(group, about, interruptOnCancel=False)
            rows = self._spark.range(0, self._parallelism, 1, self._parallelism)
            outcomes = rows.mapInArrow(_node_main(launch), RESULT, barrier=True).collect()
        except Exception as error:  # whatever Spark raises: the driver decides what it means
            on_exit(STOPPED if is_stopped(self._spark) else reason(error))
        else:
            failed = [row.outcome for row in outcomes if row.outcome.startswith("failed")]
            # They have said why themselves, if anybody listened.
            on_exit(Exit(FailureKind.PEER_LOST, failed[0]) if failed else None)

    def running(self) -> int | None:
        """How many tasks of the gang Spark runs now, about a second late."""
        try:
            tracker = self._spark.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            return sum(stage.numActiveTasks for stage in stages if stage is not None)
        except Exception as error:  # py4j raises whatever the JVM or a broken socket raised
            log.info("Spark does not say what it runs: %s", error)
            return None

    def cancel(self) -> None:
        """End what is still running, without waiting for it."""
        if self._group is not None and not is_stopped(self._spark):
            self._spark.sparkContext.cancelJobGroup(self._group)

    def join(self, timeout_s: float) -> bool:
        """Wait for the submitting thread. True when it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True


def _died(on_exit: Callable[[Exit | None], None], death: ThreadDied) -> None:
    on_exit(Exit(FailureKind.DEFECT, str(death)))


def _node_main(launch: Launch) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def main(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        index = context.partitionId()
        # Spark's name for this machine is one that the others can dial.
        host = context.getTaskInfos()[index].address.rpartition(":")[0] or None
        outcome = run_node(launch, index, host=host)
        yield pa.RecordBatch.from_pydict({"node": [index], "outcome": [outcome]})

    return main


def use_this_python(spark: SparkSession) -> None:
    """On a local master, run the nodes with the driver's own Python unless the user chose another."""
    if _is_ours_to_choose(spark):
        context: Any = spark.sparkContext
        context.pythonExec = sys.executable


def register_format(spark: SparkSession) -> None:
    """The JVM looks for formats with the ``python3`` of PATH, which may be another Python without tidegate."""
    found = shutil.which("python3")
    elsewhere = found is None or os.path.dirname(found) != os.path.dirname(sys.executable)
    if elsewhere and _is_ours_to_choose(spark):
        from tidegate.spark.datasource import TidegateDataSource

        spark.dataSource.register(TidegateDataSource)


def _is_ours_to_choose(spark: SparkSession) -> bool:
    return str(spark.sparkContext.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ


def is_stopped(spark: SparkSession) -> bool:
    """The session's context is gone: nothing can be submitted or cancelled any more."""
    context: Any = spark.sparkContext
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # the JVM itself is gone, and py4j raises whatever the broken socket raised
        return True


def busy(spark: SparkSession) -> int:
    """How many tasks this session runs now. The public status tracker would lag by a second or more."""
    context: Any = spark.sparkContext
    running = context._jsc.sc().taskScheduler().runningTasksByExecutors().valuesIterator()
    total = 0
    while running.hasNext():
        total += int(running.next())
    return total


def check_session(spark: SparkSession, parallelism: int | None) -> int:
    """The parallelism to use; refuses what would hang, with what to do about it."""
    if getattr(spark, "is_remote", None) or "connect" in type(spark).__module__:
        raise InvalidUseError("tidegate needs a classic Spark session, not Spark Connect: build it with .master(...)")
    if not isinstance(spark, SparkSession):
        raise InvalidUseError(f"start needs a Spark session given={type(spark).__name__}")
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise InvalidUseError("a gang keeps its executors: set spark.dynamicAllocation.enabled=false when you build the session")
    free = await_slots(spark, parallelism)
    wanted = parallelism if parallelism is not None else max(1, free - busy(spark) - 1)
    if wanted < 1:
        raise InvalidUseError(f"parallelism must be at least 1 parallelism={wanted}")
    if wanted > free:
        raise InvalidUseError(
            f"Spark can run {free} tasks at once and the job needs {wanted}: lower parallelism, or give the session more "
            f"cores (for example master local[{wanted + 1}]) parallelism={wanted} slots={free}"
        )
    _wait_for_slots(spark, wanted, free)
    return wanted


def _wait_for_slots(spark: SparkSession, wanted: int, all_slots: int) -> None:
    """A gang starts complete or not at all, so slots that other jobs hold for good would be waited for in vain.

    Tasks of a job that was just stopped are given some time to go.
    """
    deadline = time.monotonic() + SLOTS_WAIT_S
    while (held := busy(spark)) > all_slots - wanted:
        if time.monotonic() > deadline:
            raise InvalidUseError(
                f"other jobs hold {held} of the {all_slots} tasks that Spark can run at once, and the job needs {wanted}: stop "
                f"them, lower parallelism, or give the session more cores parallelism={wanted} slots={all_slots}"
            )
        time.sleep(SLOTS_LOOK_S)
