"""The physical plan as one graph of nodes from the result down to the sources: what ``explain`` shows.

Stages and edges are how a plan runs; this is how it is read. A node that feeds two others is one object with
two parents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.core.config import CheckpointConfig, UnalignedMode
from tidegate.plan.connector import Json
from tidegate.plan.names import last_part
from tidegate.plan.physical import (
    Aggregate,
    AggregateSpec,
    Edge,
    FilterSpec,
    JoinSpec,
    MapSpec,
    OperatorSpec,
    PhysicalPlan,
    PreAggregateSpec,
    ProcessSpec,
    ProjectSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
    Stage,
    UnionSpec,
    Window,
)
from tidegate.plan.units import duration_text


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
        tops[stage.name] = _chain(plan, stage, children)
    sinks = [tops[stage.name].as_child(port) for port, stage in enumerate(_sink_stages(plan))]
    return PhysicalNode("PhysicalResultCollect", children=tuple(sinks))


def _sink_stages(plan: PhysicalPlan) -> list[Stage]:
    """In the order in which the user gave the sinks."""
    ends = {
        stage.operators[-1].name: stage for stage in plan.stages if isinstance(stage.operators[-1], SinkSpec)
    }
    return [ends[name] for name in plan.notes.get("sinks", ends)]


def _chain(plan: PhysicalPlan, stage: Stage, children: tuple[Child, ...]) -> PhysicalNode:
    nodes = children
    for spec in stage.operators:
        nodes = (PhysicalNode(_kind(spec), spec.name, _properties(plan, spec), nodes).as_child(),)
    return nodes[0].node


def _kind(spec: OperatorSpec) -> str:
    return "Physical" + type(spec).__name__.removesuffix("Spec")


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


# -- what each operator shows of itself ----------------------------------------------------------------------


def _properties(plan: PhysicalPlan, spec: OperatorSpec) -> dict[str, Json]:
    match spec:
        case SourceSpec():
            return _source(spec) | dict(plan.notes.get("sources", {}).get(spec.name, {}))
        case FilterSpec():
            return {"where": str(spec.expression)}
        case ProjectSpec():
            return {
                "columns": [_column(*each) for each in zip(spec.output.names, spec.expressions, strict=True)]
            }
        case MapSpec():
            return {"function": _function(spec.function)}
        case ProcessSpec():
            return {"keys": list(spec.keys), "function": _function(spec.function), "state": list(spec.state.names)}
        case PreAggregateSpec():
            return {"keys": list(spec.keys)} | _pre_window(spec)
        case RunningAggregateSpec():
            return {"keys": list(spec.keys), "aggregates": [_aggregate(e) for e in spec.aggregates]}
        case AggregateSpec():
            window = _window(spec.window, spec.output.field("window_end").type)
            shown: dict[str, Json] = {
                "keys": list(spec.keys),
                "window": window,
                "aggregates": [_aggregate(e) for e in spec.aggregates],
            }
            return shown | {"late_rows": True} if spec.late else shown
        case JoinSpec():
            return {"keys": list(spec.keys), "window": _window(spec.window, _time(spec.left, spec.left_time))}
        case SinkSpec():
            return _sink(spec)
        case UnionSpec():
            return {}


def _function(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _pre_window(spec: PreAggregateSpec) -> dict[str, Json]:
    if spec.window is None or spec.event_time is None:
        return {}
    return {"window": _window(spec.window, _time(spec.input, spec.event_time))}


def _source(spec: SourceSpec) -> dict[str, Json]:
    shown: dict[str, Json] = {"source": type(spec.source).__name__, "columns": list(spec.output.names)}
    if spec.source.event_time:
        shown["event_time"] = spec.source.event_time
    return shown


def _sink(spec: SinkSpec) -> dict[str, Json]:
    to = last_part(spec.sink)
    return {"sink": type(spec.sink).__name__, "to": to} if to else {"sink": type(spec.sink).__name__}


def _column(name: str, expression: object) -> str:
    return name if str(expression) == name else f"{name}={expression}"


def _time(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type


def _aggregate(each: Aggregate) -> str:
    return f"{each.name}={each.function}({each.column or ''})"


def _window(window: Window, kind: pa.DataType) -> str:
    size, slide = duration_text(window.size, kind), duration_text(window.slide, kind)
    shown = f"{size}, slide={slide}" if window.kind == "sliding" else size
    late = (
        f", allowed_lateness={duration_text(window.allowed_lateness, kind)}"
        if window.allowed_lateness
        else ""
    )
    return f"{window.kind}({shown}{late})"
