"""A user's function, called on the driver with every committed batch and its epoch.

A staged file moves from ``_pending`` to ``_claimed/EPOCH-NAME`` before the function sees it and is deleted
afterwards. The claim makes the epoch of a batch a fact that survives a crash: a later manifest may name the
same file again, and the function must be called with the same epoch as before, or nobody could tell a
repetition from new rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from tidegate.connectors.local import file_errors, remove_file
from tidegate.connectors.owner import Lease
from tidegate.connectors.spool import need_spool, read_batches, spool_directory, spool_writer
from tidegate.connectors.staging import StagedFile, StagingDirectory, files_of
from tidegate.connectors.writer import StagedWriter
from tidegate.core.ownership import Claim, Holder
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Committable, WriterContext

CLAIMED = "_claimed"

BatchFunction: TypeAlias = Callable[[pa.RecordBatch, int], object]


class ForEachBatchSink:
    """Calls ``function(batch, epoch)`` after the manifest, in epoch order. It may come again after a crash.

    What the function did can't be taken back, so there is no ``hide``: restoring an older epoch is refused.
    The function stays on the driver; it is left out when the sink is pickled for the nodes.
    """

    def __init__(self, function: BatchFunction, spool: str | None = None) -> None:
        if not callable(function):
            raise InvalidUseError(f"for_each_batch needs a function of (batch, epoch) function={function!r}")
        self._function: BatchFunction | None = function
        self._spool: StagingDirectory | None = None if spool is None else spool_directory(spool)

    def __getstate__(self) -> dict[str, object]:
        return {"_function": None, "_spool": self._spool}

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", "function")
        return f"ForEachBatchSink({name})"

    def with_spool(self, path: str, schema: pa.Schema | None = None) -> ForEachBatchSink:
        """The same sink over this directory. It needs no schema; every sink with a spool can be given one."""
        return ForEachBatchSink(self._need_function(), path)

    def check_writable(self) -> None:
        """Raises ``InvalidUseError`` if nothing can be written there, and leaves nothing behind."""
        self._directory.check_writable()

    def writer(self, context: WriterContext) -> StagedWriter:
        """Stages the rows of one subtask."""
        return spool_writer(self._directory, context)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Call the function for every batch of these that it has not seen to the end. Blocks on it.

        What the function raises comes out of here unchanged; the next call begins again with the same file.
        """
        function = self._need_function()
        claims = [self._claim(epoch, file) for file in files_of(committables)]
        # A file that an earlier epoch claimed goes first: epochs never go backwards for the function.
        for path in sorted(path for path in claims if path is not None):
            for batch in read_batches(path):
                function(batch, _epoch_of(path))
            remove_file(path)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop these. Idempotent; what the function was already called with is left alone."""
        self._directory.discard(committables)

    def check_claim(self, claim: Claim) -> None:
        """Refuse a directory that this run may not have. Called on the driver; only reads."""
        self._directory.check_claim(claim)

    def claim(self, claim: Claim) -> Lease:
        """Take the directory for this run, or refuse. Called on the driver."""
        return self._directory.claim(claim)

    def holder(self) -> Holder | None:
        """Who has the directory. Only reads."""
        return self._directory.holder()

    def newest_id(self) -> int:
        """The newest checkpoint id of what is shown; 0: there is none."""
        return self._directory.newest_id()

    def sweep(self, gang: int, keep: Sequence[Committable]) -> list[str]:
        """Delete what gangs before this one staged, but for ``keep``; the names that went."""
        return self._directory.sweep(gang, keep)

    @property
    def _directory(self) -> StagingDirectory:
        return need_spool(self._spool, self)

    def _need_function(self) -> BatchFunction:
        if self._function is None:
            raise InvalidUseError("this copy of the sink is a node's: its function stayed on the driver")
        return self._function

    def _claim(self, epoch: int, file: StagedFile) -> str | None:
        """The claimed file, this epoch's or an earlier one's. ``None``: the function has seen all of it."""
        claimed = os.path.join(self._directory.path, CLAIMED)
        target = os.path.join(claimed, f"{epoch:020d}-{file.final}")
        with file_errors(target):
            os.makedirs(claimed, exist_ok=True)
            try:
                os.replace(self._directory.pending_path(file.pending), target)
            except FileNotFoundError:
                found = (name for name in os.listdir(claimed) if name.partition("-")[2] == file.final)
                return next((os.path.join(claimed, name) for name in found), None)
        self._directory.sync(claimed)
        return target


def _epoch_of(path: str) -> int:
    return int(os.path.basename(path).partition("-")[0])
