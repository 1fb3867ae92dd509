"""Columns that a file has by the directories above it, ``day=2024-01-01/part.parquet``, as Hive and Spark write them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError

NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # up to 18 digits always fit into 64 bits


def partitions(name: str) -> dict[str, str | None]:
    """Columns and their values as text, of a file's name relative to the source's root; ``None`` is null."""
    found: dict[str, str | None] = {}
    for directory in name.split("/")[:-1]:
        column, equals, value = directory.partition("=")
        if not equals or not column:
            continue
        column = unquote(column)
        if column in found:
            raise InvalidUseError(f"two directories above this file name the same column column={column} path={name}")
        found[column] = None if value == NULL else unquote(value)
    return found


def partition_fields(names: Iterable[str], own: Container[str]) -> list[pa.Field]:
    """Their fields, of the columns that files do not have of their ``own``: int64 where every value is a number, else string."""
    values: dict[str, list[str | None]] = {}
    for name in names:
        for column, value in partitions(name).items():
            if column not in own:
                values.setdefault(column, []).append(value)
    return [pa.field(column, _kind(found)) for column, found in values.items()]


def _kind(values: list[str | None]) -> pa.DataType:
    present = [value for value in values if value is not None]
    return pa.int64() if present and all(_WHOLE.fullmatch(value) for value in present) else pa.string()


def partition_values(name: str, own: Container[str], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """What every row of this file has in these columns, in the schema's types. A value that is not of its type is refused."""
    found = {column: text for column, text in partitions(name).items() if column not in own}
    return {column: _value(name, column, text, schema) for column, text in found.items()}


def _value(name: str, column: str, text: str | None, schema: pa.Schema) -> pa.Scalar:
    kind = schema.field(column).type if column in schema.names else pa.string()
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowException:
        raise InvalidUseError(
            f"the value of this directory is no {kind}, as those of other files are: rename it, or start afresh "
            f"column={column} value={text!r} path={name}"
        ) from None


def guarantee(values: Mapping[str, pa.Scalar]) -> pc.Expression | None:
    """What is true of every row of a file with these values."""
    known = [_is(column, value) for column, value in values.items()]
    return reduce(lambda one, other: one & other, known) if known else None


def _is(column: str, value: pa.Scalar) -> Any:
    return pc.field(column) == value if value.is_valid else pc.field(column).is_null()
