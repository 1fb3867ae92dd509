"""Reads rows of a source. The reader itself is the runtime's: it has offsets, splits and barriers to look after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.entrance import Entrance
from tidegate.plan.capabilities import FiltersRows, PrunesColumns
from tidegate.plan.connector import Source
from tidegate.plan.identity import labelled, last_part
from tidegate.plan.operator import Description, OperatorSpec, Stateless
from tidegate.values import Json


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(OperatorSpec):
    """Rows of a source.

    ``pushed`` is a filter that the source applies itself; ``pruned``: it reads fewer columns.
    """

    description = Description("read", "Source", chained=False, endpoint=True)

    source: Source
    identity: str = ""
    pushed: pc.Expression | None = None
    pruned: bool = False

    def label(self) -> str:
        """With what distinguishes the source."""
        return labelled("read", self.identity or last_part(self.source))

    def meaning(self) -> Json:
        """The source's kind and what distinguishes it."""
        return [type(self.source).__name__, self.identity or last_part(self.source), self.event_time]

    def narrowed(self, inputs: tuple[OperatorSpec, ...], wanted: frozenset[str], exact: bool) -> OperatorSpec:
        """Let the source leave out columns, if it can."""
        names = [name for name in self.schema.names if name in wanted]
        if not isinstance(self.source, PrunesColumns) or len(names) == len(self.schema.names):
            return self
        source = self.source.with_columns(names)
        schema = pa.schema([self.schema.field(name) for name in source.schema.names])
        return replace(self, source=source, schema=schema, pruned=True)

    def filtered(self, expression: pc.Expression) -> Read | None:
        """With a filter that the source applies itself, if it can and has none yet."""
        # The filter was checked against decoded columns; a source would apply it to its own.
        plain = self.source.schema.types == self.schema.types
        if not isinstance(self.source, FiltersRows) or self.pushed is not None or not plain:
            return None
        return replace(self, source=self.source.with_filter(expression), pushed=expression)

    def properties(self) -> dict[str, Json]:
        """Which source, its columns, and what was pushed into it."""
        shown: dict[str, Json] = {"source": type(self.source).__name__, "columns": list(self.schema.names)}
        if self.source.event_time:
            shown["event_time"] = self.source.event_time
        if self.pushed is not None:
            shown["pushed_filter"] = str(self.pushed)
        return shown | {"pushed_columns": True} if self.pruned else shown

    def admit(self) -> Admit:
        """The first operator of its stage."""
        return Admit(Entrance(f"source {self.name!r}", self.schema, self.source.event_time))

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """Offsets of splits, and the event time that watermarks come of."""
        return {"kind": "source", "event_time": self.source.event_time}


def sources_of(spec: OperatorSpec) -> Iterator[Read]:
    """Every source upstream of an operator of a logical plan, and the operator itself if it is one."""
    if isinstance(spec, Read):
        yield spec
    for each in spec.specs:
        yield from sources_of(each)


class Admit(Stateless):
    """The first operator after a source: rows as the plan knows them."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Emit the batch, checked and decoded."""
        return (self._entrance.admitted(batch),)
