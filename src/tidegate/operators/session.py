"""Session windows: what they are, and the receiver's half of their aggregates, which keeps open sessions and emits each when
it closes.

A session closes when the watermark reaches its end, which is its last row's time plus the gap, plus the
allowed lateness. A session that comes when it would be closed already is late, even if it could have been
part of one that is still open: so what is late depends on the watermark alone, from when it begins to close
sessions. Closing goes by keys and can stop between any two steps. Sessions that are closed and were not emitted
by then are still in the state; it says of which key groups, and up to which watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate import WindowAggregate
from tidegate.operators.closing import CLOSE_BYTES, closed_meta, restore_closed
from tidegate.operators.wide import WideOutput, split_late
from tidegate.operators.window import MakePartials, Window
from tidegate.plan.operator import Operator, OperatorContext
from tidegate.plan.units import delayed, duration_text
from tidegate.state.closed import Closed, Stretch, checked_stretches
from tidegate.state.keygroups import groups_of
from tidegate.state.ownership import Ownership
from tidegate.state.partial import END, WINDOW, Layout, fitted, results, rows_column
from tidegate.state.pending import PENDING
from tidegate.state.run import PIECE_ROWS, Frozen, Restored
from tidegate.state.runs import pieces
from tidegate.state.sessionruns import SessionRuns
from tidegate.state.sessions import merged_sessions, sessions_of_rows
from tidegate.values import Json

TIME_COLUMNS = (WINDOW, END)
CLOSE_KEYS = 65_536
"""The most keys of one step of closing."""


@dataclass(frozen=True, slots=True)
class SessionWindow(Window):
    """Windows per key that end when no row has come for ``gap``, in the event-time column's unit."""

    time_columns = TIME_COLUMNS

    gap: int
    allowed_lateness: int = 0

    def partials(self, layout: Layout, event_time: str, output: pa.Schema) -> MakePartials:
        """The sessions of rows among themselves."""
        return lambda table: sessions_of_rows(table, layout, event_time, self.gap, output)

    def aggregate(self, spec: WindowAggregate, context: OperatorContext) -> Operator:
        """Open sessions by key."""
        return (SessionAggregateWithLate if spec.late else SessionAggregateOperator)(spec, self.gap, context)

    def shape(self) -> dict[str, Json]:
        """Lateness counts: with more of it than before, late rows would open sessions that were emitted already."""
        shape: dict[str, Json] = {"kind": "session", "gap": self.gap}
        return shape | {"allowed_lateness": self.allowed_lateness} if self.allowed_lateness else shape

    def text(self, event_time: pa.DataType) -> str:
        """Such as session(30s)."""
        shown = duration_text(self.gap, event_time)
        if self.allowed_lateness:
            shown += f", allowed_lateness={duration_text(self.allowed_lateness, event_time)}"
        return f"session({shown})"


