"""Rows that came too early in event time wait here: so a function sees the rows of a key within a bound of their order.

A row is passed on once the watermark has come within ``bound`` of its time. Whatever comes after it is not before the watermark,
late rows aside, so it is at most ``bound`` earlier. Rows that wait are passed on in the order of their times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.run import PIECE_ROWS, Run
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME

log = logging.getLogger("tidegate")

HELD_BYTES_MAX = 128 << 20
"""More than this is passed on in the order of time, watermark or not: event-time skew must not fill the memory."""
RUNS_MAX = 64


class HeldRows:
    """The rows of one subtask that wait for the watermark. Runs are never changed, so that each is stored once."""

    def __init__(self, operator: str, event_time: str, bound: int, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._operator = operator
        self._event_time = event_time
        self._bound = bound
        self._bytes_max = bytes_max
        self._passed = BEGINNING_OF_TIME
        self._warned = False
        self.runs: list[Run] = []

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(run.batch.num_rows for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(run.batch.nbytes for run in self.runs)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What may be passed on now, of these rows or, when too many wait, of all."""
        early = self._times(batch) > self._passed
        if not early.any():
            yield batch
            return
        if not early.all():
            yield batch.filter(pa.array(~early))
        self.runs.append(Run(batch.filter(pa.array(early))))
        if len(self.runs) > RUNS_MAX:
            self.runs = [Run(_together([run.batch for run in self.runs]))]
        if self.nbytes > self._bytes_max:
            yield from self._overflow()

    def release(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Event time has reached this: the rows that need not wait any more, earliest first."""
        self._passed = max(self._passed, min(watermark + self._bound, END_OF_TIME))
        yield from self._passed_on(self._passed)

    def restore(self, batch: pa.RecordBatch) -> None:
        """These rows waited at the cut. They wait on: the sources say their times again."""
        self.runs.append(Run(batch))

    def _passed_on(self, through: int) -> Iterator[pa.RecordBatch]:
        ready: list[pa.RecordBatch] = []
        waiting: list[Run] = []
        for run in self.runs:
            early = self._times(run.batch) > through
            if early.all():
                waiting.append(run)
                continue
            ready.append(run.batch.filter(pa.array(~early)))
            if early.any():
                waiting.append(Run(run.batch.filter(pa.array(early))))
        self.runs = waiting
        yield from self._in_order(ready)

    def _in_order(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        rows = _together(batches)
        rows = rows.take(pa.array(np.argsort(self._times(rows), kind="stable")))
        for start in range(0, rows.num_rows, PIECE_ROWS):
            yield rows.slice(start, PIECE_ROWS)

    def _overflow(self) -> Iterator[pa.RecordBatch]:
        if not self._warned:
            self._warned = True
            log.warning(
                "rows that wait for a source of earlier event time take more than %d bytes: the earlier half goes on, and "
                "rows of a key may be out of order by more than out_of_orderness operator=%s",
                self._bytes_max,
                self._operator,
            )
        times = np.concatenate([self._times(run.batch) for run in self.runs])
        yield from self._passed_on(int(np.median(times)))

    def _times(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        column = batch.column(self._event_time)
        if column.null_count:  # a function before this one made it so: such a row has no event time and does not wait
            column = pc.fill_null(column.view(pa.int64()), BEGINNING_OF_TIME)
        times: npt.NDArray[np.int64] = column.view(pa.int64()).to_numpy()
        return times


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
