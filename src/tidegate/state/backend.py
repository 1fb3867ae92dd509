"""Where state is kept: the one place that knows the implementations. Today it is memory only.

A new backend is a class like ``Memory`` and a line in ``BACKENDS``. Operators do not change: they declare their state with
``OperatorState`` and know the protocols of ``state/interface.py`` only. How far windows are closed (``Closed``) and which rows
are on their way out (``PendingOutput``, ``PendingGroups``) refers to rows of other state, so every backend has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.state.closed import Closed
from tidegate.state.held import HeldRows
from tidegate.state.interface import HeldState, Merge, PaneState, QueueState, SessionState, TableState
from tidegate.state.ownership import Ownership
from tidegate.state.panes import Panes
from tidegate.state.queue import BatchQueue
from tidegate.state.sessionruns import MergeSessions, SessionRuns
from tidegate.state.table import KeyedTable
from tidegate.state.windows import Windows


class Backend(Protocol):
    """Makes state, empty. ``ownership`` says which rows a restore takes."""

    def table(self, ownership: Ownership, schema: pa.Schema, keys: Sequence[str]) -> TableState:
        """One row per key."""

    def panes(
        self,
        ownership: Ownership,
        schema: pa.Schema,
        windows: Windows,
        closed: Closed,
        merge: Merge,
        rows_of: Callable[[pa.RecordBatch], int],
    ) -> PaneState:
        """Rows by pane."""

    def sessions(self, ownership: Ownership, schema: pa.Schema, merge: MergeSessions) -> SessionState:
        """Open sessions by key."""

    def held(self, ownership: Ownership, schema: pa.Schema, operator: str, event_time: str | None, bound: int) -> HeldState:
        """Rows that wait for the watermark."""

    def queue(self, ownership: Ownership, schema: pa.Schema | None) -> QueueState:
        """Batches to process one after the other."""


class Memory:
    """State in this process: immutable Arrow batches, and indexes in numpy."""

    table = staticmethod(KeyedTable)
    panes = staticmethod(Panes)
    sessions = staticmethod(SessionRuns)
    held = staticmethod(HeldRows)
    queue = staticmethod(BatchQueue)


MEMORY: Backend = Memory()
BACKENDS: Mapping[str, Backend] = {"memory": MEMORY}


def backend(name: str) -> Backend:
    """The backend of this name."""
    if name not in BACKENDS:
        raise InvalidUseError(f"no such state backend: use one of {', '.join(BACKENDS)} state={name!r:.100}")
    return BACKENDS[name]
