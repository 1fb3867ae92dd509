"""Two drivers at once on the same log and the same directories, each with its own gang: the outputs hold every row once."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runtime_jobs import GatedSource, counts, events, expected_counts, found_counts, rows_of
from runtime_world import World

import tidegate as tg
from tidegate.connectors.writer import StagedWriter
from tidegate.runtime.logstore import LogStore

MODES = ({"unaligned": "never"}, {"alignment_timeout": "10ms"}, {"unaligned": "always", "credit_bytes": 600})


def pipeline(source: GatedSource, root: Path) -> tg.Pipeline:
    stream = tg.from_source(source).named("events")
    mapped = stream.map_batches(lambda batch: batch).named("mapped")
    return tg.Pipeline(
        "w",
        stream.write_parquet(root / "raw", durable=False).named("raw"),
        counts(mapped).named("counts").write_parquet(root / "counts", durable=False).named("out"),
    )


def older(world: World, dice: random.Random) -> int | str:
    """Sometimes an older epoch to go back to."""
    epochs = [m.epoch for m in LogStore(world.store, "w").view().restorables() if not m.final]
    return dice.choice(epochs) if epochs and dice.random() < 0.5 else "latest"


class Challenger(World):
    """Another driver on a store that the first still uses."""

    choice: int | str = "latest"

    def lead(self, restore: int | str = "latest", name: str | None = None) -> object:  # type: ignore[override]
        return super().lead(self.choice, name)


@pytest.mark.parametrize("seed", range(6))
def test_a_deposed_driver_and_its_gang_do_no_harm_to_the_outputs(seed: int, tmp_path: Path) -> None:
    """The first knows nothing of the second until its next put: its nodes stage, it publishes and collects late (I7, I9)."""
    dice = random.Random(seed)
    source = GatedSource(events(1_200), rows_per_poll=20, fed=True)
    first = World(pipeline(source, tmp_path), 2, seed=seed, **dice.choice(MODES))
    first.until(lambda: first.leader._outcomes.committed >= dice.randrange(2, 5))
    Challenger.choice = older(first, dice)
    second = Challenger(pipeline(source, tmp_path), 3, seed=seed, store=first.store, **dice.choice(MODES))
    worlds: list[World] = [first, second]
    while alive := [world for world in worlds if world.leading.alive]:
        dice.choice(alive).step()
        if dice.random() < 0.003:
            dice.choice(alive).kill_node(dice.randrange(3))
    assert first.leader.status == "FAILED" and "taken over" in str(first.leader.error)
    assert second.leader.status == "FINISHED"
    assert sorted(tuple(row.values()) for row in pq.read_table(tmp_path / "raw").to_pylist()) == rows_of(source.table)
    assert found_counts(tmp_path / "counts") == expected_counts(source.table)


def test_what_a_killed_job_without_checkpoints_staged_is_gone_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log was in memory, so the gang of the next start has the same number."""
    monkeypatch.setattr("tidegate.connectors.writer.CHUNK_ROWS", 20)
    source = GatedSource(events(1_000), rows_per_poll=20, allowed=300)
    written = tg.from_source(source).write_parquet(tmp_path, durable=False, file_bytes=1)
    first = World(tg.Pipeline("w", written), 1, interval=None)
    first.until(lambda: len(list((tmp_path / "_pending").glob("*"))) > 5)
    with monkeypatch.context() as killed:
        killed.setattr(StagedWriter, "close", lambda writer: None)
        first.kill_leader()
    assert list((tmp_path / "_pending").iterdir())
    source.allow()
    World(tg.Pipeline("w", written), 1, interval=None).finish()
    assert list((tmp_path / "_pending").iterdir()) == []
    assert sorted(tuple(row.values()) for row in pq.read_table(tmp_path).to_pylist()) == rows_of(source.table)
