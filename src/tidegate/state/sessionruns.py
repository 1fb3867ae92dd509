"""The open sessions of one subtask, as immutable runs in the order of the keys' hashes.

A watermark closes some sessions. Only their keys are looked at: their rows are taken out of every run, by
binary search, and what is still open comes back as a new run. Rows taken out leave holes; a snapshot stores
runs as they are and the holes beside them, so that it costs no more than there are holes. Runs that are mostly
holes are written anew, and small runs are merged in tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import CorruptDataError
from tidegate.state.keygroups import U64, hashes
from tidegate.state.ownership import Ownership, check_columns
from tidegate.state.partial import END, WINDOW
from tidegate.state.run import Frozen, Restored, Run, Size
from tidegate.state.runs import concatenated

RUNS_PER_TIER = 8
MERGE_ROWS_MAX = 131_072
HOLES = pa.schema([("run", pa.int32()), ("row", pa.int64())])
_SEALED = -1

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
MergeSessions: TypeAlias = Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch]


@dataclass(slots=True, eq=False)
class _Held:
    """A run, what is needed to search it, and which of its rows are still there."""

    run: Run
    hashes: U64
    tier: int = 0
    alive: Mask | None = None
    holes: list[Rows] = field(default_factory=list)
    earliest: int = 0

    def __post_init__(self) -> None:
        self.find_earliest()

    @property
    def starts(self) -> Rows:
        return np.asarray(self.run.batch.column(WINDOW).to_numpy())

    @property
    def ends(self) -> Rows:
        return np.asarray(self.run.batch.column(END).to_numpy())

    @property
    def live(self) -> int:
        return int(self.run.batch.num_rows) - sum(map(len, self.holes))

    def find_earliest(self) -> None:
        ends = self.ends if self.alive is None else self.ends[self.alive]
        self.earliest = int(ends.min()) if len(ends) else 1 << 62

    def due(self, watermark: int) -> U64:
        """The hashes of the keys with a session that ends by then."""
        due = self.ends <= watermark
        return self.hashes[due if self.alive is None else due & self.alive]

    def pull(self, keys: U64, watermark: int) -> pa.RecordBatch | None:
        """Take out the rows with these hashes that begin before the watermark."""
        low = np.searchsorted(self.hashes, keys, "left")
        counts = np.searchsorted(self.hashes, keys, "right") - low
        total = int(counts.sum())
        if not total:
            return None
        rows = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(total)
        wanted = self.starts[rows] < watermark
        rows = rows[wanted if self.alive is None else wanted & self.alive[rows]]
        return self._out(rows) if len(rows) else None

    def _out(self, rows: Rows) -> pa.RecordBatch:
        if self.alive is None:
            self.alive = np.ones(self.run.batch.num_rows, np.bool_)
        self.alive[rows] = False
        self.holes.append(rows)
        return self.run.batch.take(pa.array(rows))

    def rest(self) -> pa.RecordBatch:
        """The rows that are still there."""
        return self.run.batch if self.alive is None else self.run.batch.filter(pa.array(self.alive))


class SessionRuns:
    """Insert sessions, take out those that a watermark closes. The first two columns are their bounds."""

    kind: ClassVar[str] = "sessions"

    def __init__(self, ownership: Ownership, schema: pa.Schema, merge: MergeSessions) -> None:
        self._ownership = ownership
        self._schema = schema
        self._merge = merge
        self._held: list[_Held] = []

    def size(self) -> Size:
        """Sessions held, before those of a key are merged; bytes of runs and hashes."""
        nbytes = sum(held.run.batch.nbytes + held.hashes.nbytes for held in self._held)
        return Size(sum(held.live for held in self._held), nbytes)

    def insert(self, batch: pa.RecordBatch, /) -> None:
        """Keep these sessions; every one has its bounds."""
        if batch.num_rows:
            self._held.append(self._searchable(Run(batch)))
            self._tidy()

    def due(self, watermark: int) -> U64:
        """The hashes of the keys with sessions that end by then, in order."""
        due = [held.due(watermark) for held in self._held if held.earliest <= watermark]
        return np.unique(np.concatenate(due)) if due else np.empty(0, np.uint64)

    def close(self, keys: U64, watermark: int) -> pa.RecordBatch:
        """Take out the sessions of these keys that end by then, merged; the others of the keys go back."""
        found = [out for held in self._held if (out := held.pull(keys, watermark)) is not None]
        merged = self._merge(found)
        closed = merged.column(END).to_numpy() <= watermark
        if closed.all():
            return merged
        self._held.append(self._searchable(Run(merged.filter(pa.array(~closed)))))
        return merged.filter(pa.array(closed))

    def closed(self, watermark: int) -> None:
        """All sessions that end by then were taken out: put the rest in order."""
        for held in self._held:
            if held.earliest <= watermark:
                held.find_earliest()
        self._tidy()

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Sessions of a key that overlap become one."""
        return [self._merge(batches)] if batches else []

    def read(self) -> list[pa.RecordBatch]:
        """The open sessions, not merged."""
        return [held.rest() for held in self._held]

    def freeze(self) -> Frozen:
        """The runs by reference, and their holes."""
        runs = tuple(held.run for held in self._held)
        holes = [(index, rows) for index, held in enumerate(self._held) for rows in held.holes]
        if not holes:
            return Frozen({}, runs)
        indices = np.concatenate([np.full(len(rows), index, np.int32) for index, rows in holes])
        rows = np.concatenate([rows for _, rows in holes])
        return Frozen({}, (*runs, Run(pa.RecordBatch.from_arrays([pa.array(indices), pa.array(rows)], schema=HOLES))))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the rows that are ours."""
        for run, there in (each for piece in pieces for each in without_holes(piece.runs)):
            check_columns(run.batch, self._schema, time_columns=2)
            mine = self._ownership.mask(run.batch) & there
            rows = run if mine.all() else Run(run.batch.filter(pa.array(mine)))
            if rows.batch.num_rows:
                self._held.append(self._searchable(rows))
        self._tidy()

    def _searchable(self, run: Run, tier: int = 0) -> _Held:
        hashed = hashes(run.batch, self._ownership.keys)
        if len(hashed) > 1 and (hashed[1:] < hashed[:-1]).any():
            order = np.argsort(hashed)
            run, hashed = Run(run.batch.take(pa.array(order))), hashed[order]
        return _Held(run, hashed, tier)

    def _tidy(self) -> None:
        self._held = [self._tight(held) for held in self._held if held.live]
        tier = 0
        while len(full := [held for held in self._held if held.tier == tier]) >= RUNS_PER_TIER:
            self._merge_tier(full, tier)
            tier += 1

    def _tight(self, held: _Held) -> _Held:
        """A run that is mostly holes without them."""
        if 2 * held.live >= held.run.batch.num_rows:
            return held
        return _Held(Run(held.rest()), held.hashes[held.alive], held.tier)

    def _merge_tier(self, full: Iterable[_Held], tier: int) -> None:
        full = list(full)
        if sum(held.live for held in full) > MERGE_ROWS_MAX:
            for held in full:
                held.tier = _SEALED
            return
        gone = set(map(id, full))
        self._held = [held for held in self._held if id(held) not in gone]
        merged = self._merge([held.rest() for held in full])
        self._held += [self._searchable(Run(batch), tier + 1) for batch in concatenated([merged])]


def without_holes(runs: Sequence[Run]) -> Iterator[tuple[Run, Mask]]:
    """The stored runs of sessions, and which rows of each are still there."""
    holes = [run.batch for run in runs if run.batch.schema.equals(HOLES)]
    for index, run in enumerate(run for run in runs if not run.batch.schema.equals(HOLES)):
        there = np.ones(run.batch.num_rows, np.bool_)
        for batch in holes:
            gone = batch.column("row").to_numpy()[batch.column("run").to_numpy() == index]
            if len(gone) and not 0 <= int(gone.min()) <= int(gone.max()) < len(there):
                raise CorruptDataError(f"stored state names rows that it does not have rows={len(there)}")
            there[gone] = False
        yield run, there
