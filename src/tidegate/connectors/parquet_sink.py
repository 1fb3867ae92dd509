"""A directory of Parquet files that shows committed epochs only.

Nodes stage, the driver publishes by renaming; ``staging`` says how and why a late call can do no harm. Small files
of several subtasks and epochs are merged before they are shown, see ``merge``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.files import file_errors, local_path
from tidegate.connectors.merge import MergedFiles
from tidegate.connectors.owner import DirectoryLease
from tidegate.connectors.parquet_merge import ParquetMerge
from tidegate.connectors.parquet_types import as_written, check_writable_columns, in_microseconds
from tidegate.connectors.staging import StagingDirectory
from tidegate.connectors.writer import CHUNK_ROWS, FILE_BYTES, StagedWriter
from tidegate.core.checkpoint.budget import DEFAULT_BUDGET, PublishBudget
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.log.owner import Claim, Holder
from tidegate.errors import InvalidUseError
from tidegate.plan.capabilities import Gathered
from tidegate.plan.connector import Committable, WriterContext

# Measured on six numeric columns: snappy without dictionaries writes 13 M rows/s, with them 6 M, zstd 9 M and
# a fifth smaller. Dictionaries pay for strings.
COMPRESSIONS = ("snappy", "zstd", "lz4", "none")
TIMESTAMPS = ("us", "ns")


class ParquetSink:
    """Writes Parquet files that appear epoch by epoch, each row exactly once.

    The directory must be reachable under this path from the driver and from every node. ``durable=False``
    leaves out the syncs: then rows survive the death of any process, but not a power cut.

    ``publish_every`` says how often committed epochs appear, merged into few files. ``None``: the first eight
    at once, then all that is there every ten seconds. ``"0s"``: every epoch at once and as it was staged. Times
    in nanoseconds are written in microseconds, rounded down, because Spark reads no others; ``timestamps="ns"``
    keeps them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str = "snappy",
        file_bytes: int = FILE_BYTES,
        durable: bool = True,
        publish_every: Duration | None = None,
        timestamps: str = "us",
    ) -> None:
        self._directory = StagingDirectory(local_path(path), ".parquet", durable)
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise InvalidUseError(f"this is a file, give a directory to write to path={self.path}")
        if compression not in COMPRESSIONS:
            raise InvalidUseError(f"compression must be one of {', '.join(COMPRESSIONS)} compression={compression!r}")
        if not isinstance(file_bytes, int) or file_bytes < 1:
            raise InvalidUseError(f"file_bytes must be a positive number file_bytes={file_bytes!r}")
        if timestamps not in TIMESTAMPS:
            raise InvalidUseError(f"timestamps must be one of {', '.join(TIMESTAMPS)} timestamps={timestamps!r}")
        self._compression = compression
        self._timestamps = timestamps
        self._file_bytes = file_bytes
        self._publish_every_ms = None if publish_every is None else parse_duration_ms(publish_every, name="publish_every")

    def __repr__(self) -> str:
        return f"ParquetSink({self.path!r})"

    @property
    def path(self) -> str:
        """The directory."""
        return self._directory.path

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse columns that a Parquet file can't hold."""
        check_writable_columns("write_parquet", self._file_schema(schema))

    def check_writable(self) -> None:
        """Raises ``InvalidUseError`` if nothing can be written there, and leaves nothing behind.

        Called on the driver.
        """
        self._directory.check_writable()

    def writer(self, context: WriterContext) -> StagedWriter:
        """Stages the rows of one subtask."""
        return StagedWriter(self._directory, context, self._open_file, self._file_bytes)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Show these, small files as one. Idempotent; what was hidden stays hidden."""
        gathered = self.gather(committables)
        gathered.show()
        gathered.release()

    @property
    def publish_budget(self) -> PublishBudget | None:
        """How often waiting epochs are shown."""
        match self._publish_every_ms:
            case None:
                return DEFAULT_BUDGET
            case 0:
                return None
            case every_ms:
                return PublishBudget(1, every_ms)

    def gather(self, committables: Sequence[Committable]) -> Gathered:
        """Merge the small files of these, invisibly."""
        return self._merged.gather(committables, merge=self._publish_every_ms != 0)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Delete the staged files of these. Idempotent; published files are left alone."""
        self._directory.discard(committables)

    def hide(self, committables: Sequence[Committable]) -> None:
        """Take these out of sight for good, for a restore of an older epoch.

        A later ``commit`` of them does nothing.
        """
        self._merged.hide(committables)

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        """The same for all files that gangs before this one staged after this checkpoint, except ``keep``."""
        self._merged.hide_unnamed(gang, checkpoint_id, keep)

    def adopt(self) -> None:
        """What is published now is another job's and stays, whatever becomes of this one."""
        self._directory.adopt()

    def check_claim(self, claim: Claim) -> None:
        """Refuse a directory that this run may not have. Called on the driver; only reads."""
        self._directory.check_claim(claim)

    def claim(self, claim: Claim) -> DirectoryLease:
        """Take the directory for this run, or refuse. Called on the driver."""
        return self._directory.claim(claim, self._merged.in_peace)

    def holder(self) -> Holder | None:
        """Who has the directory. Only reads."""
        return self._directory.holder()

    def newest_id(self) -> int:
        """The newest checkpoint id of what is shown; 0: there is none."""
        return max(self._directory.newest_id(), self._merged.newest_id())

    def hides(self, committables: Sequence[Committable]) -> bool:
        """True when any of these was taken out of sight. Only reads."""
        return self._directory.hides(committables) or self._merged.hides(committables)

    def sweep(self, gang: int, keep: Sequence[Committable]) -> list[str]:
        """Delete what gangs before this one staged, but for ``keep``; the names that went."""
        self._merged.reclaim()
        return self._directory.sweep(gang, keep)

    def is_empty(self) -> bool:
        """True when a reader sees no Parquet file here."""
        return not self._directory.published()

    def clear(self) -> None:
        """Delete all Parquet files here and everything staged or hidden."""
        self._merged.clear()
        self._directory.clear()

    @property
    def _merged(self) -> MergedFiles:
        return MergedFiles(self._directory, ParquetMerge(self._open_file), self._file_bytes)

    def _open_file(self, path: str, schema: pa.Schema) -> _ParquetFile:
        return _ParquetFile(path, self._file_schema(schema), self._compression)

    def _file_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema if self._timestamps == "ns" else in_microseconds(schema)


class _ParquetFile:
    def __init__(self, path: str, schema: pa.Schema, compression: str) -> None:
        dictionaries = [field.name for field in schema if _is_text(field.type)]
        self._schema = schema
        with file_errors(path):
            self._writer = pq.ParquetWriter(path, schema, compression=compression, use_dictionary=dictionaries or False)

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(as_written(table, self._schema), row_group_size=CHUNK_ROWS)

    def annotate(self, note: dict[bytes, bytes]) -> None:
        self._writer.add_key_value_metadata(note)

    def close(self) -> None:
        self._writer.close()


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_dictionary(kind)
    )
