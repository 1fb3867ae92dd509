"""Keyed point state: one row per key, found by key index, kept in immutable Arrow chunks.

A change of some keys appends a chunk with their new rows and points their slots there; what they had before
is stale. So a checkpoint needs only what changed since the last one: at the cut the newest rows of the changed
keys become runs, and all older runs are what they were. Chunks that are small, or mostly stale, are written
anew now and then, a bounded amount at a time.

Runs in the order in which ``freeze`` returns them say everything: a later row of a key replaces an
earlier one, and a run with the keys alone says that these are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.index import KeyIndex, Mask, Slots
from tidegate.state.keygroups import hashes
from tidegate.state.ownership import Ownership, check_columns
from tidegate.state.partial import grouped
from tidegate.state.run import Frozen, Restored, Run, Size
from tidegate.state.runs import concatenated

SMALL_ROWS = 65_536
CHUNK_ROWS = 262_144
SMALL_CHUNKS_MAX = 16
GONE_KEYS_MIN = 65_536
FREE_SLOTS_MAX = 65_536

_ABSENT = -1
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1


@dataclass(slots=True, eq=False)
class _Chunk:
    """Rows of the slots ``slots``. ``cut``: it is part of a snapshot, so it is never changed."""

    batch: pa.RecordBatch
    slots: npt.NDArray[np.int32]
    live: int
    cut: bool = False


class KeyedTable:
    """One row per key. Keys come first in the schema. Everything works on batches whose keys differ.

    Key groups are those of the ownership's columns, which are among the keys. A run stays the same object for as long as its rows
    are kept.
    """

    kind: ClassVar[str] = "table"

    def __init__(self, ownership: Ownership, schema: pa.Schema, keys: Sequence[str]) -> None:
        if schema.names[: len(keys)] != list(keys):
            raise ValueError(f"keys come first columns={schema.names} keys={keys}")
        self.schema = schema
        self.keys = tuple(keys)
        self._ownership = ownership
        self.key_schema = pa.schema([schema.field(key) for key in keys])
        self._index = KeyIndex()
        self._where = np.empty(0, np.int64)
        self._chunks: dict[int, _Chunk] = {}
        self._gone: list[pa.RecordBatch] = []
        self._cut: dict[int, Run] = {}  # runs of chunks and of keys that are gone, in order
        self._gone_cut: dict[int, int] = {}
        self._next = 0
        self._plain_hash = len(keys) == 1 and _hash_tells(schema.field(0).type)

    # -- what it holds -----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Keys that have a row."""
        return sum(chunk.live for chunk in self._chunks.values())

    def size(self) -> Size:
        """Keys that have a row; bytes with stale rows and the index."""
        held = sum(chunk.batch.nbytes + chunk.slots.nbytes for chunk in self._chunks.values())
        return Size(self.rows, int(held + self._where.nbytes + self._index.nbytes))

    def read(self) -> list[pa.RecordBatch]:
        """Every key's row, once."""
        return [self._live(number)[0] for number, chunk in self._chunks.items() if chunk.live]

    # -- reading and writing -----------------------------------------------------------------------------------------

    def insert(self, rows: pa.RecordBatch, /) -> None:
        """These rows replace those of the same keys."""
        self.put(self.find(rows), rows)

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """No two rows belong together: a key has one."""
        return batches

    def find(self, batch: pa.RecordBatch) -> Slots:
        """The slot of every row's key; a key that has none gets one, without a row.

        Such a slot is good for the next ``put``; finding the key again before may return another one.
        """
        batch = batch.select(list(self.keys))
        if self._plain_hash and batch.column(0).null_count:
            self._plain_hash = False  # null has a hash too, and some number has the same
        slots = self._index.find(hashes(batch, self.keys), lambda rows, found: self._same(batch, rows, found))
        if self._index.count > len(self._where):
            grown = np.full(max(1024, 2 * len(self._where), self._index.count), _ABSENT, np.int64)
            grown[: len(self._where)] = self._where
            self._where = grown
        return slots

    def present(self, slots: Slots) -> Mask:
        """Which slots have a row."""
        return np.asarray(self._where[slots] != _ABSENT)

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The rows of these slots, in this order; nulls for a slot without one."""
        where = self._where[slots]
        order = np.argsort(where)
        ordered = where[order]
        first = int(np.searchsorted(ordered, 0))
        pieces = self._pieces(ordered[first:])
        if not pieces:
            return pa.RecordBatch.from_arrays([pa.nulls(len(slots), field.type) for field in self.schema], schema=self.schema)
        back = np.empty(len(slots), np.int64)
        back[order] = np.arange(len(slots)) - first
        rows = pa.array(back, mask=back < 0)
        found = pa.Table.from_batches(pieces).combine_chunks().take(rows).combine_chunks()
        return found.to_batches()[0] if found.num_rows else pieces[0].slice(0, 0)

    def put(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Put these rows into these slots."""
        if batch.num_rows:
            self._forget(slots)
            self._append(batch, slots, cut=False)
            self._tidy()

    def drop(self, slots: Slots) -> None:
        """Take the rows of these slots away. Slots found before may be other keys' from now on."""
        slots = slots[self.present(slots)]
        if len(slots):
            if self._cut:  # else no run has them
                self._gone.append(self.take(slots).select(list(self.keys)))
            self._forget(slots)
            self._where[slots] = _ABSENT
            self._tidy()
        if self._index.count > 2 * self.rows + FREE_SLOTS_MAX:
            self._renumber()

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def freeze(self) -> Frozen:
        """All rows as runs, oldest first. Takes as long as there are rows that changed since the last time."""
        if self._gone:
            # A key may have gone, come back and gone again since the last cut; once is enough.
            columns = grouped(pa.Table.from_batches(self._gone), self.keys, [])
            batch = pa.RecordBatch.from_arrays(columns, schema=self.key_schema)
            self._gone_cut[self._next] = batch.num_rows
            self._cut[self._next] = Run(batch)
            self._next += 1
            self._gone = []
        for number in self._compacted([n for n, chunk in self._chunks.items() if not chunk.cut], cut=True):
            self._cut[number] = Run(self._chunks[number].batch)
        return Frozen({}, tuple(self._cut.values()))

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over runs in their order, without the rows of keys that are not ours."""
        for run in (run for piece in pieces for run in piece.runs):
            gone = run.batch.schema.equals(self.key_schema) and not run.batch.schema.equals(self.schema)
            check_columns(run.batch, self.key_schema if gone else self.schema)
            rows = self._ownership.rows(run.batch)
            if rows.num_rows:
                self._restore(run if rows is run.batch else Run(rows), gone)

    def _restore(self, run: Run, gone: bool) -> None:
        rows = run.batch
        slots = self.find(rows)
        self._forget(slots[self.present(slots)])
        if gone:
            self._where[slots] = _ABSENT
            self._gone_cut[self._next] = rows.num_rows
            self._cut[self._next] = run
            self._next += 1
        else:
            self._cut[self._append(rows, slots, cut=True)] = run

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _append(self, batch: pa.RecordBatch, slots: npt.NDArray[np.integer], *, cut: bool) -> int:
        number, self._next = self._next, self._next + 1
        self._chunks[number] = _Chunk(batch, slots.astype(np.int32), batch.num_rows, cut)
        self._where[slots] = (number << _ROW_BITS) + np.arange(batch.num_rows)
        return number

    def _forget(self, slots: Slots) -> None:
        """The rows that these slots have now are stale."""
        where = self._where[slots]
        where = where[where != _ABSENT]
        if len(where):
            numbers = where >> _ROW_BITS
            first = int(numbers.min())
            counts = np.bincount(numbers - first)
            for number in np.flatnonzero(counts).tolist():
                self._chunks[first + number].live -= int(counts[number])

    def _pieces(self, where: Slots) -> list[pa.RecordBatch]:
        """The rows at these indices, which are in order."""
        numbers = where >> _ROW_BITS
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(where)]
        return [
            self._chunks[int(numbers[start])].batch.take(pa.array(where[start:stop] & _ROW_MASK))
            for start, stop in pairwise(edges)
            if stop > start
        ]

    def _tidy(self) -> None:
        """Write anew what is mostly stale, one chunk at a time, and small chunks once there are many."""
        for cut in (False, True):
            mine = [n for n, chunk in self._chunks.items() if chunk.cut is cut]
            empty = [n for n in mine if not self._chunks[n].live]
            stale = [n for n in mine if 0 < 2 * self._chunks[n].live < self._chunks[n].batch.num_rows]
            small = [n for n in mine if self._chunks[n].batch.num_rows < SMALL_ROWS]
            for number in empty:
                self._remove(number)
            if len(small) > SMALL_CHUNKS_MAX:
                self._rewrite([n for n in small if n in self._chunks], cut)
            elif stale:
                self._rewrite(stale[:1], cut)
        self._tidy_gone()

    def _tidy_gone(self) -> None:
        """Once all chunks are younger than a run of gone keys, nothing of those keys is left to be hidden."""
        if sum(self._gone_cut.values()) > max(GONE_KEYS_MIN, self.rows):
            self._rewrite([n for n, chunk in self._chunks.items() if chunk.cut], True)
        oldest = min((n for n, chunk in self._chunks.items() if chunk.cut), default=self._next)
        for number in [n for n in self._gone_cut if n < oldest]:
            del self._gone_cut[number], self._cut[number]

    def _rewrite(self, numbers: Sequence[int], cut: bool) -> None:
        for number in self._compacted(numbers, cut=cut):
            if cut:
                self._cut[number] = Run(self._chunks[number].batch)

    def _compacted(self, numbers: Sequence[int], *, cut: bool) -> list[int]:
        """The live rows of these chunks in new chunks; returns the new ones. A live row may move after all
        others, because it is its key's newest."""
        made: list[int] = []
        held: list[tuple[pa.RecordBatch, npt.NDArray[np.int32]]] = []
        rows = 0
        for number in numbers:
            held.append(self._live(number))
            rows += held[-1][0].num_rows
            self._remove(number)
            if rows >= CHUNK_ROWS:
                made += self._joined(held, cut)
                held, rows = [], 0
        return made + self._joined(held, cut)

    def _joined(self, held: Sequence[tuple[pa.RecordBatch, npt.NDArray[np.int32]]], cut: bool) -> list[int]:
        made: list[int] = []
        slots = np.concatenate([each for _, each in held]) if held else np.empty(0, np.int32)
        start = 0
        for batch in concatenated([batch for batch, _ in held]) if len(slots) else ():
            made.append(self._append(batch, slots[start : start + batch.num_rows], cut=cut))
            start += batch.num_rows
        return made

    def _live(self, number: int) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
        chunk = self._chunks[number]
        if chunk.live == chunk.batch.num_rows:
            return chunk.batch, chunk.slots
        here = (number << _ROW_BITS) + np.arange(chunk.batch.num_rows)
        rows = np.flatnonzero(self._where[chunk.slots] == here)
        return chunk.batch.take(pa.array(rows)), chunk.slots[rows]

    def _remove(self, number: int) -> None:
        del self._chunks[number]
        self._cut.pop(number, None)

    def _renumber(self) -> None:
        """Assign slots to the keys with rows only."""
        slots = np.flatnonzero(self._where[: self._index.count] != _ABSENT)
        renamed = np.zeros(self._index.count, np.int32)  # stale rows may name any slot: none points at them
        renamed[slots] = np.arange(len(slots))
        for chunk in self._chunks.values():
            chunk.slots = renamed[chunk.slots]
        self._where = self._where[slots]
        self._index = self._index.only(slots)

    # -- keys --------------------------------------------------------------------------------------------------------

    def _same(self, batch: pa.RecordBatch, rows: npt.NDArray[np.intp], slots: Slots) -> Mask:
        """A slot without a row is nobody's: its key may have been another one with the same hash."""
        if self._plain_hash:
            return np.ones(len(rows), np.bool_)
        same = self.present(slots)
        stored, asked = self.take(slots), batch.take(pa.array(rows))
        for key in self.keys:
            same &= _equal(stored.column(key), asked.column(key))
        return same


def _equal(stored: pa.Array, asked: pa.Array) -> Mask:
    """Equal values, or both null. Floats by their bits: they are canonical, and NaN is a key too."""
    if pa.types.is_floating(stored.type):
        words = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[stored.type.bit_width]
        stored, asked = stored.view(words), asked.view(words)
    equal = pc.equal(stored, asked).fill_null(False).to_numpy(zero_copy_only=False)
    nulls = pc.and_(stored.is_null(), asked.is_null()).to_numpy(zero_copy_only=False)
    return np.asarray(equal | nulls)


def _hash_tells(kind: pa.DataType) -> bool:
    """True when different values have different hashes: one word, mixed in a way that can be undone."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))
