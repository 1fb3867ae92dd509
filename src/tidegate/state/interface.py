"""What every piece of an operator's state can do, wherever it is kept.

``State`` is the whole interface: snapshots, rescaling and metrics need no more. The protocols below it add the ways in which
operators reach rows: by key, by window, by session, in the order of time. An implementation is made by a backend
(``state/backend.py``) and is held to ``tests/state/test_state_contract.py``.

All calls come from the loop thread. What ``freeze`` returned is read by other threads, so it never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, TypeAlias

import pyarrow as pa

from tidegate.state.index import Mask, Slots
from tidegate.state.keygroups import U64
from tidegate.state.run import Frozen, Restored, Run, Size

Merge: TypeAlias = Callable[[Sequence[pa.RecordBatch]], Sequence[pa.RecordBatch]]
"""Rows that belong together become one; in any order and grouping the result is the same."""


class Snapshotted(Protocol):
    """What a snapshot, a restore and a metric need of a piece of state."""

    kind: ClassVar[str]
    """The stored layout's name: a reader of checkpoints goes by it."""

    def freeze(self) -> Frozen:
        """The state at this moment, by reference: later calls never change it (I4). What has not changed since the last
        freeze is the same runs again."""

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over what subtasks froze, at whatever parallelism: rows of key groups that are not ours are left out."""

    def size(self) -> Size:
        """What is held now."""


class State(Snapshotted, Protocol):
    """Rows of state."""

    def insert(self, rows: pa.RecordBatch, /) -> None:
        """These rows are state from now on. Where a key has one row, it replaces the one before."""

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Rows that belong together become one. The state does so whenever it likes, or never."""

    def read(self) -> list[pa.RecordBatch]:
        """The rows that are state now, each once, in no order; ``merge`` of them has one row for what belongs together."""


class TableState(State, Protocol):
    """One row per key. Slots stand for keys and are good until keys are dropped; batches have each key once."""

    schema: pa.Schema
    keys: tuple[str, ...]
    key_schema: pa.Schema

    def find(self, batch: pa.RecordBatch) -> Slots:
        """The slot of every row's key; a key that has none gets one, without a row."""

    def present(self, slots: Slots) -> Mask:
        """Which slots have a row."""

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The rows of these slots, in this order; nulls for a slot without one."""

    def put(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Give these slots these rows."""

    def drop(self, slots: Slots) -> None:
        """Take the rows of these slots away."""


class PaneState(State, Protocol):
    """Rows by pane, for windows with fixed bounds. ``insert`` drops and counts the late ones."""

    @property
    def runs(self) -> list[Run]:
        """All runs, by reference."""

    def starts_due(self, watermark: int) -> list[int]:
        """The starts of the windows with rows that this watermark closes, earliest first."""

    def window(self, start: int) -> list[Run]:
        """The runs of a window about to be emitted, by reference. Their rows say their pane."""

    def labelled(self, runs: list[Run], start: int) -> list[Run]:
        """The rows of the window's runs that are in time, labelled with its start."""

    def retire(self, watermark: int) -> None:
        """Forget the panes whose last window this watermark closes."""

    def fits(self, batch: pa.RecordBatch) -> bool:
        """Are these stored rows of this state?"""

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of our key groups among stored ones. Refuses rows that are none of this state."""


class SessionState(State, Protocol):
    """Open sessions by key."""

    def due(self, watermark: int) -> U64:
        """The hashes of the keys with sessions that end by then, in order."""

    def close(self, keys: U64, watermark: int) -> pa.RecordBatch:
        """Take out the sessions of these keys that end by then, merged; the others of the keys stay."""

    def closed(self, watermark: int) -> None:
        """All sessions that end by then were taken out."""


class HeldState(State, Protocol):
    """Rows that wait for the watermark."""

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What may be passed on now, of these rows or, when too many wait, of all."""

    def release(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Event time has reached this: the rows that need not wait any more, earliest first."""


class QueueState(State, Protocol):
    """Batches to be processed one after the other. The one at work is state until it is done."""

    def __len__(self) -> int:
        """Batches that wait."""

    def start(self) -> pa.RecordBatch:
        """The next batch; it is at work from now on."""

    def done(self) -> None:
        """The batch at work is processed."""
