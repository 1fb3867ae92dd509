"""Which slot a key has: a hash table over batches, in numpy.

Slots are numbers from 0 on, assigned in the order in which keys appear, and never taken back. The table knows
64-bit hashes only; whoever keeps the keys says which of two equal hashes are equal keys. Open addressing with
linear probing: every round looks at one bucket for each key that is not found yet, so a batch takes a few
rounds, each quick.

The table has parts, by the first bits of the hash. A part that is about half full is built anew, twice as
large, by one sort. Parts grow at different fillings, so that no batch waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.state.keygroups import U64

Slots: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Same: TypeAlias = Callable[[npt.NDArray[np.intp], Slots], Mask]
"""Are the keys of these rows those of these slots? Asked only where the hashes are equal."""

_FREE = -1
_PART_BITS = 4
_PARTS = 1 << _PART_BITS
_SMALLEST_BITS = 6
_TAIL = 256
"""Buckets after a part's last one, so that probing never wraps around."""
_SLOT_BITS = 32
_FILLINGS = 0.5 - np.arange(_PARTS) / (4 * _PARTS)


class KeyIndex:
    """Hash to slot."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes: U64 = np.empty(1024, np.uint64)
        self._bits = np.full(_PARTS, _SMALLEST_BITS)
        self._counts = np.zeros(_PARTS, np.int64)
        self._join([np.full((1 << _SMALLEST_BITS) + _TAIL, _FREE, np.int32) for _ in range(_PARTS)])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._hashes.nbytes + self._table.nbytes)

    def find(self, hashes: U64, same: Same) -> Slots:
        """The slot of every key; keys that have none get one. The keys must differ from each other."""
        parts = _part(hashes)
        self._make_room(parts)
        first_new = self.count
        slots = np.full(len(hashes), _FREE, np.int64)
        bucket = self._home(hashes, parts)
        todo = np.arange(len(hashes))
        while len(todo):
            there = self._table[bucket[todo]].astype(np.int64)
            free = there == _FREE
            self._claim(todo[free], bucket, hashes, slots)
            taken, found = todo[~free], there[~free]
            # Keys of this batch differ, so a slot assigned just now is never the right one.
            equal = np.flatnonzero((self._hashes[found] == hashes[taken]) & (found < first_new))
            if len(equal):
                equal = equal[same(taken[equal], found[equal])]
                slots[taken[equal]] = found[equal]
            bucket[taken] += 1
            todo = todo[slots[todo] == _FREE]
            self._lengthen(todo, bucket, hashes, parts)
        return slots

    def only(self, slots: Slots) -> KeyIndex:
        """An index of these slots alone, numbered anew in their order."""
        made = KeyIndex()
        hashes = self._hashes[slots]
        parts = _part(hashes)
        made._make_room(parts)
        made._hashes[: len(slots)] = hashes
        made.count = len(slots)
        made._counts = np.bincount(parts, minlength=_PARTS)
        made._join([made._built(np.flatnonzero(parts == part), part) for part in range(_PARTS)])
        return made

    def _claim(self, rows: npt.NDArray[np.intp], bucket: Slots, hashes: U64, slots: Slots) -> None:
        """Assign free buckets. Of several rows that want the same bucket one gets it; the others look on."""
        if not len(rows):
            return
        marks = (-2 - rows).astype(np.int32)
        self._table[bucket[rows]] = marks
        winners = rows[self._table[bucket[rows]] == marks]
        assigned = np.arange(self.count, self.count + len(winners))
        self._table[bucket[winners]] = assigned
        self._hashes[assigned] = hashes[winners]
        slots[winners] = assigned
        self.count += len(winners)
        self._counts += np.bincount(_part(hashes[winners]), minlength=_PARTS)

    def _home(self, hashes: U64, parts: Slots) -> Slots:
        return self._starts[parts] + _within(hashes, self._bits[parts])

    def _make_room(self, parts: Slots) -> None:
        """Grow what these keys would fill too much, were they all new."""
        if self.count + len(parts) > len(self._hashes):
            grown = np.empty(max(2 * len(self._hashes), self.count + len(parts)), np.uint64)
            grown[: self.count] = self._hashes[: self.count]
            self._hashes = grown
        wanted = self._counts + np.bincount(parts, minlength=_PARTS)
        full = np.flatnonzero(wanted > _FILLINGS * (1 << self._bits))
        while (small := wanted > _FILLINGS * (1 << self._bits)).any():
            self._bits[small] += 1
        self._rebuild(full.tolist())

    def _lengthen(self, todo: npt.NDArray[np.intp], bucket: Slots, hashes: U64, parts: Slots) -> None:
        """Add buckets after parts whose end was reached: many keys have the same home there."""
        over = bucket[todo] >= self._starts[parts[todo] + 1]
        if over.any():
            self._rebuild(np.unique(parts[todo[over]]).tolist())
            bucket[todo] = self._home(hashes[todo], parts[todo])

    def _rebuild(self, numbers: list[int]) -> None:
        if numbers:
            tables = [self._table[start:stop] for start, stop in zip(self._starts[:-1], self._starts[1:], strict=True)]
            for part in numbers:
                tables[part] = self._built(tables[part][tables[part] != _FREE], part)
            self._join(tables)

    def _built(self, slots: npt.NDArray[np.integer], part: int) -> npt.NDArray[np.int32]:
        """A part's table: keys in the order of their homes, each at its home or right after the one before."""
        homes = _within(self._hashes[slots], self._bits[part])
        packed = homes << _SLOT_BITS | slots  # sorts quicker than an argsort
        packed.sort()
        number = np.arange(len(packed))
        buckets = np.maximum.accumulate((packed >> _SLOT_BITS) - number) + number
        last = int(buckets[-1]) if len(buckets) else 0
        table = np.full(max(1 << int(self._bits[part]), last + 1) + _TAIL, _FREE, np.int32)
        table[buckets] = packed & ((1 << _SLOT_BITS) - 1)
        return table

    def _join(self, tables: list[npt.NDArray[np.int32]]) -> None:
        self._table = np.concatenate(tables)
        self._starts = np.concatenate([[0], np.cumsum([len(table) for table in tables])])


def _part(hashes: U64) -> Slots:
    return (hashes >> np.uint64(64 - _PART_BITS)).astype(np.int64)


def _within(hashes: U64, bits: npt.NDArray[np.int64] | np.int64) -> Slots:
    """The home among a part's buckets, by the bits after those that name the part."""
    shift = (64 - np.asarray(bits)).astype(np.uint64)
    return ((hashes << np.uint64(_PART_BITS)) >> shift).astype(np.int64)
