"""The rewrites between what the user asked for and what runs: one rule, one function.

``LOGICAL_RULES`` run first, in this order. Then ``tidegate.planner.stages`` chains operators into stages. Last of
all ``insert_barrier_for_fan_in`` puts a barrier before every fan-in of the physical plan. No rule changes rows,
offsets or watermarks. Rules ask operators; only filters and projections, which rules move around, are known by kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidegate.operators.expression import Filter, Project
from tidegate.operators.late import part_late_rows
from tidegate.operators.source import Read
from tidegate.plan.logical import LogicalPlan, consumers, rewrite, topological
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.physical import Edge, PhysicalBarrier, PhysicalPlan


def push_projections(plan: LogicalPlan) -> LogicalPlan:
    """Read only the columns that someone needs, and send only those through an exchange."""
    wanted = _wanted(plan)
    exact = _read_completely(plan)
    return rewrite(plan, lambda node, inputs: node.narrowed(inputs, wanted[node], node in exact))


def push_filters(plan: LogicalPlan) -> LogicalPlan:
    """Let the source apply a filter that is the only reader of it.

    One filter per source: a second one may divide by what the first has ruled out, so they are not put
    together.
    """
    readers = consumers(plan)
    only: dict[OperatorSpec, bool] = {}

    def push(node: OperatorSpec, inputs: tuple[OperatorSpec, ...]) -> OperatorSpec:
        pushed: OperatorSpec = node.with_inputs(inputs)
        if isinstance(pushed, Filter):
            pushed = _pushed(pushed, only)
        only[pushed] = readers[node] <= 1
        return pushed

    return rewrite(plan, push)


def aggregate_before_exchange(plan: LogicalPlan) -> LogicalPlan:
    """Let the senders aggregate first: one row per key and window crosses the exchange instead of many."""
    return rewrite(plan, lambda node, inputs: node.with_inputs(inputs).split())


LOGICAL_RULES: tuple[Callable[[LogicalPlan], LogicalPlan], ...] = (
    part_late_rows,
    push_filters,
    push_projections,
    aggregate_before_exchange,
)


def apply_rules(plan: LogicalPlan) -> LogicalPlan:
    """The plan after all logical rules."""
    for rule in LOGICAL_RULES:
        plan = rule(plan)
    return plan


def insert_barrier_for_fan_in(plan: PhysicalPlan) -> PhysicalPlan:
    """Put a ``PhysicalBarrier`` between every fan-in, every receiver of an exchange, and what feeds them.

    The fan-ins of a running node have as many inputs as these say. Ports stay apart, so a join still knows left from right.
    """
    stages = tuple(replace(stage, barrier=_fence(stage.inputs)) for stage in plan.stages)
    sinks = len(plan.result.sinks)
    result = replace(plan.result, barrier=PhysicalBarrier(forwards=sinks) if sinks > 1 else None)
    return replace(plan, stages=stages, result=result)


# -- projections ---------------------------------------------------------------------------------------------


def _wanted(plan: LogicalPlan) -> dict[OperatorSpec, frozenset[str]]:
    """The columns of every operator that its readers use; of a sink, all."""
    wanted: dict[OperatorSpec, frozenset[str]] = {sink: frozenset(sink.schema.names) for sink in plan.sinks}
    for node in reversed(topological(plan)):
        for port, child in enumerate(node.specs):
            used = node.columns_used(port, wanted[node]) or {child.schema.names[0]}
            wanted[child] = wanted.get(child, frozenset()) | used
    return wanted


def _read_completely(plan: LogicalPlan) -> set[OperatorSpec]:
    """The operators with a reader that does not pick its columns by name, so that they may not have more of them."""
    return {child for node in topological(plan) if not node.picks_columns for child in node.specs}


# -- filters -------------------------------------------------------------------------------------------------


def _pushed(node: Filter, only: dict[OperatorSpec, bool]) -> OperatorSpec:
    """The filter as close to the source as it can go, and in it if the source takes one."""
    (child,) = node.specs
    if not only[child]:
        return node
    match child:
        case Read():
            return child.filtered(node.expression) or node
        case Project() if child.passes_on(node.uses):
            below = _pushed(replace(node, inputs=child.inputs, schema=child.input), only)
            only[below] = True
            return child.with_inputs((below,))
        case _:
            return node


# -- fan-ins -------------------------------------------------------------------------------------------------


def _fence(inputs: tuple[Edge, ...]) -> PhysicalBarrier | None:
    exchanges = sum(edge.kind == "hash" for edge in inputs)
    return PhysicalBarrier(len(inputs) - exchanges, exchanges) if len(inputs) > 1 or exchanges else None
