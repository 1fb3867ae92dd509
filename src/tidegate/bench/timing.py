"""How a figure is taken and judged: every round's value is kept, and the middle one is held against the target."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.bench.workloads import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One benchmark: a value per round, what it should be, and in a few words what was measured.

    ``higher``: more is better. Without a target it is there to compare others with.
    """

    name: str
    values: tuple[float, ...]
    unit: str
    what: str
    target: float | None = None
    higher: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median is on the right side of the target; ``None`` without one."""
        if self.target is None:
            return None
        return self._meets(spread(self.values)["median"], self.target)

    @property
    def rounds_met(self) -> int | None:
        """How many rounds met the target by themselves: all or none is a clear answer."""
        if self.target is None:
            return None
        return sum(self._meets(value, self.target) for value in self.values)

    def _meets(self, value: float, target: float) -> bool:
        return value > target if self.higher else value < target

    def row(self) -> dict[str, Any]:
        """For the document and for people."""
        target = None if self.target is None else f"{'>' if self.higher else '<'} {self.target:g} {self.unit}"
        return {
            "name": self.name,
            **spread(self.values),
            "unit": self.unit,
            "target": target,
            "met": self.met,
            "rounds": len(self.values),
            "rounds_met": self.rounds_met,
            "what": self.what,
        }


def per_call(statement: str, names: dict[str, Any], calls: int, rounds: int) -> tuple[float, ...]:
    """Nanoseconds of one statement in a loop, once per round. The loop itself is included, and so is garbage collection."""
    timer = timeit.Timer(statement, setup="import gc; gc.enable()", globals=names)
    timer.timeit(max(1, calls // 10))  # the interpreter specialises what it has run a few times
    return tuple(timer.timeit(calls) / calls * 1e9 for _ in range(rounds))


def seconds(work: Callable[[], object]) -> float:
    """How long this takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def per_item(
    prepare: Callable[[int], Iterable[Any]], work: Callable[[Iterable[Any]], object], items: int, rounds: int
) -> tuple[float, ...]:
    """Nanoseconds per item of ``work``, which goes through fresh items in one loop. Preparing them is not counted."""
    work(list(prepare(max(1, items // 10))))
    return tuple(_once(list(prepare(items)), work) / items * 1e9 for _ in range(rounds))


def _once(items: Iterable[Any], work: Callable[[Iterable[Any]], object]) -> float:
    return seconds(lambda: work(items))
