"""An operator that tidegate does not have: the first row of every key, and how many it has left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.plan.operator import Description, Operator, OperatorContext, OperatorSpec, Stateless
from tidegate.plan.schemas import KEYED_TABLE, keyed_shape
from tidegate.state.ownership import Ownership, keyed_table
from tidegate.state.partial import grouped
from tidegate.state.run import Frozen, Restored
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
        return keyed_shape("first of key", self.keys, self.schema, key_groups) | {"layout": KEYED_TABLE}

    def build(self, context: OperatorContext) -> Operator:
        return _FirstOfKey(self, context)


class _FirstOfKey(Stateless):
    def __init__(self, spec: FirstOfKey, context: OperatorContext) -> None:
        self._ownership = Ownership(spec.keys, context.own, context.key_groups)
        columns = [spec.schema.field(key) for key in spec.keys]
        self._table = keyed_table(pa.schema([*columns, pa.field("seen", pa.bool_())]), spec.keys)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        keys = list(self._table.keys)
        numbered = pa.Table.from_batches([batch.select(keys)]).append_column("number", pa.array(np.arange(batch.num_rows)))
        *distinct, first = grouped(numbered, keys, [("number", "min")])
        seen = pa.RecordBatch.from_arrays([*distinct, pa.array(np.ones(len(first), np.bool_))], schema=self._table.schema)
        slots = self._table.find(seen)
        new = np.flatnonzero(~self._table.present(slots))
        self._table.put(slots[new], seen.take(pa.array(new)))
        return (batch.take(first.take(pa.array(new))),) if len(new) else ()

    def freeze(self) -> Frozen:
        return Frozen(self._ownership.meta(), tuple(self._table.cut()))

    def restore(self, pieces: Sequence[Restored]) -> None:
        self._ownership.check(pieces)
        for piece in pieces:
            self._table.restore([(run, run.batch) for run in piece.runs], self._ownership.mask)
