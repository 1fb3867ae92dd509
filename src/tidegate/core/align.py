"""Who has delivered a barrier and who has not. Inputs are known by identity, any number of them; nothing is counted.

This module decides alignment. It knows nothing of queues, data or recordings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tidegate.errors import BarrierOverlap, DuplicateBarrier, ProtocolError

# -- one key over a set of inputs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """The key is pending; ``missing`` inputs have not delivered it."""

    key: Hashable
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Complete:
    """Every open input has delivered the key. The aligner is free again."""

    key: Hashable


class KeyAligner:
    """Aligns one key at a time over a set of inputs. A refused arrival changes nothing."""

    def __init__(self, inputs: Iterable[int]) -> None:
        self._open = set(inputs)
        self._key: Hashable = None
        self._arrived: set[int] = set()

    @property
    def held(self) -> frozenset[int]:
        """The inputs that delivered the pending key: nothing behind it may pass."""
        return frozenset(self._arrived)

    def arrive(self, input_id: int, key: Hashable) -> Waiting | Complete:
        """An input delivered the key."""
        if input_id not in self._open:
            raise ProtocolError(f"a barrier from an unknown or ended input input={input_id} key={key}")
        if self._arrived and key != self._key:
            raise BarrierOverlap(f"another barrier is pending input={input_id} key={key} pending={self._key}")
        if input_id in self._arrived:
            raise DuplicateBarrier(f"this input delivered the barrier before input={input_id} key={key}")
        self._key = key
        self._arrived.add(input_id)
        return self._judge()

    def ended(self, input_id: int) -> Waiting | Complete | None:
        """An input sends nothing more: it holds nothing back. ``None``: no key was pending. Idempotent."""
        self._open.discard(input_id)
        return self._judge() if self._arrived else None

    def _judge(self) -> Waiting | Complete:
        key, missing = self._key, self._open - self._arrived
        if missing:
            return Waiting(key, frozenset(missing))
        self._key = None
        self._arrived = set()
        return Complete(key)
