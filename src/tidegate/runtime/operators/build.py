"""From the plan's data to operators.

Sources, maps and sinks are built where the runtime hands them their threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import (
    AggregateSpec,
    FilterSpec,
    JoinSpec,
    OperatorSpec,
    PreAggregateSpec,
    ProjectSpec,
    UnionSpec,
)
from tidegate.runtime.operator import Operator
from tidegate.runtime.operators.aggregate import WindowAggregate
from tidegate.runtime.operators.expression import Expressions, Union
from tidegate.runtime.operators.join import WindowJoin
from tidegate.runtime.operators.preaggregate import PreAggregate
from tidegate.state.keygroups import range_of


def build(spec: OperatorSpec, *, subtask: int, parallelism: int, key_groups: int) -> Operator:
    """The operator of one spec, for one subtask."""
    match spec:
        case FilterSpec() | ProjectSpec():
            return Expressions([spec])
        case UnionSpec():
            return Union()
        case PreAggregateSpec():
            return PreAggregate(spec)
        case AggregateSpec():
            return WindowAggregate(spec, range_of(subtask, parallelism, key_groups), key_groups)
        case JoinSpec():
            return WindowJoin(spec, range_of(subtask, parallelism, key_groups), key_groups)
        case _:
            raise InvalidUseError(f"sources, maps and sinks are not built here operator={spec.name}")


def fuse(specs: Sequence[FilterSpec | ProjectSpec]) -> Operator:
    """One operator that does what these do in a row."""
    if not specs:
        raise InvalidUseError("nothing to fuse: give at least one filter or projection")
    return Expressions(specs)


def fusible(specs: Sequence[OperatorSpec]) -> list[tuple[OperatorSpec, ...]]:
    """The chain with filters and projections in a row put together, for ``fuse``; everything else alone."""
    chains: list[tuple[OperatorSpec, ...]] = []
    for together, grouped in groupby(specs, lambda spec: isinstance(spec, (FilterSpec, ProjectSpec))):
        members = tuple(grouped)
        chains += [members] if together else [(member,) for member in members]
    return chains
