"""Jobs on threads of this process, with real sockets and control lines, and sources and sinks that a test can steer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import tidegate as tg
from tidegate.api.job import Job
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.failure.restart import RestartPolicy
from tidegate.core.log.view import Commit, LogRecord, LogView
from tidegate.errors import JobFailedError, RetryableError
from tidegate.plan.connector import Committable, Offset, Polled, Split, WriterContext
from tidegate.runtime.contend import Contend
from tidegate.runtime.gang import Launcher
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store

WINDOW_MS = 1_000
WAIT_S = 30.0
GONE_S = 5.0
QUICK = RestartPolicy(first_wait_ms=1, longest_wait_ms=5, limit=50)


def events(rows: int = 2_000, *, keys: int = 17, step_ms: int = 7, seed: int = 1) -> pa.Table:
    """Rows in the order of their event time; values are whole numbers, so that sums are exact."""
    number = range(rows)
    return pa.table(
        {
            "ts": pa.array([n * step_ms for n in number], pa.int64()),
            "key": pa.array([(n * 7919 + seed) % keys for n in number], pa.int64()),
            "value": pa.array([(n * 31 + seed) % 1_000 for n in number], pa.int64()),
        }
    )


class GatedSource:
    """A table in splits, read in small pieces, and only as far as the test has allowed.

    ``fed``: a world gives it a few rows at each step. ``on_poll`` is called with the number of each poll, before it; it may
    raise.
    """

    event_time = "ts"
    out_of_orderness = 0
    name = "events"

    def __init__(
        self,
        table: pa.Table,
        *,
        splits: int = 6,
        rows_per_poll: int = 50,
        allowed: int | None = None,
        fed: bool = False,
        bounded: bool = True,
        on_poll: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.table = table.combine_chunks()
        self.schema = table.schema
        self.bounded = bounded
        self.rows_per_poll = rows_per_poll
        self.on_poll = on_poll
        self._count = splits
        self._lock = threading.Lock()
        self._left = table.num_rows * 1_000 if allowed is None and not fed else allowed or 0
        self.fed = fed
        self._polls = 0
        self.emitted = 0

    def allow(self, rows: int | None = None) -> None:
        """Let this many more rows be read; all of them without a number."""
        with self._lock:
            self._left += self.table.num_rows * 1_000 if rows is None else rows

    def splits(self) -> list[Split]:
        edges = [self.table.num_rows * n // self._count for n in range(self._count + 1)]
        times = self.table.column("ts")
        return [
            Split(f"{start}-{stop}", times[start].as_py() if stop > start else None, stop - start)
            for start, stop in pairwise(edges)
        ]

    def open(self, split: Split, offset: Offset) -> _Reader:
        start, stop = map(int, split.id.split("-"))
        return _Reader(self, start + (int(str(offset)) if offset is not None else 0), start, stop)

    def take(self, wanted: int) -> int:
        """How many of the wanted rows may be read now."""
        with self._lock:
            self._polls += 1
            number = self._polls
        self.on_poll(number)
        with self._lock:
            granted = min(wanted, self.rows_per_poll, self._left)
            self._left -= granted
            self.emitted += granted
            return granted


class _Reader:
    def __init__(self, source: GatedSource, at: int, start: int, stop: int) -> None:
        self._source = source
        self._at = at
        self._start = start
        self._stop = stop

    @property
    def offset(self) -> int:
        return self._at - self._start

    def poll(self, max_rows: int) -> Polled:
        rows = self._source.take(min(max_rows, self._stop - self._at))
        if not rows:
            return Polled(None, finished=self._at >= self._stop and self._source.bounded)
        batch = self._source.table.slice(self._at, rows).combine_chunks().to_batches()[0]
        self._at += rows
        highest = batch.column(0)[-1].as_py()
        return Polled(batch, rows, highest, self._at >= self._stop and self._source.bounded)

    def close(self) -> None:
        return None


class MemorySink:
    """A two-phase sink in this process. ``on_write``, ``on_prepare`` and ``on_commit`` may raise."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.lock = threading.Lock()
        self.staged: dict[str, list[pa.RecordBatch]] = {}
        self.visible: dict[str, tuple[int, list[pa.RecordBatch]]] = {}
        self.hidden: set[str] = set()
        self.commits: list[tuple[int, int]] = []
        self.closed = 0
        self.opened = 0
        self.on_write: Callable[[pa.RecordBatch], None] = lambda batch: None
        self.on_prepare: Callable[[int], None] = lambda checkpoint_id: None
        self.on_commit: Callable[[int], None] = lambda epoch: None

    def writer(self, context: WriterContext) -> _MemoryWriter:
        with self.lock:
            self.opened += 1
            return _MemoryWriter(self, f"{context.operator}/{context.subtask}/{context.gang}/{self.opened}")

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        self.on_commit(epoch)
        with self.lock:
            self.commits.append((epoch, len(committables)))
            for one in committables:
                name = str(one["name"])
                if name not in self.hidden and name not in self.visible:
                    self.visible[name] = (epoch, self.staged[name])

    def abort(self, committables: Sequence[Committable]) -> None:
        for one in committables:
            self.staged.pop(str(one["name"]), None)

    def hide(self, committables: Sequence[Committable]) -> None:
        with self.lock:
            for one in committables:
                self.hidden.add(str(one["name"]))
                self.visible.pop(str(one["name"]), None)

    def is_empty(self) -> bool:
        return not self.visible

    def clear(self) -> None:
        with self.lock:
            self.visible.clear()
            self.staged.clear()

    def epochs(self) -> set[int]:
        """The epochs of which a reader sees rows."""
        with self.lock:
            return {epoch for epoch, _ in self.visible.values()}

    def rows(self, upto: int | None = None) -> list[tuple[Any, ...]]:
        """All rows that a reader sees, sorted."""
        with self.lock:
            batches = [b for epoch, part in self.visible.values() if upto is None or epoch <= upto for b in part]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


