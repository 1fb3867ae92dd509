"""Late rows as a stream of their own: where they are asked for, the aggregate emits them beside its results, in one wide
schema, and projections part the two after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate import WindowAggregate
from tidegate.operators.expression import Filter, Project
from tidegate.plan.expressions import Column, passed_on
from tidegate.plan.logical import LogicalPlan, rewrite, topological
from tidegate.plan.operator import Description, OperatorSpec
from tidegate.plan.schemas import LATE, late_name, wide_schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Late(OperatorSpec):
    """The late rows of its input, which is a ``WindowAggregate``. The planner replaces it."""

    description = Description("late", "Late")


def part_late_rows(plan: LogicalPlan) -> LogicalPlan:
    """Let an aggregate whose late rows are asked for emit them, and part them from its results."""
    asked = {node.inputs[0] for node in topological(plan) if isinstance(node, Late)}
    wide: dict[OperatorSpec, OperatorSpec] = {}

    def part(node: OperatorSpec, inputs: tuple[OperatorSpec, ...]) -> OperatorSpec:
        if isinstance(node, Late):
            return _late_view(node, wide[node.specs[0]])
        complete = node.with_inputs(inputs)
        if node not in asked or not isinstance(complete, WindowAggregate):
            return complete
        wide[node] = replace(complete, late=True, schema=wide_schema(complete.schema, inputs[0].schema))
        return _results_view(complete, wide[node])

    return rewrite(plan, part) if asked else plan


def _results_view(node: WindowAggregate, wide: OperatorSpec) -> Project:
    return Project(
        schema=node.schema,
        event_time=node.event_time,
        inputs=(_where(wide, ~pc.field(LATE), f"{node.name}.results.only"),),
        name=f"{node.name}.results",
        columns=tuple(passed_on(field) for field in node.schema),
    )


def _late_view(node: Late, wide: OperatorSpec) -> Project:
    only = _where(wide, pc.field(LATE), f"{node.name}.only")
    columns = tuple(_late_column(field) for field in node.schema)
    return Project(schema=node.schema, event_time=None, inputs=(only,), name=node.name, columns=columns)


def _late_column(field: pa.Field) -> Column:
    name = late_name(field.name)
    return Column(field.name, pc.field(name), field.type, frozenset((name,)))


def _where(wide: OperatorSpec, condition: pc.Expression, name: str) -> Filter:
    return Filter(
        schema=wide.schema,
        event_time=wide.event_time,
        inputs=(wide,),
        name=name,
        expression=condition,
        uses=frozenset((LATE,)),
    )
