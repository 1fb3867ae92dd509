"""The logical plan: what the user asked for, as a graph of operators. Nothing here knows of stages, channels or parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate.plan.operator import Description, OperatorSpec


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Named(OperatorSpec):
    """Names its input. Gone before the rules run, so that naming a stream does not read it twice."""

    description = Description("named", "Named")

    alias: str


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """A job's name and its sinks; everything else hangs below them."""

    job: str
    sinks: tuple[OperatorSpec, ...]


def topological(plan: LogicalPlan) -> list[OperatorSpec]:
    """Every operator once, inputs before those who read them, in the order of the sinks."""
    order: dict[OperatorSpec, None] = {}
    stack: list[tuple[OperatorSpec, bool]] = [(sink, False) for sink in reversed(plan.sinks)]
    while stack:
        node, inputs_done = stack.pop()
        if node in order:
            continue
        if inputs_done:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.specs))
    return list(order)


def consumers(plan: LogicalPlan) -> Counter[OperatorSpec]:
    """How many inputs read each operator. One that a join reads on both ports counts twice."""
    return Counter(child for node in topological(plan) for child in node.specs)


def rewrite(plan: LogicalPlan, rule: Callable[[OperatorSpec, tuple[OperatorSpec, ...]], OperatorSpec]) -> LogicalPlan:
    """Replace every operator, inputs first and shared ones once.

    ``rule`` gets the old operator and its new inputs.
    """
    done: dict[OperatorSpec, OperatorSpec] = {}
    for node in topological(plan):
        done[node] = rule(node, tuple(done[child] for child in node.specs))
    return replace(plan, sinks=tuple(done[sink] for sink in plan.sinks))
