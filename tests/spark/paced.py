"""A source that takes its time, so that a test can kill nodes on the way. Nodes import this module: keep it light."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.connectors.parquet import ParquetSource
from tidegate.plan.connector import Offset, Polled, Split, SplitReader


@dataclass(slots=True)
class Pace:
    """When the next batch may come; one per subtask."""

    pause_s: float
    due_s: float = 0.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self.due_s:
            return False
        self.due_s = now_s + self.pause_s
        return True


class PacedReader:
    """Returns small batches, one per pause. Never blocks."""

    def __init__(self, reader: SplitReader, rows: int, pace: Pace) -> None:
        self._reader = reader
        self._rows = rows
        self._pace = pace

    @property
    def offset(self) -> Offset:
        return self._reader.offset

    def poll(self, max_rows: int) -> Polled:
        return self._reader.poll(min(max_rows, self._rows)) if self._pace.is_due() else Polled(None)

    def close(self) -> None:
        self._reader.close()


@dataclass(slots=True)
class PacedSource:
    """Parquet files, read over about ``seconds`` by ``parallelism`` subtasks: time enough to kill some of them."""

    source: ParquetSource
    seconds: float
    parallelism: int
    rows: int = 500
    _pace: Pace | None = field(default=None, repr=False)

    bounded = True

    @property
    def path(self) -> str:
        return self.source.path

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def event_time(self) -> str | None:
        return self.source.event_time

    @property
    def out_of_orderness(self) -> int:
        return self.source.out_of_orderness

    def splits(self) -> Sequence[Split]:
        return self.source.splits()

    def open(self, split: Split, offset: Offset) -> SplitReader:
        if self._pace is None:
            batches = sum(-(-(each.rows or 0) // self.rows) for each in self.splits())
            self._pace = Pace(self.seconds * self.parallelism / batches)
        return PacedReader(self.source.open(split, offset), self.rows, self._pace)
