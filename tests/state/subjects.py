"""What every implementation of state must do: a subject for each kind drives one, and says in plain Python what it should hold.

A new backend is tested by being in ``BACKENDS``; a new kind of state gets a subject here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.state.backend import Backend
from tidegate.state.closed import Closed
from tidegate.state.functions import AggregateColumn
from tidegate.state.interface import State
from tidegate.state.keygroups import partition, range_of
from tidegate.state.ownership import Ownership
from tidegate.state.partial import END, WINDOW, Layout, partial_schema
from tidegate.state.pending import PendingOutput
from tidegate.state.run import Frozen, Restored
from tidegate.state.sessions import merged_sessions, sessions_of_rows
from tidegate.state.windows import Windows

GROUPS = 16
PANE = 10
GAP = 7

Row: TypeAlias = tuple[int, int, int]
"""Key, time, value."""
ROWS = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("value", pa.int64())])


class Subject(ABC):
    """One kind of state, at some parallelism, and the model of it. ``now`` is event time."""

    def __init__(self, backend: Backend, parallelism: int = 1, now: int = -1) -> None:
        self.backend = backend
        self.now = now
        self.states: list[Any] = []
        for subtask in range(parallelism):
            own = Ownership(("key",), range_of(subtask, parallelism, GROUPS), GROUPS)
            self.states.append(self.make(own))

    @abstractmethod
    def make(self, own: Ownership) -> State:
        """The state of one subtask."""

    @abstractmethod
    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """These rows as the state takes them."""

    @abstractmethod
    def insert_into(self, model: Counter[Row], rows: Sequence[Row]) -> None:
        """What the same insert does to the model."""

    @abstractmethod
    def expire(self, model: Counter[Row], through: int) -> None:
        """Take something out of the state and out of the model."""

    def rows(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        """Rows to compare with those of the model."""
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def expected(self, model: Counter[Row]) -> list[tuple[Any, ...]]:
        """What the state should hold."""
        return self.rows([self.batch([row for row, count in model.items() for _ in range(count)])])

    # -- the same for all

    def insert(self, rows: Sequence[Row]) -> None:
        parts = partition(self.batch(rows), ("key",), len(self.states), GROUPS)
        for state, part in zip(self.states, parts, strict=True):
            if part is not None:
                state.insert(part)

    def content(self) -> list[tuple[Any, ...]]:
        """What all subtasks hold, merged by each for itself: a key that two have would be there twice."""
        return self.rows(batch for state in self.states if (held := state.read()) for batch in state.merge(held))

    def freeze(self) -> list[Frozen]:
        return [state.freeze() for state in self.states]

    def restored(self, parallelism: int) -> Subject:
        """The same at another parallelism, of what is frozen now."""
        other = type(self)(self.backend, parallelism, self.now)
        pieces = [Restored(subtask, frozen.meta, frozen.runs) for subtask, frozen in enumerate(self.freeze())]
        for state in other.states:
            state.restore(pieces)
        return other

    def _out(self, model: Counter[Row], batches: Iterable[pa.RecordBatch]) -> None:
        """These rows came out: they must have been in."""
        out = Counter(tuple(row[name] for name in ROWS.names) for batch in batches for row in batch.to_pylist())
        assert out <= model
        model.subtract(out)


class Table(Subject):
    """The newest row of a key counts."""

    def make(self, own: Ownership) -> State:
        return self.backend.table(own, ROWS, ("key",))

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return batch_of(list({row[0]: row for row in rows}.values()), ROWS)

    def insert_into(self, model: Counter[Row], rows: Sequence[Row]) -> None:
        keys = {row[0] for row in rows}
        for row in [row for row in model if row[0] in keys]:
            del model[row]
        model.update({row[0]: row for row in rows}.values())

    def expire(self, model: Counter[Row], through: int) -> None:
        gone = batch_of([row for row in model if model[row] and row[1] <= through], ROWS)
        for state, part in zip(self.states, partition(gone, ("key",), len(self.states), GROUPS), strict=True):
            if part is not None:
                state.drop(state.find(part))
        for row in [row for row in model if row[1] <= through]:
            del model[row]


class Panes(Subject):
    """The sums of a key's values in each window."""

    schema = pa.schema([(WINDOW, pa.int64()), ("key", pa.int64()), ("value", pa.int64())])

    def make(self, own: Ownership) -> State:
        closed = Closed(own.own, own.groups)
        if self.now >= 0:
            closed.advance(self.now)
        self.closed = [*getattr(self, "closed", ()), closed]
        return self.backend.panes(own, self.schema, Windows.of(PANE, PANE), closed, summed, lambda batch: batch.num_rows)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return batch_of([(time // PANE * PANE, key, value) for key, time, value in rows], self.schema)

    def insert_into(self, model: Counter[Row], rows: Sequence[Row]) -> None:
        model.update(row for row in rows if row[1] // PANE * PANE + PANE > self.now)

    def expected(self, model: Counter[Row]) -> list[tuple[Any, ...]]:
        rows = [row for row, count in model.items() for _ in range(count)]
        return self.rows(summed([self.batch(rows)]) if rows else [])

    def expire(self, model: Counter[Row], through: int) -> None:
        self.now = max(self.now, through)
        for state, closed in zip(self.states, self.closed, strict=True):
            state.retire(self.now)
            closed.advance(self.now)
        for row in [row for row in model if row[1] // PANE * PANE + PANE <= self.now]:
            del model[row]


class Sessions(Subject):
    """How many rows each session of a key has."""

    layout = Layout(("key",), (AggregateColumn.of("n", "count"),), (WINDOW, END))
    schema = partial_schema(("key",), layout.aggregates, ROWS, (WINDOW, END))

    def make(self, own: Ownership) -> State:
        return self.backend.sessions(own, self.schema, self.merged)

    def merged(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return merged_sessions(pa.Table.from_batches(batches), self.layout, self.schema)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return sessions_of_rows(pa.Table.from_batches([batch_of(rows, ROWS)]), self.layout, "time", GAP, self.schema)

    def insert_into(self, model: Counter[Row], rows: Sequence[Row]) -> None:
        model.update(rows)

    def expire(self, model: Counter[Row], through: int) -> None:
        due = sorted((start, end, key, n) for key, start, end, n in sessions(model) if end <= through)
        out: list[pa.RecordBatch] = []
        for state in self.states:
            if len(keys := state.due(through)):
                out.append(state.close(keys, through))
                state.closed(through)
        assert self.rows(out) == due
        for start, end, key, _ in due:
            for row in [row for row in model if row[0] == key and start <= row[1] < end]:
                del model[row]


class Held(Subject):
    """All rows, until event time has reached them."""

    def make(self, own: Ownership) -> State:
        return self.backend.held(own, ROWS, "held", "time", 0)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return batch_of(rows, ROWS)

    def insert_into(self, model: Counter[Row], rows: Sequence[Row]) -> None:
        model.update(rows)

    def expire(self, model: Counter[Row], through: int) -> None:
        for state in self.states:
            self._out(model, state.release(through))


class Queue(Held):
    """All rows, until their batch was processed."""

    def make(self, own: Ownership) -> State:
        return self.backend.queue(own, ROWS)

    def expire(self, model: Counter[Row], through: int) -> None:
        at_work: dict[int, pa.RecordBatch] = self.__dict__.setdefault("at_work", {})
        for subtask, state in enumerate(self.states):
            while subtask in at_work or len(state):
                batch = at_work.pop(subtask, None) or state.start()
                if batch.column("time").to_numpy().max() > through:
                    at_work[subtask] = batch
                    break
                state.done()
                self._out(model, [batch])


class Pending(Held):
    """All rows, until the step that they are in was taken."""

    schema = pa.schema([("time", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])

    def make(self, own: Ownership) -> State:
        panes = self.backend.panes(own, self.schema, Windows.of(1, 1), Closed(own.own, own.groups), list, len)
        return PendingOutput(("key",), [panes], lambda sides: 4)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return batch_of([(time, key, value) for key, time, value in rows], self.schema)

    def expire(self, model: Counter[Row], through: int) -> None:
        for state in self.states:
            list(state.split())
            for _ in range(1 + through // 25):
                for side in state.take() or ():
                    self._out(model, side)


SUBJECTS = {each.__name__.lower(): each for each in (Table, Panes, Sessions, Held, Queue, Pending)}


def batch_of(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = np.array(rows, np.int64).reshape(len(rows), len(schema)).T
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)


def summed(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(batches)
    found = table.group_by([WINDOW, "key"]).aggregate([("value", "sum")])
    return found.rename_columns([WINDOW, "key", "value"]).combine_chunks().to_batches()


def sessions(model: Counter[Row]) -> list[tuple[int, int, int, int]]:
    """Key, start, end and rows of every session of these rows."""
    found: list[tuple[int, int, int, int]] = []
    for key, time, count in sorted((key, time, count) for (key, time, _), count in model.items() if count):
        if found and found[-1][0] == key and time < found[-1][2]:
            key, start, _, n = found.pop()
            found.append((key, start, time + GAP, n + count))
        else:
            found.append((key, time, time + GAP, count))
    return found


def texts(frozen: Iterable[Frozen]) -> list[Any]:
    """Everything that is frozen, as it is now."""
    return [(str(each.meta), [run.batch.to_pylist() for run in each.runs]) for each in frozen]
