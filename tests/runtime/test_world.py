"""Crash schedules, drawn from seeds: whatever dies and whenever, every row counts once.

A failing seed replays with ``pytest tests/runtime/test_world.py -k "name and seed"``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from runtime_jobs import GatedSource, MemorySink, counts, events, expected_counts, found_counts, once, rows_of
from runtime_world import World

import tidegate as tg
from tidegate.errors import RetryableError
from tidegate.runtime.logstore import LogStore
from tidegate.store.open import open_store
from tidegate.testing.store import FaultPlan, FaultyStore

Check = Callable[[], None]


def small(rows: int = 360, **options: Any) -> GatedSource:
    return GatedSource(events(rows, keys=5, step_ms=25), rows_per_poll=6, fed=True, **options)


def one_stage() -> tuple[tg.Pipeline, list[MemorySink], Check]:
    source, sink = small(), MemorySink()

    def check() -> None:
        assert found_counts(sink) == expected_counts(source.table)

    return tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), [sink], check


def two_sinks() -> tuple[tg.Pipeline, list[MemorySink], Check]:
    """Rows and counts of the same stream, after a user's function."""
    source, left, right = small(), MemorySink("left"), MemorySink("right")
    stream = tg.from_source(source).map_batches(lambda batch: batch)

    def check() -> None:
        assert found_counts(left) == expected_counts(source.table)
        assert right.rows() == rows_of(source.table)

    return tg.Pipeline("w", counts(stream).write(left), stream.write(right)), [left, right], check


def joined() -> tuple[tg.Pipeline, list[MemorySink], Check]:
    """Two sources into a join: raw rows cross the exchange."""
    bids, people, sink = small(240), small(120), MemorySink()
    names = tg.from_source(people).select("ts", "key", other=tg.col("value"))
    stream = tg.from_source(bids).join(names, on="key", window=tg.tumbling("1s"))

    def check() -> None:
        connection = duckdb.connect()
        connection.register("a", bids.table)
        connection.register("b", people.table)
        query = "select a.key, a.value, b.value from a join b on a.key=b.key and a.ts//1000=b.ts//1000 order by all"
        batches = [batch for _, part in sink.visible.values() for batch in part]
        found = [(row["key"], row["value"], row["other"]) for batch in batches for row in batch.to_pylist()]
        assert sorted(found) == connection.sql(query).fetchall()

    return tg.Pipeline("w", stream.write(sink)), [sink], check


SHAPES = {"one_stage": one_stage, "two_sinks": two_sinks, "joined": joined}
MODES: dict[str, dict[str, Any]] = {
    "aligned": {"unaligned": "never"},
    "auto": {"alignment_timeout": "10ms"},
    "always": {"unaligned": "always"},
    "always, tiny credit": {"unaligned": "always", "credit_bytes": 600},
    "auto, tiny credit": {"alignment_timeout": "5ms", "credit_bytes": 600},
    "off": {"interval": None},
}


def same_epochs(sinks: list[MemorySink], world: World) -> None:
    """No sink shows an epoch that is not committed, or lacks one whose rows it has."""
    head = LogStore(world.store, "w").view().head
    for sink in sinks:
        assert sink.epochs() <= set(range(1 + (head.epoch if head else 0)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_in_every_mode_without_a_crash(shape: str, mode: str) -> None:
    pipeline, _, check = SHAPES[shape]()
    world = World(pipeline, 3, **MODES[mode])
    world.finish()
    check()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nodes_die_at_any_step(shape: str, mode: str, seed: int) -> None:
    pipeline, sinks, check = SHAPES[shape]()
    world = World(pipeline, 2, seed=seed, **MODES[mode])
    for _ in range(3):
        for _ in range(world.random.randrange(10, 160)):
            if not world.step():
                break
        world.kill_node(world.random.randrange(2))
    world.finish()
    check()
    same_epochs(sinks, world)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_driver_dies_and_another_starts_with_other_nodes(shape: str, seed: int) -> None:
    pipeline, _, check = SHAPES[shape]()
    widths = [2, 3, 1, 4, 2]
    store = None
    for turn, width in enumerate(widths):
        world = World(pipeline, width, seed=seed * 10 + turn, store=store, unaligned="always", credit_bytes=2_000)
        store = world.store
        for _ in range(world.random.randrange(40, 220)):
            if not world.step():
                break
        if turn < len(widths) - 1:
            world.kill_leader()
    world.finish()
    check()


def random_schedule(seed: int) -> None:
    """Any shape and mode; nodes, drivers, sinks and the store fail at random; each driver has other nodes."""
    dice = random.Random(seed)
    pipeline, sinks, check = SHAPES[dice.choice(list(SHAPES))]()
    store = FaultyStore(open_store("memory://"), FaultPlan(seed=seed, lost_answer=0.05, late_write=0.05, partial=0.05))
    drivers = dice.randrange(1, 5)
    for turn in range(drivers):
        mode = MODES[dice.choice([mode for mode in MODES if mode != "off"])]
        world = World(pipeline, dice.randrange(1, 5), seed=dice.randrange(1 << 30), store=store, **mode)
        for _ in range(dice.randrange(4)):
            for _ in range(dice.randrange(10, 200)):
                world.step()
            if dice.random() < 0.7:
                world.kill_node(dice.randrange(4))
            else:
                hook = dice.choice(["on_write", "on_prepare", "on_commit"])
                setattr(dice.choice(sinks), hook, once(RetryableError("on purpose")))
        if turn < drivers - 1:
            world.kill_leader()
    world.finish()
    check()


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules(seed: int) -> None:
    random_schedule(seed)
