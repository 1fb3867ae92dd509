"""The node's half of every sink that stages files: collect rows, write them out, roll by size, prepare, drop.

Knows no file format: an ``open_file`` function returns something with ``write_table`` and ``close``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeAlias
from uuid import uuid4

import pyarrow as pa

from tidegate.connectors.files import file_errors, remove_file
from tidegate.connectors.staging import (
    PENDING,
    StagedFile,
    StagingDirectory,
    committable_of,
    final_name,
    pending_name,
)
from tidegate.errors import InvalidUseError, RetryableError
from tidegate.plan.connector import Committable, WriterContext

CHUNK_ROWS = 262_144
"""Rows are written in pieces of about this many: a row group of a Parquet file."""

CHUNK_BYTES = 32 << 20
"""A piece of these bytes is written, however few its rows: the limit of what a writer holds in memory."""

FILE_BYTES = 128 << 20
"""A file that has reached this size is finished, and the epoch goes on in another."""


class FileWriter(Protocol):
    """An open file of some format. Both calls should release the GIL while they work."""

    def write_table(self, table: pa.Table) -> None:
        """Append these rows."""

    def close(self) -> None:
        """Finish the file."""


OpenFile: TypeAlias = Callable[[str, pa.Schema], FileWriter]


class StagedWriter:
    """A ``SinkWriter`` over a staging directory. Used by one thread. All calls block on the disk.

    Memory is bounded by ``CHUNK_BYTES`` and one batch. After a failure of the file system the writer refuses
    everything but ``close``: the epoch under way is dropped completely, never in part.
    """

    def __init__(
        self,
        directory: StagingDirectory,
        context: WriterContext,
        open_file: OpenFile,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._directory = directory
        self._context = context
        self._open_file = open_file
        self._file_bytes = file_bytes
        self._token = uuid4().hex[:8]
        self._number = 0
        self._buffer: list[pa.RecordBatch] = []
        self._buffer_rows = 0
        self._buffer_bytes = 0
        self._file: FileWriter | None = None
        self._name = ""
        self._rows = 0
        self._finished: list[tuple[str, int, int]] = []
        self._failed = False
        directory.create()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take these rows; they go to the disk once a piece has come together."""
        self._check_usable()
        if batch.num_rows == 0:
            return
        self._buffer.append(self._fitted(batch))
        self._buffer_rows += batch.num_rows
        self._buffer_bytes += batch.nbytes
        if self._buffer_rows >= CHUNK_ROWS or self._buffer_bytes >= CHUNK_BYTES:
            self._flush()

    def prepare(self, checkpoint_id: int) -> Committable | None:
        """Finish the files of this epoch. They are durable, and invisible, when this returns."""
        self._check_usable()
        self._flush()
        self._finish_file()
        if not self._finished:
            return None
        files = [self._staged(checkpoint_id, *finished) for finished in self._finished]
        self._directory.sync(os.path.join(self._directory.path, PENDING))
        self._finished = []
        return committable_of(self._context, files)

    def close(self) -> None:
        """Drop what was not prepared, files included. May be called twice."""
        self._buffer = []
        self._abandon_file()
        for name in [*(name for name, _, _ in self._finished), self._name]:
            if name:
                remove_file(self._directory.pending_path(name))
        self._finished, self._name = [], ""

    def _check_usable(self) -> None:
        if self._failed:
            raise RetryableError(
                f"an earlier write of this epoch failed, close the writer and start from the last checkpoint "
                f"operator={self._context.operator} subtask={self._context.subtask}"
            )

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._context.schema
        if batch.schema.equals(schema):
            return batch
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise InvalidUseError(
                f"a batch does not have the sink's columns operator={self._context.operator} "
                f"is={_columns(batch.schema)} expected={_columns(schema)}"
            )
        # Kernels forget which columns can't be null; the data is the same.
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _flush(self) -> None:
        if not self._buffer:
            return
        self._failed = True  # until this is through: half a piece may be in the file
        table = pa.Table.from_batches(self._buffer, self._context.schema)
        file = self._file or self._next_file()
        path = self._directory.pending_path(self._name)
        with file_errors(path):
            file.write_table(table)
            size = os.path.getsize(path)
        self._rows += table.num_rows
        self._buffer, self._buffer_rows, self._buffer_bytes = [], 0, 0
        self._failed = False
        if size >= self._file_bytes:
            self._finish_file()

    def _next_file(self) -> FileWriter:
        self._name = pending_name(self._context, self._token, self._number)
        self._number += 1
        path = self._directory.pending_path(self._name)
        with file_errors(path):
            self._file = self._open_file(path, self._context.schema)
        return self._file

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._failed = True
        path = self._directory.pending_path(self._name)
        with file_errors(path):
            self._file.close()
            size = os.path.getsize(path)
        self._directory.sync(path)
        self._finished.append((self._name, self._rows, size))
        self._file, self._name, self._rows = None, "", 0
        self._failed = False

    def _abandon_file(self) -> None:
        file, self._file = self._file, None
        # The file is deleted next. On a full disk closing fails as writing did, and that was reported.
        with suppress(OSError, pa.ArrowException):
            if file is not None:
                file.close()

    def _staged(self, checkpoint_id: int, pending: str, rows: int, size: int) -> StagedFile:
        number = int(pending.rpartition("-")[2].removesuffix(".pending"))
        final = final_name(self._context, checkpoint_id, self._token, number, self._directory.suffix)
        return StagedFile(pending, final, rows, size)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
