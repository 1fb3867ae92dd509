"""Checkpoints over several nodes, with whoever is lost in the middle of them."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until
from runtime_world import World

import tidegate as tg
from tidegate.core.barrier.messages import Barrier
from tidegate.core.log.paths import checkpoint_of
from tidegate.core.log.view import Restore
from tidegate.runtime.logstore import LogStore


class Case:
    """A small windowed job in a world, and what it should emit."""

    def __init__(self, nodes: int = 3, rows: int = 400, **options: Any) -> None:
        self.source = GatedSource(events(rows, keys=5, step_ms=30), rows_per_poll=5, fed=True)
        self.sink = MemorySink()
        self.pipeline = tg.Pipeline("w", counts(tg.from_source(self.source)).named("counts").write(self.sink))
        self.world = World(self.pipeline, nodes, **options)

    def records(self, status: str = "committed") -> list[dict[str, Any]]:
        return [record for record in self.world.leader.checkpoints() if record["status"] == status]

    def finish(self) -> None:
        self.world.finish()
        assert found_counts(self.sink) == expected_counts(self.source.table)

    @property
    def log(self) -> LogStore:
        return LogStore(self.world.store, "w")


def test_distributed_checkpoint_3_nodes() -> None:
    case = Case(3)
    case.world.until(case.records)
    (manifest,) = case.world.manifests().values()
    assert [node.node for node in manifest.nodes] == [0, 1, 2]
    assert {entry.subtask for entry in manifest.operators if entry.operator == "counts"} == {0, 1, 2}
    assert {entry.subtask for entry in manifest.sources} == {0, 1, 2}
    case.finish()


def test_distributed_checkpoint_with_cross_node_channels() -> None:
    case = Case(3, unaligned="never")
    case.world.until(case.records)
    first = case.records()[0]["checkpoint_id"]
    channels = {
        channel for channel, message in case.world.wire if isinstance(message, Barrier) and message.barrier.checkpoint_id == first
    }
    assert {(c.sender, c.receiver) for c in channels} == {(a, b) for a in range(3) for b in range(3) if a != b}
    case.finish()


def test_node_failure_during_checkpoint() -> None:
    case = Case(3)
    case.world.until(case.records)
    case.world.until(lambda: case.world.leader._machine.attempt is not None)
    (attempt,) = [case.world.leader._machine.attempt]
    case.world.kill_node(1)
    case.world.until(lambda: case.records("aborted"))
    assert case.records("aborted")[0]["checkpoint_id"] == attempt.checkpoint_id
    case.finish()
    ids = [record["checkpoint_id"] for record in case.world.leader.checkpoints()]
    assert len(set(ids)) == len(ids), "an id was used twice (I6)"
    assert case.world.gangs == 2


def test_node_failure_after_prepare() -> None:
    """The last word of every node was Prepared: the commit goes through, and the next gang starts from it."""
    case = Case(3)
    case.world.until(case.records)
    before = len(case.world.said)
    case.world.until(lambda: {n for n, kind in case.world.said[before:] if kind == "prepared"} == {0, 1, 2})
    wanted = case.world.leader._machine.attempt
    assert wanted is not None
    case.world.kill_node(2)
    case.world.until(lambda: case.world.gangs == 2)
    assert case.records()[-1]["checkpoint_id"] == wanted.checkpoint_id
    restore = [entry for entry in case.log.read() if isinstance(entry, Restore)][-1]
    assert restore.parent == wanted.epoch
    case.finish()


def test_another_driver_starts_again_from_the_last_commit_and_uses_no_id_twice() -> None:
    case = Case(3)
    case.world.until(case.records)
    case.world.until(lambda: case.world.leader._machine.attempt is not None)
    attempt = case.world.leader._machine.attempt
    assert attempt is not None
    term = case.world.leader._machine.term
    case.world.kill_leader()
    case.world.lead()
    case.finish()
    assert case.world.leader._machine.term > term
    committed = [manifest.checkpoint_id for manifest in case.log.view().restorables()]
    assert attempt.checkpoint_id not in committed
    assert all(record["checkpoint_id"] > attempt.checkpoint_id for record in case.records())


def test_consecutive_distributed_checkpoints() -> None:
    case = Case(3, interval="10ms", retain=100)
    case.finish()
    manifests = sorted(case.world.manifests().values(), key=lambda manifest: manifest.epoch)
    assert len(manifests) >= 5
    for older, newer in pairwise(manifests):
        assert newer.parent == older.epoch and newer.checkpoint_id > older.checkpoint_id
    assert [manifest.final for manifest in manifests].count(True) == 1 and manifests[-1].final


def test_gc_after_distributed_checkpoint() -> None:
    case = Case(3, interval="10ms", retain=2, unaligned="always", credit_bytes=600)
    case.world.until(lambda: len(case.records()) >= 6)
    case.world.until(lambda: not case.world.leading.threads.executors["garbage"].waiting)
    listed = {i.path for prefix in case.log.paths.object_prefixes for i in case.world.store.list(prefix)}
    ids = {record["checkpoint_id"] for record in case.records()[:-2]}
    kept = {entry.path for manifest in case.world.manifests().values() for entry in manifest.objects}
    assert kept <= listed
    assert {checkpoint_of(case.log.paths.parse(path)) for path in kept}, "names are understood"
    old = [path for path in listed - kept if checkpoint_of(case.log.paths.parse(path)) in ids]
    assert not old, "objects of checkpoints that nobody can restore are still there"
    assert sum(record["inflight_events"] for record in case.records()) > 0
    case.finish()


def test_checkpoint_during_active_processing(jobs: Jobs) -> None:
    """Rows go on being read while the checkpoint is taken, and it waits for none of them."""
    source, sink = GatedSource(events(20_000), rows_per_poll=40, allowed=0), MemorySink()
    job = jobs.start(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2)
    done = threading.Event()

    def feed() -> None:
        while not done.is_set():
            target = source.emitted + 40
            source.allow(40)
            until(lambda: source.emitted >= target)  # noqa: B023

    feeder = threading.Thread(target=feed)
    feeder.start()
    epochs = [job.checkpoint() for _ in range(3)]
    done.set()
    feeder.join()
    assert len(set(epochs)) == 3 and source.emitted < 20_000
    source.allow()
    assert job.await_termination(8)
    assert found_counts(sink) == expected_counts(source.table)


@pytest.mark.parametrize("widths", [(1, 1), (2, 2), (1, 3), (3, 2)])
def test_full_cycle_of_checkpoint_shutdown_restore_and_verify(jobs: Jobs, widths: tuple[int, int]) -> None:
    source = GatedSource(events(), splits=7, allowed=900)
    out = jobs.path / "out"
    pipeline = tg.Pipeline("w", counts(tg.from_source(source)).write_parquet(out, durable=False))
    job = jobs.start(pipeline, widths[0])
    until(lambda: source.emitted == 900)
    epoch = job.checkpoint()
    job.stop()
    assert job.status == "STOPPED"
    source.allow()
    again = jobs.finish(pipeline, widths[1])
    assert again.restored_from == epoch
    assert again.metrics()["rows_in"] == 2_000 and again.metrics()["rows_read"] == 1_100
    assert found_counts(out) == expected_counts(source.table)
