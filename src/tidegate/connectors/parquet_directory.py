"""A directory of Parquet files that is watched: files that appear are read too, without end.

A file must be complete when it appears under its name: write it elsewhere or under a name that begins with ``_`` or ``.`` or ends
in ``.tmp``, and rename it. It must not change afterwards. A split is a file, read row group by row group; files are read in the
order of names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidegate.connectors.files import local_path
from tidegate.connectors.parquet_files import common_schema, file_facts, files_at, open_file, row_group_facts
from tidegate.connectors.parquet_reader import RowGroupReader, SkippedReader
from tidegate.connectors.parquet_source import LocalPath, ParquetSource, checked_offset
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.errors import InvalidUseError
from tidegate.plan.columns import carried
from tidegate.plan.connector import Offset, Polled, Split, SplitReader

GroupReader = RowGroupReader | SkippedReader


class ParquetDirectorySource(ParquetSource):
    """Reads what is in a local directory, and below it, and what will be.

    ``schema`` is needed only when there is no file yet. After ``idle_timeout`` without rows a subtask does not hold
    back the watermark of the others.
    """

    bounded = False

    def __init__(
        self,
        path: LocalPath,
        *,
        event_time: str | None = None,
        out_of_orderness: Duration = "0s",
        schema: pa.Schema | None = None,
        idle_timeout: Duration = "1s",
    ) -> None:
        self._root = _directory(path)
        self.directories = [self._root]
        self._configure(_first_schema(self._root) if schema is None else carried("schema", schema), event_time, out_of_orderness)
        self.idle_timeout_ms = parse_duration_ms(idle_timeout, name="idle_timeout", minimum_ms=1)

    def __repr__(self) -> str:
        return f"ParquetDirectorySource({self._root!r})"

    def splits(self) -> list[Split]:
        """None are known on the driver: every subtask looks by itself."""
        return []

    def discover(self, is_new: Callable[[str], bool]) -> Sequence[Split]:
        """New files in the order of their names. Reads the footers of those."""
        return [self._split(name) for name in _names(self._root) if is_new(name)]

    def open(self, split: Split, offset: Offset) -> SplitReader:
        """A reader of one file. Refuses a file that was changed since the offset was taken."""
        path = self._path_of(split.id)
        file, self._footer = open_file(path, self._footer)
        file.close()
        group, row = _place(offset, self._footer.fingerprint, path)
        return FileReader(self._opener(split.id), self._footer.fingerprint, self._footer.metadata.num_row_groups, group, row)

    def _split(self, name: str) -> Split:
        facts = file_facts(self._root, name, self._schema, self._event_time)
        groups = [group for group in facts.row_groups if group.rows]
        lowest = [group.lowest for group in groups if group.lowest is not None]
        known = len(lowest) == len(groups) and lowest
        return Split(name, min(lowest) if known else None, sum(group.rows for group in groups))

    def _opener(self, name: str) -> Callable[[int, int], GroupReader]:
        path = self._path_of(name)

        def opened(number: int, row: int) -> GroupReader:
            file, self._footer = open_file(path, self._footer)
            facts = row_group_facts(file.metadata, number, path, self._event_field)
            return self._row_group(file, name, number, facts, checked_offset(row, facts.rows, path))

        return opened


class FileReader:
    """A ``SplitReader`` of all row groups of a file. The offset is the file's fingerprint, a row group and a row in it."""

    def __init__(self, opened: Callable[[int, int], GroupReader], fingerprint: str, groups: int, group: int, row: int) -> None:
        self._opened = opened
        self._fingerprint = fingerprint
        self._groups = groups
        self._group = group
        self._row = row
        self._reader: GroupReader | None = None

    @property
    def offset(self) -> Offset:
        """Where reading would go on."""
        row = self._row if self._reader is None else self._reader.offset
        return [self._fingerprint, self._group, row]

    def poll(self, max_rows: int) -> Polled:
        """The next rows of the row group under way."""
        if self._group >= self._groups:
            return Polled(None, finished=True)
        if self._reader is None:
            self._reader = self._opened(self._group, self._row)
        polled = self._reader.poll(max_rows)
        if polled.finished:
            self.close()
            self._group, self._row = self._group + 1, 0
        return Polled(polled.batch, polled.rows, polled.highest, self._group >= self._groups)

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._row = int(str(self._reader.offset))
            self._reader.close()
            self._reader = None


def _directory(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidUseError(f"a directory to watch is one path, not a list path={path!r}")
    root = local_path(path)
    if not os.path.isdir(root):
        raise InvalidUseError(f"there is no such directory to watch, make it first path={root}")
    return root


def _first_schema(root: str) -> pa.Schema:
    names = _names(root)
    if not names:
        raise InvalidUseError(f"the directory has no file yet to take the columns from: give schema= path={root}")
    return common_schema(root, names)


def _names(root: str) -> list[str]:
    return sorted(os.path.relpath(file, root).replace(os.sep, "/") for file in files_at(root))


def _place(offset: Offset, fingerprint: str, path: str) -> tuple[int, int]:
    match offset:
        case None:
            return 0, 0
        case [str(before), int(group), int(row)] if group >= 0 and row >= 0:
            if before != fingerprint:
                raise InvalidUseError(f"this file was changed while it was being read, put it back or start afresh path={path}")
            return group, row
        case _:
            raise InvalidUseError(f"this is no offset of a watched file path={path} offset={offset!r}")
