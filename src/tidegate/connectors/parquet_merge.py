"""Parquet files made of others. The list of members is in the footer, as compressed JSON."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.files import file_errors
from tidegate.connectors.merge import MergedPart
from tidegate.connectors.writer import CHUNK_BYTES, CHUNK_ROWS, FileWriter
from tidegate.errors import CorruptDataError

MEMBERS_KEY = b"tidegate.members"
BATCH_ROWS = 65_536


class AnnotatedWriter(FileWriter, Protocol):
    """A file of a format that has room for a note in its footer."""

    def annotate(self, note: dict[bytes, bytes]) -> None:
        """Have this written with the footer."""


class ParquetMerge:
    """A ``MergeFormat``. Holds at most a row group of rows in memory."""

    def __init__(self, open_file: Callable[[str, pa.Schema], AnnotatedWriter]) -> None:
        self._open_file = open_file

    def same_columns(self, paths: Sequence[str]) -> bool:
        """True when all files have the same columns and types in the same order."""
        schemas = [_schema(path) for path in paths]
        return all(schema.equals(schemas[0]) for schema in schemas)

    def merge(self, paths: Sequence[str], target: str, members: Sequence[MergedPart]) -> None:
        """Write the rows of these files into a new one."""

        def batches() -> Iterator[pa.RecordBatch]:
            for path, member in zip(paths, members, strict=True):
                with file_errors(path), pq.ParquetFile(path) as file:
                    _check_rows(path, file, member.rows)
                    yield from file.iter_batches(BATCH_ROWS)

        self._write(target, _schema(paths[0]), batches(), members)

    def cut(self, path: str, target: str, keep: Sequence[MergedPart]) -> None:
        """Write the rows of these members of a merged file into a new one."""
        kept, members = set(keep), self.members(path)

        def batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
            edges, end = [], 0
            for member in members:
                edges.append((end, end + member.rows, member in kept))
                end += member.rows
            start = 0
            for batch in file.iter_batches(BATCH_ROWS):
                for first, last, is_kept in edges:
                    low, high = max(first, start), min(last, start + batch.num_rows)
                    if is_kept and low < high:
                        yield batch.slice(low - start, high - low)
                start += batch.num_rows

        with file_errors(path), pq.ParquetFile(path) as file:
            _check_rows(path, file, sum(member.rows for member in members))
            self._write(target, _schema(path), batches(file), keep)

    def members(self, path: str) -> tuple[MergedPart, ...]:
        """What the footer says."""
        with pa.OSFile(path, "rb") as raw, file_errors(path), pq.ParquetFile(raw) as file:
            note = (file.metadata.metadata or {}).get(MEMBERS_KEY)
        try:
            listed = json.loads(zlib.decompress(base64.b64decode(note or b"", validate=True)))
            return tuple(MergedPart(str(final), int(rows)) for final, rows in listed)
        except (ValueError, TypeError, zlib.error) as error:
            raise CorruptDataError(
                f"this file does not say what it is made of, though its name says that it was merged path={path}",
                path=path,
            ) from error

    def _write(self, target: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], members: Sequence[MergedPart]) -> None:
        writer = self._open_file(target, schema)
        with file_errors(target):
            try:
                for table in _chunks(batches, schema):
                    writer.write_table(table)
                writer.annotate({MEMBERS_KEY: _note(members)})
            finally:
                writer.close()


def _note(members: Sequence[MergedPart]) -> bytes:
    text = json.dumps([[member.final, member.rows] for member in members], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode()))


def _schema(path: str) -> pa.Schema:
    with pa.OSFile(path, "rb") as raw, file_errors(path):
        schema: pa.Schema = pq.read_schema(raw)
        kept = {key: value for key, value in (schema.metadata or {}).items() if key != MEMBERS_KEY}
        return schema.with_metadata(kept or None)


def _check_rows(path: str, file: pq.ParquetFile, rows: int) -> None:
    if file.metadata.num_rows != rows:
        raise CorruptDataError(
            f"this file has other rows than were staged path={path} rows={file.metadata.num_rows} staged={rows}",
            path=path,
        )


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables of about a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch.replace_schema_metadata(schema.metadata))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)
