"""Reads one row group of a Parquet file, batch by batch, in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.connectors.files import file_errors
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Offset, Polled
from tidegate.state.plain import plain_batch

DECODE_ROWS_MAX = 262_144
"""Rows decoded at a time, at the most; the first poll decides how many it really is."""


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """What is read and what is emitted: ``tested`` are the columns that the filter ``expression`` needs, ``constants`` those
    that have one value in the file and are not read.
    """

    output: pa.Schema
    event_time: str | None
    expression: pc.Expression | None
    tested: tuple[str, ...]
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Every column that is needed, once."""
        event_time = () if self.event_time is None else (self.event_time,)
        return list(dict.fromkeys((*self.output.names, *event_time, *self.tested)))

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """These rows with the constants that are needed."""
        for name, value in self.constants.items():
            if name in self.columns:
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        return batch


class RowGroupReader:
    """A ``SplitReader``. The offset is the number of rows handed out, before filters.

    A poll decodes in the calling thread; it never waits for anything but the disk. The first poll after
    opening at an offset decodes and drops the rows before it.
    """

    def __init__(self, file: pq.ParquetFile, path: str, group: int, rows: int, offset: int, layout: Projection) -> None:
        self._file = file
        self._path = path
        self._group = group
        self._rows = rows
        self._offset = offset
        self._layout = layout
        self._decoded: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.RecordBatch | None = None

    @property
    def offset(self) -> Offset:
        """Rows handed out so far."""
        return self._offset

    def poll(self, max_rows: int) -> Polled:
        """The next rows. Where the filter lets none pass, the batch is empty, not missing."""
        if max_rows < 1:
            raise InvalidUseError(f"a poll must ask for a row or more max_rows={max_rows}")
        if self._offset >= self._rows:
            return Polled(None, finished=True)
        with file_errors(self._path):
            taken = self._take(max_rows)
        highest = self._highest(taken)
        self._offset += taken.num_rows
        return Polled(self._given(taken), taken.num_rows, highest, finished=self._offset >= self._rows)

    def close(self) -> None:
        """Close the file."""
        self._decoded = self._rest = None
        self._file.close()

    def _take(self, max_rows: int) -> pa.RecordBatch:
        rest = self._next(max_rows) if self._rest is None else self._rest
        taken = rest.slice(0, max_rows)
        self._rest = rest.slice(max_rows) if rest.num_rows > max_rows else None
        return taken

    def _next(self, max_rows: int) -> pa.RecordBatch:
        if self._decoded is None:
            self._decoded = self._decode(min(max_rows, DECODE_ROWS_MAX))
        batch = next(self._decoded, None)
        if batch is None:
            raise CorruptDataError(
                f"the row group ends too early row={self._offset} rows={self._rows} path={self._path}",
                path=self._path,
            )
        return batch

    def _decode(self, size: int) -> Iterator[pa.RecordBatch]:
        skip = self._offset
        read = [name for name in self._layout.columns if name not in self._layout.constants]
        # A batch without a column would have no rows: where only constants are needed, the first is read for its length.
        columns = read or self._file.schema_arrow.names[:1]
        batches = self._file.iter_batches(batch_size=size, row_groups=[self._group], columns=columns, use_threads=False)
        for batch in batches:
            if batch.num_rows > skip:
                yield self._layout.complete(plain_batch(batch.slice(skip)))
            skip = max(0, skip - batch.num_rows)

    def _highest(self, batch: pa.RecordBatch) -> int | None:
        if self._layout.event_time is None:
            return None
        times = batch.column(self._layout.event_time)
        if times.null_count:
            raise InvalidUseError(
                f"an event time must not be null, filter the file first column={self._layout.event_time} path={self._path}"
            )
        return int(times.view(pa.int64()).to_numpy().max())

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        output = self._layout.output
        emitted = pa.RecordBatch.from_arrays([batch.column(name) for name in output.names], schema=output)
        if self._layout.expression is None:
            return emitted
        tested = batch.select(list(self._layout.tested)) if self._layout.tested else batch
        return emitted.filter(_mask(tested, self._layout.expression))


class SkippedReader:
    """A ``SplitReader`` of a row group that the filter drops completely: counts its rows and decodes none.

    The highest event time comes from the statistics and belongs to the row group, so it is told with
    the last rows.
    """

    def __init__(self, layout: Projection, rows: int, highest: int | None, offset: int) -> None:
        nothing = [pa.array([], field.type) for field in layout.output]
        self._empty = pa.RecordBatch.from_arrays(nothing, schema=layout.output)
        self._rows = rows
        self._highest = highest
        self._offset = offset

    @property
    def offset(self) -> Offset:
        """Rows counted so far."""
        return self._offset

    def poll(self, max_rows: int) -> Polled:
        """An empty batch, with the number of rows that were passed over."""
        rows = min(max_rows, self._rows - self._offset)
        self._offset += rows
        finished = self._offset >= self._rows
        return Polled(self._empty if rows else None, rows, self._highest if rows and finished else None, finished)

    def close(self) -> None:
        """There is nothing to let go of."""


def _mask(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """Which rows pass. Half the cost of letting Acero filter all columns, which it does in small pieces."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["passes"]))
    found = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return found.column(0).combine_chunks()
