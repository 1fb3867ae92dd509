"""What windowed operators share: the watermark that closes windows, the bounded steps it does so in, and the
state's frame.

From when a window begins to be given its rows are late. Giving can stop behind any step: what is left is state
then, and the next call of ``watermark`` goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import pyarrow as pa

from tidegate.plan.connector import Json
from tidegate.plan.physical import Window
from tidegate.runtime.operator import Frozen, Restored, Run
from tidegate.runtime.operators.keyed import check_key_groups
from tidegate.runtime.operators.owed import OWED, Owed, Parts, StoredRuns
from tidegate.runtime.operators.panes import Panes, late_rows_of
from tidegate.runtime.operators.window import Closed, Windows
from tidegate.state.runs import PARTS_MAX, by_hash, empty_batch

CLOSE_ROWS = 131_072
"""About as many rows of state as one step of closing takes on."""
CLOSE_BYTES = 8 << 20
"""About as many bytes of them: what a step gives is ahead of a barrier that comes meanwhile."""


class WindowedOperator:
    """Closes windows as the watermark moves. Subclasses say what comes of a window's rows."""

    def __init__(
        self, window: Window, keys: Sequence[str], output: pa.Schema, own: range, groups: int
    ) -> None:
        self.windows = Windows.of(window)
        self.closed = Closed(own, groups)
        self.watermark_delay = self.windows.lateness
        self.stopping = False
        self.owes = False
        self._owed: Owed | None = None
        self._keys = tuple(keys)
        self._nothing = empty_batch(output)
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
        return sum(run.batch.num_rows for run in self._held)

    @property
    def state_bytes(self) -> int:
        """Bytes of the rows of state held now."""
        return sum(run.batch.nbytes for run in self._held)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Give what is owed, then the windows that close. A watermark that does not move closes nothing."""
        if self.owes or (timestamp > self.closed.through and self._due(timestamp)):
            return self._close(timestamp)
        self._pass(timestamp)
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing: all rows are in the state."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Gives nothing: the last watermark has closed every window."""
        return ()

    def freeze(self) -> Frozen:
        """All runs by reference, those of each input together, and those of windows on their way out last."""
        meta = closed_meta(self.closed, self._groups, self.late_rows)
        runs = tuple(run for panes in self._inputs for run in panes.runs)
        if self._owed is None:
            return Frozen(meta, runs)
        return Frozen(meta | {OWED: self._owed.meta()}, (*runs, *self._owed.runs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the rows of our key groups. What was owed is given before anything else."""
        self._late_rows = restore_closed(self.closed, self._groups, pieces)
        owed: list[list[Run]] = [[] for _ in self._inputs]
        for stored in map(StoredRuns.of, pieces):
            for run in stored.panes:
                self._inputs[self._side_of(run)].restore((run,))
            for run in (*stored.owed, *stored.rest):
                side = self._side_of(run)
                rows = stored.still_owed(run, self._inputs[side].own_rows(run.batch), self._keys)
                if rows.num_rows:
                    owed[side].append(Run(rows))
        self.owes = all(owed)
        self._owed = Owed(owed, in_steps(owed)) if self.owes else None

    def _side_of(self, run: Run) -> int:
        """The input that a stored run is of."""
        return 0

    def _give(self, step: Parts) -> Iterator[pa.RecordBatch]:
        """What comes of the rows of one step, per input; every row is labelled with its window's start.

        Whoever stops inside of it leaves the rest with ``_owed``.
        """
        raise NotImplementedError

    # -- closing ---------------------------------------------------------------------------------------------

    def _close(self, watermark: int) -> Iterator[pa.RecordBatch]:
        self.owes = True
        while not self.stopping:
            if self._owed is None and not self._begin(watermark):
                self._pass(watermark)
                self.owes = False
                return
            yield from self._pay()

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
        self._owed = self._owing(taken)
        self._pass(self.windows.closes_at(taken[-1][0]))
        return True

    def _owing(self, taken: Sequence[tuple[int, list[list[Run]]]]) -> Owed:
        """A large window stays as it is: what an earlier checkpoint has stored of it need not be stored again."""
        start, window = taken[0]
        if len(taken) == 1 and self.closed.uniform:
            return Owed(window, in_steps(window), None if self.windows.tumbling else start)
        sides: list[list[Run]] = [[] for _ in self._inputs]
        for start, window in taken:
            for side, panes, runs in zip(sides, self._inputs, window, strict=True):
                side += panes.labelled(runs, start)
        return Owed(sides, in_steps(sides))

    def _pay(self) -> Iterator[pa.RecordBatch]:
        """Give what is owed, step by step. An empty batch now and then lets the loop look up meanwhile."""
        owed = self._owed
        assert owed is not None
        looked = 0
        for rows in owed.split(lambda batch, steps: by_hash([batch], self._keys, steps)):
            looked += rows
            if looked > CLOSE_ROWS:
                looked = 0
                yield self._nothing
                if self.stopping:
                    return
        while (step := owed.take()) is not None:
            yield from self._give(step)
            if self.stopping:
                return
        self._owed = None

    def _pass(self, watermark: int) -> None:
        if watermark > self.closed.through:
            self.closed.advance(watermark)
            for panes in self._inputs:
                panes.retire(watermark)

    @property
    def _held(self) -> Iterable[Run]:
        owed = () if self._owed is None else self._owed.runs
        return {run.uid: run for runs in (owed, *(panes.runs for panes in self._inputs)) for run in runs}.values()


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


def in_steps(sides: Sequence[Sequence[Run]]) -> int:
    """How many steps these rows are closed in."""
    return min(PARTS_MAX, max(1, ceil(_weight(sides))))


def _weight(sides: Sequence[Sequence[Run]]) -> float:
    """How many steps' worth of rows this is."""
    batches = [run.batch for side in sides for run in side]
    rows, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    return float(max(rows / CLOSE_ROWS, size / CLOSE_BYTES))
