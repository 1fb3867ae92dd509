"""What a Parquet source knows of its files before it reads a row: names, columns, row groups, event times."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from tidegate.connectors.local import file_errors
from tidegate.connectors.parquet_reader import Layout, plain_type
from tidegate.errors import CorruptDataError, InvalidUseError

_TAIL_BYTES = 8
_UNIT_NAMES = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class RowGroupFacts:
    """Rows and event times of a row group; the times are ``None`` where the file has no statistics."""

    rows: int
    lowest: int | None = None
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file, named relative to the source's root, with ``/`` between the parts."""

    name: str
    fingerprint: str
    row_groups: tuple[RowGroupFacts, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """A parsed footer, to open the next row group of the same file for less."""

    path: str
    fingerprint: str
    metadata: pq.FileMetaData


def find_files(paths: Sequence[str]) -> tuple[str, list[str]]:
    """The root of these paths and the files below it, by relative name, sorted."""
    found = sorted({file for path in paths for file in files_at(path)})
    if not found:
        raise InvalidUseError(
            f"there is no Parquet file here, give a directory that has some path={', '.join(paths)}"
        )
    first = paths[0]
    root = (
        first
        if len(paths) == 1 and os.path.isdir(first)
        else os.path.commonpath([os.path.dirname(f) for f in found])
    )
    return root, [os.path.relpath(file, root).replace(os.sep, "/") for file in found]


def files_at(path: str) -> list[str]:
    """The Parquet files at and below this path, in no order; pending names are left out."""
    with file_errors(path):
        os.stat(path)
    if not os.path.isdir(path):
        return [path]
    found = []
    for directory, names, files in os.walk(path, onerror=_raise):
        names[:] = [name for name in names if name[0] not in "_."]
        found += [os.path.join(directory, n) for n in files if n.endswith(".parquet") and n[0] not in "_."]
    return found


def _raise(error: OSError) -> None:
    with file_errors(str(error.filename)):
        raise error


def plain_schema(path: str) -> pa.Schema:
    """A file's columns without metadata, dictionaries and views as what they stand for. Whether a column may be null does not
    count: files of one table often differ in that.
    """
    with file_errors(path), pq.ParquetFile(path) as file:
        return _plain(file.schema_arrow)


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def open_file(path: str, known: Footer | None = None) -> tuple[pq.ParquetFile, Footer]:
    """The open file and its footer, which is not parsed again if it is the one that is ``known``."""
    with file_errors(path):
        fingerprint = _fingerprint(path)
        same = known is not None and known.path == path and known.fingerprint == fingerprint
        metadata = known.metadata if known is not None and same else None
        # Measured on four numeric columns: memory maps and pre-buffering make no difference above the noise.
        file = pq.ParquetFile(path, metadata=metadata, memory_map=False, pre_buffer=False)
    return file, Footer(path, fingerprint, file.metadata)


def _fingerprint(path: str) -> str:
    """Size and footer: a rewrite of the file changes the one or the other. Costs one small read."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        footer_bytes = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - _TAIL_BYTES - footer_bytes))
        return f"{size:x}.{zlib.crc32(file.read(footer_bytes)):08x}"


def file_facts(root: str, name: str, schema: pa.Schema, event_time: str | None) -> FileFacts:
    """Read a footer and check it: the same columns as the others, no event time that is null."""
    path = os.path.join(root, *name.split("/"))
    file, footer = open_file(path)
    with file:
        found = _plain(file.schema_arrow)
        if dict(_columns(found)) != dict(_columns(schema)) or len(found) != len(schema):
            raise InvalidUseError(
                f"this file has other columns than the first: {_difference(schema, found)} path={path}"
            )
        field = None if event_time is None else schema.field(event_time)
        groups = range(file.metadata.num_row_groups)
        return FileFacts(
            name,
            footer.fingerprint,
            tuple(row_group_facts(file.metadata, number, path, field) for number in groups),
        )


def _difference(expected: pa.Schema, found: pa.Schema) -> str:
    here = {field.name: str(field) for field in found}
    there = {field.name: str(field) for field in expected}
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'missing')!r}, expected {there.get(name, 'nothing')!r}"
    return "one of them comes twice"


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def row_group_facts(
    metadata: pq.FileMetaData, number: int, path: str, event_time: pa.Field | None
) -> RowGroupFacts:
    """What the footer says of one row group."""
    if not 0 <= number < metadata.num_row_groups:
        raise InvalidUseError(f"this file has no such row group row_group={number} path={path}")
    group = metadata.row_group(number)
    if event_time is None:
        return RowGroupFacts(group.num_rows)
    columns = (group.column(index) for index in range(group.num_columns))
    column = next((c for c in columns if c.path_in_schema == event_time.name), None)
    if column is None:
        raise CorruptDataError(f"the file's footer lacks the event-time column path={path}", path=path)
    lowest, highest = _bounds(column.statistics, event_time.type, path)
    return RowGroupFacts(group.num_rows, lowest, highest)


def _bounds(found: pq.Statistics | None, kind: pa.DataType, path: str) -> tuple[int | None, int | None]:
    if found is None:
        return None, None
    if found.has_null_count and found.null_count:
        raise InvalidUseError(
            f"an event time must not be null, filter the file first nulls={found.null_count} path={path}"
        )
    if not found.has_min_max or found.physical_type != "INT64" or not _same_unit(found, kind):
        return None, None
    return found.min_raw, found.max_raw


def _same_unit(found: pq.Statistics, kind: pa.DataType) -> bool:
    if not pa.types.is_timestamp(kind):
        return True
    return any(
        f"timeUnit={name}" in str(found.logical_type) and kind.unit == unit
        for name, unit in _UNIT_NAMES.items()
    )


def excluded(path: str, number: int, facts: RowGroupFacts, layout: Layout, schema: pa.Schema) -> bool:
    """True when the statistics prove that no row passes the filter, and tell the event times as well."""
    if layout.expression is None or (layout.event_time is not None and facts.highest is None):
        return False
    # Statistics leave out NaN, and Arrow then drops rows that pass: only whole numbers and times are safe.
    if not layout.tested or not all(_is_exact(schema.field(name).type) for name in layout.tested):
        return False
    with file_errors(path):
        fragment = ds.ParquetFileFormat().make_fragment(path, LocalFileSystem(), row_groups=[number])
        return not fragment.subset(filter=layout.expression, schema=schema).row_groups


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))
