"""Pipelines whose rows wait for a slow function. Everything here crosses Spark, so it pickles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.state.run import PIECE_ROWS

THROTTLE_S = 0.05
WINDOW_MS = 1_000
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch, a while later."""
    time.sleep(THROTTLE_S)
    return batch


class Throttle:
    """The same in this process, with an event that tells when it was called."""

    def __init__(self) -> None:
        self.called = threading.Event()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.called.set()
        return slow(batch)


class Backlog:
    """Windows that all close at once, each with enough keys that its results fill a batch: one batch per window.

    The row that closes them comes when there is a file named ``gate``. One split per node. It never ends: whoever measures
    stops the job.
    """

    schema = SCHEMA
    event_time = "ts"
    bounded = False

    def __init__(self, nodes: int, windows: int, gate: Path) -> None:
        self.gate = gate
        self.out_of_orderness = 2 * windows * WINDOW_MS  # nothing closes before the last row
        self._nodes, self._windows = nodes, windows
        self._keys = PIECE_ROWS * 19 // 20  # keys spread unevenly over nodes: a little less than a batch

    @property
    def rows_open(self) -> int:
        """The rows of all splits that come before the gate."""
        return self._nodes * self._windows * self._keys

    @property
    def rows(self) -> int:
        """All rows of all splits."""
        return self.rows_open + self._nodes

    def splits(self) -> Sequence[Split]:
        return [Split(f"backlog-{node}", 0) for node in range(self._nodes)]

    def open(self, split: Split, offset: Offset) -> Pieces:
        start = int(split.id.rpartition("-")[2]) * self._keys
        keys = np.arange(start, start + self._keys, dtype=np.int64)

        def make(window: int) -> pa.RecordBatch:
            if window == self._windows:
                return _batch(np.array([10 * self.out_of_orderness]), keys[:1])
            return _batch(np.full(self._keys, window * WINDOW_MS), keys)

        def count() -> int:
            return self._windows + (1 if self.gate.exists() else 0)

        return Pieces(make, count, int(str(offset or 0)))


class Flood:
    """One row at a time: ``rows`` of them, and then nothing. ``at_once``: all of them, else only the first."""

    schema = SCHEMA
    event_time = "ts"
    out_of_orderness = 0
    bounded = False

    def __init__(self, rows: int, at_once: bool) -> None:
        self._rows, self._at_once = rows, at_once

    def splits(self) -> Sequence[Split]:
        return [Split("flood", 0)]

    def open(self, split: Split, offset: Offset) -> Pieces:
        one = _batch(np.zeros(1, np.int64), np.zeros(1, np.int64))
        position = int(str(offset or 0))
        # What a recovered job reads first, where nothing is in flight, is one more row.
        count = self._rows if self._at_once else position + 1
        return Pieces(lambda _: one, lambda: count, position)


class Pieces:
    """Returns ``count()`` batches, one per poll, and then nothing."""

    def __init__(self, make: Callable[[int], pa.RecordBatch], count: Callable[[], int], position: int) -> None:
        self._make, self._count, self._position = make, count, position

    @property
    def offset(self) -> Offset:
        return self._position

    def poll(self, max_rows: int) -> Polled:
        if self._position >= self._count():
            return Polled(None)
        batch = self._make(self._position)
        self._position += 1
        return Polled(batch, batch.num_rows, batch.column(0)[0].as_py())

    def close(self) -> None:
        return None


def backlog_pipeline(source: Backlog, output: Path) -> tg.Pipeline:
    """A keyed aggregation whose results wait for a slow function, and a sink."""
    windows = tg.from_source(source).key_by("key").window(tg.tumbling(f"{WINDOW_MS}ms"))
    results = windows.aggregate(n=tg.count(), total=tg.sum("value"))
    return tg.Pipeline("backlog", results.map_batches(slow).write_parquet(output))


def flood_pipeline(rows: int, function: Throttle, output: Path, *, at_once: bool) -> tg.Pipeline:
    """Rows upstream of a slow function."""
    stream = tg.from_source(Flood(rows, at_once)).map_batches(function)
    return tg.Pipeline("flood", stream.write_parquet(output))


def _batch(times: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> pa.RecordBatch:
    columns = [pa.array(times.astype(np.int64)), pa.array(keys), pa.array(keys)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
