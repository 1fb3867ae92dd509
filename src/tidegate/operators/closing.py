"""What windowed operators share: the watermark that closes windows, and the bounded steps it does so in.

From when a window begins to be emitted its rows are late. Emitting can stop after any step: what is left is pending
output, which is state, and the next call of ``watermark`` goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import TypeAlias

import pyarrow as pa

from tidegate.plan.operator import OperatorContext, Stateful
from tidegate.state.interface import Merge, PaneState
from tidegate.state.pending import Parts, Sides
from tidegate.state.run import Restored, Run
from tidegate.state.runs import PARTS_MAX, empty_batch
from tidegate.state.windows import Windows

CLOSE_ROWS = 131_072
"""About as many rows of state as one step of closing takes on."""
CLOSE_BYTES = 8 << 20
"""About as many bytes of them: what a step emits goes before a barrier that comes meanwhile."""


RowsOf: TypeAlias = Callable[[pa.RecordBatch], int]


class ClosingOperator(Stateful):
    """Closes windows of any kind; what it emits then can stop between two steps."""

    def __init__(self, keys: Sequence[str], lateness: int, context: OperatorContext) -> None:
        self.watermark_delay = lateness
        self.stopping = False
        self.has_pending = False
        self.state = context.state(keys)
        self.closed = self.state.closed("closed")
        self._groups = context.key_groups

    @property
    def late_rows(self) -> int:
        """Rows dropped or sent away because their windows were closed, since the job began."""
        return self.closed.late_rows

    def promise(self, timestamp: int) -> None:
        """Rows to come are late by this time at least."""
        self.closed.promised = timestamp


class WindowedOperator(ClosingOperator):
    """Closes windows as the watermark moves. Subclasses say what comes of a window's rows.

    ``inputs`` are the columns of each input's rows, by the name of their state; ``rows_of`` counts source rows.
    """

    def __init__(
        self,
        windows: Windows,
        keys: Sequence[str],
        output: pa.Schema,
        context: OperatorContext,
        inputs: Mapping[str, pa.Schema],
        merge: Merge,
        rows_of: RowsOf,
    ) -> None:
        super().__init__(keys, windows.lateness, context)
        self.windows = windows
        self._nothing = empty_batch(output)
        self._inputs: tuple[PaneState, ...] = tuple(
            self.state.panes(name, schema, windows, self.closed, merge, rows_of) for name, schema in inputs.items()
        )
        self._pending = self.state.pending("pending", self._inputs, in_steps)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Drain pending output, then emit the windows that close. A watermark that does not move closes nothing."""
        if self.has_pending or (timestamp > self.closed.through and self._due(timestamp)):
            return self._close(timestamp)
        self._pass(timestamp)
        return ()

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the rows of our key groups. What was pending is emitted before anything else."""
        super().restore(pieces)
        self.has_pending = bool(self._pending)

    def _emit(self, step: Parts) -> Iterator[pa.RecordBatch]:
        """What comes of the rows of one step, per input; every row is labelled with its window's start.

        Whoever stops inside of it leaves the rest with ``_pending``.
        """
        raise NotImplementedError

    # -- closing ---------------------------------------------------------------------------------------------

    def _close(self, watermark: int) -> Iterator[pa.RecordBatch]:
        self.has_pending = True
        while not self.stopping:
            if not self._pending and not self._begin(watermark):
                self._pass(watermark)
                self.has_pending = False
                return
            yield from self._drain()

    def _due(self, watermark: int) -> list[int]:
        return sorted({start for panes in self._inputs for start in panes.starts_due(watermark)})

    def _begin(self, watermark: int) -> bool:
        """The next windows that are due leave the panes. Small ones together: each step has a fixed cost."""
        taken: list[tuple[int, list[list[Run]]]] = []
        weight = 0.0
        for start in self._due(watermark):
            window = [panes.window(start) for panes in self._inputs]
            weight += _weight(window)
            if taken and weight > 1:
                break
            taken.append((start, window))
        if not taken:
            return False
        self._begin_windows(taken)
        self._pass(self.windows.closes_at(taken[-1][0]))
        return True

    def _begin_windows(self, taken: Sequence[tuple[int, list[list[Run]]]]) -> None:
        """A large window stays as it is: what an earlier checkpoint has stored of it need not be stored again."""
        start, window = taken[0]
        if len(taken) == 1 and self.closed.uniform:
            self._pending.begin(window, None if self.windows.tumbling else start)
            return
        sides: list[list[Run]] = [[] for _ in self._inputs]
        for start, window in taken:
            for side, panes, runs in zip(sides, self._inputs, window, strict=True):
                side += panes.labelled(runs, start)
        self._pending.begin(sides)

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Drain pending output, step by step. An empty batch now and then lets the loop look up meanwhile."""
        looked = 0
        for rows in self._pending.split():
            looked += rows
            if looked > CLOSE_ROWS:
                looked = 0
                yield self._nothing
                if self.stopping:
                    return
        while (step := self._pending.take()) is not None:
            yield from self._emit(step)
            if self.stopping:
                return

    def _pass(self, watermark: int) -> None:
        if watermark > self.closed.through:
            self.closed.advance(watermark)
            for panes in self._inputs:
                panes.retire(watermark)


def in_steps(sides: Sides) -> int:
    """How many steps these rows are closed in."""
    return min(PARTS_MAX, max(1, ceil(_weight(sides))))


def _weight(sides: Sides) -> float:
    """How many steps' worth of rows this is."""
    batches = [run.batch for side in sides for run in side]
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    return float(max(rows / CLOSE_ROWS, size / CLOSE_BYTES))
