"""A user's function, called on the driver with every committed batch and its epoch.

A staged file moves from ``_pending`` to ``_claimed/EPOCH-NAME`` before the function sees it and is deleted
afterwards. The claim makes the epoch of a batch a fact that survives a crash: a later manifest may name the
same file again, and the function must be called with the same epoch as before, or nobody could tell a
repetition from new rows.

Before a file is deleted an empty ``_delivered/EPOCH-NAME.delivered`` says that the function has seen all of it. A
file that is nowhere and has no such note is lost, and is never taken for one that was delivered. Notes of old epochs
are forgotten: a manifest names only what was not confirmed at its cut, and few epochs are ever waiting for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from tidegate.connectors.files import file_errors, file_names, remove_file
from tidegate.connectors.owner import DirectoryLease
from tidegate.connectors.spool import need_spool, read_batches, spool_directory, spool_writer
from tidegate.connectors.staging import StagedFile, StagingDirectory, files_of
from tidegate.connectors.writer import StagedWriter
from tidegate.core.log.owner import Claim, Holder
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Committable, WriterContext

CLAIMED = "_claimed"
DELIVERED = "_delivered"
NOTED_EPOCHS = 64
"""Epochs whose delivered files are known by name. No manifest waits for more to be confirmed."""

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
        """The same sink over this directory. It needs no schema; every sink with a spool can take one."""
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
        delivered = self._delivered()
        claims = [self._claim(epoch, file, delivered) for file in files_of(committables)]
        # A file that an earlier epoch claimed goes first: epochs never go backwards for the function.
        for path in sorted(path for path in claims if path is not None):
            for batch in _read(path):
                function(batch, _epoch_of(path))
            self._note(os.path.basename(path))
            remove_file(path)
        self._forget()

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop these. Idempotent; what the function was already called with is left alone."""
        self._directory.discard(committables)

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

    def _claim(self, epoch: int, file: StagedFile, delivered: set[str] | None) -> str | None:
        """The claimed file, this epoch's or an earlier one's. ``None``: the function has seen all of it."""
        claimed = os.path.join(self._directory.path, CLAIMED)
        target = os.path.join(claimed, f"{epoch:020d}-{file.final}")
        with file_errors(target):
            os.makedirs(claimed, exist_ok=True)
            try:
                os.replace(self._directory.pending_path(file.pending), target)
            except FileNotFoundError:
                return self._claimed_before(file, delivered)
        self._directory.sync(claimed)
        return target

    def _claimed_before(self, file: StagedFile, delivered: set[str] | None) -> str | None:
        claimed = os.path.join(self._directory.path, CLAIMED)
        found = [os.path.join(claimed, n) for n in file_names(claimed) if n.partition("-")[2] == file.final]
        if delivered is not None and file.final in delivered:
            for path in found:  # a crash came before it was deleted
                remove_file(path)
            return None
        if found:
            return found[0]
        if delivered is None:
            self._note(f"{0:020d}-{file.final}")
            return None
        raise _lost(self._directory.pending_path(file.pending))

    def _delivered(self) -> set[str] | None:
        """The files that the function has seen all of. ``None``: an earlier version wrote here, which noted nothing."""
        directory = os.path.join(self._directory.path, DELIVERED)
        noted = os.path.isdir(directory)
        old = not noted and os.path.isdir(os.path.join(self._directory.path, CLAIMED))
        if not noted:
            with file_errors(directory):
                os.makedirs(directory, exist_ok=True)
            self._directory.sync(self._directory.path)
        return None if old else {_noted(name) for name in file_names(directory)}

    def _note(self, name: str) -> None:
        directory = os.path.join(self._directory.path, DELIVERED)
        with file_errors(directory), open(os.path.join(directory, f"{name}.delivered"), "wb"):
            pass
        self._directory.sync(directory)

    def _forget(self) -> None:
        directory = os.path.join(self._directory.path, DELIVERED)
        names = file_names(directory)
        epochs = sorted({_epoch_of(name) for name in names})[-NOTED_EPOCHS:]
        for name in names:
            if _epoch_of(name) < epochs[0]:
                remove_file(os.path.join(directory, name))


def _read(path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_batches(path)
    except FileNotFoundError as error:
        raise _lost(path) from error


def _lost(path: str) -> CorruptDataError:
    return CorruptDataError(
        "committed rows are lost: a staged file is gone and the function of for_each_batch has not seen it; put the file back "
        f"if there is a copy, or start with restore='none' path={path}",
        path=path,
    )


def _noted(name: str) -> str:
    return name.partition("-")[2].removesuffix(".delivered")


def _epoch_of(path: str) -> int:
    return int(os.path.basename(path).partition("-")[0])
