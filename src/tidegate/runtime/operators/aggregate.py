"""The receiver's half of a windowed aggregate: keeps partials by pane and gives results when windows close.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.plan.physical import AggregateSpec
from tidegate.runtime.operator import PIECE_ROWS, Frozen, Restored
from tidegate.runtime.operators.closing import WindowedOperator, in_steps
from tidegate.runtime.operators.panes import Panes
from tidegate.state.partial import WINDOW, fitted, merge_partials, parts_of, results, rows_column
from tidegate.state.runs import by_hash, pieces


class WindowAggregate(WindowedOperator):
    """Windowed aggregates per key.

    Windows are given once, earliest first; rows within one are in no order.
    """

    def __init__(self, spec: AggregateSpec, own: range, groups: int) -> None:
        super().__init__(spec.window, own, groups)
        self._spec = spec
        self._parts = parts_of(spec.aggregates)
        expected = [WINDOW, *spec.keys, *(part.name for part in self._parts)]
        if spec.input.names != expected:
            raise InvalidUseError(f"partials have other columns expected={expected} operator={spec.name}")
        counted = rows_column(spec.aggregates)
        self._panes = Panes(
            self.windows,
            self.closed,
            spec.keys,
            groups,
            spec.input,
            WINDOW,
            lambda batches: [merge_partials(batches, spec.keys, self._parts)],
            lambda batch: pc.sum(batch.column(counted)).as_py() or 0,
        )
        self._inputs = (self._panes,)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the partials. Gives nothing."""
        self._panes.insert(batch)
        return ()

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the partials of our key groups."""
        self._restore_meta(pieces)
        self._panes.restore(run for piece in pieces for run in piece.runs)

    def freeze(self) -> Frozen:
        """All runs by reference."""
        return Frozen(self._meta(), tuple(self._panes.runs))

    def _give(self, sides: Sequence[Sequence[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        (partials,) = sides
        for part in by_hash(partials, self._spec.keys, in_steps(partials)):
            if part:
                yield from pieces(
                    self._finish(merge_partials(part, self._spec.keys, self._parts)), PIECE_ROWS
                )

    def _finish(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        starts = partials.column(WINDOW)
        ends = pc.add(starts, self.windows.size)
        keys = [partials.column(key) for key in self._spec.keys]
        return fitted([*keys, starts, ends, *results(partials, self._spec.aggregates)], self._spec.output)
