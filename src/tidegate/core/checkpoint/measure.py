"""What a coordinator has counted and measured, for people. Nothing is decided by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.size import stored_bytes
from tidegate.errors import CheckpointAbortedError


@dataclass(slots=True)
class CoordinatorMetrics:
    """Of one leader. What is named ``last`` is of the last committed checkpoint.

    ``last_barrier_latency_ms``: from the notice that a checkpoint begins until the last subtask has cut, alignment included.
    ``last_node_durations_ms``: how long each node's part took, until it was durable. ``aborts_by_reason`` counts by the class
    of the error. ``last_checkpoint_stored_bytes``: what the objects take that it names, those of earlier checkpoints included.
    """

    checkpoints_completed: int = 0
    checkpoints_aborted: int = 0
    aborts_by_reason: dict[str, int] = field(default_factory=dict)
    last_checkpoint_duration_ms: int = 0
    max_checkpoint_duration_ms: int = 0
    total_checkpoint_duration_ms: int = 0
    last_checkpoint_bytes: int = 0
    total_bytes_checkpointed: int = 0
    last_barrier_latency_ms: int = 0
    max_barrier_latency_ms: int = 0
    last_node_durations_ms: dict[int, int] = field(default_factory=dict)
    last_checkpoint_stored_bytes: int = 0
    unaligned_checkpoints: int = 0
    compacted_checkpoints: int = 0
    leader_failovers: int = 0
    promotions: int = 0
    stale_messages: int = 0
    duplicate_acks: int = 0
    put_retries: int = 0
    publish_retries: int = 0
    commit_notice_retries: int = 0

    def completed(self, manifest: CheckpointManifest, duration_ms: int, *, compacted: bool = False) -> None:
        """A checkpoint was committed."""
        self.checkpoints_completed += 1
        self.unaligned_checkpoints += manifest.is_unaligned
        self.compacted_checkpoints += compacted
        self.last_checkpoint_stored_bytes = stored_bytes(manifest)
        self.last_checkpoint_duration_ms = duration_ms
        self.max_checkpoint_duration_ms = max(self.max_checkpoint_duration_ms, duration_ms)
        self.total_checkpoint_duration_ms += duration_ms
        self.last_checkpoint_bytes = sum(node.bytes_uploaded for node in manifest.nodes)
        self.total_bytes_checkpointed += self.last_checkpoint_bytes
        self.last_barrier_latency_ms = barrier_latency_ms(manifest)
        self.max_barrier_latency_ms = max(self.max_barrier_latency_ms, self.last_barrier_latency_ms)
        self.last_node_durations_ms = {node.node: node.duration_ms for node in manifest.nodes}

    def aborted(self, error: CheckpointAbortedError) -> None:
        """One was given up."""
        self.checkpoints_aborted += 1
        reason = type(error).__name__
        self.aborts_by_reason = {**self.aborts_by_reason, reason: self.aborts_by_reason.get(reason, 0) + 1}


def barrier_latency_ms(manifest: CheckpointManifest) -> int:
    """From the notice that it begins to the last subtask's cut. A subtask that had ended has none."""
    cuts = (task.start_delay_ms + task.alignment_ms for node in manifest.nodes for task in node.tasks if task.mode != "finished")
    return max(cuts, default=0)
