"""Keyed state for a user's function: ``fn(batch, state) -> (output, state)``, one call per batch.

The function runs on a thread of its own, one batch at a time; the table of states belongs to the loop thread,
which reads the states of a batch's keys before the call and writes what comes back after it. So the function
never sees the table, and a snapshot may come at any moment: the states are then those before the call, and
its input is stored beside them, to be processed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptDataError
from tidegate.plan.physical import ProcessSpec
from tidegate.runtime.background import Done, MapOperator, UserFunctionError
from tidegate.runtime.entrance import Entrance
from tidegate.runtime.operator import Frozen, Restored, Run
from tidegate.runtime.operators.keyed import Ownership, keyed_table
from tidegate.state.index import Slots
from tidegate.state.keygroups import canonical
from tidegate.state.partial import grouped
from tidegate.state.runs import empty_batch
from tidegate.state.sessions import key_codes

INPUT = b"tidegate.input"
"""Marks a stored batch that is to be processed again."""


class ProcessOperator(MapOperator):
    """Calls a user's function with the states of the batch's keys."""

    late_rows = 0

    def __init__(self, spec: ProcessSpec, own: range, groups: int, executor: Executor, done: Done) -> None:
        function = cast("Any", spec.function)
        super().__init__(
            spec.name, function, spec.output, executor, done, spec.event_time, kind="process", role="as output"
        )
        self._state_entrance = Entrance(self._what, spec.state, None, UserFunctionError, "as state")
        self._spec = spec
        self._ownership = Ownership(spec.keys, own, groups)
        self._table = keyed_table(_stored_schema(spec), spec.keys)
        self._keys = empty_batch(self._table.key_schema)
        self._slots: Slots = np.empty(0, np.int64)

    @property
    def state_rows(self) -> int:
        """Keys with a state."""
        return self._table.rows

    @property
    def state_bytes(self) -> int:
        """Bytes held for them, index included."""
        return self._table.nbytes

    def freeze(self) -> Frozen:
        """States by reference, one run with those that changed since the last time, and the batch at work."""
        held = ([self._input] if self._input is not None else []) + list(self._waiting)
        inputs = tuple(Run(batch.replace_schema_metadata({INPUT: b"1"})) for batch in held)
        return Frozen(self._ownership.meta(), (*self._table.cut(), *inputs))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the states of our keys, and process again what was at work."""
        self._ownership.check(pieces)
        for piece in pieces:
            for run in piece.runs:
                if (run.batch.schema.metadata or {}).get(INPUT):
                    self._again(run.batch)
                else:
                    self._table.restore(((run, run.batch),), self._ownership.mask)

    def _again(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._spec.input):
            raise CorruptDataError(f"stored input has other columns columns={batch.schema.names}")
        mine = self._ownership.rows(batch.replace_schema_metadata(self._spec.input.metadata))
        if mine.num_rows:
            self._waiting.append(mine)

    def _start(self, batch: pa.RecordBatch) -> None:
        keys = self._keys_of(batch)
        self._keys, self._slots = keys, self._table.find(keys)
        state = self._shown(keys, self._table.take(self._slots))
        self._input = batch
        self._call = self._executor.submit(self._function, batch, state)  # type: ignore[call-arg]
        self._call.add_done_callback(lambda _: self._done())

    def _keys_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The distinct keys of the batch."""
        schema = self._table.key_schema
        columns = {field.name: canonical(batch.column(field.name).cast(field.type)) for field in schema}
        return pa.RecordBatch.from_arrays(grouped(pa.table(columns), self._spec.keys, []), schema=schema)

    def _shown(self, keys: pa.RecordBatch, found: pa.RecordBatch) -> pa.RecordBatch:
        """States as the function sees them: keys always there, the rest null for a new key."""
        columns = [
            keys.column(name) if name in self._spec.keys else found.column(name) for name in self._spec.state.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.state)

    # -- what the function gave --------------------------------------------------------------------------------------

    def _checked(self, call: Future[Any]) -> pa.RecordBatch:
        error = call.exception()
        if error is not None:
            raise UserFunctionError(f"{self._what} raised {error!r}") from error
        match call.result():
            case (output, state):
                given = empty_batch(self._output) if output is None else self._entrance.admitted(output)
                self._keep(self._state_entrance.admitted(state))
                return given
            case other:
                raise self._wrong(f"must give a pair (output, state), not {type(other).__name__}")

    def _keep(self, state: pa.RecordBatch) -> None:
        """Write the states that came back; take away those of keys that were left out."""
        columns = [
            canonical(state.column(field.name)) if field.name in self._spec.keys else state.column(field.name)
            for field in self._table.schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._table.schema)
        asked = self._asked_places(rows)
        self._table.put(self._slots[asked], rows)
        self._table.drop(np.delete(self._slots, asked))

    def _asked_places(self, rows: pa.RecordBatch) -> Slots:
        """For each state that came back the place of its key among the keys of the batch."""
        keys = pa.Table.from_batches([self._keys, rows.select(self._keys.schema.names)])
        codes = key_codes(keys, self._spec.keys)
        asked, given = codes[: self._keys.num_rows], codes[self._keys.num_rows :]
        places = np.full(len(codes), -1)
        places[asked] = np.arange(len(asked))
        found = places[given]
        if (found < 0).any():
            raise self._wrong("gave the state of a key that its batch does not have")
        if len(np.unique(found)) < len(found):
            raise self._wrong("gave two states for one key")
        return np.asarray(found)

    def _wrong(self, what: str) -> UserFunctionError:
        return UserFunctionError(f"{self._what} {what}")


def _stored_schema(spec: ProcessSpec) -> pa.Schema:
    """Keys first, then the rest of the state."""
    others = [field for field in spec.state if field.name not in spec.keys]
    return pa.schema([pa.field(f.name, f.type) for f in (*(spec.state.field(key) for key in spec.keys), *others)])
