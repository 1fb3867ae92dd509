"""The metrics of a job, from where its leader's parts count them."""

from __future__ import annotations

from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.runtime.gangs import Gangs
from tidegate.runtime.metrics import JobMetrics
from tidegate.runtime.report import checkpoint_metrics
from tidegate.runtime.signals import Signals
from tidegate.runtime.watch import ProblemWatch


def job_metrics(
    status: str,
    gangs: Gangs,
    watch: ProblemWatch,
    signals: Signals,
    coordinator: DistributedCheckpointCoordinator,
    *,
    committed: int,
    waits: int,
) -> JobMetrics:
    """The newest reports of the nodes, added up. ``waits``: restarts that waited for storage."""
    gang = gangs.gang
    return {
        "status": status,
        **gangs.totals.added_up(),
        **watch.metrics(),
        "signals_answered": signals.answered,
        "parameters": signals.versions(),
        **checkpoint_metrics(coordinator),
        "stale_messages": coordinator.metrics.stale_messages + gangs.stale_messages,
        "checkpoints_committed": committed,
        "restarts": gangs.restarts.total + waits,
        "recoveries_ms": list(gangs.recoveries_ms),
        "gang": None if gang is None else gang.number,
        "nodes": gangs.nodes(),
    }
