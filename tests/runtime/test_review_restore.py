"""Restores that meet a changed plan or a store that fails for a while; and the end of a job without checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
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
from tidegate.errors import InvalidUseError, RetryableError
from tidegate.runtime.leader import Leader
from tidegate.store.interface import Store
from tidegate.store.open import open_store


def test_without_checkpoints_a_job_with_large_state_at_its_end_finishes(jobs: Jobs) -> None:
    """Nobody will ever restore the last state of such a job, and there is no store to put it into."""
    source, sink = GatedSource(events(20_000, keys=20_000), rows_per_poll=5_000), MemorySink()
    stream = tg.from_source(source).key_by("key").aggregate(total=tg.sum("value"))
    job = jobs.finish(tg.Pipeline("w", stream.write(sink)), 2, interval=None)
    assert job.status == "FINISHED" and sink.rows()


# -- a changed plan ------------------------------------------------------------------------------------------------


def two_sinks(source: GatedSource, left: MemorySink, right: MemorySink, *, swapped: bool) -> tg.Pipeline:
    """The same operators under the same names; only the order in which the outputs are listed differs."""
    stream = tg.from_source(source).named("events")
    slow = stream.map_batches(lambda batch: batch).named("slow")
    outputs = [stream.write(left).named("a"), slow.write(right).named("b")]
    return tg.Pipeline("w", *reversed(outputs)) if swapped else tg.Pipeline("w", *outputs)


@pytest.mark.parametrize("widths", [(2, 2), (2, 3)])
def test_what_was_in_flight_finds_its_edge_when_edges_have_other_numbers(widths: tuple[int, int]) -> None:
    """Replayed on another edge it would be in one output twice and in the other never (I1)."""
    source = GatedSource(events(3_000), rows_per_poll=20, allowed=1_000)
    left, right = MemorySink("left"), MemorySink("right")
    first = World(two_sinks(source, left, right, swapped=False), widths[0], unaligned="always", credit_bytes=600)

    def uneven() -> bool:
        head = first.leader._machine.log.head
        flying = {} if head is None else {entry.channel: entry.events for entry in head.inflight}
        return flying.get(0, 0) != flying.get(1, 0)

    first.until(uneven)
    first.kill_leader()
    source.allow()
    second = World(two_sinks(source, left, right, swapped=True), widths[1], store=first.store)
    second.finish()
    assert left.rows() == right.rows() == rows_of(source.table)


def mapped(source: GatedSource, sink: MemorySink, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> tg.Pipeline:
    stream = tg.from_source(source).named("events").map_batches(function)
    return tg.Pipeline("w", stream.write(sink).named("out"))


def test_a_batch_in_the_hands_of_a_function_that_is_no_longer_there_is_not_forgotten() -> None:
    """A function gets another name when its code changes; what its predecessor held belongs to nobody."""
    source, sink = GatedSource(events(3_000), rows_per_poll=20, allowed=1_000), MemorySink()
    first = World(mapped(source, sink, lambda batch: batch), 1, unaligned="always")

    def holds() -> bool:
        head = first.leader._machine.log.head
        return head is not None and any(entry.runs for entry in head.operators)

    first.until(holds)
    first.kill_leader()
    source.allow()
    with pytest.raises(InvalidUseError, match=r"named\(\)"):
        World(mapped(source, sink, lambda batch: batch.slice(0)), 1, store=first.store)
    World(mapped(source, sink, lambda batch: batch), 1, store=first.store).finish()
    assert sink.rows() == rows_of(source.table)


# -- a store that fails for a while --------------------------------------------------------------------------------


class Flaky:
    """A store whose reads of objects fail as often as it was told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failures = 0

    def get(self, path: str) -> bytes:
        if self.failures and "/log/" not in path:
            self.failures -= 1
            raise RetryableError(f"503 path={path}")
        return self._store.get(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def has_objects(leader: Leader) -> bool:
    head = leader._machine.log.head
    return head is not None and head.parent is not None and bool(head.objects)


def flaky_world() -> tuple[World, Flaky, GatedSource, MemorySink]:
    source, sink = GatedSource(events(3_000), rows_per_poll=20, allowed=1_000), MemorySink()
    store = Flaky(open_store("memory://"))
    pipeline = tg.Pipeline("w", counts(tg.from_source(source)).write(sink))
    world = World(pipeline, 2, store=store, unaligned="always", credit_bytes=600)  # type: ignore[arg-type]
    world.until(lambda: has_objects(world.leader))
    return world, store, source, sink


def test_a_store_that_does_not_answer_for_a_while_is_no_damage() -> None:
    """Taken for damage, it would take published rows back and cut the newest checkpoints off for ever."""
    world, store, source, sink = flaky_world()
    store.failures = 3
    head = world.leader._machine.log.head_epoch
    world.kill_node(0)
    world.until(lambda: world.gangs == 2)
    assert store.failures == 0 and world.leader.opening.skipped == ()
    assert world.leader._machine.log.head_epoch in (head, None if head is None else head + 1)
    source.allow()
    world.finish()
    assert found_counts(sink) == expected_counts(source.table) and not sink.hidden


def test_a_store_that_never_answers_fails_the_job_and_changes_nothing() -> None:
    world, store, source, sink = flaky_world()
    store.failures = 1_000_000
    world.kill_node(0)
    while world.step():
        pass
    assert world.leader.status == "FAILED" and "503" in str(world.leader.error) and world.gangs == 1
    store.failures = 0
    source.allow()
    world.lead()
    world.finish()
    assert found_counts(sink) == expected_counts(source.table) and not sink.hidden


# -- savepoints ----------------------------------------------------------------------------------------------------


def test_a_savepoint_is_there_when_the_sinks_show_what_it_counts_as_done(jobs: Jobs) -> None:
    """Its copy starts other jobs, and those publish nothing of what this one staged."""
    source, sink = GatedSource(events(2_000), rows_per_poll=20, allowed=300), MemorySink()
    pipeline = tg.Pipeline("w", tg.from_source(source).write(sink))
    job = jobs.start(pipeline, 2)
    until(lambda: source.emitted == 300)
    asked = threading.Event()

    def refuse(epoch: int) -> None:
        asked.set()
        raise RetryableError("the directory is not reachable")

    sink.on_commit = refuse
    with pytest.raises(TimeoutError):
        job.savepoint(str(jobs.path / "saved"), timeout="300ms")
    assert asked.is_set() and not (jobs.path / "saved" / "savepoint.json").exists()
    sink.on_commit = lambda epoch: None
    job.savepoint(str(jobs.path / "saved"))
    assert len(sink.rows()) == 300
    job.stop()
    jobs.store = str(jobs.path / "another")
    source.allow()
    jobs.finish(pipeline, 2, savepoint=str(jobs.path / "saved"), append=True)
    assert sink.rows() == rows_of(source.table)


def test_what_is_secret_in_the_address_of_a_savepoint_is_kept_nowhere(jobs: Jobs) -> None:
    """Credentials may be in a URL's query. The log stays for ever, and errors go into logs."""
    url = "memory://review-savepoint?secret_access_key=hush"
    source, sink = GatedSource(events(200), allowed=100), MemorySink()
    job = jobs.start(tg.Pipeline("w", tg.from_source(source).write(sink)), 1)
    job.savepoint(url)
    stored = b"".join(path.read_bytes() for path in jobs.path.rglob("*") if path.is_file())
    assert b"review-savepoint" in stored and b"hush" not in stored
    assert "review-savepoint" in str(job.checkpoints()) and "hush" not in str(job.checkpoints())
    with pytest.raises(InvalidUseError, match="savepoint already") as again:
        job.savepoint(url)
    with pytest.raises(InvalidUseError, match="no savepoint") as missing:
        jobs.start(tg.Pipeline("v", tg.from_source(source).write(sink)), 1, savepoint=url.replace("review", "no"))
    with pytest.raises(InvalidUseError, match="different stores") as differing:
        tg.CheckpointConfig(interval="1s", data_dir="/tmp/x").store_url("s3://b/x?secret_access_key=hush")
    assert "hush" not in f"{again.value} {missing.value} {differing.value}"
