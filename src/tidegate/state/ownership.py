"""What operators with one row of state per key share: which rows are theirs, and the frame of their state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.state.keygroups import key_groups
from tidegate.state.run import Restored, Run
from tidegate.state.table import KeyedTable
from tidegate.values import Json

Mask = npt.NDArray[np.bool_]


class Ownership:
    """The key groups of one subtask."""

    def __init__(self, keys: Sequence[str], own: range, groups: int) -> None:
        self._keys = tuple(keys)
        self._own = own
        self._groups = groups

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows are ours."""
        found = key_groups(batch, self._keys, self._groups)
        return (found >= self._own.start) & (found < self._own.stop)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are ours."""
        mine = self.mask(batch)
        return batch if mine.all() else batch.filter(pa.array(mine))

    def meta(self) -> dict[str, Json]:
        """What a restore checks."""
        return {"key_groups": self._groups}

    def check(self, pieces: Sequence[Restored]) -> None:
        """Refuse state that was cut by another number of key groups."""
        check_key_groups(self._groups, pieces)


def check_key_groups(groups: int, pieces: Sequence[Restored]) -> None:
    """Refuse state that was cut by another number of key groups."""
    for piece in pieces:
        stored = piece.meta.get("key_groups")
        if stored != groups:
            raise InvalidUseError(
                f"the checkpoint has another number of key groups: start with that one checkpoint={stored!r:.100} plan={groups}"
            )


def keyed_table(schema: pa.Schema, keys: Sequence[str]) -> KeyedTable[Run]:
    """A table whose runs are an operator's."""
    return KeyedTable(schema, keys, Run)
