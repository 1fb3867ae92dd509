"""What a node needs to know before it starts: data that Spark ships with the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.ids import GangNumber, NodeId
from tidegate.plan.connector import Split
from tidegate.plan.physical import PhysicalPlan


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """The same for every node of a gang, but for ``node``."""

    plan: PhysicalPlan
    node: NodeId
    parallelism: int
    gang: GangNumber
    splits: Mapping[str, Sequence[Split]]
    checkpoints: UnalignedCheckpointConfig | None
    """``None``: checkpointing is off, and nothing of it exists on the node."""
    compression: str | None = "lz4"
    credit_bytes: int = 128 << 20
    progress_interval_ms: int = 500
