"""What a physical plan demands of every checkpoint."""

from __future__ import annotations

from tidegate.core.checkpoint.prepare import ChannelShape, PlanShape
from tidegate.operators.sink import Write
from tidegate.operators.source import Read
from tidegate.plan.physical import Edge, PhysicalPlan
from tidegate.planner.description import describe_state


def plan_shape(plan: PhysicalPlan, parallelism: int) -> PlanShape:
    """Tasks, operators with state, sources, sinks and channels, for the coordinator to check reports against."""
    specs = plan.operators
    channels = {ChannelShape(stage.name, "in", edge.id, edge.kind) for stage in plan.stages for edge in stage.inputs}
    channels |= {ChannelShape(stage.name, "out", edge.id, edge.kind) for stage in plan.stages for edge in stage.outputs}
    return PlanShape(
        job=plan.job,
        parallelism=parallelism,
        key_groups=plan.key_groups,
        tasks=frozenset(stage.name for stage in plan.stages),
        operators=frozenset(spec.name for spec in specs if spec.description.stateful),
        sources=frozenset(spec.name for spec in specs if isinstance(spec, Read)),
        sinks=frozenset(spec.name for spec in specs if isinstance(spec, Write)),
        channels=frozenset(channels),
        fingerprint=describe_state(plan),
        edges={edge.id: edge_text(edge) for edge in plan.edges},
    )


def edge_text(edge: Edge) -> str:
    """What an edge connects. Its number depends on the order of outputs and on other branches; this does not."""
    return f"{edge.source} -> {edge.target}:{edge.port}"
