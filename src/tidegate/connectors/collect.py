"""Results for the driver's program to look at: all rows of all committed epochs, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from tidegate.connectors.owner import DirectoryLease
from tidegate.connectors.spool import need_spool, read_batches, spool_directory, spool_writer
from tidegate.connectors.staging import StagingDirectory
from tidegate.connectors.writer import StagedWriter
from tidegate.core.log.owner import Claim, Holder
from tidegate.plan.connector import Committable, WriterContext


class CollectSink:
    """Keeps committed rows in its spool directory, each exactly once, so that they outlive the driver too.

    The job sets the directory before it starts (``with_spool``). A late ``commit`` of hidden rows changes
    nothing.
    """

    kept_with_job = True
    """The rows are in the job's store; a savepoint has none of them."""

    def __init__(self, name: str, spool: str | None = None, schema: pa.Schema | None = None) -> None:
        self.name = name
        self._schema = schema
        self._spool: StagingDirectory | None = None if spool is None else spool_directory(spool)

    def __repr__(self) -> str:
        return f"CollectSink({self.name!r})"

    def with_spool(self, path: str, schema: pa.Schema | None = None) -> CollectSink:
        """The same sink over this directory. ``schema`` is what ``table`` has when there are no rows."""
        return CollectSink(self.name, path, schema or self._schema)

    def table(self) -> pa.Table:
        """The rows of all committed epochs, in the order of their checkpoints.

        Reads the spool; may be called any time.
        """
        directory = self._directory
        batches: list[pa.RecordBatch] = []
        for name in directory.published():
            with suppress(FileNotFoundError):  # hidden since the names were listed
                batches.extend(read_batches(directory.final_path(name)))
        schema = batches[0].schema if batches else self._schema or pa.schema([])
        return pa.Table.from_batches(batches, schema)

    def check_writable(self) -> None:
        """Raises ``InvalidUseError`` if nothing can be written there, and leaves nothing behind."""
        self._directory.check_writable()

    def writer(self, context: WriterContext) -> StagedWriter:
        """Stages the rows of one subtask."""
        return spool_writer(self._directory, context)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Add these rows to the table. Idempotent."""
        self._directory.publish(committables)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop these. Idempotent."""
        self._directory.discard(committables)

    def hide(self, committables: Sequence[Committable]) -> None:
        """Take these rows out of the table for good, for a restore of an older epoch."""
        self._directory.hide(committables)

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        """The same for all rows that gangs before this one staged after this checkpoint, except ``keep``."""
        self._directory.hide_unnamed(gang, checkpoint_id, keep)

    def adopt(self) -> None:
        """What is published now is another job's and stays, whatever becomes of this one."""
        self._directory.adopt()

    def check_claim(self, claim: Claim) -> None:
        """Refuse a directory that this run may not have. Called on the driver; only reads."""
        self._directory.check_claim(claim)

    def claim(self, claim: Claim) -> DirectoryLease:
        """Take the directory for this run, or refuse. Called on the driver."""
        return self._directory.claim(claim)

    def holder(self) -> Holder | None:
        """Who has the directory. Only reads."""
        return self._directory.holder()

    def newest_id(self) -> int:
        """The newest checkpoint id of what is shown; 0: there is none."""
        return self._directory.newest_id()

    def hides(self, committables: Sequence[Committable]) -> bool:
        """True when any of these was taken out of sight. Only reads."""
        return self._directory.hides(committables)

    def sweep(self, gang: int, keep: Sequence[Committable]) -> list[str]:
        """Delete what gangs before this one staged, but for ``keep``; the names that went."""
        return self._directory.sweep(gang, keep)

    def is_empty(self) -> bool:
        """True when the table has no rows."""
        return not self._directory.published()

    def clear(self) -> None:
        """Forget all rows."""
        self._directory.clear()

    @property
    def _directory(self) -> StagingDirectory:
        return need_spool(self._spool, self)
