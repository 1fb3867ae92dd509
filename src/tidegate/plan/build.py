"""From the logical plan to stages: which operators run in one chain, and which edges lie between chains.

A chain breaks before an operator that needs its rows by key (a hash edge), before a union, before and never
behind a user's function, and where a node has several readers (forward edges).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.errors import InvalidUseError
from tidegate.plan.logical import (
    Aggregate,
    Filter,
    Join,
    LogicalPlan,
    MapBatches,
    Node,
    Partial,
    Process,
    Project,
    Read,
    RunningAggregate,
    Union,
    Write,
    consumers,
    topological,
)
from tidegate.plan.names import name_operators
from tidegate.plan.physical import (
    KEY_GROUPS,
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
)
from tidegate.plan.rules import apply_rules

_STATEFUL = (SourceSpec, AggregateSpec, RunningAggregateSpec, ProcessSpec, JoinSpec, SinkSpec)
_KEYED = (Aggregate, RunningAggregate, Process, Join)


def build(plan: LogicalPlan, parallelism: int) -> PhysicalPlan:
    """The physical plan: names given, rules applied, operators chained.

    The same plan gives the same answer every time.
    """
    check_parallelism(parallelism)
    ready = apply_rules(name_operators(plan))
    _check_names(ready)
    return PhysicalPlan(plan.job, _stages(_chains(ready)), notes=_notes(ready), parallelism=parallelism)


def check_parallelism(parallelism: object) -> None:
    """Refuse what is no number of subtasks."""
    if (
        isinstance(parallelism, bool)
        or not isinstance(parallelism, int)
        or not 1 <= parallelism <= KEY_GROUPS
    ):
        raise InvalidUseError(
            f"parallelism is a whole number from 1 to {KEY_GROUPS} parallelism={parallelism!r}"
        )


# -- chaining ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Chain:
    """A stage in the making: its nodes in order, and the chains that feed it, by port."""

    nodes: list[Node]
    feeds: list[_Chain] = field(default_factory=list)
    depth: int = 0


def _chains(plan: LogicalPlan) -> list[_Chain]:
    readers = consumers(plan)
    of: dict[Node, _Chain] = {}
    chains: list[_Chain] = []
    for node in topological(plan):
        if _continues(node, readers):
            of[node] = of[node.inputs[0]]
            of[node].nodes.append(node)
            continue
        feeds = [of[child] for child in node.inputs]
        of[node] = _Chain([node], feeds, 1 + max((each.depth for each in feeds), default=-1))
        chains.append(of[node])
    return sorted(chains, key=lambda chain: chain.depth)


def _continues(node: Node, readers: Counter[Node]) -> bool:
    """True when a node runs in the chain of its input."""
    if isinstance(node, (Read, MapBatches, Union, *_KEYED)):
        return False
    return readers[node.inputs[0]] == 1


def _stages(chains: list[_Chain]) -> tuple[Stage, ...]:
    operators = {chain: tuple(spec_of(node) for node in chain.nodes) for chain in chains}
    edges = _edges(chains, {chain: _stage_name(operators[chain]) for chain in chains})
    return tuple(
        Stage(
            name=(name := _stage_name(operators[chain])),
            operators=operators[chain],
            inputs=tuple(edge for edge in edges if edge.target == name),
            outputs=tuple(edge for edge in edges if edge.source == name),
        )
        for chain in chains
    )


def _edges(chains: list[_Chain], names: dict[_Chain, str]) -> list[Edge]:
    edges: list[Edge] = []
    for chain in chains:
        head = chain.nodes[0]
        for port, feed in enumerate(chain.feeds):
            edge = Edge(len(edges), names[feed], names[chain], port, "forward", head.inputs[port].schema)
            edges.append(
                replace(edge, kind="hash", keys=head.keys) if isinstance(head, _KEYED) else edge
            )
    return edges


def _stage_name(operators: tuple[OperatorSpec, ...]) -> str:
    stateful = (spec.name for spec in operators if isinstance(spec, _STATEFUL))
    return next(stateful, operators[0].name)


def _check_names(plan: LogicalPlan) -> None:
    """Names that rules derive may meet one that a user gave."""
    names = Counter(node.name for node in topological(plan))
    for name, times in names.items():
        if times > 1:
            raise InvalidUseError(
                f"the name is taken by an operator of the planner, choose another name={name}"
            )


def _notes(plan: LogicalPlan) -> dict[str, Any]:
    reads = [node for node in topological(plan) if isinstance(node, Read)]
    return {
        "sinks": [sink.name for sink in plan.sinks],
        "sources": {node.name: _pushed(node) for node in reads},
    }


def _pushed(node: Read) -> dict[str, Any]:
    pushed = {} if node.pushed is None else {"pushed_filter": str(node.pushed)}
    return pushed | ({"pushed_columns": True} if node.narrowed else {})


# -- operators -----------------------------------------------------------------------------------------------


def spec_of(node: Node) -> OperatorSpec:
    """What the runtime builds for a node."""
    match node:
        case Read():
            return SourceSpec(node.name, node.source, node.schema)
        case Filter():
            return FilterSpec(node.name, node.expression, node.schema)
        case Project():
            return ProjectSpec(node.name, tuple(each.expression for each in node.columns), node.schema)
        case MapBatches():
            return MapSpec(node.name, node.function, node.schema, node.event_time)
        case Union():
            return UnionSpec(node.name, node.schema)
        case Write():
            return SinkSpec(node.name, node.sink, node.schema)
        case Partial():
            return PreAggregateSpec(
                node.name, node.keys, node.window, node.aggregates, node.event_time, node.inputs[0].schema, node.schema
            )
        case Aggregate():
            return _aggregate_spec(node)
        case RunningAggregate():
            return RunningAggregateSpec(
                node.name, node.keys, node.aggregates, node.inputs[0].schema, node.schema
            )
        case Process():
            return ProcessSpec(
                node.name, node.function, node.keys, node.state, node.inputs[0].schema, node.schema, node.event_time
            )
        case Join():
            return _join_spec(node)
        case _:
            raise AssertionError(f"no operator for {type(node).__name__}")


def _aggregate_spec(node: Aggregate) -> OperatorSpec:
    child = node.inputs[0]
    time = child.event_time
    assert time is not None
    return AggregateSpec(
        node.name, node.keys, node.window, node.aggregates, time, child.schema, node.schema, node.late
    )


def _join_spec(node: Join) -> OperatorSpec:
    left, right = node.inputs
    assert left.event_time is not None and right.event_time is not None
    return JoinSpec(
        node.name,
        node.keys,
        node.window,
        left.schema,
        right.schema,
        left.event_time,
        right.event_time,
        node.schema,
    )
