"""What a physical plan demands of every checkpoint."""

from __future__ import annotations

from tidegate.core.prepare import ChannelShape, PlanShape
from tidegate.plan.physical import (
    AggregateSpec,
    Edge,
    JoinSpec,
    MapSpec,
    PhysicalPlan,
    ProcessSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
)
from tidegate.plan.shape import describe_state

STATEFUL = (AggregateSpec, RunningAggregateSpec, ProcessSpec, JoinSpec, MapSpec)


def plan_shape(plan: PhysicalPlan, parallelism: int) -> PlanShape:
    """Tasks, operators with state, sources, sinks and channels, for the coordinator to check reports against."""
    specs = [spec for stage in plan.stages for spec in stage.operators]
    channels = {ChannelShape(stage.name, "in", edge.id, edge.kind) for stage in plan.stages for edge in stage.inputs}
    channels |= {ChannelShape(stage.name, "out", edge.id, edge.kind) for stage in plan.stages for edge in stage.outputs}
    return PlanShape(
        job=plan.job,
        parallelism=parallelism,
        key_groups=plan.key_groups,
        tasks=frozenset(stage.name for stage in plan.stages),
        operators=frozenset(spec.name for spec in specs if isinstance(spec, STATEFUL)),
        sources=frozenset(spec.name for spec in specs if isinstance(spec, SourceSpec)),
        sinks=frozenset(spec.name for spec in specs if isinstance(spec, SinkSpec)),
        channels=frozenset(channels),
        fingerprint=describe_state(plan),
        edges={edge.id: edge_text(edge) for edge in plan.edges},
    )


def edge_text(edge: Edge) -> str:
    """What an edge connects. Its number depends on the order of outputs and on other branches; this does not."""
    return f"{edge.source} -> {edge.target}:{edge.port}"
