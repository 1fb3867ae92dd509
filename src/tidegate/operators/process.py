"""Keyed state for a user's function: ``fn(batch, state) -> (output, state)``, one call per batch.

The function runs on its own thread, one batch at a time; the table of states belongs to the loop thread,
which reads the states of a batch's keys before the call and writes what comes back after it. So the function
never sees the table, and a snapshot may come at any moment: the states are then those before the call, and
its input is stored beside them, to be processed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.operators.entrance import Entrance
from tidegate.operators.map import Called, MapOperator, UserFunctionError, shown
from tidegate.operators.source import sources_of
from tidegate.plan.identity import function_name, function_text
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec
from tidegate.plan.schemas import column_texts, keyed_shape
from tidegate.state.index import Slots
from tidegate.state.keygroups import canonical
from tidegate.state.partial import grouped
from tidegate.state.run import Restored
from tidegate.state.runs import empty_batch
from tidegate.state.sessions import key_codes
from tidegate.values import END_OF_TIME, Json

BatchProcess: TypeAlias = Callable[[pa.RecordBatch, pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Process(OperatorSpec):
    """What a user's function makes of each batch and the states of its keys. ``state`` has the keys among its columns.

    Rows of a key come at most ``out_of_orderness``, the largest of its sources, out of the order of their event time, where the
    input has one: so those of a source that keeps its promise hardly wait.
    """

    description = Description("process", "Process", keyed=True, stateful=True, chained=False)

    keys: tuple[str, ...]
    state: pa.Schema
    function: BatchProcess
    out_of_orderness: int = 0

    @property
    def orders_by_time(self) -> bool:
        """Rows of a key come nearly in the order of their event time."""
        return self.inputs[0].event_time is not None

    def as_stage_member(self) -> Process:
        """With the bound that its sources promise."""
        bound = max((read.source.out_of_orderness for read in sources_of(self)), default=0)
        return replace(OperatorSpec.as_stage_member(self), out_of_orderness=bound)

    def meaning(self) -> Json:
        """Keys and the function's code."""
        return [list(self.keys), function_text(self.function)]

    def properties(self) -> dict[str, Json]:
        """Keys, the function's name, the state's columns, and the parameters that the function reads."""
        named: dict[str, Json] = {"keys": list(self.keys), "function": function_name(self.function)}
        return named | {"state": list(self.state.names)} | shown(self.parameters)

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """States by key. The input counts too: a batch that was at work is stored as it came."""
        columns: dict[str, Json] = {"state": column_texts(self.state), "input": column_texts(self.input)}
        return keyed_shape("process", self.keys, self.state, key_groups) | columns

    def build(self, context: OperatorContext) -> ProcessOperator:
        """A table of states, and the function on its own thread."""
        return ProcessOperator(self, context)


class ProcessOperator(MapOperator):
    """Calls a user's function with the states of the batch's keys."""

    def __init__(self, spec: Process, context: OperatorContext) -> None:
        state = context.state(spec.keys)
        super().__init__(
            spec.name,
            Called(spec.function, spec.parameters),
            spec.schema,
            state,
            context.thread(f"process-{spec.name}"),
            context.wake,
            spec.event_time,
            kind="process",
            role="as output",
            input_schema=spec.input,
        )
        self._state_entrance = Entrance(self._what, spec.state, None, UserFunctionError, "as state")
        self._spec = spec
        self._table = state.table("keys", _stored_schema(spec), spec.keys)
        self._keys = empty_batch(self._table.key_schema)
        self._slots: Slots = np.empty(0, np.int64)
        self._held = state.held("early", spec.input, spec.name, spec.inputs[0].event_time, spec.out_of_orderness)

    @property
    def waits_for_time(self) -> bool:
        """Rows wait until the watermark has come near them."""
        return self._spec.inputs[0].event_time is not None

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Start the function with the rows that need not wait."""
        self._call_with(self._held.take(batch))
        return ()

    def release(self, timestamp: int) -> None:
        """Rows that have waited long enough go to the function, earliest first."""
        self._call_with(self._held.release(timestamp))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Process again what was at work. Rows that waited wait on, unless the plan has no event time any more."""
        super().restore(pieces)
        if not self.waits_for_time:
            for batch in self._held.release(END_OF_TIME):
                self._queue.insert(batch)

    def _call_with(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._queue.insert(batch)
        self._start_next()

    def _start(self, batch: pa.RecordBatch) -> None:
        keys = self._keys_of(batch)
        self._keys, self._slots = keys, self._table.find(keys)
        state = self._shown(keys, self._table.take(self._slots))
        self._submit(batch, state)

    def _keys_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The distinct keys of the batch."""
        schema = self._table.key_schema
        columns = {field.name: canonical(batch.column(field.name).cast(field.type)) for field in schema}
        return pa.RecordBatch.from_arrays(grouped(pa.table(columns), self._spec.keys, []), schema=schema)

    def _shown(self, keys: pa.RecordBatch, found: pa.RecordBatch) -> pa.RecordBatch:
        """States as the function sees them: keys always there, the rest null for a new key."""
        columns = [keys.column(name) if name in self._spec.keys else found.column(name) for name in self._spec.state.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.state)

    # -- what the function returned --------------------------------------------------------------------------------------

    def _checked(self, call: Future[Any]) -> pa.RecordBatch:
        error = call.exception()
        if error is not None:
            raise UserFunctionError(f"{self._what} raised {error!r}") from error
        match call.result():
            case (output, state):
                emitted = empty_batch(self._output) if output is None else self._entrance.admitted(output)
                self._keep(self._state_entrance.admitted(state))
                return emitted
            case other:
                raise self._wrong(f"must return a pair (output, state), not {type(other).__name__}")

    def _keep(self, state: pa.RecordBatch) -> None:
        """Write the states that came back; take away those of keys that were left out."""
        columns = [
            canonical(state.column(field.name)) if field.name in self._spec.keys else state.column(field.name)
            for field in self._table.schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._table.schema)
        asked = self._slots_asked(rows)
        self._table.put(self._slots[asked], rows)
        self._table.drop(np.delete(self._slots, asked))

    def _slots_asked(self, rows: pa.RecordBatch) -> Slots:
        """For each state that came back the index of its key among the keys of the batch."""
        keys = pa.Table.from_batches([self._keys, rows.select(self._keys.schema.names)])
        codes = key_codes(keys, self._spec.keys)
        asked, returned = codes[: self._keys.num_rows], codes[self._keys.num_rows :]
        indices = np.full(len(codes), -1)
        indices[asked] = np.arange(len(asked))
        found = indices[returned]
        if (found < 0).any():
            raise self._wrong("returned the state of a key that its batch does not have")
        if len(np.unique(found)) < len(found):
            raise self._wrong("returned two states for one key")
        return np.asarray(found)

    def _wrong(self, what: str) -> UserFunctionError:
        return UserFunctionError(f"{self._what} {what}")


def _stored_schema(spec: Process) -> pa.Schema:
    """Keys first, then the rest of the state."""
    others = [field for field in spec.state if field.name not in spec.keys]
    return pa.schema([pa.field(f.name, f.type) for f in (*(spec.state.field(key) for key in spec.keys), *others)])
