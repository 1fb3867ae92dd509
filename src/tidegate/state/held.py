"""Rows that came too early in event time wait here: so a function sees the rows of a key within a bound of their order.

A row is passed on once the watermark has come within ``bound`` of its time. Whatever comes after it is not before the watermark,
late rows aside, so it is at most ``bound`` earlier. Rows that wait are passed on in the order of their times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.ownership import Ownership, check_columns
from tidegate.state.run import PIECE_ROWS, Frozen, Restored, Run, Size, size_of
from tidegate.state.runs import concatenated, pieces
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME

log = logging.getLogger("tidegate")

HELD_BYTES_MAX = 128 << 20
"""More than this is passed on in the order of time, watermark or not: event-time skew must not fill the memory."""
RUNS_MAX = 64


class HeldRows:
    """The rows of one subtask that wait for the watermark; none does where they have no event time. Runs are never changed, so
    that each is stored once."""

    kind: ClassVar[str] = "held"

    def __init__(self, ownership: Ownership, schema: pa.Schema, operator: str, event_time: str | None, bound: int) -> None:
        self._ownership = ownership
        self._schema = schema
        self._operator = operator
        self._event_time = event_time
        self._bound = bound
        self._passed = BEGINNING_OF_TIME
        self._warned = False
        self._runs: list[Run] = []

    def insert(self, rows: pa.RecordBatch, /) -> None:
        """These rows wait."""
        self._runs.append(Run(rows))
        if len(self._runs) > RUNS_MAX:
            self._runs = [Run(batch) for batch in self.merge(self.read())]

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Rows stay what they are, in fewer batches."""
        return concatenated(batches) if batches else []

    def read(self) -> list[pa.RecordBatch]:
        """The rows that wait."""
        return [run.batch for run in self._runs]

    def freeze(self) -> Frozen:
        """The rows that wait, by reference."""
        return Frozen({}, tuple(self._runs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Rows that waited at the cut wait on: the sources say their times again."""
        for run in (run for piece in pieces for run in piece.runs):
            check_columns(run.batch, self._schema)
            rows = self._ownership.rows(run.batch)
            if rows.num_rows:
                self._runs.append(run if rows is run.batch else Run(rows))

    def size(self) -> Size:
        """The rows that wait."""
        return size_of(self._runs)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What may be passed on now, of these rows or, when too many wait, of all."""
        early = self._times(batch) > self._passed
        if not early.any():
            yield batch
            return
        if not early.all():
            yield batch.filter(pa.array(~early))
        self.insert(batch.filter(pa.array(early)))
        if self.size().nbytes > HELD_BYTES_MAX:
            yield from self._overflow()

    def release(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Event time has reached this: the rows that need not wait any more, earliest first."""
        self._passed = max(self._passed, min(watermark + self._bound, END_OF_TIME))
        yield from self._passed_on(self._passed)

    def _passed_on(self, through: int) -> Iterator[pa.RecordBatch]:
        ready: list[pa.RecordBatch] = []
        waiting: list[Run] = []
        for run in self._runs:
            early = self._times(run.batch) > through
            if early.all():
                waiting.append(run)
                continue
            ready.append(run.batch.filter(pa.array(~early)))
            if early.any():
                waiting.append(Run(run.batch.filter(pa.array(early))))
        self._runs = waiting
        yield from self._in_order(ready)

    def _in_order(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not batches:
            return
        times = np.concatenate([self._times(batch) for batch in batches])
        rows = pa.Table.from_batches(batches).take(pa.array(np.argsort(times, kind="stable"))).combine_chunks()
        for batch in rows.to_batches():
            yield from pieces(batch, PIECE_ROWS)

    def _overflow(self) -> Iterator[pa.RecordBatch]:
        if not self._warned:
            self._warned = True
            log.warning(
                "rows that wait for a source of earlier event time take more than %d bytes: the earlier half goes on, and "
                "rows of a key may be out of order by more than out_of_orderness operator=%s",
                HELD_BYTES_MAX,
                self._operator,
            )
        times = np.concatenate([self._times(run.batch) for run in self._runs])
        yield from self._passed_on(int(np.median(times)))

    def _times(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        if self._event_time is None:
            return np.full(batch.num_rows, BEGINNING_OF_TIME)
        column = batch.column(self._event_time)
        if column.null_count:  # a function before this one made it so: such a row has no event time and does not wait
            column = pc.fill_null(column.view(pa.int64()), BEGINNING_OF_TIME)
        times: npt.NDArray[np.int64] = column.view(pa.int64()).to_numpy()
        return times
