"""The wide schema of an aggregate that emits late rows too: it takes raw rows and judges each on arrival.

Results and late rows leave by the same way, in one wide schema: a flag, the results' columns, the rows'
columns. The plan parts them after the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.plan.schemas import LATE
from tidegate.state.closed import Closed
from tidegate.state.keygroups import key_groups


class WideOutput:
    """Puts results, or late rows, into the wide schema."""

    def __init__(self, output: pa.Schema, rows: pa.Schema) -> None:
        self._output = output
        split = len(output) - len(rows)
        assert output.names[0] == LATE
        self.results = pa.schema([output.field(index) for index in range(1, split)])
        self._late_types = [output.field(index).type for index in range(split, len(output))]

    def of_results(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Results, without late rows' columns."""
        rows = batch.num_rows
        absent = [pa.nulls(rows, kind) for kind in self._late_types]
        flag = pa.array(np.zeros(rows, np.bool_))
        return pa.RecordBatch.from_arrays([flag, *batch.columns, *absent], schema=self._output)

    def of_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Late rows, without results' columns."""
        rows = batch.num_rows
        absent = [pa.nulls(rows, field.type) for field in self.results]
        flag = pa.array(np.ones(rows, np.bool_))
        return pa.RecordBatch.from_arrays([flag, *absent, *batch.columns], schema=self._output)


def split_late(
    batch: pa.RecordBatch, closes: pa.Array, closed: Closed, keys: Sequence[str], groups: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows in time and the late ones.

    ``closes`` is the watermark that closes each row's last window; a row that has none is late.
    """
    if not closes.null_count and closed.all_in_time(closes.to_numpy()):
        return batch, batch.slice(0, 0)
    in_time = closes.is_valid().to_numpy(zero_copy_only=False)
    in_time &= closed.in_time(closes.fill_null(0).to_numpy(), key_groups(batch, keys, groups))
    return batch.filter(pa.array(in_time)), batch.filter(pa.array(~in_time))
