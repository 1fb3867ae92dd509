"""Parquet files as a source: one split per row group, in the order of event time.

Everything that can be known from the footers is read and checked once, on the driver. A split's id carries a
fingerprint of its file, so that a file that was changed since a checkpoint is refused instead of being read
from a wrong offset. Push-down changes what is emitted, never offsets, row counts or event times.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.connectors.files import local_path
from tidegate.connectors.parquet_files import (
    FileFacts,
    Footer,
    RowGroupFacts,
    common_schema,
    excluded,
    file_facts,
    find_files,
    open_file,
    path_of,
    row_group_facts,
)
from tidegate.connectors.parquet_partitions import partition_values
from tidegate.connectors.parquet_reader import Projection, RowGroupReader, SkippedReader
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Offset, Split, SplitReader
from tidegate.plan.expressions import need_column, predicate
from tidegate.plan.units import in_unit, is_event_time
from tidegate.runtime.splits import SplitList

LocalPath = str | os.PathLike[str]


class ParquetSource:
    """Reads local Parquet files: a file, a directory (with what is below it) or a list of files.

    Names that begin with ``_`` or ``.`` or end in ``.tmp`` are left out. Directories such as ``day=1`` become a column. The
    list of files is taken when this is made.
    """

    bounded = True

    def __init__(
        self,
        path: LocalPath | Sequence[LocalPath],
        *,
        event_time: str | None = None,
        out_of_orderness: Duration = "0s",
    ) -> None:
        paths = _paths(path)
        self._root, names = find_files(paths)
        self.directories = [each for each in paths if os.path.isdir(each)]
        self._configure(common_schema(self._root, names), event_time, out_of_orderness)
        self._file_count = len(names)
        self._splits = _splits([file_facts(self._root, name, self._schema, event_time) for name in names])

    def _configure(self, schema: pa.Schema, event_time: str | None, out_of_orderness: Duration) -> None:
        self._schema = schema
        self._event_time = event_time
        self._out_of_orderness = self._in_event_time(parse_duration_ms(out_of_orderness, name="out_of_orderness"))
        self._columns: tuple[str, ...] = tuple(self._schema.names)
        self._footer: Footer | None = None
        self._expression: pc.Expression | None = None
        self._tested: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_footer": None}

    def __repr__(self) -> str:
        return f"ParquetSource({self._root!r}, files={self._file_count})"

    @property
    def path(self) -> str:
        """The directory below which all files are."""
        return self._root

    @property
    def schema(self) -> pa.Schema:
        """The columns that are emitted."""
        return pa.schema([self._schema.field(name) for name in self._columns])

    @property
    def event_time(self) -> str | None:
        """The event-time column. It counts for watermarks even where ``with_columns`` left it out."""
        return self._event_time

    @property
    def out_of_orderness(self) -> int:
        """How late a row may be, in the event-time column's unit."""
        return self._out_of_orderness

    def with_columns(self, names: Sequence[str]) -> Self:
        """The same source, reading and emitting these columns only, in this order.

        Without a column a batch would have no rows, so one stays if none is asked for.
        """
        for name in names:
            need_column("with_columns", name, self._schema)
        if len(set(names)) != len(names):
            raise InvalidUseError(f"with_columns needs different columns names={list(names)!r}")
        source = copy.copy(self)
        source._columns = tuple(names) or (self._event_time or self._schema.names[0],)
        return source

    def with_filter(self, expression: pc.Expression) -> Self:
        """The same source, emitting only rows for which this is true too.

        It may use any column of the files.
        """
        tested = predicate("with_filter", expression, self._schema)
        source = copy.copy(self)
        source._expression = expression if self._expression is None else self._expression & expression
        source._tested = self._tested | tested
        return source

    def splits(self) -> Sequence[Split]:
        """One split per row group that has rows, earliest event time first; unknown ones before."""
        return self._splits

    def open(self, split: Split, offset: Offset) -> SplitReader:
        """A reader of one row group. Refuses a file that is not the one the split was made from."""
        name, group_number, fingerprint = _split_parts(split.id)
        path = self._path_of(name)
        file, self._footer = open_file(path, self._footer)
        if self._footer.fingerprint != fingerprint:
            file.close()
            raise InvalidUseError(f"this file was changed since it was first read, put it back or start afresh path={path}")
        facts = row_group_facts(file.metadata, group_number, path, self._event_field)
        start = checked_offset(offset, facts.rows, split.id)
        return self._row_group(file, name, group_number, facts, start)

    def _row_group(
        self, file: pq.ParquetFile, name: str, number: int, facts: RowGroupFacts, start: int
    ) -> RowGroupReader | SkippedReader:
        path = self._path_of(name)
        constants = partition_values(name, file.schema_arrow.names, self._schema) if "=" in name else {}
        layout = Projection(self.schema, self._event_time, self._expression, tuple(sorted(self._tested)), constants)
        if excluded(path, number, facts, layout, self._schema):
            file.close()
            return SkippedReader(layout, facts.rows, facts.highest, start)
        return RowGroupReader(file, path, number, facts.rows, start, layout)

    @property
    def _event_field(self) -> pa.Field | None:
        return None if self._event_time is None else self._schema.field(self._event_time)

    def _in_event_time(self, duration_ms: int) -> int:
        if self._event_time is None:
            if duration_ms:
                raise InvalidUseError("out_of_orderness needs an event_time column, name it")
            return 0
        field = need_column("event_time", self._event_time, self._schema)
        if not is_event_time(field.type):
            raise InvalidUseError(
                f"event_time: the column must be int64 (milliseconds) or a timestamp column={field.name} type={field.type}"
            )
        return in_unit("out_of_orderness", duration_ms, field.type)

    def _path_of(self, name: str) -> str:
        return path_of(self._root, name)


def _paths(path: LocalPath | Sequence[LocalPath]) -> list[str]:
    if isinstance(path, str | os.PathLike):
        return [local_path(path)]
    if not isinstance(path, Iterable) or not path:
        raise InvalidUseError(f"path must be a path or a list of paths path={path!r}")
    return [local_path(each) for each in path]


def _splits(files: Iterable[FileFacts]) -> SplitList:
    found = [(file, number, group) for file in files for number, group in enumerate(file.row_groups)]
    found.sort(key=lambda each: (each[2].lowest is not None, each[2].lowest or 0, each[0].name, each[1]))
    return SplitList.of(
        [
            Split(f"{file.name}#{number}@{file.fingerprint}", group.lowest, group.rows)
            for file, number, group in found
            if group.rows
        ]
    )


def _split_parts(split_id: str) -> tuple[str, int, str]:
    rest, _, fingerprint = split_id.rpartition("@")
    name, _, number = rest.rpartition("#")
    if not name or not number.isdecimal() or name.startswith("/") or ".." in name.split("/"):
        raise InvalidUseError(f"this is no split of a Parquet source split={split_id}")
    return name, int(number), fingerprint


def checked_offset(offset: Offset, rows: int, split_id: str) -> int:
    """The row that an offset of this split stands for."""
    if offset is None:
        return 0
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= rows:
        raise InvalidUseError(f"this offset is not within the split split={split_id} rows={rows} offset={offset!r}")
    return offset
