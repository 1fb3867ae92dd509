"""The rows of several streams as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidegate.operators.expression import only_columns
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Port, Stateless


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(OperatorSpec):
    """The rows of all inputs, in any order."""

    description = Description("union", "Union", chained=False)

    def with_inputs(self, inputs: Sequence[OperatorSpec | Port]) -> Union:
        """The columns follow the first input's."""
        return self if tuple(inputs) == self.inputs else replace(self, inputs=tuple(inputs), schema=inputs[0].schema)

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """Those that its readers want."""
        return wanted

    def narrowed(self, inputs: tuple[OperatorSpec, ...], wanted: frozenset[str], exact: bool) -> OperatorSpec:
        """Every input with the same columns."""
        names = [name for name in self.schema.names if name in wanted]
        return self.with_inputs([only_columns(each, names, self.name, port) for port, each in enumerate(inputs)])

    def build(self, context: OperatorContext) -> UnionOperator:
        """Passes batches on."""
        return UnionOperator()


class UnionOperator(Stateless):
    """Passes on what comes on any input."""

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Emit the batch as it is."""
        return (batch,) if batch.num_rows else ()
