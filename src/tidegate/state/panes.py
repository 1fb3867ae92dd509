"""The rows that one input of a windowed operator keeps, by pane, as immutable runs.

Runs of a pane are merged in tiers, as in a log-structured tree: sixteen runs of a tier become one of the
next. So there are few of them, each row is merged a logarithmic number of times, and old runs stay what they
are from one checkpoint to the next. Freezing copies references and merges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state import keygroups
from tidegate.state.closed import Closed
from tidegate.state.interface import Merge
from tidegate.state.ownership import Ownership, check_columns
from tidegate.state.run import Frozen, Restored, Run, Size, size_of
from tidegate.state.runs import by_pane, relabelled
from tidegate.state.windows import Windows

RUNS_PER_TIER = 16
MERGE_ROWS_MAX = 131_072
"""The most rows of one merge, so that it takes a few milliseconds; larger groups of runs are left as they
are."""


class Tiers:
    """The runs of one pane, newest tier first; large ones are sealed and are merged only when a window
    closes."""

    __slots__ = ("_merge", "_sealed", "_tiers")

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._tiers: list[list[Run]] = [[]]
        self._sealed: list[Run] = []

    def __iter__(self) -> Iterator[Run]:
        return chain(self._sealed, *self._tiers)

    def append(self, run: Run) -> None:
        """Keep one more run; merge tiers that are full."""
        level = 0
        self._tiers[0].append(run)
        while len(full := self._tiers[level]) >= RUNS_PER_TIER:
            self._tiers[level] = []
            if not _small(full):
                self._sealed += full
                return
            level += 1
            if level == len(self._tiers):
                self._tiers.append([])
            self._tiers[level] += self._merged(full)

    def compact(self) -> None:
        """Merge everything into one run, if that is not too much for one step."""
        runs = list(self)
        if len(runs) > 1 and _small(runs):
            self._tiers, self._sealed = [[]], self._merged(runs)

    def _merged(self, runs: list[Run]) -> list[Run]:
        return [Run(batch) for batch in self._merge([run.batch for run in runs])]


def _small(runs: list[Run]) -> bool:
    rows: int = sum(run.batch.num_rows for run in runs)
    return rows <= MERGE_ROWS_MAX


class Panes:
    """One input's rows by pane.

    The first column holds the pane of a row; ``rows_of`` counts the source rows in a batch. What is late is up to ``closed``.
    """

    kind: ClassVar[str] = "panes"

    def __init__(
        self,
        ownership: Ownership,
        schema: pa.Schema,
        windows: Windows,
        closed: Closed,
        merge: Merge,
        rows_of: Callable[[pa.RecordBatch], int],
    ) -> None:
        self._ownership, self._schema = ownership, schema
        self._windows, self._closed = windows, closed
        self._merge, self._rows_of = merge, rows_of
        self._panes: dict[int, Tiers] = {}

    def insert(self, batch: pa.RecordBatch) -> None:
        """Keep the rows; drop and count the late ones and those without a pane."""
        if batch.column(0).null_count:
            in_range = batch.column(0).is_valid()
            self._closed.late_rows += self._rows_of(batch.filter(pc.invert(in_range)))
            batch = batch.filter(in_range)
        for pane, rows in by_pane(batch):
            retires_at = self._windows.retires_at(pane)
            if retires_at is not None:
                self._insert(pane, self._in_time(rows, retires_at))

    def starts_due(self, watermark: int) -> list[int]:
        """The starts of the windows with rows that this watermark closes, earliest first."""
        closing = self._windows.closing(self._closed.through, watermark)
        if not closing:
            return []
        starts: set[int] = set()
        for pane in self._panes:
            mine = self._windows.starts(pane)
            starts.update(range(max(mine.start, closing.start), min(mine.stop, closing.stop), self._windows.slide))
        return sorted(starts)

    def window(self, start: int) -> list[Run]:
        """The runs of a window about to be emitted, by reference. Their rows say their pane."""
        windows = self._windows
        if windows.tumbling:
            return list(self._panes.get(start, ()))
        found: list[Run] = []
        for pane in range(start, start + windows.size, windows.pane):
            if pane in self._panes:
                self._panes[pane].compact()
                found += self._panes[pane]
        return found

    def labelled(self, runs: list[Run], start: int) -> list[Run]:
        """The rows of the window's runs that are in time, labelled with its start. Copies, unless a window is a pane."""
        if self._windows.tumbling:
            return runs  # a pane with one window: nothing is kept once it is closed for a group
        return [Run(batch) for batch in self._still_open([relabelled(run.batch, start) for run in runs], start)]

    def retire(self, watermark: int) -> None:
        """Forget the panes whose last window this watermark closes."""
        for pane in list(self._panes):
            retires_at = self._windows.retires_at(pane)
            if retires_at is None or retires_at <= watermark:
                del self._panes[pane]

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[Run]:
        """All runs, by reference."""
        return [run for tiers in self._panes.values() for run in tiers]

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Rows of a key in a pane become one, or stay side by side: as this state was declared."""
        return self._merge(batches)

    def read(self) -> list[pa.RecordBatch]:
        """The rows of every pane, not merged."""
        return [run.batch for run in self.runs]

    def freeze(self) -> Frozen:
        """All runs by reference."""
        return Frozen({}, tuple(self.runs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take the rows of our key groups. A run that is completely ours stays the same run."""
        for run in (run for piece in pieces for run in piece.runs):
            for pane, rows in by_pane(self.own_rows(run.batch)):
                kept = run if rows.num_rows == run.batch.num_rows else Run(rows)
                self._panes.setdefault(pane, Tiers(self._merge)).append(kept)

    def size(self) -> Size:
        """All runs."""
        return size_of(self.runs)

    def fits(self, batch: pa.RecordBatch) -> bool:
        """Are these stored rows of this state?"""
        return bool(batch.schema.equals(self._schema))

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of our key groups among stored ones. Refuses rows that are none of this state."""
        check_columns(batch, self._schema, time_columns=1)
        return self._ownership.rows(batch)

    def _insert(self, pane: int, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            tiers = self._panes.get(pane)
            if tiers is None:
                tiers = self._panes[pane] = Tiers(self._merge)
            tiers.append(Run(rows))

    def _in_time(self, rows: pa.RecordBatch, retires_at: int) -> pa.RecordBatch:
        if self._closed.uniform and retires_at > self._closed.judged_by:
            return rows
        if retires_at <= self._closed.judged_by:
            self._closed.late_rows += self._rows_of(rows)
            return rows.slice(0, 0)
        in_time = pa.array(self._closed.open_at(retires_at, self._groups_of(rows)))
        self._closed.late_rows += self._rows_of(rows.filter(pc.invert(in_time)))
        return rows.filter(in_time)

    def _still_open(self, batches: list[pa.RecordBatch], start: int) -> list[pa.RecordBatch]:
        if self._closed.uniform:
            return batches
        closes_at = self._windows.closes_at(start)
        kept = [b.filter(pa.array(self._closed.open_at(closes_at, self._groups_of(b)))) for b in batches]
        return [batch for batch in kept if batch.num_rows]

    def _groups_of(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
        return keygroups.key_groups(batch, self._ownership.keys, self._ownership.groups)
