"""The suite `unaligned`: what overtaking costs, piece by piece, and what it gains under backpressure.

Single steps are timed in this process without a job; each figure is the best of several rounds, beside its
target. Then a keyed pipeline whose results wait for a slow function takes one checkpoint, aligned and
unaligned, with more and more of them waiting.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate as tg
from tidegate.api.job import Job
from tidegate.bench.backlog import Backlog, Throttle, backlog_pipeline, flood_pipeline
from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, Event, StreamMessage
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.barrier.unaligned import UnalignedCheckpointer
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.ids import Epoch
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.snapshotfile import encode_inflight, read_inflight
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.wire.arrow import event_of

EVENTS = 10_000
ROUNDS = 7
RECOVERIES = 4
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64())])
ALIGNMENT_TIMEOUT_MS = 500
OVER_TIMEOUT_MS_MAX = 1_000
WAIT_S = 120.0

StartJob = Callable[[tg.Pipeline, int, str, tg.CheckpointConfig], Job]
"""Starts a pipeline: with this many nodes, on this store, with these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedSettings:
    """How much to measure. ``backlog`` counts the batches that wait for the slow function on each node."""

    backlog: tuple[int, ...] = (20, 40, 80)
    parallelism: int = 1
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        if not self.backlog or min(self.backlog) < 1:
            raise InvalidUseError(f"--backlog is at least 1 backlog={list(self.backlog)}")
        for name in ("parallelism", "rounds"):
            if getattr(self, name) < 1:
                raise InvalidUseError(f"--{name} is at least 1 {name}={getattr(self, name)}")

    @property
    def steps(self) -> int:
        """The single steps, the recovery, and two checkpoints per backlog."""
        return 2 + 2 * len(self.backlog)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and what it should be. ``higher``: more is better."""

    name: str
    value: float
    unit: str
    target: float | None = None
    higher: bool = False

    @property
    def met(self) -> bool:
        """True when the value is on the right side of its target."""
        if self.target is None:
            return True
        return self.value > self.target if self.higher else self.value < self.target

    def row(self) -> dict[str, Any]:
        """For the document and for people."""
        target = None if self.target is None else f"{'>' if self.higher else '<'} {self.target:g} {self.unit}"
        return {"name": self.name, "value": self.value, "unit": self.unit, "target": target, "met": self.met}


# -- single steps --------------------------------------------------------------------------------------------


def bench_unaligned_trigger(rounds: int = ROUNDS) -> Figure:
    """From the deadline of an alignment under way to the order to fire."""

    def once() -> float:
        fan_in = _fan_in(2)
        fan_in.started(1)
        fan_in.receive(0, Barrier(CheckpointBarrier(1, Epoch(1))))
        fan_in.poll()
        return _timed(lambda: fan_in.deadline(1))

    # The target is what compiled code does; a single call of a Python function takes as long.
    return Figure("bench_unaligned_trigger", _best(once, rounds * 20) * 1e9, "ns", 100)


def bench_inflight_capture_10k(rounds: int = ROUNDS) -> Figure:
    """A flagged barrier comes after 10,000 queued events: record them, by reference, and fire."""
    event = _event(1)

    def once() -> float:
        fan_in = _fan_in(1)
        for _ in range(EVENTS):
            fan_in.receive(0, event)
        barrier: Barrier[pa.RecordBatch] = Barrier(CheckpointBarrier(1, Epoch(1)).as_unaligned())
        return _timed(lambda: fan_in.receive(0, barrier))

    return Figure("bench_inflight_capture_10k", _best(once, rounds) * 1e3, "ms", 1.0)


def bench_inflight_serialize_1mb(rounds: int = ROUNDS) -> list[Figure]:
    """1 MB of recorded batches as compressed bytes."""
    messages: list[StreamMessage[pa.RecordBatch]] = [_event(4_096) for _ in range(11)]
    size = sum(message.payload.nbytes for message in messages if isinstance(message, Event))
    seconds = _best(lambda: _timed(lambda: encode_inflight(messages, SCHEMA, "lz4")), rounds)
    return [
        Figure("bench_inflight_serialize_1mb", seconds * 1e3 * 1e6 / size, "ms", 5.0),
        Figure("bench_inflight_serialize", size / 1e6 / seconds, "MB/s", 200.0, higher=True),
    ]


def bench_mode_switch(rounds: int = ROUNDS) -> Figure:
    """A subtask with four inputs and outputs, 100 events on each, goes from waiting to barriers at the head."""
    event = _event(1)

    def once() -> float:
        subtask: Subtask[pa.RecordBatch] = Subtask(range(4), range(4))
        for channel in range(4):
            for _ in range(100):
                subtask.emit(channel, event)
                if channel:
                    subtask.receive(channel, event)
        barrier = CheckpointBarrier(1, Epoch(1))
        subtask.started(1, epoch=Epoch(1))
        subtask.receive(0, Barrier(barrier))
        while subtask.queued(0):
            subtask.poll()

        def switch() -> None:
            subtask.deadline(1)
            subtask.fired(barrier.as_unaligned())

        return _timed(switch)

    return Figure("bench_mode_switch", _best(once, rounds) * 1e3, "ms", 1.0)


def bench_unaligned_recovery_10k_inflight(rounds: int = ROUNDS) -> Figure:
    """Read 10,000 recorded events and queue them at their input."""
    data = encode_inflight([_event(1)] * EVENTS, SCHEMA, "lz4").joined

    def recover() -> None:
        fan_in = _fan_in(1)
        for message in read_inflight(data, SCHEMA, "bench"):
            fan_in.receive(0, message)

    seconds = _best(lambda: _timed(recover), rounds)
    return Figure("bench_unaligned_recovery_10k_inflight", seconds * 1e3, "ms", 50.0)


def steps(rounds: int = ROUNDS) -> list[Figure]:
    """Every single step. Blocks for a second or two."""
    return [
        bench_unaligned_trigger(rounds),
        bench_inflight_capture_10k(rounds),
        *bench_inflight_serialize_1mb(rounds),
        bench_mode_switch(rounds),
        bench_unaligned_recovery_10k_inflight(rounds),
    ]


def _fan_in(inputs: int) -> UnalignedCheckpointer[pa.RecordBatch]:
    return UnalignedCheckpointer(range(inputs), UnalignedCheckpointConfig())


def _event(rows: int) -> Event[pa.RecordBatch]:
    columns = [list(range(rows)), [i * 7 % 1_000 for i in range(rows)], [i * 0.37 for i in range(rows)]]
    return event_of(pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA))


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _best(once: Callable[[], float], rounds: int) -> float:
    return min(once() for _ in range(rounds))


# -- jobs ----------------------------------------------------------------------------------------------------


def on_threads(pipeline: tg.Pipeline, parallelism: int, store: str, checkpoint: tg.CheckpointConfig) -> Job:
    """Nodes are threads of this process."""
    options = JobOptions(parallelism=parallelism, checkpoint=checkpoint, store=store)
    return Job(launch_job(pipeline.physical(parallelism), ThreadGang(parallelism), options))


def on_spark(spark: Any) -> StartJob:
    """Nodes are tasks of this session."""

    def launch(pipeline: tg.Pipeline, parallelism: int, store: str, checkpoint: tg.CheckpointConfig) -> Job:
        return pipeline.start(spark, parallelism=parallelism, store=store, checkpoint=checkpoint)

    return launch


@dataclass(frozen=True, slots=True)
class UnalignedBench:
    """Where to work, how to start jobs, and whom to tell about each step."""

    settings: UnalignedSettings
    work: Path
    launch: StartJob
    step: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Measure everything; returns one document. Blocks for a minute or so."""
        self.step("single steps")
        figures = steps(self.settings.rounds)
        self.step("recovery with and without data in flight")
        figures += self.recovery()
        checkpoints = [self.checkpoint(mode, backlog) for backlog in self.settings.backlog for mode in ("never", "auto")]
        return {
            "steps": [figure.row() for figure in figures],
            "alignment_timeout_ms": ALIGNMENT_TIMEOUT_MS,
            "checkpoints": checkpoints,
            "bounded": all(c["duration_ms"] <= c["limit_ms"] for c in checkpoints if c["limit_ms"] is not None),
        }

    def checkpoint(self, mode: str, backlog: int) -> dict[str, Any]:
        """One checkpoint with this many batches waiting for the slow function on each node.

        There was one before, as in every job that takes them regularly: what it stored of the windows is not stored again.
        """
        self.step(f"{'aligned' if mode == 'never' else 'unaligned'}, {backlog} batches waiting")
        folder = self.work / f"{mode}-{backlog}"
        folder.mkdir(parents=True)
        burst = Backlog(self.settings.parallelism, backlog, folder / "gate")
        job = self.launch(
            backlog_pipeline(burst, folder / "out"),
            self.settings.parallelism,
            str(folder / "store"),
            tg.CheckpointConfig(interval="1h", unaligned=mode, alignment_timeout=ALIGNMENT_TIMEOUT_MS, timeout="120s"),
        )
        try:
            _await(lambda: job.metrics()["rows_in"] >= burst.rows_open, job)
            job.checkpoint("120s")
            burst.gate.touch()
            _await(lambda: job.metrics()["rows_in"] >= burst.rows, job)
            job.checkpoint("120s")
            record = [each for each in job.checkpoints() if each["status"] == "committed"][-1]
        finally:
            job.stop()
            shutil.rmtree(folder, ignore_errors=True)
        shown = {key: record[key] for key in ("unaligned", "duration_ms", "inflight_events", "inflight_bytes")}
        limit_ms = None if mode == "never" else ALIGNMENT_TIMEOUT_MS + OVER_TIMEOUT_MS_MAX
        return {"mode": mode, "backlog": backlog, **shown, "limit_ms": limit_ms}

    def recovery(self) -> list[Figure]:
        """From the start of a job to its function's first batch: from an aligned and from an unaligned checkpoint.

        Reading and queueing all that was in flight is part of it; working through it is not.
        """
        prepared = {mode: self._prepared(mode) for mode in ("never", "always")}
        taken: dict[str, list[float]] = {mode: [] for mode in prepared}
        for _ in range(RECOVERIES):  # in turns, so that whatever else the machine does hits both alike
            for mode, recover in prepared.items():
                taken[mode].append(recover() * 1e3)
        aligned_ms, unaligned_ms = (min(each) for each in taken.values())
        over = (unaligned_ms / aligned_ms - 1) * 100
        return [
            Figure("recovery_aligned", aligned_ms, "ms"),
            Figure("recovery_10k_inflight", unaligned_ms, "ms"),
            Figure("recovery_overhead", over, "%", 20.0),
        ]

    def _prepared(self, mode: str) -> Callable[[], float]:
        """A stopped job to recover, as often as wanted. With threads: the function tells when it was called."""
        throttle = Throttle()
        folder = self.work / f"recovery-{mode}"
        pipeline = flood_pipeline(EVENTS, throttle, folder / "out", at_once=mode == "always")
        checkpoint = tg.CheckpointConfig(interval="1h", unaligned=mode)
        job = on_threads(pipeline, 1, str(folder / "store"), checkpoint)
        wanted = EVENTS if mode == "always" else 1
        _await(lambda: job.metrics()["rows_in"] >= wanted, job)
        job.checkpoint("60s")
        job.stop()
        return lambda: self._recover(pipeline, throttle, str(folder / "store"), checkpoint)

    def _recover(self, pipeline: tg.Pipeline, throttle: Throttle, store: str, checkpoint: tg.CheckpointConfig) -> float:
        throttle.called.clear()
        begun = time.perf_counter()
        job = on_threads(pipeline, 1, store, checkpoint)
        try:
            if not throttle.called.wait(WAIT_S):
                raise JobFailedError(f"the job did not come back job={pipeline.name}")
            return time.perf_counter() - begun
        finally:
            job.stop()


def _await(condition: Callable[[], bool], job: Job) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if job.error is not None:
            raise job.error
        if time.monotonic() > deadline:
            job.stop()
            raise JobFailedError(f"the rows did not come in within {WAIT_S:.0f} s job={job.name}")
        time.sleep(0.02)


def summary(checkpoints: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per backlog, both modes beside each other."""
    by_mode = {(c["mode"], c["backlog"]): c for c in checkpoints}
    return [
        {
            "backlog": backlog,
            "aligned_ms": by_mode["never", backlog]["duration_ms"],
            "unaligned_ms": by_mode["auto", backlog]["duration_ms"],
            "inflight_events": by_mode["auto", backlog]["inflight_events"],
            "inflight_bytes": by_mode["auto", backlog]["inflight_bytes"],
        }
        for backlog in sorted({c["backlog"] for c in checkpoints})
    ]
