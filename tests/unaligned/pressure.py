"""Pipelines under pressure: a source that pauses, a function that waits at a gate, and a crash on request.

Everything runs in this process: nodes are threads, so the tests hold the gate. A crash is the function's own
error while restarts are off; whoever starts the same pipeline again finds only what was committed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.core.barrier.messages import Event
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.failure.restart import RestartPolicy
from tidegate.core.log.view import Commit
from tidegate.errors import JobFailedError
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.snapshotfile import read_inflight
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
HEAVY = pa.schema([*SCHEMA, ("load", pa.binary())])
KEYS = 7
STEP_MS = 100
WINDOW_MS = 1_000
PATIENCE_S = 30.0
TIMEOUT_MS = 150
NO_RESTARTS = RestartPolicy(limit=0, user_error_limit=0)

Row = dict[str, Any]
LIVE: list[tuple[Scene, Job]] = []
"""Every job that a test has started. A failing test must not leave one at its gate: threads would never end."""


class Crash(Exception):
    """What the gate raises when a test wants the job to die."""


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Block until it is so; fail with what was waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.002)


# -- the source ----------------------------------------------------------------------------------------------


class PausingSource:
    """Slices of event time, one per split. While ``paused``, no split emits more than ``pause_at`` rows.

    ``stick`` names a split whose next poll does not return until ``unstuck``: its node does nothing meanwhile.
    """

    def __init__(
        self,
        splits: int,
        rows: int,
        *,
        first: int = 0,
        poll_rows: int = 10,
        pause_at: int | None = None,
        pace_s: float = 0.0,
        load: bytes | None = None,
    ) -> None:
        self.schema = SCHEMA if load is None else HEAVY
        self.event_time = "ts"
        self.out_of_orderness = 0
        self.bounded = True
        self.paused = pause_at is not None
        self._splits, self._rows, self._first = splits, rows, first
        self._poll_rows, self._pace_s, self._pause_at = poll_rows, pace_s, pause_at
        self._load = None if load is None else pa.array([load], pa.binary())
        self.positions: Counter[int] = Counter()
        self.stick: int | None = None
        self.unstuck = threading.Event()
        self.stuck = threading.Event()

    def splits(self) -> Sequence[Split]:
        span = self._rows * STEP_MS
        return [Split(f"{self._first}-{index}", index * span, self._rows) for index in range(self._splits)]

    def open(self, split: Split, offset: Offset) -> PausingReader:
        return PausingReader(self, int(split.id.partition("-")[2]), int(str(offset or 0)))

    def all_rows(self) -> list[Row]:
        """What the source emits in the end."""
        return [row for split in range(self._splits) for row in self.rows(split, 0, self._rows)]

    def rows(self, split: int, start: int, stop: int) -> list[Row]:
        """Rows of one split. Values are unique over all sources with another ``first``."""
        base = split * self._rows
        return [
            {"ts": (base + i) * STEP_MS, "key": (base + i) * 3 % KEYS, "value": self._first + base + i}
            for i in range(start, stop)
        ]

    def batch(self, rows: list[Row]) -> pa.RecordBatch:
        """These rows, with the load if there is one. The load is shared, so it costs no memory."""
        if self._load is None:
            return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        assert len(rows) == 1, "a loaded source emits one row at a time"
        plain = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        return pa.RecordBatch.from_arrays([*plain.columns, self._load], schema=HEAVY)

    def rewind(self) -> None:
        """For the next run: pause again, and forget what was seen of the last one."""
        self.paused = self._pause_at is not None
        self.positions.clear()

    def bound(self) -> int:
        """How far a split may be read now."""
        return self._pause_at if self.paused and self._pause_at is not None else self._rows


class PausingReader:
    def __init__(self, source: PausingSource, split: int, position: int) -> None:
        self._source, self._split, self._position, self._next = source, split, position, 0.0

    @property
    def offset(self) -> Offset:
        return self._position

    def poll(self, max_rows: int) -> Polled:
        source, now = self._source, time.monotonic()
        if source.stick == self._split:
            source.stick = None
            source.stuck.set()
            assert source.unstuck.wait(PATIENCE_S)
        stop = min(self._position + min(max_rows, source._poll_rows), source.bound())
        if stop <= self._position or now < self._next:
            return Polled(None, finished=self._position >= source._rows)
        self._next = now + source._pace_s
        rows = source.rows(self._split, self._position, stop)
        self._position = stop
        source.positions[self._split] = stop
        return Polled(source.batch(rows), len(rows), rows[-1]["ts"], finished=stop >= source._rows)

    def close(self) -> None:
        return None


# -- the gate ------------------------------------------------------------------------------------------------


class Gate:
    """A function for ``map_batches`` that waits until it is open, and raises once ``crash`` is set.

    ``holds`` says which batches wait; the others pass at once.
    """

    def __init__(self, holds: Callable[[pa.RecordBatch], bool] = lambda _: True) -> None:
        self._open = threading.Event()
        self._crash = threading.Event()
        self._holds = holds
        self.waiting = threading.Semaphore(0)
        self.entered: list[pa.RecordBatch] = []
        self.passed: list[pa.RecordBatch] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.entered.append(batch)
        while self._holds(batch) and not self._open.wait(0.005):
            if self._crash.is_set():
                break
        if self._crash.is_set():
            raise Crash("on request")
        self.passed.append(batch)
        return batch

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def crash(self) -> None:
        self._crash.set()

    def reset(self, *, is_open: bool) -> None:
        """For the next run of the same pipeline."""
        self._crash.clear()
        self.entered.clear()
        self.passed.clear()
        (self.open if is_open else self.shut)()


def end_all() -> None:
    """End what a test has left running."""
    while LIVE:
        scene, job = LIVE.pop()
        for source in scene.sources:
            source.unstuck.set()
        if job.status not in ("FINISHED", "FAILED", "STOPPED"):
            for gate in scene.gates:
                gate.crash()
            job.stop()


# -- jobs ----------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """One pipeline on one store, started as often as the test likes."""

    pipeline: tg.Pipeline
    store: Path
    gates: tuple[Gate, ...]
    sources: tuple[PausingSource, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, parallelism: int = 2, **changes: Any) -> Job:
        settings = {"interval": "1h", "alignment_timeout": f"{TIMEOUT_MS}ms", "timeout": "60s"}
        checkpoint = tg.CheckpointConfig(**{**settings, **self.options, **changes})
        options = JobOptions(parallelism=parallelism, checkpoint=checkpoint, store=str(self.store), restarts=NO_RESTARTS)
        job = Job(launch_job(self.pipeline.physical(parallelism), ThreadGang(parallelism), options))
        LIVE.append((self, job))
        return job

    @contextmanager
    def running(self, parallelism: int = 2, **changes: Any) -> Iterator[Job]:
        """A job that is crashed at the end of the block, wherever it stands."""
        job = self.start(parallelism, **changes)
        try:
            yield job
        finally:
            self.crash(job)

    def crash(self, job: Job) -> None:
        """Let the job die. What no checkpoint has committed is lost."""
        for gate in self.gates:
            gate.crash()
        for source in self.sources:
            source.paused = False
        try:
            with pytest.raises(JobFailedError, match="Crash"):
                job.await_termination(PATIENCE_S)
        finally:
            for gate in self.gates:
                gate.reset(is_open=False)
            for source in self.sources:
                source.rewind()

    def finish(self, parallelism: int = 2, **changes: Any) -> Job:
        """Start again from what was committed, with every gate open, and run to the end."""
        for source in self.sources:
            source.paused = False
        for gate in self.gates:
            gate.reset(is_open=True)
        return self.complete(self.start(parallelism, **changes))

    def complete(self, job: Job) -> Job:
        """Let a running job finish."""
        for source in self.sources:
            source.paused = False
        for gate in self.gates:
            gate.open()
        assert job.await_termination(PATIENCE_S), job.metrics()
        assert job.status == "FINISHED"
        return job

    def manifests(self) -> list[CheckpointManifest]:
        """Every committed manifest, oldest first."""
        entries = LogStore(open_store(str(self.store)), self.pipeline.name).read()
        return [entry.manifest for entry in entries if isinstance(entry, Commit)]

    def inflight_values(self) -> list[int]:
        """The values of all rows in flight of the newest manifest, of a scene whose source rows are in flight."""
        store, schema = open_store(str(self.store)), self.sources[0].schema
        found: list[int] = []
        for entry in self.manifests()[-1].inflight:
            messages = read_inflight(store.get(entry.path), schema, entry.path)
            events = [message.payload for message in messages if isinstance(message, Event)]
            assert entry.events >= len(events) > 0, "small events are stored together"
            found += [row["value"] for batch in events for row in batch.to_pylist()]
        return sorted(found)

    def paused_everywhere(self, job: Job, parallelism: int = 2) -> None:
        """Wait until the sources have emitted all they may for now and every gate has something in hand."""
        for source in self.sources:
            wait_for("the source to pause", lambda s=source: job.error or _paused(s, parallelism))
        for gate in self.gates:
            wait_for("something at the gate", lambda g=gate: job.error or g.entered)
        assert job.error is None, job.error


def _paused(source: PausingSource, parallelism: int) -> bool:
    open_splits = range(min(parallelism, source._splits))
    return all(source.positions[split] >= source.bound() for split in open_splits)


def last(job: Job) -> dict[str, Any]:
    """The newest committed checkpoint."""
    return [record for record in job.checkpoints() if record["status"] == "committed"][-1]


def took_unaligned(job: Job) -> dict[str, Any]:
    """Take a checkpoint under pressure; it must be an unaligned one with data in flight."""
    job.checkpoint("20s")
    record = last(job)
    assert record["unaligned"], record
    assert record["inflight_events"] > 0, record
    assert record["inflight_bytes"] > 0, record
    return record


# -- results -------------------------------------------------------------------------------------------------


def windows(rows: Sequence[Row]) -> list[tuple[int, int, int, int]]:
    """(key, window start, count, sum of values), as the aggregation should emit them."""
    groups: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        groups.setdefault((row["key"], row["ts"] // WINDOW_MS * WINDOW_MS), []).append(row["value"])
    return sorted((key, start, len(values), sum(values)) for (key, start), values in groups.items())


def found_windows(table: pa.Table) -> list[tuple[int, int, int, int]]:
    """The same from a result."""
    return sorted((r["key"], r["window_start"], r["n"], r["total"]) for r in table.to_pylist())


def values(rows: Sequence[Row] | pa.Table) -> list[int]:
    """All values, sorted: every row exactly once is what a result should be."""
    found = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return sorted(row["value"] for row in found)


def pairs(left: Sequence[Row], right: Sequence[Row]) -> list[tuple[int, int]]:
    """The values of all rows that meet in a window join."""
    by_window: dict[tuple[int, int], list[int]] = {}
    for row in right:
        by_window.setdefault((row["key"], row["ts"] // WINDOW_MS), []).append(row["value"])
    return sorted((row["value"], other) for row in left for other in by_window.get((row["key"], row["ts"] // WINDOW_MS), []))


def found_pairs(table: pa.Table) -> list[tuple[int, int]]:
    """The same from a result."""
    return sorted((row["value"], row["value_right"]) for row in table.to_pylist())


# -- pipelines -----------------------------------------------------------------------------------------------


def aggregated(stream: tg.Stream) -> tg.Stream:
    """Count and sum per key and second."""
    keyed = stream.key_by("key").window(tg.tumbling(f"{WINDOW_MS}ms"))
    return keyed.aggregate(n=tg.count(), total=tg.sum("value"))


def gate_before_aggregation(store: Path, *, splits: int = 6, rows: int = 200, pause_at: int = 120) -> Scene:
    """source → gate → aggregation → collect: rows wait in front of the gate."""
    gate = Gate()
    source = PausingSource(splits, rows, pause_at=pause_at)
    output = aggregated(tg.from_source(source).map_batches(gate)).collect()
    return Scene(tg.Pipeline("before", output), store, (gate,), (source,))


def gate_after_aggregation(store: Path) -> Scene:
    """source → aggregation → gate → collect: results wait between the aggregation and the gate.

    The source takes its time: every watermark closes windows, and each makes a batch of its own.
    """
    gate = Gate()
    source = PausingSource(2, 400, pause_at=300, pace_s=0.01)
    output = aggregated(tg.from_source(source)).map_batches(gate).collect()
    return Scene(tg.Pipeline("after", output), store, (gate,), (source,))
