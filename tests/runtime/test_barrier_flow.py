"""Barriers in running jobs: they come where they were put, pass every operator and channel, and part the rows exactly there."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from runtime_jobs import (
    GatedSource,
    Jobs,
    MemorySink,
    counts,
    events,
    expected_counts,
    found_counts,
    rows_of,
    until,
)
from runtime_world import World

import tidegate as tg
from tidegate.core.barrier.messages import Barrier
from tidegate.core.checkpoint.prepare import PrepareAck


def read(source: GatedSource, rows: int) -> None:
    """Let so many more rows be read, and wait until they are."""
    target = source.emitted + rows
    source.allow(rows)
    until(lambda: source.emitted == target, "the rows to be read")


def test_barrier_flows_through_single_operator(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=0), MemorySink()
    job = jobs.start(tg.Pipeline("w", tg.from_source(source).write(sink)), 1)
    read(source, 100)
    epoch = job.checkpoint()
    until(sink.epochs)
    assert sink.epochs() == {epoch}
    assert sink.rows() == rows_of(source.table.slice(0, 100))


def test_barrier_flows_through_linear_chain(jobs: Jobs) -> None:
    """Two functions of a user and an aggregate: every one of them is in the cut, and the cut holds every row once (I1)."""
    source, sink = GatedSource(events(), splits=4, allowed=0), MemorySink()
    stream = tg.from_source(source).map_batches(lambda batch: batch).map_batches(lambda batch: batch)
    pipeline = tg.Pipeline("w", counts(stream).named("counts").write(sink))
    job = jobs.start(pipeline, 2)
    read(source, 1_000)
    job.checkpoint()
    (manifest,) = jobs.manifests("w")
    assert {(entry.operator, entry.subtask) for entry in manifest.operators} >= {("counts", 0), ("counts", 1)}
    assert len({entry.operator for entry in manifest.operators}) == 3
    assert sum(entry.state["rows"] for entry in manifest.sources) == 1_000  # type: ignore[index]
    job.stop()
    source.allow()
    jobs.finish(pipeline, 2)
    assert found_counts(sink) == expected_counts(source.table)


def test_barrier_fan_out_to_multiple_channels() -> None:
    """Each channel between two nodes carries each checkpoint's barrier once, and in order."""
    source, sink = GatedSource(events(3_000, step_ms=30), rows_per_poll=6), MemorySink()
    world = World(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 3, unaligned="never")
    acks: list[PrepareAck] = []

    def watch(way: str, node: int, message: object) -> bool:
        if way == "up" and message.WhichOneof("body") == "prepared":  # type: ignore[attr-defined]
            acks.append(PrepareAck.from_json(message.prepared.json))  # type: ignore[attr-defined]
        return True

    world.passes = watch
    world.until(lambda: len(world.leader.checkpoints()) >= 3)
    # Read before more is injected: what the first three checkpoints put on the wire.
    ids = [record["checkpoint_id"] for record in world.leader.checkpoints()[:3]]
    barriers = defaultdict(list)
    for channel, message in world.wire:
        if isinstance(message, Barrier) and message.barrier.checkpoint_id in ids:
            barriers[channel].append(message.barrier.checkpoint_id)
    assert len(barriers) == 3 * 2
    assert all(found == ids for found in barriers.values())
    for ack in acks:
        sender = next(report for report in ack.tasks if any(ref.direction == "out" for ref in report.channels))
        assert {ref.peer for ref in sender.channels if ref.direction == "out"} == {0, 1, 2}
    world.close()


def test_barrier_interleaved_with_events(jobs: Jobs) -> None:
    source, sink = GatedSource(events(300), splits=1, rows_per_poll=10, allowed=0), MemorySink()
    job = jobs.start(tg.Pipeline("w", tg.from_source(source).write(sink)), 1)
    at = 0
    for rows in (70, 0, 30, 1, 150):
        if rows:
            read(source, rows)
        epoch = job.checkpoint()
        at += rows
        until(lambda: not rows or epoch in sink.epochs())  # noqa: B023
        assert sink.rows(upto=epoch) == rows_of(source.table.slice(0, at))
    source.allow()
    assert job.await_termination(8)
    assert sink.rows() == rows_of(source.table)


def test_periodic_injection_under_load(jobs: Jobs) -> None:
    sink = MemorySink()
    stream = tg.generate(rows=200_000, rows_per_second=400_000, keys=50, splits=8)
    pipeline = tg.Pipeline("w", stream.key_by("key").window(tg.tumbling("1s")).aggregate(n=tg.count()).write(sink))
    job = jobs.finish(pipeline, 2, interval="20ms")
    committed = [record for record in job.checkpoints() if record["status"] == "committed"]
    assert len(committed) >= 4
    total = sum(pa.compute.sum(b.column("n")).as_py() for _, part in sink.visible.values() for b in part)
    assert total == 200_000


def test_coordinator_triggered_injection(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=200), MemorySink()
    job = jobs.start(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    until(lambda: source.emitted == 200)
    assert job.checkpoints() == []
    with ThreadPoolExecutor(4) as pool:
        epochs = {future.result() for future in [pool.submit(job.checkpoint) for _ in range(4)]}
    # Those that came while one ran have joined it: never more checkpoints than callers.
    assert len(job.checkpoints()) == len(epochs) <= 4
    assert all(record["status"] == "committed" for record in job.checkpoints())
