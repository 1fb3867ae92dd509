"""What rows must be where they enter a plan: from a source, or from a user's function.

They have the declared columns, of the declared types once encodings are gone, and an event time in every row. Nothing downstream
checks that again.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.state.plain import plain, plain_batch
from tidegate.state.runs import empty_batch


class Entrance:
    """Checks and decodes batches.

    ``what`` begins the sentence of a refusal, whose class is ``error``; ``role`` says which of several batches it is about.
    """

    def __init__(
        self,
        what: str,
        schema: pa.Schema,
        event_time: str | None,
        error: type[InvalidUseError] = InvalidUseError,
        role: str = "",
    ) -> None:
        self._what = what
        self._wanted = f"must return a RecordBatch {role}".rstrip() + f" with the schema [{_text(schema)}]"
        self._schema = schema
        self._types = {field.name: field.type for field in schema}
        self._event_time = event_time if event_time in schema.names else None
        self._error = error

    def admitted(self, returned: object) -> pa.RecordBatch:
        """The rows in the declared schema; columns may come in any order."""
        if isinstance(returned, pa.Table):
            returned = _one_batch(returned)
        if not isinstance(returned, pa.RecordBatch):
            raise self._unlike(type(returned).__name__)
        batch = returned if returned.schema.equals(self._schema) else self._fitted(returned)
        if self._event_time is not None and (nulls := batch.column(self._event_time).null_count):
            raise self._error(
                f"{self._what} returned rows without an event time: leave them out, or set one column={self._event_time} "
                f"rows={nulls}"
            )
        return batch

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        types = {field.name: plain(field.type) for field in batch.schema}
        if types != self._types or len(batch.schema) != len(self._schema):
            raise self._unlike(_text(batch.schema))
        batch = plain_batch(batch)
        return pa.RecordBatch.from_arrays([batch.column(name) for name in self._schema.names], schema=self._schema)

    def _unlike(self, returned: str) -> InvalidUseError:
        return self._error(f"{self._what} {self._wanted}; it returned [{returned}]")


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table. Decoded, because chunks may have different dictionaries."""
    batches = [plain_batch(batch) for batch in table.to_batches()]
    if not batches:
        return empty_batch(pa.schema([field.with_type(plain(field.type)) for field in table.schema]))
    complete = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return complete[0] if complete else batches[0]


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
