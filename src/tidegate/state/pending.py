"""Pending output: what a windowed operator has begun to emit and has not emitted yet.

Windows are emitted in steps. A step is a part of their rows by hash, so it has all rows of a key, whatever the parallelism. When
a snapshot stops the emitting between two steps, what is left is state: the runs as they were, by reference, and the number of
steps that are emitted. Whoever restores them leaves the rows of those steps out. ``rest`` is what is left of a step that was
stopped inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from tidegate.errors import CorruptDataError
from tidegate.state.run import Restored, Run
from tidegate.state.runs import PARTS_MAX, in_parts_from, relabelled
from tidegate.values import Json

PENDING = "pending"
_I64 = range(-(1 << 63), 1 << 63)

Sides: TypeAlias = tuple[tuple[Run, ...], ...]
"""The runs of each input."""
Parts: TypeAlias = list[list[pa.RecordBatch]]


class PendingOutput:
    """Some windows on their way out. The first column of every row is its window's start, or ``label`` is, if there is one."""

    def __init__(self, sides: Sequence[Sequence[Run]], steps: int, label: int | None = None) -> None:
        self.sides: Sides = tuple(map(tuple, sides))
        self.rest: Sides = ()
        self.emitted = 0
        # Without rows on every side nothing comes of them.
        self._steps = steps if all(sides) else 0
        self._label = label
        self._unsplit = deque((side, run) for side, runs in enumerate(sides) for run in runs) if self._steps else deque()
        self._parts: list[Parts] = [[[] for _ in sides] for _ in range(self._steps)]

    @property
    def runs(self) -> tuple[Run, ...]:
        """What a snapshot keeps, in the order that ``meta`` tells."""
        return tuple(run for side in (*self.sides, *self.rest) for run in side)

    def split(self, by_step: Callable[[pa.RecordBatch, int], Parts]) -> Iterator[int]:
        """Sort the rows by step, a run at a time; says how many rows that were. Goes on where it was left."""
        while self._unsplit:
            side, run = self._unsplit.popleft()
            batch = _labelled(run.batch, self._label)
            for step, part in enumerate(by_step(batch, self._steps)):
                self._parts[step][side] += part
            yield batch.num_rows

    def take(self) -> Parts | None:
        """The rows of the next step, by side; from now on it counts as emitted. ``None``: that was all."""
        if self.rest:
            rest, self.rest = self.rest, ()
            return [[run.batch for run in side] for side in rest]
        if self.emitted == self._steps:
            return None
        step, self._parts[self.emitted] = self._parts[self.emitted], []
        self.emitted += 1
        if self.emitted == self._steps:
            self.sides = ()
        return step

    def meta(self) -> Json:
        """What a snapshot says of these runs."""
        count = sum(map(len, self.sides))
        rest = sum(map(len, self.rest))
        return {"runs": count, "rest": rest, "label": self._label, "steps": self._steps, "emitted": self.emitted}


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """One subtask's runs: those of its panes, and those of pending output."""

    panes: tuple[Run, ...]
    pending: tuple[Run, ...] = ()
    rest: tuple[Run, ...] = ()
    label: int | None = None
    steps: int = 0
    emitted: int = 0

    @classmethod
    def of(cls, piece: Restored) -> StoredRuns:
        """The runs by what the snapshot says of them; one that says nothing had nothing pending."""
        match piece.meta.get(PENDING):
            case None:
                return cls(piece.runs)
            case {"runs": int(runs), "rest": int(rest), "label": label, "steps": int(steps), "emitted": int(emitted)} if (
                min(runs, rest) >= 0
                and runs + rest <= len(piece.runs)
                and 0 <= emitted <= steps <= PARTS_MAX
                and (label is None or (isinstance(label, int) and label in _I64))
            ):
                first, second = len(piece.runs) - runs - rest, len(piece.runs) - rest
                return cls(piece.runs[:first], piece.runs[first:second], piece.runs[second:], label, steps, emitted)
            case other:
                raise CorruptDataError(f"stored state has impossible pending output pending={other!r:.100}")

    def still_pending(self, run: Run, rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
        """Those of a pending run's rows that were not emitted, labelled with their window's start."""
        if run in self.rest:
            return rows
        return _labelled(in_parts_from(rows, keys, self.steps, self.emitted), self.label)


def _labelled(batch: pa.RecordBatch, label: int | None) -> pa.RecordBatch:
    return batch if label is None else relabelled(batch, label)
