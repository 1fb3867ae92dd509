"""Which rows are one subtask's: those of its key groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import CorruptDataError
from tidegate.state.keygroups import key_groups

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The key groups of one subtask, by these columns."""

    keys: tuple[str, ...]
    own: range
    groups: int

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows are ours."""
        if len(self.own) == self.groups:
            return np.ones(batch.num_rows, np.bool_)
        found = key_groups(batch, self.keys, self.groups)
        return (found >= self.own.start) & (found < self.own.stop)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are ours; the same batch if all are."""
        mine = self.mask(batch)
        return batch if mine.all() else batch.filter(pa.array(mine))


EVERYTHING = Ownership((), range(1), 1)
"""All rows are ours: state that does not go by key."""


def check_columns(batch: pa.RecordBatch, schema: pa.Schema, time_columns: int = 0) -> None:
    """Refuse stored rows of other columns, and rows without a value in the first columns, which say where in time they are."""
    if not batch.schema.equals(schema):
        raise CorruptDataError(f"stored state has other columns columns={batch.schema.names}")
    for index in range(time_columns):
        if batch.column(index).null_count:
            raise CorruptDataError(f"stored state has a row without a window column={schema.names[index]}")
