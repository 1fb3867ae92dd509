"""What people see of a running job: the nodes' reports added up, a checkpoint in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tidegate.core.orders import CheckpointAborted, CheckpointCompleted

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
    counts["upload_retries"] = sum(report.get("checkpoints", {}).get("upload_retries", 0) for report in reports.values())
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
