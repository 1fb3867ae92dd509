"""The same files again and again, each time later: minutes of load from seconds' worth of rows on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.parquet_source import ParquetSource
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Offset, Polled, Split, SplitReader


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Reads ``inner`` ``times`` times; the n-th time all event times are ``n * span`` later.

    ``span`` is longer than the files' own time, so that every reading begins after the one before has ended.
    A filter on the event-time column is not for this source: it would see the times before they are moved.
    """

    inner: ParquetSource
    times: int
    span: int
    bounded: bool = True

    def __post_init__(self) -> None:
        if self.times < 1 or self.span < 1:
            raise InvalidUseError(f"times and span are positive times={self.times} span={self.span}")

    @property
    def schema(self) -> pa.Schema:
        """As the files have it."""
        return self.inner.schema

    @property
    def event_time(self) -> str | None:
        """As the files have it."""
        return self.inner.event_time

    @property
    def out_of_orderness(self) -> int:
        """As the files have it."""
        return self.inner.out_of_orderness

    def with_columns(self, names: Sequence[str]) -> ReplaySource:
        """Push a projection down into the files."""
        return replace(self, inner=self.inner.with_columns(names))

    def with_filter(self, expression: pc.Expression) -> ReplaySource:
        """Push a filter down into the files."""
        return replace(self, inner=self.inner.with_filter(expression))

    def splits(self) -> list[Split]:
        """Those of the files, once per reading, in the order of their new event times."""
        once = list(self.inner.splits())
        return [
            Split(
                f"{time}*{split.id}",
                None if split.lowest is None else split.lowest + time * self.span,
                split.rows,
            )
            for time in range(self.times)
            for split in once
        ]

    def open(self, split: Split, offset: Offset) -> SplitReader:
        """A reader of one split of one reading."""
        time, star, inner_id = split.id.partition("*")
        if not star or not time.isdecimal():
            raise InvalidUseError(f"this is no split of a replayed source split={split.id}")
        later = int(time) * self.span
        lowest = None if split.lowest is None else split.lowest - later
        reader = self.inner.open(Split(inner_id, lowest, split.rows), offset)
        return _LaterReader(reader, self.event_time, later)


class _LaterReader:
    """A reader whose event times are moved."""

    def __init__(self, reader: SplitReader, event_time: str | None, later: int) -> None:
        self._reader = reader
        self._event_time = event_time
        self._later = later

    @property
    def offset(self) -> Offset:
        return self._reader.offset

    def poll(self, max_rows: int) -> Polled:
        polled = self._reader.poll(max_rows)
        highest = None if polled.highest is None else polled.highest + self._later
        return replace(polled, batch=self._moved(polled.batch), highest=highest)

    def close(self) -> None:
        self._reader.close()

    def _moved(self, batch: pa.RecordBatch | None) -> pa.RecordBatch | None:
        if batch is None or not self._later or self._event_time not in batch.schema.names:
            return batch
        index = batch.schema.get_field_index(self._event_time)
        moved = pc.add(batch.column(index), pa.scalar(self._later, pa.int64()))
        return batch.set_column(index, batch.schema.field(index), moved)
