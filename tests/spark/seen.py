"""A function for ``process`` that workers import: it must not need what only the tests have."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

STATE = pa.schema([("seen", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("added", pa.int64()), ("seen", pa.int64())])


def count_rows(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """How many rows of each key came now, and how many there were in all."""
    rows = pa.table({"key": batch["key"]}).group_by("key", use_threads=False).aggregate([("key", "count")])
    before = pa.table({"key": state["key"], "before": pc.fill_null(state["seen"], 0)})
    both = rows.join(before, "key", use_threads=False).combine_chunks()
    seen = pc.add(both["before"], both["key_count"])
    output = pa.table({"key": both["key"], "added": both["key_count"], "seen": seen}).combine_chunks()
    counts = pa.table({"key": both["key"], "seen": seen}).combine_chunks()
    return output.to_batches()[0], counts.to_batches()[0]
