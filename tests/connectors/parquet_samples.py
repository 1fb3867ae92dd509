"""Rows for the tests of Parquet connectors."""

from __future__ import annotations

import pyarrow as pa


def events(first: int, rows: int) -> pa.Table:
    """Events whose time is a little out of order."""
    times = [(first + i) * 10 - (37 if i % 5 == 0 else 0) for i in range(rows)]
    return pa.table(
        {
            "ts": pa.array(times, pa.int64()),
            "key": pa.array([i % 7 for i in range(first, first + rows)], pa.int64()),
            "value": pa.array([float("nan") if i % 11 == 0 else i / 4 for i in range(rows)], pa.float64()),
            "kind": pa.array([i % 4 for i in range(rows)], pa.int8()),
            "name": pa.array([None if i % 3 == 0 else f"n{i}" for i in range(rows)], pa.string()),
        }
    )
