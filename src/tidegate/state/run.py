"""Immutable pieces of state, what a snapshot and a restore are made of, and how large state is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from tidegate.values import Json

PIECE_ROWS = 65_536
"""The most rows that an operator emits at once."""

_run_numbers = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """An immutable piece of state. ``uid`` is unique in this process, so that a run is uploaded once."""

    batch: pa.RecordBatch
    uid: int = field(default_factory=lambda: next(_run_numbers))


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of state held now, and the bytes held for them."""

    rows: int = 0
    nbytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.nbytes + other.nbytes)


def size_of(runs: Iterable[Run]) -> Size:
    """The size of the batches of these runs."""
    batches = [run.batch for run in runs]
    return Size(sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches))


@dataclass(frozen=True, slots=True)
class Frozen:
    """An operator's state at the cut, by reference. ``meta`` is small JSON; ``runs`` are never changed afterwards."""

    meta: dict[str, Json]
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that one subtask of the checkpoint froze; it may hold rows of key groups that are not ours now."""

    subtask: int
    meta: dict[str, Json]
    runs: tuple[Run, ...] = ()
