"""Filters and projections: a run of them is one Acero plan per batch, because the fixed cost of a plan is
most of its cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyarrow import acero

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import FilterSpec, ProjectSpec
from tidegate.runtime.operator import Frozen, Restored


class Stateless:
    """What operators without state and buffers have in common."""

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Gives nothing."""
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing."""
        return ()

    def freeze(self) -> Frozen | None:
        """There is no state."""
        return None

    def restore(self, pieces: Sequence[Restored]) -> None:
        """There is nothing to take over."""


class Union(Stateless):
    """Passes on what comes on any input."""

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Give the batch as it is."""
        return (batch,) if batch.num_rows else ()


class Expressions(Stateless):
    """Filters and projections in a row.

    Rows keep their order; a row for which a filter is null is dropped.
    """

    def __init__(self, specs: Sequence[FilterSpec | ProjectSpec]) -> None:
        self._steps = [_step(spec) for spec in specs]
        self._output = specs[-1].output
        self._names = "+".join(spec.name for spec in specs)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give what is left of the batch, in the pieces that Acero makes."""
        source = acero.Declaration(
            "table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        )
        try:
            table = acero.Declaration.from_sequence([source, *self._steps]).to_table(use_threads=False)
        except pa.ArrowException as error:
            raise InvalidUseError(f"an expression failed: {error} operator={self._names}") from error
        for piece in table.to_batches():
            if piece.num_rows:
                yield pa.RecordBatch.from_arrays(piece.columns, schema=self._output)


def _step(spec: FilterSpec | ProjectSpec) -> acero.Declaration:
    if isinstance(spec, FilterSpec):
        return acero.Declaration("filter", acero.FilterNodeOptions(spec.expression))
    options = acero.ProjectNodeOptions(list(spec.expressions), spec.output.names)
    return acero.Declaration("project", options)
