"""Results on their way to the driver: Arrow IPC files in a spool directory that driver and nodes both reach.

The directory must live as long as the job's checkpoints: a manifest may name files in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.connectors.files import file_errors, local_path
from tidegate.connectors.staging import StagingDirectory
from tidegate.connectors.writer import StagedWriter
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import WriterContext
from tidegate.runtime.snapshotfile import check_rows

SUFFIX = ".arrow"


def spool_directory(spool: str) -> StagingDirectory:
    """The staging directory at this path or ``file://`` URL."""
    return StagingDirectory(local_path(spool, name="spool"), SUFFIX)


def need_spool(directory: StagingDirectory | None, sink: object) -> StagingDirectory:
    """The directory, or a clear error when the job has not set one."""
    if directory is None:
        raise InvalidUseError(f"this sink has no spool directory yet, use its with_spool(path) sink={sink!r}")
    return directory


def spool_writer(directory: StagingDirectory, context: WriterContext) -> StagedWriter:
    """A writer that stages Arrow IPC files."""
    return StagedWriter(directory, context, _IpcFile)


def read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """The batches of a spooled file, in order. ``FileNotFoundError`` when there is none."""
    with pa.OSFile(path, "rb") as file, file_errors(path), pa.ipc.open_stream(file) as reader:
        for batch in reader:
            check_rows(batch)
            yield batch


class _IpcFile:
    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.OSFile(path, "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)

    def write_table(self, table: pa.Table) -> None:
        self._stream.write_table(table)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._file.close()
