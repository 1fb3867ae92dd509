"""``tidegate checkpoints``: the committed checkpoints of every job in a store."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidegate.cli.console import Console, sized
from tidegate.core.checkpoint.manifest import CheckpointManifest

if TYPE_CHECKING:
    from tidegate.cli.inventory import JobLog

HELP = "list the checkpoints in a store"
DESCRIPTION = "List the committed checkpoints of every job in STORE, oldest first."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("--job", metavar="NAME", help="only this job")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Reads only; a running job does not notice."""
    from tidegate.cli.inventory import read_jobs
    from tidegate.runtime.inspect import shown

    def listed(log: JobLog) -> dict[str, object]:
        rows = [{**describe(m), "restorable": log.restorable(m.epoch)} for m in log.commits()]
        damaged = [{"slot": each.slot, "kind": each.kind, "path": each.path, "what": each.why} for each in log.damaged()]
        head = {"job": log.job, "head": log.view.head_epoch, "gang": log.view.gang}
        return {**head, "checkpoints": rows, "damaged": damaged}

    logs = read_jobs(arguments.store, arguments.job)
    output.document({"store": shown(arguments.store), "jobs": [listed(log) for log in logs]})
    for log in logs:
        output.say(f"job {log.job}: next start from {_head(log)}")
        output.table([_row(m, restorable=log.restorable(m.epoch)) for m in log.commits()])
        for each in log.damaged():
            output.say(f"  slot {each.slot}: {each.why}")
    return 0


def describe(manifest: CheckpointManifest) -> dict[str, object]:
    """The facts of a checkpoint in one level."""
    return {
        "epoch": manifest.epoch,
        "checkpoint_id": manifest.checkpoint_id,
        "parent": manifest.parent,
        "kind": kind_of(manifest),
        "unaligned": manifest.is_unaligned,
        "parallelism": manifest.parallelism,
        "committed_ms": manifest.commit_wall_ms,
        "duration_ms": max(0, manifest.commit_wall_ms - manifest.trigger_wall_ms),
        "bytes": sum(entry.size_bytes for entry in manifest.objects),
        "bytes_uploaded": sum(node.bytes_uploaded for node in manifest.nodes),
    }


def kind_of(manifest: CheckpointManifest) -> str:
    """What kind of checkpoint this is, in one word."""
    if manifest.final:
        return "final"
    return "savepoint" if manifest.is_savepoint else "checkpoint"


def when(wall_ms: int) -> str:
    """A wall clock time as people write it."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if wall_ms else "-"


def _row(manifest: CheckpointManifest, restorable: bool) -> dict[str, object]:
    facts = describe(manifest)
    return {
        "epoch": facts["epoch"],
        "checkpoint_id": str(facts["checkpoint_id"]),
        "kind": facts["kind"],
        "committed": when(manifest.commit_wall_ms),
        "took_ms": facts["duration_ms"],
        "size": sized(int(str(facts["bytes"]))),
        "unaligned": facts["unaligned"],
        "restorable": restorable,
    }


def _head(log: JobLog) -> str:
    view = log.view
    if view.unclear is not None:
        return "nowhere, because a damaged entry hides where to start"
    newest = next(iter(view.restorables()), None)
    if view.head_is_lost:
        return "nowhere, because all are damaged" if newest is None else f"epoch {newest.epoch}, because newer ones are damaged"
    return "the beginning" if newest is None else f"epoch {newest.epoch}"
