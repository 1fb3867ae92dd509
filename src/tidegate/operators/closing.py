"""What windowed operators share: the watermark that closes windows, the bounded steps it does so in, and the
state's frame.

From when a window begins to be emitted its rows are late. Emitting can stop after any step: what is left is pending
output, which is state, and the next call of ``watermark`` goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import pyarrow as pa

from tidegate.plan.operator import OperatorContext
from tidegate.state.closed import Closed
from tidegate.state.ownership import check_key_groups
from tidegate.state.panes import Panes, late_rows_of
from tidegate.state.pending import PENDING, Parts, PendingOutput, StoredRuns
from tidegate.state.run import Frozen, Restored, Run
from tidegate.state.runs import PARTS_MAX, by_hash, empty_batch
from tidegate.state.windows import Windows
from tidegate.values import Json

CLOSE_ROWS = 131_072
"""About as many rows of state as one step of closing takes on."""
CLOSE_BYTES = 8 << 20
"""About as many bytes of them: what a step emits goes before a barrier that comes meanwhile."""


class WindowedOperator:
    """Closes windows as the watermark moves. Subclasses say what comes of a window's rows."""

    def __init__(self, windows: Windows, keys: Sequence[str], output: pa.Schema, context: OperatorContext) -> None:
        self.windows = windows
        self.closed = Closed(context.own, context.key_groups)
        self.watermark_delay = self.windows.lateness
        self.stopping = False
        self.has_pending = False
        self._pending: PendingOutput | None = None
        self._keys = tuple(keys)
        self._nothing = empty_batch(output)
        self._groups = context.key_groups
        self._late_rows = 0
        self._inputs: tuple[Panes, ...] = ()

    @property
    def late_rows(self) -> int:
        """Rows dropped because their windows were closed, since the job began."""
        return self._late_rows + sum(panes.late_rows for panes in self._inputs)

    @property
    def state_rows(self) -> int:
        """Rows of state held now."""
        return sum(run.batch.num_rows for run in self._held)

    @property
    def state_bytes(self) -> int:
        """Bytes of the rows of state held now."""
        return sum(run.batch.nbytes for run in self._held)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Drain pending output, then emit the windows that close. A watermark that does not move closes nothing."""
        if self.has_pending or (timestamp > self.closed.through and self._due(timestamp)):
            return self._close(timestamp)
        self._pass(timestamp)
        return ()

    def promise(self, timestamp: int) -> None:
        """Rows to come are late by this time at least."""
        self.closed.promised = timestamp

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing: all rows are in the state."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing: the last watermark has closed every window."""
        return ()

    def freeze(self) -> Frozen:
        """All runs by reference, those of each input together, and those of windows on their way out last."""
        meta = closed_meta(self.closed, self._groups, self.late_rows)
        runs = tuple(run for panes in self._inputs for run in panes.runs)
        if self._pending is None:
            return Frozen(meta, runs)
        return Frozen(meta | {PENDING: self._pending.meta()}, (*runs, *self._pending.runs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the rows of our key groups. What was pending is emitted before anything else."""
        self._late_rows = restore_closed(self.closed, self._groups, pieces)
        pending: list[list[Run]] = [[] for _ in self._inputs]
        for stored in map(StoredRuns.of, pieces):
            for run in stored.panes:
                self._inputs[self._side_of(run)].restore((run,))
            for run in (*stored.pending, *stored.rest):
                side = self._side_of(run)
                rows = stored.still_pending(run, self._inputs[side].own_rows(run.batch), self._keys)
                if rows.num_rows:
                    pending[side].append(Run(rows))
        self.has_pending = all(pending)
        self._pending = PendingOutput(pending, in_steps(pending)) if self.has_pending else None

    def _side_of(self, run: Run) -> int:
        """The input that a stored run is of."""
        return 0

    def _emit(self, step: Parts) -> Iterator[pa.RecordBatch]:
        """What comes of the rows of one step, per input; every row is labelled with its window's start.

        Whoever stops inside of it leaves the rest with ``_pending``.
        """
        raise NotImplementedError

    # -- closing ---------------------------------------------------------------------------------------------

    def _close(self, watermark: int) -> Iterator[pa.RecordBatch]:
        self.has_pending = True
        while not self.stopping:
            if self._pending is None and not self._begin(watermark):
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
        self._pending = self._pending_windows(taken)
        self._pass(self.windows.closes_at(taken[-1][0]))
        return True

    def _pending_windows(self, taken: Sequence[tuple[int, list[list[Run]]]]) -> PendingOutput:
        """A large window stays as it is: what an earlier checkpoint has stored of it need not be stored again."""
        start, window = taken[0]
        if len(taken) == 1 and self.closed.uniform:
            return PendingOutput(window, in_steps(window), None if self.windows.tumbling else start)
        sides: list[list[Run]] = [[] for _ in self._inputs]
        for start, window in taken:
            for side, panes, runs in zip(sides, self._inputs, window, strict=True):
                side += panes.labelled(runs, start)
        return PendingOutput(sides, in_steps(sides))

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Drain pending output, step by step. An empty batch now and then lets the loop look up meanwhile."""
        pending = self._pending
        assert pending is not None
        looked = 0
        for rows in pending.split(lambda batch, steps: by_hash([batch], self._keys, steps)):
            looked += rows
            if looked > CLOSE_ROWS:
                looked = 0
                yield self._nothing
                if self.stopping:
                    return
        while (step := pending.take()) is not None:
            yield from self._emit(step)
            if self.stopping:
                return
        self._pending = None

    def _pass(self, watermark: int) -> None:
        if watermark > self.closed.through:
            self.closed.advance(watermark)
            for panes in self._inputs:
                panes.retire(watermark)

    @property
    def _held(self) -> Iterable[Run]:
        pending = () if self._pending is None else self._pending.runs
        return {run.uid: run for runs in (pending, *(panes.runs for panes in self._inputs)) for run in runs}.values()


def closed_meta(closed: Closed, groups: int, late_rows: int) -> dict[str, Json]:
    """How far windows are closed, for a snapshot."""
    return {
        "closed_through": closed.to_json(),
        "late_rows": late_rows,
        "first_group": closed.own.start,
        "key_groups": groups,
    }


def restore_closed(closed: Closed, groups: int, pieces: Sequence[Restored]) -> int:
    """Take over how far windows are closed; returns the late rows that are ours to count on."""
    check_key_groups(groups, pieces)
    closed.restore([piece.meta.get("closed_through") for piece in pieces])
    return late_rows_of(pieces, closed.own)


def in_steps(sides: Sequence[Sequence[Run]]) -> int:
    """How many steps these rows are closed in."""
    return min(PARTS_MAX, max(1, ceil(_weight(sides))))


def _weight(sides: Sequence[Sequence[Run]]) -> float:
    """How many steps' worth of rows this is."""
    batches = [run.batch for side in sides for run in side]
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    return float(max(rows / CLOSE_ROWS, size / CLOSE_BYTES))
