"""What people see of a running job: the nodes' reports added up, a checkpoint in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, assert_never

from tidegate.core.orders import (
    CheckpointAborted,
    CheckpointCompleted,
    Replaced,
    StepDownReason,
    StoreSilent,
    Unpublishable,
)

COUNTS = ("rows_in", "rows_read", "rows_out", "unaligned_count", "threshold_switches", "total_inflight_bytes")
"""Of the gang under way, all nodes together."""


def added_up(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of all nodes."""
    operators: dict[str, dict[str, int]] = {}
    for report in reports.values():
        for name, values in report.get("operators", {}).items():
            total = operators.setdefault(name, {})
            for key, value in values.items():
                total[key] = total.get(key, 0) + value
    counts = {key: sum(report.get(key, 0) for report in reports.values()) for key in COUNTS}
    late = sum(values.get("late_rows", 0) for values in operators.values())
    overtaking = any(report.get("is_in_unaligned_mode") for report in reports.values())
    return {**counts, "is_in_unaligned_mode": overtaking, "late_rows": late, "operators": operators}


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
    """One that was given up, for people."""
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
                f"the store gave no answer for {waited_ms / 1000:.0f} s, so nobody knows what the log holds: check the store and "
                f"start the job again: {why}"
            )
        case Unpublishable(tries=tries, why=why):
            return (
                f"committed rows could not be made visible in {tries} tries: fix the sink and start the job again, which "
                f"publishes them: {why}"
            )
        case _:
            assert_never(reason)
