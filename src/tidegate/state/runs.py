"""Cutting and joining of state batches: by pane, by hash, into pieces.

Knows nothing of windows or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state import keygroups

_FEW_PANES = 4
PARTS_MAX = 65_535
"""The most parts that rows are cut into by hash."""


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows. Arrow's own way to make one does not know all types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def by_pane(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """The batch's rows by the value of their first column, an int64 without nulls, smallest first."""
    if batch.num_rows == 0:
        return []
    values = batch.column(0).to_numpy()
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [(low, batch)]
    distinct = np.unique(values)
    if len(distinct) <= _FEW_PANES:
        return [(int(pane), keygroups.rows(batch, np.flatnonzero(values == pane))) for pane in distinct]
    order = np.argsort(values, kind="stable")
    ordered = keygroups.rows(batch, order)
    edges = np.append(np.searchsorted(values[order], distinct), len(values)).tolist()
    return [
        (pane, ordered.slice(start, stop - start)) for pane, start, stop in zip(distinct.tolist(), edges, edges[1:], strict=False)
    ]


def relabelled(batch: pa.RecordBatch, value: int) -> pa.RecordBatch:
    """The batch with its first column, an int64, set to one value."""
    values = pa.array(np.full(batch.num_rows, value, np.int64))
    return batch.set_column(0, batch.schema.field(0), values)


def concatenated(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in as few batches as Arrow's offsets allow: one, unless there are gigabytes of strings."""
    if len(batches) == 1:
        return list(batches)
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def by_hash(batches: Sequence[pa.RecordBatch], keys: Sequence[str], count: int) -> list[list[pa.RecordBatch]]:
    """The rows in ``count`` parts; rows of one key are in one part. Independent of the key groups."""
    if count <= 1:
        return [list(batches)]
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    for batch in batches:
        for part, piece in zip(parts, keygroups.split(batch, _parts(batch, keys, count), count), strict=True):
            if piece is not None:
                part.append(piece)
    return parts


def in_parts_from(batch: pa.RecordBatch, keys: Sequence[str], count: int, first: int) -> pa.RecordBatch:
    """The rows that ``by_hash`` puts into this part of ``count`` and those after it."""
    if first <= 0:
        return batch
    return keygroups.rows(batch, np.flatnonzero(_parts(batch, keys, count) >= first))


def _parts(batch: pa.RecordBatch, keys: Sequence[str], count: int) -> npt.NDArray[np.uint16]:
    hashed = keygroups.hashes(batch, keys)
    return ((hashed >> np.uint64(32)) % np.uint64(max(1, count))).astype(np.uint16)


def pieces(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most ``rows_max`` rows; none for an empty one."""
    for start in range(0, batch.num_rows, rows_max):
        yield batch.slice(start, rows_max)
