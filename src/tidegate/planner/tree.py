"""The physical plan as one graph of nodes from the result down to the sources: what ``explain`` shows.

Stages and edges are how a plan runs; this is how it is read. A node that feeds two others is one object with
two parents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.core.checkpoint.config import CheckpointConfig, UnalignedMode
from tidegate.operators.sink import Write
from tidegate.plan.physical import Edge, PhysicalPlan, Stage
from tidegate.plan.units import duration_text
from tidegate.values import Json


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A child and the port that it feeds."""

    node: PhysicalNode
    port: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalNode:
    """One line of ``explain``."""

    kind: str
    name: str = ""
    properties: dict[str, Json] = field(default_factory=dict)
    children: tuple[Child, ...] = ()

    def as_child(self, port: int = 0) -> Child:
        """This node at a port."""
        return Child(self, port)


def is_exchange(node: PhysicalNode) -> bool:
    """True for an edge between all subtasks."""
    return node.kind == "PhysicalExchange"


def upstream_count(node: PhysicalNode) -> int:
    """The channels that come together at a node: one per child, and per sending subtask of an exchange."""
    return sum(_channels(child.node) for child in node.children)


def _channels(node: PhysicalNode) -> int:
    channels = node.properties["channels"] if is_exchange(node) else 1
    assert isinstance(channels, int)
    return channels


def physical_tree(plan: PhysicalPlan, checkpoint: CheckpointConfig | None = None) -> PhysicalNode:
    """The tree of a plan, before barriers are put in.

    Without ``checkpoint`` the default settings are shown.
    """
    config = checkpoint or CheckpointConfig(interval="10s")
    tops: dict[str, PhysicalNode] = {}
    for stage in plan.stages:
        children = tuple(_edge(plan, edge, tops[edge.source], config) for edge in stage.inputs)
        tops[stage.name] = _chain(stage, children)
    sinks = [tops[stage.name].as_child(port) for port, stage in enumerate(_sink_stages(plan))]
    return PhysicalNode("PhysicalResultCollect", children=tuple(sinks))


def _sink_stages(plan: PhysicalPlan) -> list[Stage]:
    """In the order in which the user listed the sinks."""
    ends = {stage.operators[-1].name: stage for stage in plan.stages if isinstance(stage.operators[-1], Write)}
    return [ends[name] for name in plan.notes.get("sinks", ends)]


def _chain(stage: Stage, children: tuple[Child, ...]) -> PhysicalNode:
    nodes = children
    for spec in stage.operators:
        nodes = (PhysicalNode(f"Physical{spec.description.physical}", spec.name, spec.properties(), nodes).as_child(),)
    return nodes[0].node


def _edge(plan: PhysicalPlan, edge: Edge, sender: PhysicalNode, config: CheckpointConfig) -> Child:
    mode: dict[str, Json] = {"checkpoint": checkpoint_mode(plan, edge, config)}
    if edge.kind == "forward":
        return PhysicalNode("PhysicalForward", "", mode, (sender.as_child(),)).as_child(edge.port)
    exchange: dict[str, Json] = {"hash": True, "keys": list(edge.keys), "channels": plan.parallelism}
    return PhysicalNode("PhysicalExchange", "", exchange | mode, (sender.as_child(),)).as_child(edge.port)


def checkpoint_mode(plan: PhysicalPlan, edge: Edge, config: CheckpointConfig) -> str:
    """Whether barriers may overtake data on an edge, and why not if not."""
    if not config.enabled:
        return "off"
    if config.unaligned == UnalignedMode.NEVER:
        return "aligned-only: unaligned=never"
    reason = _aligned_reason(plan, edge)
    if reason:
        return f"aligned-only: {reason}"
    if config.unaligned == UnalignedMode.ALWAYS:
        return "unaligned"
    return f"aligned→unaligned after {duration_text(config.alignment_timeout_ms, pa.int64())}"


def _aligned_reason(plan: PhysicalPlan, edge: Edge) -> str | None:
    """An edge's own reason, or that of another input: a fan-in aligns on all of its inputs or on none."""
    if edge.aligned_only:
        return edge.aligned_only
    others = [each.aligned_only for each in plan.stage(edge.target).inputs if each.aligned_only]
    return f"another input of {edge.target} is ({others[0]})" if others else None
