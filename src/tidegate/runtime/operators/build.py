"""From the plan's data to operators.

Sources, users' functions and sinks are built where the runtime hands them their threads.
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
    RunningAggregateSpec,
    UnionSpec,
)
from tidegate.runtime.operator import Operator
from tidegate.runtime.operators.aggregate import WindowAggregate, WindowAggregateWithLate
from tidegate.runtime.operators.expression import Expressions, Union
from tidegate.runtime.operators.join import WindowJoin
from tidegate.runtime.operators.preaggregate import PreAggregate
from tidegate.runtime.operators.running import RunningAggregate
from tidegate.runtime.operators.session import SessionAggregate, SessionAggregateWithLate
from tidegate.state.keygroups import range_of


def build(
    spec: OperatorSpec, *, subtask: int, parallelism: int, key_groups: int, checkpointing: bool = True
) -> Operator:
    """The operator of one spec, for one subtask."""
    own = range_of(subtask, parallelism, key_groups)
    match spec:
        case FilterSpec() | ProjectSpec():
            return Expressions([spec])
        case UnionSpec():
            return Union()
        case PreAggregateSpec():
            return PreAggregate(spec)
        case AggregateSpec():
            return _windowed(spec, own, key_groups)
        case RunningAggregateSpec():
            return RunningAggregate(spec, own, key_groups, every_batch=not checkpointing)
        case JoinSpec():
            return WindowJoin(spec, own, key_groups)
        case _:
            raise InvalidUseError(f"sources, users' functions and sinks are not built here operator={spec.name}")


def _windowed(spec: AggregateSpec, own: range, key_groups: int) -> Operator:
    if spec.window.kind == "session":
        return (SessionAggregateWithLate if spec.late else SessionAggregate)(spec, own, key_groups)
    return (WindowAggregateWithLate if spec.late else WindowAggregate)(spec, own, key_groups)


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
