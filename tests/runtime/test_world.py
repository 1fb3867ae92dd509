"""Crash schedules, drawn from seeds: whatever dies and whenever, every row counts once."""

from __future__ import annotations

import pytest
from runtime_jobs import GatedSource, MemorySink, counts, events, expected_counts, found_counts
from runtime_world import World

import tidegate as tg


def small(**options: object) -> GatedSource:
    return GatedSource(events(300, keys=5, step_ms=20), rows_per_poll=12, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_a_job_runs_to_its_end(seed: int) -> None:
    source, sink = small(), MemorySink()
    world = World(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2, seed=seed)
    world.finish()
    assert found_counts(sink) == expected_counts(source.table)
    print(world.steps, world.leader.metrics()["checkpoints_committed"])
