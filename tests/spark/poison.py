"""Functions of a user that go wrong. Nodes import this module."""

from __future__ import annotations

import pyarrow as pa


def explode(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises on the first batch."""
    return check_rows(batch)


def check_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError(f"row {batch.num_rows} is poison")


def wrong_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns other columns than it should."""
    return batch.select(["key"])
