"""What people see of a running job: the nodes' reports added up, a checkpoint in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, assert_never

from tidegate.core.checkpoint.effects import (
    CheckpointAborted,
    CheckpointCompleted,
    Replaced,
    StepDownReason,
    StoreSilent,
    Unpublishable,
)
from tidegate.core.checkpoint.prepare import PrepareAck

COUNTS = ("rows_in", "rows_read", "rows_out", "unaligned_count", "threshold_switches", "total_inflight_bytes", "stale_commands")
"""What nodes count, all of them together."""


def added_up(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of all nodes."""
    operators: dict[str, dict[str, int]] = {}
    for report in reports.values():
        for name, values in report.get("operators", {}).items():
            total = operators.setdefault(name, {})
            for key, value in values.items():
                total[key] = total.get(key, 0) + value
    counts = {key: sum(report.get(key, 0) for report in reports.values()) for key in COUNTS}
    counts["upload_retries"] = sum(report.get("checkpoints", {}).get("upload_retries", 0) for report in reports.values())
    late = sum(values.get("late_rows", 0) for values in operators.values())
    overtaking = any(report.get("is_in_unaligned_mode") for report in reports.values())
    return {**counts, "is_in_unaligned_mode": overtaking, "late_rows": late, "operators": operators}


WORK = ("rows_read", "upload_retries", "unaligned_count", "threshold_switches", "total_inflight_bytes")
"""What gangs have done, rolled back or not: those before the one under way count too."""
EPOCHS_KEPT = 64


class Totals:
    """The counts of one run of a job, whatever gangs it took.

    ``rows_in`` and ``late_rows`` are state: nodes restore them with their operators. ``rows_out`` counts once as well: a node
    says with each checkpoint how many rows its sinks had taken at the cut, and a restored gang counts from there. All others
    add up work, so that they tell what recoveries cost. Leader thread only, but for ``added_up``.
    """

    def __init__(self) -> None:
        self._reports: dict[int, tuple[int, Mapping[str, Any]]] = {}
        self._before: dict[str, int] = dict.fromkeys(WORK, 0)
        self._cuts: dict[int, dict[int, int]] = {}
        self._epochs: dict[int, dict[int, int]] = {}
        self._out: dict[int, dict[int, int]] = {}

    def started(self, gang: int, epoch: int | None) -> None:
        """A gang starts from this epoch; of one that another driver committed nothing is known."""
        self._cuts.clear()
        shown = {last_gang for last_gang, _ in self._reports.values()}
        kept = {other: out for other, out in self._out.items() if other in shown}
        self._out = kept | {gang: {} if epoch is None else self._epochs.get(epoch, {})}

    def prepared(self, ack: PrepareAck) -> None:
        """A node's part of a checkpoint."""
        before = self._out.get(ack.gang, {}).get(ack.node, 0)
        self._cuts.setdefault(ack.checkpoint_id, {})[ack.node] = before + ack.rows_out

    def committed(self, checkpoint_id: int, epoch: int) -> None:
        """It is what the next gang starts from."""
        self._epochs[epoch] = self._cuts.get(checkpoint_id, {})
        self._cuts = {other: cut for other, cut in self._cuts.items() if other > checkpoint_id}
        for old in sorted(self._epochs)[:-EPOCHS_KEPT]:
            del self._epochs[old]

    def report(self, gang: int, node: int, progress: Mapping[str, Any]) -> None:
        """A node's counts. The first of a new gang: what the node before it had done stays done."""
        last_gang, last = self._reports.get(node, (gang, {}))
        if last_gang != gang:
            done = added_up({node: last})
            self._before = {key: value + done[key] for key, value in self._before.items()}
        self._reports[node] = (gang, progress)

    def added_up(self) -> dict[str, Any]:
        """All nodes together. Any thread."""
        reports = dict(self._reports)
        total = added_up({node: progress for node, (_, progress) in reports.items()})
        for key, value in self._before.items():
            total[key] += value
        total["rows_out"] += sum(self._out.get(gang, {}).get(node, 0) for node, (gang, _) in reports.items())
        return total


def committed(effect: CheckpointCompleted) -> dict[str, Any]:
    """A committed checkpoint, for people."""
    manifest = effect.manifest
    return {
        "checkpoint_id": effect.checkpoint_id,
        "epoch": effect.epoch,
        "status": "committed",
        "duration_ms": effect.duration_ms,
        "bytes": sum(node.bytes_uploaded for node in manifest.nodes),
        "unaligned": manifest.is_unaligned,
        "inflight_bytes": sum(flight.bytes for flight in manifest.inflight),
        "inflight_events": sum(flight.events for flight in manifest.inflight),
        "tasks": [asdict(stats) for node in manifest.nodes for stats in node.tasks],
        "final": manifest.final,
        "savepoint": manifest.savepoint,
        "committed_wall_ms": manifest.commit_wall_ms,
    }


def aborted(effect: CheckpointAborted) -> dict[str, Any]:
    """One that was abandoned, for people."""
    return {"checkpoint_id": effect.checkpoint_id, "epoch": None, "status": "aborted", "reason": effect.reason}


def stepped_down(reason: StepDownReason) -> str:
    """Why this driver leads no more, and what to do about it."""
    match reason:
        case Replaced(by=by):
            if by is None:
                return f"{reason}; this driver has ended and changed nothing"
            since = datetime.fromtimestamp(by.wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return (
                f"another driver has taken over this job, this one has ended and changed nothing: process {by.pid} on "
                f"{by.host or 'an unknown host'} leads since {since if by.wall_ms else 'an unknown time'} "
                f"leader={by.leader} term={by.term}"
            )
        case StoreSilent(waited_ms=waited_ms, why=why):
            return (
                f"the store did not answer for {waited_ms / 1000:.0f} s, so nobody knows what the log holds: check the store and "
                f"start the job again: {why}"
            )
        case Unpublishable(tries=tries, why=why):
            return (
                f"committed rows could not be made visible in {tries} tries: fix the sink and start the job again, which "
                f"publishes them: {why}"
            )
        case _:
            assert_never(reason)
