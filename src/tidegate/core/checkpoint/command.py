"""What is sent to nodes in the course of one attempt, in which order. Builds effects; decides nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.checkpoint.attempt import CheckpointAttempt
from tidegate.core.checkpoint.effects import (
    CheckpointStarted,
    CoordinatorEffect,
    SendAbort,
    SendFinalize,
    SendInject,
    SendPromote,
    SendStarted,
    Stamp,
)
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.ids import NodeId


def start(attempt: CheckpointAttempt, stamp: Stamp, config: DistributedCheckpointConfig) -> list[CoordinatorEffect]:
    """Tell every node that it begins, BEFORE any of them is told to inject or to report its last state."""
    alignment_timeout_ms = attempt.alignment_timeout_ms(config)
    started = CheckpointStarted(
        term=attempt.term,
        checkpoint_id=attempt.checkpoint_id,
        epoch=attempt.epoch,
        parent=None if attempt.parent is None else attempt.parent.epoch,
        age_ms=0,
        timeout_ms=config.checkpoint_timeout_ms,
        alignment_timeout_ms=alignment_timeout_ms,
        aligned=alignment_timeout_ms is None,
        compacts=attempt.compacts,
    )
    nodes, numbers = sorted(attempt.nodes), (attempt.checkpoint_id, attempt.epoch)
    begin: list[CoordinatorEffect] = [SendStarted(node, stamp, started) for node in nodes]
    if attempt.final:
        return [*begin, *(SendFinalize(node, stamp, *numbers) for node in nodes)]
    unaligned = alignment_timeout_ms == 0
    return [*begin, *(SendInject(node, stamp, *numbers, unaligned) for node in sorted(attempt.sources))]


def promote(attempt: CheckpointAttempt, stamp: Stamp) -> list[CoordinatorEffect]:
    """Let barriers overtake where they have not left yet.

    A node that has reported has nothing left to promote.
    """
    return [SendPromote(node, stamp, attempt.checkpoint_id) for node in sorted(attempt.missing)]


def abort(nodes: Iterable[NodeId], stamp: Stamp, checkpoint_id: int, reason: str) -> list[CoordinatorEffect]:
    """This id and all below it are dead."""
    return [SendAbort(node, stamp, checkpoint_id, reason) for node in sorted(nodes)]
