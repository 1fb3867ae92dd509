"""``tidegate show``: what one checkpoint consists of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tidegate.cli.checkpoints import describe, when
from tidegate.cli.console import Console, shown, sized
from tidegate.core.checkpoint.manifest import CheckpointManifest, OperatorSnapshotEntry
from tidegate.errors import CheckpointNotFound, CorruptDataError, InvalidUseError

if TYPE_CHECKING:
    from tidegate.cli.inventory import JobLog

HELP = "show what a checkpoint consists of"
DESCRIPTION = "Show one checkpoint of STORE: its operators' state, source offsets, in-flight data and sink files."


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("store", metavar="STORE", help="a directory or file://, s3://, gs://, az://")
    verb.add_argument("epoch", metavar="EPOCH", type=int, help="as `tidegate checkpoints` lists it")
    verb.add_argument("--job", metavar="NAME", help="needed when several jobs have this epoch")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """Reads only."""
    from tidegate.cli.inventory import read_jobs

    log, manifest = find(read_jobs(arguments.store, arguments.job), arguments.epoch)
    restorable = log.restorable(manifest.epoch)
    output.document(_document(manifest, restorable))
    for line in _lines(manifest, restorable):
        output.say(line)
    _tables(manifest, output)
    return 0


def find(logs: list[JobLog], epoch: int) -> tuple[JobLog, CheckpointManifest]:
    """The one checkpoint with this epoch."""
    found = [(log, manifest) for log in logs for manifest in log.commits() if manifest.epoch == epoch]
    damaged = [each for log in logs for each in log.damaged() if each.slot == epoch]
    if damaged and not found:
        raise CorruptDataError(damaged[0].why, path=damaged[0].path)
    if not found:
        there = sorted({m.epoch for log in logs for m in log.commits()})
        raise CheckpointNotFound(f"no checkpoint with this epoch; there are: {_listed(there)} epoch={epoch}")
    if len(found) > 1:
        names = ", ".join(log.job for log, _ in found)
        raise InvalidUseError(f"several jobs have this epoch: add --job with one of {names} epoch={epoch}")
    return found[0]


def _listed(epochs: Sequence[int]) -> str:
    if not epochs:
        return "none"
    return ", ".join(map(str, epochs)) if len(epochs) <= 12 else f"{epochs[0]} to {epochs[-1]}"


def _document(manifest: CheckpointManifest, restorable: bool) -> dict[str, object]:
    """The manifest itself, but without the bytes of small runs that it carries inline."""
    fields = asdict(manifest)
    operators = [_operator(entry) for entry in manifest.operators]
    return {**fields, **describe(manifest), "restorable": restorable, "operators": operators}


def _operator(entry: OperatorSnapshotEntry) -> dict[str, object]:
    return {
        "operator": entry.operator,
        "subtask": entry.subtask,
        "runs": len(entry.runs),
        "rows": sum(run.rows for run in entry.runs),
        "bytes": sum(run.length for run in entry.runs),
        "meta": dict(entry.meta),
    }


def _lines(manifest: CheckpointManifest, restorable: bool) -> list[str]:
    facts = describe(manifest)
    mode = "unaligned" if manifest.is_unaligned else "aligned"
    parent = "nothing" if manifest.parent is None else f"epoch {manifest.parent}"
    return [
        f"job {manifest.job}, epoch {manifest.epoch}: {facts['kind']}, {mode}, "
        + ("can be restored" if restorable else "can no longer be restored"),
        f"checkpoint {manifest.checkpoint_id}, term {manifest.term}, gang {manifest.gang}, parent: {parent}",
        f"committed {when(manifest.commit_wall_ms)}, took {shown(facts['duration_ms'])} ms, "
        f"{len(manifest.objects)} objects, {sized(int(str(facts['bytes'])))}",
    ]


def _tables(manifest: CheckpointManifest, output: Console) -> None:
    operators = [_operator(entry) for entry in manifest.operators]
    _section(output, "state", [{**row, "bytes": sized(int(str(row["bytes"])))} for row in operators], "meta")
    _section(output, "sources", [{"operator": e.operator, "subtask": e.subtask} for e in manifest.sources])
    flights = [
        {
            "operator": e.operator,
            "subtask": e.subtask,
            "direction": e.direction,
            "events": e.events,
            "bytes": e.bytes,
        }
        for e in manifest.inflight
    ]
    _section(output, "in flight", flights)
    staged = [{"operator": e.operator, "subtask": e.subtask, "epoch": e.epoch} for e in manifest.committables]
    _section(output, "sinks", staged)


def _section(output: Console, title: str, rows: list[dict[str, object]], *hidden: str) -> None:
    if rows:
        output.say(f"\n{title}")
        output.table(rows, [column for column in rows[0] if column not in hidden])
