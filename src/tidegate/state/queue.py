"""Batches that a function is to be called with, in order. The one that it has now is state too: it may be called again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from tidegate.state.ownership import Ownership, check_columns
from tidegate.state.run import Frozen, Restored, Run, Size, size_of


class BatchQueue:
    """What waits, and what is at work. ``schema`` is that of stored batches; ``None``: any."""

    kind: ClassVar[str] = "queue"

    def __init__(self, ownership: Ownership, schema: pa.Schema | None = None) -> None:
        self._ownership = ownership
        self._schema = schema
        self._waiting: deque[Run] = deque()
        self._at_work: Run | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def insert(self, rows: pa.RecordBatch, /) -> None:
        """One more batch, after all others."""
        self._waiting.append(Run(rows))

    def start(self) -> pa.RecordBatch:
        """The next batch; it is at work from now on."""
        assert self._at_work is None, "the batch at work is not done"
        self._at_work = self._waiting.popleft()
        return self._at_work.batch

    def done(self) -> None:
        """The batch at work is processed."""
        self._at_work = None

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Batches stay what they are."""
        return batches

    def read(self) -> list[pa.RecordBatch]:
        """All batches, the one at work first."""
        return [run.batch for run in self._runs]

    def freeze(self) -> Frozen:
        """The batches by reference."""
        return Frozen({}, self._runs)

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Process again what was at work, and then what waited."""
        for run in (run for piece in pieces for run in piece.runs):
            if self._schema is not None:
                check_columns(run.batch, self._schema)
            rows = self._ownership.rows(run.batch)
            if rows.num_rows:
                self._waiting.append(run if rows is run.batch else Run(rows))

    def size(self) -> Size:
        """What waits and what is at work."""
        return size_of(self._runs)

    @property
    def _runs(self) -> tuple[Run, ...]:
        return (*(() if self._at_work is None else (self._at_work,)), *self._waiting)