class SessionAggregateOperator:
    """Aggregates per key and session. Each session is emitted once."""

    def __init__(self, spec: WindowAggregate, gap: int, context: OperatorContext) -> None:
        self._spec = spec
        self._gap = gap
        self._output = spec.schema
        self._layout = spec.checked_layout()
        self.watermark_delay = spec.window.allowed_lateness
        self._groups = context.key_groups
        self._counted = rows_column(spec.aggregates)
        self._counted_schema = pa.schema(
            [pa.field(f.name, pa.int64()) if f.name in self._layout.distinct else f for f in spec.input]
        )
        self._ownership = Ownership(spec.keys, context.own, context.key_groups)
        self.closed = Closed(context.own, context.key_groups)
        self.stopping = False
        self.has_pending = False
        self._pending: list[Stretch] = []
        self.late_rows = 0
        self._runs = SessionRuns(spec.input, spec.keys, self._merged)

    @property
    def state_rows(self) -> int:
        """Sessions held now, before those of a key are merged."""
        return self._runs.rows

    @property
    def state_bytes(self) -> int:
        """Bytes held for them."""
        return self._runs.nbytes

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the sessions. Emits nothing."""
        in_time, late = split_late(batch, self._closes(batch.column(END)), self.closed, self._spec.keys, self._groups)
        if late.num_rows:
            self.late_rows += pc.sum(late.column(self._counted)).as_py() or 0
        self._runs.insert(in_time)
        return ()

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Emit what is pending, then the sessions that close. A watermark that does not move closes nothing."""
        return self._close(timestamp) if self.has_pending or timestamp > self.closed.through else ()

    def promise(self, timestamp: int) -> None:
        """Rows to come are late by this time at least."""
        self.closed.promised = timestamp

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing: all rows are in the state."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing: the last watermark has closed every session."""
        return ()

    def freeze(self) -> Frozen:
        """All runs by reference."""
        meta = closed_meta(self.closed, self._groups, self.late_rows)
        pending: list[Json] = [list(stretch) for stretch in self._pending]
        return Frozen(meta | {PENDING: pending} if pending else meta, self._runs.freeze())

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the sessions of our key groups. What was pending is emitted before anything else."""
        self.late_rows = restore_closed(self.closed, self._groups, pieces)
        pending = [stretch for piece in pieces for stretch in checked_stretches(piece.meta.get(PENDING, []), self._groups)]
        own = self.closed.own
        mine = [(max(first, own.start), min(end, own.stop), through) for first, end, through in pending]
        self._pending = [stretch for stretch in mine if stretch[0] < stretch[1]]
        self.has_pending = bool(self._pending)
        for piece in pieces:
            self._runs.restore(piece.runs, self._ownership.mask)

    def _closes(self, ends: pa.Array) -> pa.Array:
        """The watermark at which sessions with these ends close; the end of time if that is beyond it."""
        mask = ends.is_null().to_numpy(zero_copy_only=False) if ends.null_count else None
        values: npt.NDArray[np.int64] = ends.fill_null(0).to_numpy()
        room = np.iinfo(np.int64).max - self.watermark_delay
        return pa.array(np.minimum(values, room) + self.watermark_delay, mask=mask)

    def _close(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Rows that come after the watermark are late from now on, whether their key was emitted or not."""
        self.has_pending = True
        while not self.stopping:
            if not self._pending:
                if watermark <= self.closed.through:
                    self.has_pending = False
                    return
                self.closed.advance(watermark)
                self._pending = [(self.closed.own.start, self.closed.own.stop, watermark)]
            yield from self._drain(*self._pending[0])

    def _drain(self, first: int, end: int, through: int) -> Iterator[pa.RecordBatch]:
        """Emit the sessions of these key groups that are closed by then."""
        watermark = delayed(through, self.watermark_delay)
        keys = self._runs.due(watermark)
        groups = groups_of(keys, self._groups)
        keys = keys[(groups >= first) & (groups < end)]
        at_once = self._step_keys()
        for start in range(0, len(keys), at_once):
            if self.stopping:
                return
            step = self._runs.close(keys[start : start + at_once], watermark)
            yield from pieces(self._finish(step), PIECE_ROWS)
        if len(keys):
            self._runs.closed(watermark)
        del self._pending[0]

    def _step_keys(self) -> int:
        """How many keys one step has: fewer if rows are wide."""
        row_bytes = self._runs.nbytes // max(1, self._runs.rows)
        return max(1, min(CLOSE_KEYS, CLOSE_BYTES // max(1, row_bytes)))

    def _merged(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return merged_sessions(pa.Table.from_batches(batches), self._layout, self._spec.input)

    def _finish(self, sessions: pa.RecordBatch) -> pa.RecordBatch:
        if self._layout.distinct:
            table = pa.Table.from_batches([sessions])
            sessions = merged_sessions(table, self._layout, self._counted_schema, counted=True)
        keys = [sessions.column(key) for key in self._spec.keys]
        bounds = [sessions.column(name) for name in TIME_COLUMNS]
        return fitted([*keys, *bounds, *results(sessions, self._spec.aggregates)], self._output)


class SessionAggregateWithLate(SessionAggregateOperator):
    """Session aggregates that take raw rows and emit late ones as they came, in the wide schema."""

    def __init__(self, spec: WindowAggregate, gap: int, context: OperatorContext) -> None:
        self._wide = WideOutput(spec.schema, spec.input)
        self._make = spec.make_partials()
        super().__init__(spec.over_partials(), gap, context)
        self._output = self._wide.results

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the rows' sessions. Emits the late rows."""
        times = batch.column(self._spec.time).cast(pa.int64())
        gap = self._gap
        usable = pc.less_equal(times, np.iinfo(np.int64).max - gap)
        ends = pc.add(pc.if_else(usable, times, pa.scalar(None, pa.int64())), gap)
        in_time, late = split_late(batch, self._closes(ends), self.closed, self._spec.keys, self._groups)
        if in_time.num_rows:
            self._runs.insert(self._make(pa.Table.from_batches([in_time])))
        self.late_rows += late.num_rows
        return (self._wide.of_late(late),) if late.num_rows else ()

    def _finish(self, sessions: pa.RecordBatch) -> pa.RecordBatch:
        return self._wide.of_results(super()._finish(sessions))
