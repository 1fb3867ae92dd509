"""What people see of a running job: the nodes' reports added up, a checkpoint in a few lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, assert_never, cast

from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.effects import (
    CheckpointAborted,
    CheckpointCompleted,
    Replaced,
    StepDownReason,
    StoreSilent,
    Unpublishable,
)
from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.ids import Epoch, GangNumber, NodeId
from tidegate.runtime.metrics import COUNTS, MEASURED, WORK, CheckpointMetrics, Counts, CountsAddedUp, NodeReport, OperatorMetrics

EPOCHS_KEPT = 64


def added_up(reports: Collection[NodeReport]) -> CountsAddedUp:
    """The counts of all nodes."""
    operators: dict[str, OperatorMetrics] = {}
    for report in reports:
        for name, measured in report["operators"].items():
            operators[name] = _sum(operators[name], measured) if name in operators else measured
    return {
        **_counts(reports),
        "late_rows": sum(measured["late_rows"] for measured in operators.values()),
        "is_in_unaligned_mode": any(report["is_in_unaligned_mode"] for report in reports),
        "operators": operators,
    }


def _counts(reports: Collection[Mapping[str, Any]]) -> Counts:
    return cast(Counts, {name: sum(report[name] for report in reports) for name in COUNTS})


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> OperatorMetrics:
    return cast(OperatorMetrics, {name: one[name] + other[name] for name in MEASURED})


class Totals:
    """The counts of one run of a job, whatever gangs it took.

    ``rows_in`` and ``late_rows`` are state: nodes restore them with their operators. ``rows_out`` counts once as well: a node
    says with each checkpoint how many rows its sinks had taken at the cut, and a restored gang counts from there. All others
    add up work, so that they tell what recoveries cost. Leader thread only, but for ``added_up``.
    """

    def __init__(self) -> None:
        self._reports: dict[NodeId, tuple[GangNumber, NodeReport]] = {}
        self._before: dict[str, int] = dict.fromkeys(WORK, 0)
        self._cuts: dict[int, dict[NodeId, int]] = {}
        self._epochs: dict[Epoch, dict[NodeId, int]] = {}
        self._out: dict[GangNumber, dict[NodeId, int]] = {}

    def started(self, gang: GangNumber, epoch: Epoch | None) -> None:
        """A gang starts from this epoch; of one that another driver committed nothing is known."""
        self._cuts.clear()
        shown = {last_gang for last_gang, _ in self._reports.values()}
        kept = {other: out for other, out in self._out.items() if other in shown}
        self._out = kept | {gang: {} if epoch is None else self._epochs.get(epoch, {})}

    def adopted(self, gang: GangNumber) -> None:
        """A gang that runs comes over. One that this leader has started itself still counts from where it started."""
        self._cuts.clear()
        self._out.setdefault(gang, {})

    def prepared(self, ack: PrepareAck) -> None:
        """A node's part of a checkpoint."""
        before = self._out.get(ack.gang, {}).get(ack.node, 0)
        self._cuts.setdefault(ack.checkpoint_id, {})[ack.node] = before + ack.rows_out

    def committed(self, checkpoint_id: int, epoch: Epoch) -> None:
        """It is what the next gang starts from."""
        self._epochs[epoch] = self._cuts.get(checkpoint_id, {})
        self._cuts = {other: cut for other, cut in self._cuts.items() if other > checkpoint_id}
        for old in sorted(self._epochs)[:-EPOCHS_KEPT]:
            del self._epochs[old]

    def report(self, gang: GangNumber, node: NodeId, progress: NodeReport) -> None:
        """A node's counts. The first of a new gang: what the node before it had done stays done."""
        last_gang, last = self._reports.get(node, (gang, None))
        if last is not None and last_gang != gang:
            done: Mapping[str, Any] = last
            self._before = {name: value + done[name] for name, value in self._before.items()}
        self._reports[node] = (gang, progress)

    def added_up(self) -> CountsAddedUp:
        """All nodes together. Any thread."""
        reports = dict(self._reports)
        total = added_up([progress for _, progress in reports.values()])
        sums = cast(dict[str, Any], total)
        for name, value in self._before.items():
            sums[name] += value
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
    return {
        "checkpoint_id": effect.checkpoint_id,
        "epoch": None,
        "status": "aborted",
        "reason": effect.reason,
        "error": type(effect.error).__name__,
        "failed_nodes": dict(effect.failed_nodes),
    }


def checkpoint_metrics(coordinator: DistributedCheckpointCoordinator) -> CheckpointMetrics:
    """Any thread. ``checkpoint_in_progress`` is the id to cancel."""
    metrics, attempt = coordinator.metrics, coordinator.attempt
    return {
        "checkpoint_in_progress": None if attempt is None else attempt.checkpoint_id,
        "checkpoints_aborted": metrics.checkpoints_aborted,
        "checkpoints_aborted_by_error": dict(metrics.aborts_by_reason),
        "checkpoints_unaligned": metrics.unaligned_checkpoints,
        "checkpoints_compacted": metrics.compacted_checkpoints,
        "last_checkpoint_duration_ms": metrics.last_checkpoint_duration_ms,
        "max_checkpoint_duration_ms": metrics.max_checkpoint_duration_ms,
        "total_checkpoint_duration_ms": metrics.total_checkpoint_duration_ms,
        "last_checkpoint_bytes": metrics.last_checkpoint_bytes,
        "last_checkpoint_stored_bytes": metrics.last_checkpoint_stored_bytes,
        "total_checkpoint_bytes": metrics.total_bytes_checkpointed,
        "last_checkpoint_node_durations_ms": dict(metrics.last_node_durations_ms),
        "last_barrier_latency_ms": metrics.last_barrier_latency_ms,
        "max_barrier_latency_ms": metrics.max_barrier_latency_ms,
        "checkpoint_promotions": metrics.promotions,
        "commit_notice_retries": metrics.commit_notice_retries,
        "duplicate_acks": metrics.duplicate_acks,
        "put_retries": metrics.put_retries,
        "publish_retries": metrics.publish_retries,
        "leader_failovers": metrics.leader_failovers,
    }


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
