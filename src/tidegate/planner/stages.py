"""From the logical plan to stages: which operators run in one chain, and which edges lie between chains.

A chain breaks before an operator that needs its rows by key (a hash edge), before one whose description says so (a union, a
user's function), and where an operator has several readers (forward edges).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tidegate.errors import InvalidUseError
from tidegate.plan.logical import LogicalPlan, consumers, topological
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.physical import KEY_GROUPS, Edge, PhysicalPlan, PhysicalResultCollect, Stage
from tidegate.planner.names import name_operators
from tidegate.planner.rules import apply_rules, insert_barrier_for_fan_in


def build(plan: LogicalPlan, parallelism: int) -> PhysicalPlan:
    """The physical plan: names resolved, rules applied, operators chained.

    The same logical plan has the same physical plan every time.
    """
    check_parallelism(parallelism)
    ready = apply_rules(name_operators(plan))
    _check_names(ready)
    stages = _stages(_chains(ready))
    ends = {stage.operators[-1].name: stage.name for stage in stages}
    physical = PhysicalPlan(
        plan.job,
        stages,
        notes={"sinks": [sink.name for sink in ready.sinks]},
        parallelism=parallelism,
        result=PhysicalResultCollect(tuple(ends[sink.name] for sink in ready.sinks)),
    )
    return insert_barrier_for_fan_in(physical)


def check_parallelism(parallelism: object) -> None:
    """Refuse what is no number of subtasks."""
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= KEY_GROUPS:
        raise InvalidUseError(f"parallelism is a whole number from 1 to {KEY_GROUPS} parallelism={parallelism!r}")


# -- chaining ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Chain:
    """A stage in the making: its nodes in order, and the chains that feed it, by port."""

    nodes: list[OperatorSpec]
    feeds: list[_Chain] = field(default_factory=list)
    depth: int = 0


def _chains(plan: LogicalPlan) -> list[_Chain]:
    readers = consumers(plan)
    of: dict[OperatorSpec, _Chain] = {}
    chains: list[_Chain] = []
    for node in topological(plan):
        if _continues(node, readers):
            of[node] = of[node.specs[0]]
            of[node].nodes.append(node)
            continue
        feeds = [of[child] for child in node.specs]
        of[node] = _Chain([node], feeds, 1 + max((each.depth for each in feeds), default=-1))
        chains.append(of[node])
    return sorted(chains, key=lambda chain: chain.depth)


def _continues(node: OperatorSpec, readers: Counter[OperatorSpec]) -> bool:
    """True when a node runs in the chain of its input."""
    return node.description.chained and readers[node.specs[0]] == 1


def _stages(chains: list[_Chain]) -> tuple[Stage, ...]:
    operators = {chain: tuple(node.as_stage_member() for node in chain.nodes) for chain in chains}
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
            edges.append(replace(edge, kind="hash", keys=head.keys) if head.description.keyed else edge)
    return edges


def _stage_name(operators: tuple[OperatorSpec, ...]) -> str:
    naming = (spec.name for spec in operators if spec.description.keyed or spec.description.endpoint)
    return next(naming, operators[0].name)


def _check_names(plan: LogicalPlan) -> None:
    """Names that rules derive may meet one that a user chose."""
    names = Counter(node.name for node in topological(plan))
    for name, times in names.items():
        if times > 1:
            raise InvalidUseError(f"the name is taken by an operator of the planner, choose another name={name}")
