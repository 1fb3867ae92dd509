"""Which columns a Parquet file can hold, and in which unit times are written.

Spark reads timestamps of a microsecond and no finer. So nanoseconds become microseconds, inside of nested columns too, and are
rounded down: the order of times stays, and no time gets later, whether it is before 1970 or after.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import InvalidUseError
from tidegate.state.plain import converted, with_leaves

_NS_PER_US = 1_000


def check_writable_columns(where: str, schema: pa.Schema) -> None:
    """Raise for the first column that can't be written, with its type and what to do."""
    for field in schema:
        reason = _refusal(field)
        if reason:
            raise InvalidUseError(
                f"{where}: Parquet can't hold the column {field.name!r}, {_hint(field.type)} or leave it out with select() "
                f"type={field.type} ({reason})"
            )


def _refusal(field: pa.Field) -> str:
    """Why a file with a row of this column can't be written; found by writing one."""
    table = pa.table([pa.nulls(1, field.type)], [field.name])
    try:
        with pq.ParquetWriter(pa.BufferOutputStream(), table.schema) as writer:
            writer.write_table(table)
    except (pa.ArrowException, OSError) as error:
        return str(error).partition("\n")[0].strip().rstrip(".").lower()
    return ""


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_interval(kind):
        return "cast it to a duration or a string in map_batches()"
    return "make other columns of it in map_batches()" if pa.types.is_nested(kind) else "cast it to another type"


def in_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with microseconds in place of nanoseconds."""
    return pa.schema([field.with_type(_coarse(field.type)) for field in schema], schema.metadata)


def as_written(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the types of the file."""
    if table.schema.types == schema.types:
        return table
    columns = [
        column if column.type == kind else pa.chunked_array([converted(chunk, kind, _floored) for chunk in column.chunks], kind)
        for column, kind in zip(table.columns, schema.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _coarse(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    return with_leaves(kind, _coarse)


def _floored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numpy's division rounds down; Arrow's cast rounds towards 1970."""
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values = array.view(pa.int64()).fill_null(0).to_numpy()
    return pa.array(np.floor_divide(values, _NS_PER_US), pa.int64(), mask=nulls).view(kind)
