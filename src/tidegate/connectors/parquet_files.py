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

from tidegate.connectors.files import file_errors
from tidegate.connectors.parquet_partitions import guarantee, partition_fields, partition_values
from tidegate.connectors.parquet_reader import Projection
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.columns import check_names
from tidegate.state.plain import plain

_MAGIC = (b"PAR1", b"PARE")
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
        raise InvalidUseError(f"there is no Parquet file here, give a directory that has some path={', '.join(paths)}")
    first = paths[0]
    root = first if len(paths) == 1 and os.path.isdir(first) else os.path.commonpath([os.path.dirname(f) for f in found])
    return root, [os.path.relpath(file, root).replace(os.sep, "/") for file in found]


def files_at(path: str) -> list[str]:
    """The files at and below this path, in no order. Names that Spark takes for hidden are left out."""
    with file_errors(path):
        os.stat(path)
    if not os.path.isdir(path):
        return [path]
    found = []
    for directory, names, files in os.walk(path, onerror=_raise):
        names[:] = [name for name in names if not _is_hidden(name)]
        found += [os.path.join(directory, name) for name in files if not _is_hidden(name)]
    return found


def _is_hidden(name: str) -> bool:
    """By Spark's rule, and ``.tmp``, as a file is often called while it is written.

    A column's name may begin with an underscore, and then so does its directory.
    """
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith(("._COPYING_", ".tmp"))


def _raise(error: OSError) -> None:
    with file_errors(str(error.filename)):
        raise error


def common_schema(root: str, names: Sequence[str]) -> pa.Schema:
    """The columns of the first of these files, then those of the directories above all of them.

    Without metadata, dictionaries and views as what they stand for. Whether a column may be null does not count: files of one
    table often differ in that.
    """
    path = path_of(root, names[0])
    check_magic(path)
    with file_errors(path), pq.ParquetFile(path) as file:
        schema = _plain(file.schema_arrow)
    check_names(f"the file {path}", schema.names)
    return pa.schema([*schema, *partition_fields(names, schema.names)])


def path_of(root: str, name: str) -> str:
    """The path of a file of this name."""
    return os.path.join(root, *name.split("/"))


def check_magic(path: str) -> None:
    """Refuse what some other program left among the files, with what to do about it."""
    with file_errors(path), open(path, "rb") as file:
        begin = file.read(4)
    if begin not in _MAGIC:
        raise CorruptDataError(
            f"this is no Parquet file: move it elsewhere, or let its name begin with _ or . path={path}", path=path
        )


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain(field.type)) for field in schema])


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
    path = path_of(root, name)
    check_magic(path)
    file, footer = open_file(path)
    with file:
        own = _plain(file.schema_arrow)
        constants = partition_values(name, own.names, schema)
        found = pa.schema([*own, *(pa.field(column, value.type) for column, value in constants.items())])
        if event_time in constants:
            raise InvalidUseError(f"an event time comes from the rows, not from a directory column={event_time} path={path}")
        if dict(_columns(found)) != dict(_columns(schema)) or len(found) != len(schema):
            raise InvalidUseError(f"this file has other columns than the first: {_difference(schema, found)} path={path}")
        field = None if event_time is None else schema.field(event_time)
        groups = range(file.metadata.num_row_groups)
        return FileFacts(
            name,
            footer.fingerprint,
            tuple(row_group_facts(file.metadata, number, path, field) for number in groups),
        )


def _difference(expected: pa.Schema, found: pa.Schema) -> str:
    here, there = ({field.name: f"{field.name}: {field.type}" for field in schema} for schema in (found, expected))
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'missing')!r}, expected {there.get(name, 'nothing')!r}"
    return "one of them comes twice"


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def row_group_facts(metadata: pq.FileMetaData, number: int, path: str, event_time: pa.Field | None) -> RowGroupFacts:
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
        raise InvalidUseError(f"an event time must not be null, filter the file first nulls={found.null_count} path={path}")
    if not found.has_min_max or found.physical_type != "INT64" or not _same_unit(found, kind):
        return None, None
    return found.min_raw, found.max_raw


def _same_unit(found: pq.Statistics, kind: pa.DataType) -> bool:
    if not pa.types.is_timestamp(kind):
        return True
    return any(f"timeUnit={name}" in str(found.logical_type) and kind.unit == unit for name, unit in _UNIT_NAMES.items())


def excluded(path: str, number: int, facts: RowGroupFacts, layout: Projection, schema: pa.Schema) -> bool:
    """True when the statistics prove that no row passes the filter, and tell the event times as well."""
    if layout.expression is None or (layout.event_time is not None and facts.highest is None):
        return False
    # Statistics leave out NaN, and Arrow then drops rows that pass: only whole numbers and times are safe.
    from_rows = [name for name in layout.tested if name not in layout.constants]
    if not layout.tested or not all(_is_exact(schema.field(name).type) for name in from_rows):
        return False
    with file_errors(path):
        fragment = ds.ParquetFileFormat().make_fragment(
            path, LocalFileSystem(), partition_expression=guarantee(layout.constants), row_groups=[number]
        )
        return not fragment.subset(filter=layout.expression, schema=schema).row_groups


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))