class _MemoryWriter:
    def __init__(self, sink: MemorySink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.on_write(batch)
        self._held.append(batch)

    def prepare(self, checkpoint_id: int) -> Committable | None:
        self._sink.on_prepare(checkpoint_id)
        held, self._held = self._held, []
        if not held:
            return None
        name = f"{self._name}/{checkpoint_id}"
        with self._sink.lock:
            self._sink.staged[name] = held
        return {"name": name}

    def close(self) -> None:
        with self._sink.lock:
            self._sink.closed += 1


def once(error: BaseException, when: Callable[[Any], bool] = lambda value: True) -> Callable[[Any], None]:
    """A hook that raises the first time the condition holds."""
    fired = threading.Event()

    def hook(value: Any) -> None:
        if when(value) and not fired.is_set():
            fired.set()
            raise error

    return hook


# -- pipelines and what they should emit ----------------------------------------------------------------------------


def counts(stream: tg.Stream) -> tg.Stream:
    """Windowed counts and sums per key."""
    keyed = stream.key_by("key").window(tg.tumbling(f"{WINDOW_MS}ms"))
    return keyed.aggregate(n=tg.count(), total=tg.sum("value"))


def expected_counts(*tables: pa.Table) -> list[tuple[int, ...]]:
    """What DuckDB says about it: window_start, key, n, total."""
    table = pa.concat_tables(tables)
    assert table.num_rows
    query = f"""select ts // {WINDOW_MS} * {WINDOW_MS} as w, key, count(*), cast(sum(value) as bigint)
                from rows group by all order by all"""
    connection = duckdb.connect()
    connection.register("rows", table)
    return connection.sql(query).fetchall()


def found_counts(sink: MemorySink | Path) -> list[tuple[int, ...]]:
    """The same columns of what the job has published."""
    if isinstance(sink, MemorySink):
        with sink.lock:
            batches = [b for _, part in sink.visible.values() for b in part]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted((r["window_start"], r["key"], r["n"], r["total"]) for r in rows)
    if not list(sink.glob("*.parquet")):
        return []
    query = f"select window_start, key, n, total from '{sink}/*.parquet' order by all"
    return duckdb.connect().sql(query).fetchall()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table's rows, sorted."""
    return sorted(tuple(row.values()) for row in table.to_pylist())


# -- running -------------------------------------------------------------------------------------------------------


class Jobs:
    """Starts pipelines on threads, in one store per test."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.store = str(tmp_path / "store")
        self._jobs: list[Job] = []

    def start(
        self,
        pipeline: tg.Pipeline,
        parallelism: int = 2,
        *,
        interval: str | None = "1h",
        gang: Launcher | None = None,
        restore: Any = "latest",
        overwrite: bool = False,
        restarts: RestartPolicy = QUICK,
        savepoint: str | None = None,
        append: bool = False,
        join_timeout_ms: int = 60_000,
        contend: Contend = "refuse",
        leader_timeout_ms: int = 3_000,
        coordinator_grace_ms: int = 30_000,
        election: str | None = None,
        **checkpoint: Any,
    ) -> Job:
        """Start it; the interval is long unless given: a test asks for its checkpoints."""
        options = JobOptions(
            parallelism=parallelism,
            checkpoint=tg.CheckpointConfig(interval=interval, **checkpoint),
            store=self.store,
            restore=restore,
            overwrite=overwrite,
            restarts=restarts,
            savepoint=savepoint,
            append=append,
            join_timeout_ms=join_timeout_ms,
            contend=contend,
            leader_timeout_ms=leader_timeout_ms,
            coordinator_grace_ms=coordinator_grace_ms,
            election=election,
        )
        job = Job(launch_job(pipeline.physical(parallelism), gang or ThreadGang(parallelism), options))
        self._jobs.append(job)
        return job

    def finish(self, pipeline: tg.Pipeline, parallelism: int = 2, **options: Any) -> Job:
        """Start it and wait until it is done."""
        job = self.start(pipeline, parallelism, **options)
        assert job.await_termination(WAIT_S), (job.status, job.metrics())
        return job

    def log(self, job: str) -> list[LogRecord]:
        """The job's log. One that goes on faster than a busy machine reads it is read again."""
        for _ in range(20):
            with suppress(RetryableError):
                return LogStore(open_store(self.store), job).read()
        return LogStore(open_store(self.store), job).read()

    def manifests(self, job: str) -> list[CheckpointManifest]:
        """Every committed manifest, in order."""
        return [entry.manifest for entry in self.log(job) if isinstance(entry, Commit)]

    def view(self, job: str) -> LogView:
        return LogView(self.log(job))

    def stop_all(self) -> None:
        for job in self._jobs:
            if job.status not in ("FINISHED", "STOPPED", "FAILED"):
                job.stop()


def until(condition: Callable[[], Any], what: str = "it", timeout_s: float = WAIT_S) -> Any:
    """Wait for something that other threads do; returns the first true value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.002)
    raise AssertionError(f"waited {timeout_s} s for {what} in vain")


def failure(job: Job) -> str:
    """Why the job failed, in its own words."""
    try:
        job.await_termination(WAIT_S)
    except JobFailedError as error:
        return str(error)
    raise AssertionError(f"the job did not fail status={job.status}")


def left_over(before: set[threading.Thread]) -> list[str]:
    """The threads that were not there before and do not end by themselves soon."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        new = [thread for thread in threading.enumerate() if thread not in before]
        if not new:
            return []
        new[0].join(0.05)
    return [thread.name for thread in new]
