"""Filters and projections: neighbours among them are one Acero plan per batch, because the fixed cost of a plan is
most of its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from tidegate.errors import InvalidUseError
from tidegate.plan.expressions import Column, passed_on
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Port, Stateless
from tidegate.values import Json

EXPRESSIONS = "expressions"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(OperatorSpec):
    """The input's rows for which the expression is true."""

    description = Description("filter", "Filter", fused=EXPRESSIONS)

    expression: pc.Expression
    uses: frozenset[str]

    def with_inputs(self, inputs: Sequence[OperatorSpec | Port]) -> Filter:
        """The columns follow the input's."""
        return self if tuple(inputs) == self.inputs else replace(self, inputs=tuple(inputs), schema=inputs[0].schema)

    def meaning(self) -> Json:
        """The expression."""
        return str(self.expression)

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """Those that its readers want and those of the expression."""
        return wanted | self.uses

    def properties(self) -> dict[str, Json]:
        """The expression."""
        return {"where": str(self.expression)}

    def declaration(self) -> acero.Declaration:
        """Its step in an Acero plan."""
        return acero.Declaration("filter", acero.FilterNodeOptions(self.expression))

    def build(self, context: OperatorContext) -> Expressions:
        """An Acero plan of one step."""
        return Expressions([self])

    def build_fused(self, following: Sequence[OperatorSpec], context: OperatorContext) -> Expressions:
        """An Acero plan of all steps."""
        return _fused(self, following)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Project(OperatorSpec):
    """Computed columns, in this order."""

    description = Description("select", "Project", fused=EXPRESSIONS, picks_columns=True)

    columns: tuple[Column, ...]

    def meaning(self) -> Json:
        """The expressions of columns that are not just passed on."""
        return [[each.name, str(each.expression)] for each in self.columns if not each.is_same]

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """Those that the wanted columns are computed from."""
        return frozenset().union(*(each.uses for each in self.columns if each.name in wanted))

    def narrowed(self, inputs: tuple[OperatorSpec, ...], wanted: frozenset[str], exact: bool) -> OperatorSpec:
        """Without the columns that nobody wants; gone when it computes nothing and nobody minds more columns."""
        (child,) = inputs
        kept = tuple(each for each in self.columns if each.name in wanted)
        names = [each.name for each in kept]
        if all(each.is_same for each in kept) and (not exact or names == child.schema.names):
            return child
        schema = pa.schema([self.schema.field(name) for name in names])
        return replace(self, inputs=inputs, columns=kept, schema=schema)

    def passes_on(self, names: frozenset[str]) -> bool:
        """True when these columns are its input's, unchanged."""
        return all(each.is_same for each in self.columns if each.name in names)

    def properties(self) -> dict[str, Json]:
        """The columns, each with its expression unless it is just passed on."""
        return {"columns": [_shown(each.name, each.expression) for each in self.columns]}

    def declaration(self) -> acero.Declaration:
        """Its step in an Acero plan."""
        options = acero.ProjectNodeOptions([each.expression for each in self.columns], self.schema.names)
        return acero.Declaration("project", options)

    def build(self, context: OperatorContext) -> Expressions:
        """An Acero plan of one step."""
        return Expressions([self])

    def build_fused(self, following: Sequence[OperatorSpec], context: OperatorContext) -> Expressions:
        """An Acero plan of all steps."""
        return _fused(self, following)


def _shown(name: str, expression: pc.Expression) -> str:
    return name if str(expression) == name else f"{name}={expression}"


def only_columns(spec: OperatorSpec, names: list[str], reader: str, port: int) -> OperatorSpec:
    """An operator's rows with these columns only, in this order, for one of its readers."""
    if spec.schema.names == names:
        return spec
    kept = [spec.schema.field(name) for name in names]
    return Project(
        schema=pa.schema(kept),
        event_time=spec.event_time if spec.event_time in names else None,
        inputs=(spec,),
        name=f"{reader}.input{port}",
        columns=tuple(passed_on(field) for field in kept),
    )


def _fused(first: Filter | Project, following: Sequence[OperatorSpec]) -> Expressions:
    members = [spec for spec in following if isinstance(spec, Filter | Project)]
    assert len(members) == len(following), "only filters and projections have this word in fused"
    return Expressions([first, *members])


class Expressions(Stateless):
    """Filters and projections in a row.

    Rows keep their order; a row for which a filter is null is dropped.
    """

    def __init__(self, specs: Sequence[Filter | Project]) -> None:
        self._steps = [spec.declaration() for spec in specs]
        self._output = specs[-1].schema
        self._names = "+".join(spec.name for spec in specs)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Emit what is left of the batch, in the pieces that Acero makes."""
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
        try:
            table = acero.Declaration.from_sequence([source, *self._steps]).to_table(use_threads=False)
        except pa.ArrowException as error:
            raise InvalidUseError(f"an expression failed: {error} operator={self._names}") from error
        for piece in table.to_batches():
            if piece.num_rows:
                yield pa.RecordBatch.from_arrays(piece.columns, schema=self._output)
