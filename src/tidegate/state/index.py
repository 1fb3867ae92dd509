"""Which slot a key has: a hash table over whole batches, in numpy.

Slots are numbers from 0 on, given in the order in which keys appear, and never taken back. The table knows
64-bit hashes only; whoever keeps the keys says which of two equal hashes are equal keys. Open addressing with
linear probing: every round looks at one place for each key that is not settled yet, so a batch takes a few
rounds, each quick. A table that is half full is built anew, twice as large, by one sort.
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
_SLOT_BITS = 32
_BITS_MIN = 10
_TAIL = 4096
"""Places behind the last one, so that probing never wraps around."""


class KeyIndex:
    """Hash to slot."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = _BITS_MIN
        self._hashes: U64 = np.empty(1 << _BITS_MIN, np.uint64)
        self._table = np.full((1 << _BITS_MIN) + _TAIL, _FREE, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._hashes.nbytes + self._table.nbytes)

    def find(self, hashes: U64, same: Same) -> Slots:
        """The slot of every key; keys that have none get one. The keys must differ from each other."""
        self._make_room(len(hashes))
        first_new = self.count
        slots = np.full(len(hashes), _FREE, np.int64)
        place = self._home(hashes)
        todo = np.arange(len(hashes))
        while len(todo):
            there = self._table[place[todo]].astype(np.int64)
            free = there == _FREE
            self._claim(todo[free], place, hashes, slots)
            taken, found = todo[~free], there[~free]
            # Keys of this batch differ, so a slot given just now is never the right one.
            equal = np.flatnonzero((self._hashes[found] == hashes[taken]) & (found < first_new))
            if len(equal):
                equal = equal[same(taken[equal], found[equal])]
                slots[taken[equal]] = found[equal]
            place[taken] += 1
            todo = todo[slots[todo] == _FREE]
            if len(todo) and int(place[todo].max()) >= len(self._table):
                self._build(self._bits + 1)
                place[todo] = self._home(hashes[todo])
        return slots

    def only(self, slots: Slots) -> KeyIndex:
        """An index of these slots alone, numbered anew in their order."""
        made = KeyIndex()
        made._make_room(len(slots))
        made._hashes[: len(slots)] = self._hashes[slots]
        made.count = len(slots)
        made._build(made._bits)
        return made

    def _claim(self, rows: npt.NDArray[np.intp], place: Slots, hashes: U64, slots: Slots) -> None:
        """Give free places away. Of several rows that want the same place one gets it; the others look on."""
        if not len(rows):
            return
        marks = (-2 - rows).astype(np.int32)
        self._table[place[rows]] = marks
        winners = rows[self._table[place[rows]] == marks]
        given = np.arange(self.count, self.count + len(winners))
        self._table[place[winners]] = given
        self._hashes[given] = hashes[winners]
        slots[winners] = given
        self.count += len(winners)

    def _home(self, hashes: U64) -> Slots:
        return (hashes >> np.uint64(64 - self._bits)).astype(np.int64)

    def _make_room(self, more: int) -> None:
        bits = self._bits
        while self.count + more > 1 << (bits - 1):
            bits += 1
        if bits > self._bits:
            self._build(bits)
        if self.count + more > len(self._hashes):
            grown = np.empty(max(2 * len(self._hashes), self.count + more), np.uint64)
            grown[: self.count] = self._hashes[: self.count]
            self._hashes = grown

    def _build(self, bits: int) -> None:
        """A new table: keys in the order of their homes, each at its home or right behind the one before."""
        self._bits = bits
        number = np.arange(self.count)
        packed = self._home(self._hashes[: self.count]) << _SLOT_BITS | number  # sorts quicker than an argsort
        packed.sort()
        order = packed & ((1 << _SLOT_BITS) - 1)
        places = np.maximum.accumulate((packed >> _SLOT_BITS) - number) + number
        room = max((1 << bits) + _TAIL, int(places[-1]) + _TAIL if self.count else 0)
        self._table = np.full(room, _FREE, np.int32)
        self._table[places] = order
