"""What windowed operators share: the watermark that closes windows, the bounded steps it does so in, and the
state's frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tidegate.plan.connector import Json
from tidegate.plan.physical import Window
from tidegate.runtime.operator import Restored
from tidegate.runtime.operators.keyed import check_key_groups
from tidegate.runtime.operators.panes import Panes, late_rows_of
from tidegate.runtime.operators.window import Closed, Windows

CLOSE_ROWS = 131_072
"""About as many rows of state as one step of closing takes on."""


class WindowedOperator:
    """Closes windows as the watermark moves. Subclasses say what comes of a window's rows."""

    def __init__(self, window: Window, own: range, groups: int) -> None:
        self.windows = Windows.of(window)
        self.closed = Closed(own, groups)
        self.watermark_delay = self.windows.lateness
        self._groups = groups
        self._late_rows = 0
        self._inputs: tuple[Panes, ...] = ()

    @property
    def late_rows(self) -> int:
        """Rows dropped because their windows were closed, since the job began."""
        return self._late_rows + sum(panes.late_rows for panes in self._inputs)

    @property
    def state_rows(self) -> int:
        """Rows of state held now."""
        return sum(run.batch.num_rows for panes in self._inputs for run in panes.runs)

    @property
    def state_bytes(self) -> int:
        """Bytes of the rows of state held now."""
        return sum(run.batch.nbytes for panes in self._inputs for run in panes.runs)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Give the windows that close. A watermark that does not move gives nothing."""
        if timestamp <= self.closed.through:
            return ()
        starts = sorted({start for panes in self._inputs for start in panes.starts_due(timestamp)})
        if starts:
            return self._close(starts, timestamp)
        self._pass(timestamp)
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing: all rows are in the state."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing: the last watermark has closed every window."""
        return ()

    def _give(self, sides: Sequence[Sequence[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """What comes of the rows of some windows, per input; every row is labelled with its window's start.
        """
        raise NotImplementedError

    def _close(self, starts: Sequence[int], watermark: int) -> Iterator[pa.RecordBatch]:
        """Small windows are given together, because each step has a fixed cost."""
        sides: list[list[pa.RecordBatch]] = [[] for _ in self._inputs]
        for start in starts:
            window = [panes.window(start) for panes in self._inputs]
            if any(sides) and _rows(sides) + _rows(window) > CLOSE_ROWS:
                yield from self._give(sides)
                sides = [[] for _ in self._inputs]
            for side, batches in zip(sides, window, strict=True):
                side.extend(batches)
            for panes in self._inputs:
                panes.retire(self.windows.closes_at(start))
        if any(sides):
            yield from self._give(sides)
        self._pass(watermark)

    def _pass(self, watermark: int) -> None:
        self.closed.advance(watermark)
        for panes in self._inputs:
            panes.retire(watermark)

    def _meta(self) -> dict[str, Json]:
        return closed_meta(self.closed, self._groups, self.late_rows)

    def _restore_meta(self, pieces: Sequence[Restored]) -> None:
        self._late_rows = restore_closed(self.closed, self._groups, pieces)


def closed_meta(closed: Closed, groups: int, late_rows: int) -> dict[str, Json]:
    """How far windows are closed, for a snapshot."""
    return {
        "closed_through": closed.to_json(),
        "late_rows": late_rows,
        "first_group": closed.own.start,
        "key_groups": groups,
    }


def restore_closed(closed: Closed, groups: int, pieces: Sequence[Restored]) -> int:
    """Take over how far windows are closed; gives the late rows that are ours to count on."""
    check_key_groups(groups, pieces)
    closed.restore([piece.meta.get("closed_through") for piece in pieces])
    return late_rows_of(pieces, closed.own)


def in_steps(*sides: Sequence[pa.RecordBatch]) -> int:
    """How many steps these rows are closed in."""
    return -(-_rows(sides) // CLOSE_ROWS)


def _rows(sides: Sequence[Sequence[pa.RecordBatch]]) -> int:
    return sum(batch.num_rows for side in sides for batch in side)
