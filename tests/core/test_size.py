"""How much a checkpoint keeps in the store, and when it is written compacted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordination import PATHS
from driving import Driver, kinds, make_ack, make_manifest

from tidegate.core.checkpoint.effects import SendStarted
from tidegate.core.checkpoint.manifest import CheckpointManifest, ObjectEntry, OperatorSnapshotEntry, RunEntry
from tidegate.core.checkpoint.size import is_outgrown, stored_bytes, used_bytes


def manifest(size: int, *lengths: int) -> CheckpointManifest:
    """One object, of which runs of these lengths are used; the first is named by two operators."""
    path = PATHS.state(1, 0)
    runs = [RunEntry(path, sum(lengths[:i]), length, 1, 1) for i, length in enumerate(lengths)]
    operators = (OperatorSnapshotEntry("a", 0, {}, tuple(runs)), OperatorSnapshotEntry("b", 0, {}, tuple(runs[:1])))
    return make_manifest(1, operators=operators, objects=(ObjectEntry(path, size, 1),))


def test_an_object_is_stored_whole_and_used_by_its_runs() -> None:
    assert (stored_bytes(manifest(100, 10, 5)), used_bytes(manifest(100, 10, 5))) == (100, 15)


@pytest.mark.parametrize(
    ("made", "limit", "outgrown"),
    [
        (None, 1, False),
        (manifest(100, 10), 100, False),
        (manifest(100, 10), 99, True),
        (manifest(100, 75), 99, True),
        (manifest(100, 76), 99, False),
    ],
)
def test_it_is_outgrown_when_it_is_too_large_and_enough_of_it_is_unused(
    made: CheckpointManifest | None, limit: int, outgrown: bool
) -> None:
    assert is_outgrown(made, limit) == outgrown


def test_the_checkpoint_after_one_that_is_too_large_is_compacted_and_none_is_aborted() -> None:
    driver = Driver(max_checkpoint_bytes=50).start()
    path = PATHS.state(1, 0)
    wasteful = [replace(make_ack(n, 1), objects=(ObjectEntry(PATHS.state(1, n), 40, 1),)) for n in (0, 1)]
    assert wasteful[0].objects[0].path == path
    driver.trigger()
    assert not driver.last(SendStarted).started.compacts
    driver.prepared(0, objects=wasteful[0].objects)
    driver.prepared(1, objects=wasteful[1].objects)
    driver.answer()
    assert driver.machine.metrics.last_checkpoint_stored_bytes == 80 and driver.machine.metrics.compacted_checkpoints == 0
    driver.trigger()
    assert driver.last(SendStarted).started.compacts
    driver.prepare_all()
    assert kinds(driver.answer())
    metrics = driver.machine.metrics
    assert (metrics.last_checkpoint_stored_bytes, metrics.compacted_checkpoints, metrics.checkpoints_aborted) == (20, 1, 0)
    driver.trigger()
    assert not driver.last(SendStarted).started.compacts
