"""Stores for the tests of the reading verbs: logs as a leader writes them."""

from __future__ import annotations

from pathlib import Path

from tidegate.core.checkpoint.manifest import (
    CheckpointManifest,
    CommittableEntry,
    NodeStats,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.view import Commit, LogEntry, Restore, Takeover, encode_entry
from tidegate.ids import CheckpointId
from tidegate.store.open import open_store


def manifest(job: str, epoch: int, parent: int | None, **given: object) -> CheckpointManifest:
    """A small but complete checkpoint of term 0."""
    checkpoint_id = int(CheckpointId.of(0, epoch))
    path = JobPaths(job).state(checkpoint_id, 0)
    fields: dict[str, object] = {
        "job": job,
        "checkpoint_id": checkpoint_id,
        "epoch": epoch,
        "parent": parent,
        "gang": 0,
        "term": 0,
        "uuid": "01890a5d-ac96-774b-bcce-b302099a8057",
        "parallelism": 1,
        "key_groups": 128,
        "oldest_restorable": 0,
        "trigger_wall_ms": 1_700_000_000_000 + epoch * 1000,
        "commit_wall_ms": 1_700_000_000_040 + epoch * 1000,
        "objects": (ObjectEntry(path, 2_048, 7),),
        "operators": (
            OperatorSnapshotEntry(
                "per_key",
                0,
                {"late_rows": 3},
                (RunEntry(path, 0, 100, 7, 5), RunEntry.of_bytes(b"abc", 9, 1)),
            ),
        ),
        "sources": (SourceOffsetEntry("bids", 0, {"file": 12}),),
        "committables": (CommittableEntry("out", 0, 0, checkpoint_id, {"files": ["part-1"]}, epoch),),
        "nodes": (NodeStats(0, 2_048, 12, False),),
    }
    return CheckpointManifest(**{**fields, **given})  # type: ignore[arg-type]


def takeover() -> Takeover:
    return Takeover(slot=0, term=0, write_id="w0", leader="test")


def commit(job: str, epoch: int, parent: int | None, **given: object) -> Commit:
    return Commit(slot=epoch, term=0, write_id=f"w{epoch}", manifest=manifest(job, epoch, parent, **given))


def restore(slot: int, parent: int | None) -> Restore:
    return Restore(slot=slot, term=0, write_id=f"w{slot}", parent=parent, reason="test")


def write_log(root: Path, job: str, entries: list[LogEntry]) -> None:
    store = open_store(str(root))
    for entry in entries:
        assert store.create(JobPaths(job).log_entry(entry.slot), encode_entry(entry))
