"""The one order of values by which ``first`` and ``last`` settle ties, whoever compares them and in whatever order they come.

Numbers as numbers, text and bytes by their bytes, times by time, false before true. Of floats -0.0 comes before 0.0, and NaN, of
which there is one, after everything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def one_nan(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column with every NaN in the same bits, so that it does not matter which of several is kept."""
    if not _is_float(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(np.nan, column.type), column)


def comparable(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Values that Arrow compares in our order, null where the column is: floats as integers, others as they are."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not _is_float(column.type):
        return column
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    values = np.ascontiguousarray(column.fill_null(0).to_numpy())
    width = np.int32 if values.itemsize == 4 else np.int64
    bits: npt.NDArray[np.signedinteger[Any]] = values.view(width)
    highest = width(np.iinfo(width).max)
    # Negative floats grow as their bits do: the other way round.
    ordered = np.where(np.isnan(values), highest, np.where(bits < 0, bits ^ highest, bits))
    return pa.array(ordered, mask=nulls)


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))
