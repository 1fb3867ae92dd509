"""Functions for ``process`` and ``map_batches`` that workers import: they must not need what only the tests have."""

from __future__ import annotations

import resource

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STATE = pa.schema([("seen", pa.int64())])
DRESSED = pa.schema(
    [
        ("ts", pa.int64()),
        ("key", pa.int64()),
        ("value", pa.float64()),
        ("name", pa.string()),
        ("price", pa.decimal128(21, 2)),
        ("minute", pa.timestamp("ms")),
    ]
)
FAULTS = pa.schema([("faults", pa.int64())])
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


def dress(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with text, a decimal and a timestamp made of their key and time; some names are null."""
    key, minute = batch["key"], pc.multiply(pc.divide(batch["ts"], 60_000), 60_000)
    named = pc.not_equal(pc.subtract(key, pc.multiply(pc.divide(key, 50), 50)), 0)
    name = pc.if_else(named, pc.binary_join_element_wise("n", pc.cast(pc.divide(key, 3), pa.string()), "-"), None)
    columns = [batch["ts"], key, batch["value"], name, key.cast(pa.decimal128(21, 2)), minute.cast(pa.timestamp("ms"))]
    return pa.RecordBatch.from_arrays(columns, schema=DRESSED)


def page_faults(batch: pa.RecordBatch) -> pa.RecordBatch:
    """How many pages the system had to give to this process for eighty arrays that live for a moment."""
    numbers = np.arange(1_000_000)
    faults = []
    for rounds in (3, 20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(rounds):
            arrays = [numbers * factor for factor in range(4)]  # more at once than the C library keeps by itself
            del arrays
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(faults[-1], pa.int64()), batch.num_rows)], schema=FAULTS)
