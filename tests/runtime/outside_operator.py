"""An operator that tidegate does not have: the first row of every key, and how many it has left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.plan.operator import Description, Operator, OperatorContext, OperatorSpec, Stateful
from tidegate.plan.schemas import keyed_shape
from tidegate.state.partial import grouped
from tidegate.values import Json


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FirstOfKey(OperatorSpec):
    """The first row of every key."""

    description = Description("firstofkey", "FirstOfKey", keyed=True, stateful=True, chained=False)

    keys: tuple[str, ...]

    def meaning(self) -> Json:
        return list(self.keys)

    def properties(self) -> dict[str, Json]:
        return {"keys": list(self.keys)}

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        return keyed_shape("first of key", self.keys, self.schema, key_groups)

    def build(self, context: OperatorContext) -> Operator:
        return _FirstOfKey(self, context)


class _FirstOfKey(Stateful):
    def __init__(self, spec: FirstOfKey, context: OperatorContext) -> None:
        columns = [spec.schema.field(key) for key in spec.keys]
        self.state = context.state(spec.keys)
        self._table = self.state.table("keys", pa.schema([*columns, pa.field("seen", pa.bool_())]), spec.keys)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        keys = list(self._table.keys)
        numbered = pa.Table.from_batches([batch.select(keys)]).append_column("number", pa.array(np.arange(batch.num_rows)))
        *distinct, first = grouped(numbered, keys, [("number", "min")])
        seen = pa.RecordBatch.from_arrays([*distinct, pa.array(np.ones(len(first), np.bool_))], schema=self._table.schema)
        slots = self._table.find(seen)
        new = np.flatnonzero(~self._table.present(slots))
        self._table.put(slots[new], seen.take(pa.array(new)))
        return (batch.take(first.take(pa.array(new))),) if len(new) else ()
