"""What a node stores and what a node takes back: runs once, committables for ever, nothing that is damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from tidegate.core.barrier.effects import ProcessEvent
from tidegate.core.barrier.messages import Event, Watermark
from tidegate.core.checkpoint.manifest import (
    INLINE_BYTES_MAX,
    CheckpointManifest,
    ObjectEntry,
    RunEntry,
    inline_bytes_max,
)
from tidegate.core.log.paths import JobPaths
from tidegate.errors import CorruptDataError, InFlightDeserializationFailed
from tidegate.runtime.assemble import Assembly, assemble
from tidegate.runtime.checkpointer import StateObjectWriter
from tidegate.runtime.restore import RestorePlan, states_of
from tidegate.runtime.snapshotfile import crc32c, encode_inflight, encode_run, read_inflight, read_run
from tidegate.runtime.threads import InlineThreads
from tidegate.state.keygroups import partition
from tidegate.state.run import Frozen, Run
from tidegate.store.open import open_store
from tidegate.wire.arrow import event_of

BATCH = events(100).to_batches()[0]
LARGE = events(4_000).to_batches()[0]


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_a_run_comes_back_as_it_was() -> None:
    assert read_run(encode_run(BATCH).joined, "x").equals(BATCH)
    assert read_run(encode_run(BATCH.slice(7, 5)).joined, "x").equals(BATCH.slice(7, 5))


def test_a_run_is_encoded_by_reference() -> None:
    batch = pa.record_batch({"a": pa.array(range(50_000), pa.int64())})
    (rows,) = batch.column(0).buffers()[1:]
    assert rows.address in [piece.address for piece in encode_run(batch).pieces if isinstance(piece, pa.Buffer)]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_recorded_messages_come_back_in_order(compression: str | None) -> None:
    messages = [event_of(BATCH), Watermark(-5), event_of(BATCH.slice(3, 2)), Watermark(1 << 62)]
    data = encode_inflight(messages, BATCH.schema, compression).joined
    assert read_inflight(data, BATCH.schema, "x") == messages


@pytest.mark.parametrize("cut", [0, 1, 8, 100])
def test_a_torn_object_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptDataError):
        read_run(encode_run(BATCH).joined[:cut], "x")
    data = encode_inflight([event_of(BATCH)], BATCH.schema, None).joined
    with pytest.raises(InFlightDeserializationFailed):
        read_inflight(data[:cut], BATCH.schema, "x")


def test_recorded_rows_of_other_columns_are_refused() -> None:
    data = encode_inflight([event_of(BATCH)], BATCH.schema, None).joined
    with pytest.raises(InFlightDeserializationFailed, match="columns"):
        read_inflight(data, BATCH.schema.remove(0), "x")


# -- state objects -------------------------------------------------------------------------------------------------


def stored(frozen: Frozen, known: Any = None) -> tuple[StateObjectWriter, list[Any], Any]:
    store = open_store("memory://")
    writer = StateObjectWriter("w/checkpoints/1/0.arrow", known or {})
    writer.add(frozen)
    objects = writer.finish(store, inline_bytes_max(1))
    return writer, objects, store


def test_small_state_is_inline_and_large_state_an_object() -> None:
    writer, objects, _ = stored(Frozen({}, (Run(BATCH),)))
    ((entry, _),) = writer.runs.values()
    assert objects == [] and entry.path is None and read_run(entry.inline_bytes(), "x").equals(BATCH)
    assert encode_run(LARGE).length > INLINE_BYTES_MAX
    writer, (own,), store = stored(Frozen({}, (Run(LARGE), Run(BATCH))))
    assert len(store.get(own.path)) == own.size_bytes and crc32c(store.get(own.path)) == own.crc32c
    for (entry, _), batch in zip(writer.runs.values(), (LARGE, BATCH), strict=True):
        data = store.get_range(entry.path, entry.offset, entry.length)
        assert crc32c(data) == entry.crc32c and read_run(data, "x").equals(batch)


def test_a_run_that_the_parent_has_is_named_and_not_written() -> None:
    old = Run(LARGE)
    first, (own,), _ = stored(Frozen({}, (old,)))
    second, objects, _ = stored(Frozen({}, (old, Run(BATCH))), first.runs)
    assert second.bytes_written == encode_run(BATCH).length and objects == [own]
    _, objects, _ = stored(Frozen({}, (Run(BATCH),)), first.runs)
    assert objects == [], "an object whose runs are gone is not named any more"


def test_what_is_inline_does_not_add_up_from_manifest_to_manifest() -> None:
    """A run stays state for many checkpoints, and each of their manifests carries what is inline."""
    limit, largest = inline_bytes_max(2), 0
    runs: tuple[Run, ...] = ()
    known: dict[Any, Any] = {}
    for _ in range(40):
        runs = (*runs, Run(BATCH))
        writer, _, _ = stored(Frozen({}, runs), known)
        known = writer.runs
        largest = max(largest, sum(entry.length for entry, own in known.values() if own is None))
    assert encode_run(BATCH).length <= largest <= limit and limit == 4096
    assert inline_bytes_max(100) * 100 <= INLINE_BYTES_MAX


def test_a_source_s_run_has_an_object_of_its_own_however_small_and_is_put_once() -> None:
    put: list[str] = []

    def written(run: Run) -> tuple[RunEntry, ObjectEntry]:
        put.append(JobPaths("w").shared(7, run.uid))
        return RunEntry(put[-1], 0, 10, 1, run.batch.num_rows), ObjectEntry(put[-1], 10, 1)

    old, new = Run(BATCH), Run(BATCH)
    first = StateObjectWriter("unused", {})
    first.add_apart(Frozen({}, (old,)), written)
    assert first.bytes_apart == 10 and [entry.path for entry in first.finish(None, 0)] == put
    second = StateObjectWriter("unused", first.runs)
    second.add_apart(Frozen({}, (old, new)), written)
    objects = second.finish(None, 0)
    assert second.bytes_apart == 10 and len(put) == 2 and [entry.path for entry in objects] == put
    assert [entry.path for entry in second.entries(Frozen({}, (new, old)))] == put[::-1]


# -- attempts ------------------------------------------------------------------------------------------------------


def one_window(rows: int = 12_000) -> tuple[GatedSource, MemorySink, tg.Pipeline]:
    """Every row a key of its own in one long window: all of it stays in the state."""
    source = GatedSource(events(rows, keys=rows), splits=1, rows_per_poll=500, allowed=0)
    sink = MemorySink()
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("10h"))
    return source, sink, tg.Pipeline("w", keyed.aggregate(n=tg.count(), total=tg.sum("value")).write(sink))


def read(world: World, source: GatedSource, rows: int) -> None:
    target = source.emitted + rows
    source.allow(rows)
    world.until(lambda: source.emitted == target)
    for _ in range(40):
        world.step()


def checkpoint(world: World) -> CheckpointManifest:
    future = world.leader.request_checkpoint()
    world.until(future.done)
    return world.manifests()[future.result()]


def aborted(world: World) -> int:
    """A checkpoint that every node has prepared and the coordinator never hears of."""
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    before = len(world.said)
    world.leader.request_checkpoint()
    nodes = set(range(world.parallelism))
    world.until(lambda: {n for n, kind in world.said[before:] if kind == "prepared"} == nodes)
    attempt = world.leader._machine.attempt
    assert attempt is not None
    done = world.leader.cancel_checkpoint(attempt.checkpoint_id)
    world.until(done.done)
    world.passes = lambda way, node, message: True
    return attempt.checkpoint_id


def uploaded(manifest: CheckpointManifest) -> int:
    return sum(node.bytes_uploaded for node in manifest.nodes)


def test_a_run_is_uploaded_once_and_again_after_an_abort() -> None:
    source, _, pipeline = one_window()
    world = World(pipeline, 1, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    read(world, source, 5_000)
    first = checkpoint(world)
    assert uploaded(first) > INLINE_BYTES_MAX
    second = checkpoint(world)
    assert uploaded(second) == 0 and second.objects == first.objects
    read(world, source, 5_000)
    lost = aborted(world)
    third = checkpoint(world)
    assert third.checkpoint_id > lost and uploaded(third) > INLINE_BYTES_MAX
    known = {entry.path for entry in (*second.objects, *third.objects)}
    assert not [path for path in known if f"/{lost}/" in path]
    assert sum(states_of(third).values()) == 10_000
    world.close()


def test_after_a_restart_everything_is_uploaded_again() -> None:
    source, sink, pipeline = one_window()
    world = World(pipeline, 1, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    read(world, source, 5_000)
    first = checkpoint(world)
    world.kill_node(0)
    world.until(lambda: world.gangs == 2 and world.leader.status == "RUNNING")
    second = checkpoint(world)
    assert uploaded(second) >= uploaded(first) > 0 and sum(states_of(second).values()) == 5_000
    source.allow()
    world.finish()
    assert len(sink.rows()) == 12_000


def test_committables_of_aborted_attempts_are_carried() -> None:
    source, sink = GatedSource(events(3_000), splits=1, rows_per_poll=50, allowed=0), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 1, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    lost = []
    for _ in range(3):
        read(world, source, 100)
        lost.append(aborted(world))
    assert sink.rows() == []
    read(world, source, 100)
    manifest = checkpoint(world)
    assert {entry.checkpoint_id for entry in manifest.committables} == {*lost, manifest.checkpoint_id}
    world.until(lambda: len(sink.rows()) == 400)
    assert sink.rows() == rows_of(source.table.slice(0, 400))
    world.until(lambda: world.leader._machine.publishing.backlog == 0)
    assert checkpoint(world).committables == (), "what was confirmed is carried no further"
    world.close()


# -- restore -------------------------------------------------------------------------------------------------------


def assembly_of(world: World, node: int, parallelism: int) -> tuple[Any, Assembly]:
    setup = replace(world._launch(1).setup, node=node, parallelism=parallelism)
    nothing: Callable[..., None] = lambda *args: None  # noqa: E731
    return setup, assemble(setup, None, InlineThreads(), nothing, lambda: 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("inline", [True, False])
def test_a_corrupt_run_is_refused(inline: bool) -> None:
    source, _, pipeline = one_window()
    world = World(pipeline, 1, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    read(world, source, 20 if inline else 5_000)
    manifest = checkpoint(world)
    assert bool(manifest.objects) is not inline
    if inline:
        broken = [replace(o, runs=tuple(replace(r, crc32c=r.crc32c ^ 1) for r in o.runs)) for o in manifest.operators]
        manifest = replace(manifest, operators=tuple(broken))
    else:
        path = manifest.objects[0].path
        data = bytearray(world.store.get(path))
        data[len(data) // 2] ^= 4
        world.store.put(path, bytes(data))
    setup, assembly = assembly_of(world, 0, 1)
    with pytest.raises(CorruptDataError, match="checksum"):
        RestorePlan(manifest, setup, world.store).apply(assembly)
    world.close()


def with_rows_in_flight(wanted: Callable[[CheckpointManifest], Any]) -> tuple[World, CheckpointManifest]:
    bids = GatedSource(events(6_000, keys=40), rows_per_poll=20)
    people = GatedSource(events(3_000, keys=40), rows_per_poll=20)
    people.name = "people"
    names = tg.from_source(people).select("ts", "key", other=tg.col("value"))
    stream = tg.from_source(bids).join(names, on="key", window=tg.tumbling("1s"))
    pipeline = tg.Pipeline("w", stream.write(MemorySink()))
    world = World(pipeline, 2, interval="10ms", unaligned="always", credit_bytes=600, retain=100)
    for seen in range(1, 100):
        world.until(lambda: len(world.leader.checkpoints()) >= seen)  # noqa: B023
        if found := [manifest for manifest in world.manifests().values() if wanted(manifest)]:
            return world, found[0]
    raise AssertionError("no such checkpoint came about")


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_rows_in_flight_go_to_whoever_owns_their_keys_now(parallelism: int) -> None:
    world, manifest = with_rows_in_flight(lambda manifest: manifest.inflight)
    recorded = recorded_rows(world, manifest)
    found: list[tuple[Any, ...]] = []
    for node in range(parallelism):
        setup, assembly = assembly_of(world, node, parallelism)
        replayed = RestorePlan(manifest, setup, world.store).apply(assembly)
        assert all(channel.receiver == node for channel in replayed)
        for task in {id(task): task for task, _ in assembly.inbound.values()}.values():
            edges = [edge for edge in task.stage.inputs for _ in range(parallelism if edge.kind == "hash" else 1)]
            while task.protocol.has_turn:
                for effect in task.protocol.poll():
                    if isinstance(effect, ProcessEvent):
                        edge = edges[effect.input_id]
                        found += rows_of(pa.Table.from_batches([effect.payload]))
                        if edge.kind == "hash":
                            parts = partition(effect.payload, edge.keys, parallelism, setup.plan.key_groups)
                            assert parts[node] is not None and parts[node].num_rows == effect.payload.num_rows
    assert sorted(found, key=str) == sorted(recorded, key=str) and recorded
    world.close()


def both_ends(manifest: CheckpointManifest) -> set[tuple[int, int, int]]:
    """The channels of which the receiver and the sender have recorded something."""
    ends: dict[str, set[tuple[int, int, int]]] = {"in": set(), "out": set()}
    for entry in manifest.inflight:
        pair = (entry.peer, entry.subtask) if entry.direction == "in" else (entry.subtask, entry.peer)
        ends[entry.direction].add((entry.channel, *pair))
    return ends["in"] & ends["out"]


def test_what_the_receiver_recorded_comes_before_what_the_sender_had() -> None:
    """Event times on a channel only grow here, so a wrong order shows."""
    world, manifest = with_rows_in_flight(both_ends)
    for node in range(2):
        setup, assembly = assembly_of(world, node, 2)
        RestorePlan(manifest, setup, world.store).apply(assembly)
        for task in {id(task): task for task, _ in assembly.inbound.values()}.values():
            times: dict[int, list[int]] = {}
            while task.protocol.has_turn:
                for effect in task.protocol.poll():
                    if isinstance(effect, ProcessEvent) and "ts" in effect.payload.schema.names:
                        times.setdefault(effect.input_id, []).extend(effect.payload.column("ts").to_pylist())
            assert all(found == sorted(found) for found in times.values())
    world.close()


def recorded_rows(world: World, manifest: CheckpointManifest) -> list[tuple[Any, ...]]:
    edges = {edge.id: edge for edge in world.plan.edges}
    rows: list[tuple[Any, ...]] = []
    for entry in manifest.inflight:
        data = world.store.get_range(entry.path, entry.offset, entry.length)
        for message in read_inflight(data, edges[entry.channel].schema, entry.path):
            if isinstance(message, Event):
                rows += rows_of(pa.Table.from_batches([message.payload]))
    return rows


def test_a_savepoint_with_large_state_starts_another_store(jobs: Jobs) -> None:
    """The state is in the savepoint's directory, not in the new job's store."""
    source, sink, pipeline = one_window()
    source.allow(6_000)
    job = jobs.start(pipeline, 2)
    until(lambda: source.emitted == 6_000)
    path = str(jobs.path / "kept")
    job.savepoint(path)
    job.stop()
    jobs.store = str(jobs.path / "another")
    source.allow()
    again = jobs.start(pipeline, 3, savepoint=path)
    assert again.await_termination(8)
    assert len(sink.rows()) == 12_000
    assert source.emitted == 12_000, "nothing was read again"


def test_counts_are_exact_with_state_in_objects(jobs: Jobs) -> None:
    source, sink = GatedSource(events(5_000, keys=400, step_ms=1)), MemorySink()
    jobs.finish(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2, interval="20ms")
    assert found_counts(sink) == expected_counts(source.table)
