"""Pending output: what a windowed operator has begun to emit and has not emitted yet.

Windows are emitted in steps. A step is a part of their rows by hash, so it has all rows of a key, whatever the parallelism. When
a snapshot stops the emitting between two steps, what is left is state: the runs as they were, by reference, and the number of
steps that are emitted. Whoever restores them leaves the rows of those steps out. The rest of a step that was stopped inside comes
after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from tidegate.errors import CorruptDataError
from tidegate.state.interface import PaneState
from tidegate.state.run import Frozen, Restored, Run, Size, size_of
from tidegate.state.runs import PARTS_MAX, by_hash, concatenated, in_parts_from, relabelled
from tidegate.values import Json

_I64 = range(-(1 << 63), 1 << 63)

Sides: TypeAlias = Sequence[Sequence[Run]]
"""The runs of each input."""
Parts: TypeAlias = list[list[pa.RecordBatch]]
Steps: TypeAlias = Callable[[Sides], int]
"""How many steps these rows are emitted in."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """How much of some runs is emitted: of ``steps`` parts by hash the first ``emitted``. ``label`` is the start of their window;
    ``None``: every row says its own in its first column."""

    label: int | None = None
    steps: int = 0
    emitted: int = 0

    def labelled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their window's start."""
        return batch if self.label is None else relabelled(batch, self.label)

    def rest(self, batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
        """The rows that are not emitted, labelled."""
        return self.labelled(in_parts_from(batch, keys, self.steps, self.emitted))


class PendingOutput:
    """Some windows on their way out, of panes of one or more inputs. The first column of every row is its window's start, or the
    label is, if there is one."""

    kind: ClassVar[str] = "pending"

    def __init__(self, keys: Sequence[str], panes: Sequence[PaneState], steps: Steps) -> None:
        self._keys = tuple(keys)
        self._panes = tuple(panes)
        self._steps_of = steps
        self._is_emitting = False
        self._sides: tuple[tuple[Run, ...], ...] = ()
        self._rest: tuple[tuple[Run, ...], ...] = ()
        self._progress = Emitted()
        self._unsplit: deque[tuple[int, Run]] = deque()
        self._parts: list[Parts] = []

    def __bool__(self) -> bool:
        return self._is_emitting

    def begin(self, sides: Sides, label: int | None = None) -> None:
        """These windows are on their way out; nothing else is."""
        # Without rows on every side nothing comes of them.
        steps = self._steps_of(sides) if all(sides) else 0
        self._is_emitting = True
        self._sides, self._rest = tuple(map(tuple, sides)), ()
        self._progress = Emitted(label, steps)
        self._unsplit = deque((side, run) for side, runs in enumerate(sides) for run in runs) if steps else deque()
        self._parts = [[[] for _ in sides] for _ in range(steps)]

    def split(self) -> Iterator[int]:
        """Sort the rows by step, a run at a time; says how many rows that were. Goes on where it was left."""
        while self._unsplit:
            side, run = self._unsplit.popleft()
            batch = self._progress.labelled(run.batch)
            for step, part in enumerate(by_hash([batch], self._keys, self._progress.steps)):
                self._parts[step][side] += part
            yield batch.num_rows

    def take(self) -> Parts | None:
        """The rows of the next step, by side; from now on it counts as emitted. ``None``: that was all."""
        if self._rest:
            rest, self._rest = self._rest, ()
            return [[run.batch for run in side] for side in rest]
        progress = self._progress
        if progress.emitted == progress.steps:
            self._is_emitting, self._sides, self._parts = False, (), []
            return None
        step, self._parts[progress.emitted] = self._parts[progress.emitted], []
        self._progress = Emitted(progress.label, progress.steps, progress.emitted + 1)
        if self._progress.emitted == progress.steps:
            self._sides = ()
        return step

    def keep(self, sides: Sides) -> None:
        """This is left of the step that was taken last."""
        self._rest = tuple(map(tuple, sides))

    # -- state -----------------------------------------------------------------------------------------------------

    def insert(self, rows: pa.RecordBatch, /) -> None:
        """More rows, labelled with their windows' starts, of the input whose columns they have."""
        sides = self._left()
        sides[self._side_of(rows)].append(Run(rows))
        self.begin(sides)

    def merge(self, batches: Sequence[pa.RecordBatch], /) -> Sequence[pa.RecordBatch]:
        """Rows stay what they are until they are emitted."""
        return concatenated(batches) if batches else []

    def read(self) -> list[pa.RecordBatch]:
        """The rows that are not emitted, labelled with their windows' starts."""
        return [run.batch for side in self._left() for run in side]

    def freeze(self) -> Frozen:
        """All runs by reference, and how far they are emitted."""
        if not self:
            return Frozen({})
        count, rest = sum(map(len, self._sides)), sum(map(len, self._rest))
        at = self._progress
        meta: dict[str, Json] = {"runs": count, "rest": rest, "label": at.label, "steps": at.steps, "emitted": at.emitted}
        return Frozen(meta, self._runs)

    def restore(self, pieces: Sequence[Restored]) -> None:
        """What was pending of our key groups is pending now."""
        sides: list[list[Run]] = [[] for _ in self._panes]
        for run, emitted in (each for piece in pieces for each in stored_runs(piece.meta, piece.runs)):
            side = self._side_of(run.batch)
            rows = emitted.rest(self._panes[side].own_rows(run.batch), self._keys)
            if rows.num_rows:
                sides[side].append(run if rows is run.batch else Run(rows))
        if all(sides):
            self.begin(sides)

    def size(self) -> Size:
        """The runs that the panes do not have any more."""
        shared = {run.uid for panes in self._panes for run in panes.runs}
        return size_of(run for run in self._runs if run.uid not in shared)

    @property
    def _runs(self) -> tuple[Run, ...]:
        return tuple(run for side in (*self._sides, *self._rest) for run in side)

    def _left(self) -> list[list[Run]]:
        sides: list[list[Run]] = [[] for _ in self._panes]
        for mine, runs in zip(sides, self._sides, strict=False):
            rows = [(run, self._progress.rest(run.batch, self._keys)) for run in runs]
            mine += [run if batch is run.batch else Run(batch) for run, batch in rows if batch.num_rows]
        for mine, runs in zip(sides, self._rest, strict=False):
            mine += runs
        return sides

    def _side_of(self, rows: pa.RecordBatch) -> int:
        """The input that rows are of."""
        for side, panes in enumerate(self._panes):
            if panes.fits(rows):
                return side
        raise CorruptDataError(f"pending output has other columns columns={rows.schema.names}")


def stored_runs(meta: Mapping[str, Json], runs: Sequence[Run]) -> Iterator[tuple[Run, Emitted]]:
    """Stored runs of pending output, each with what is emitted of it."""
    match dict(meta):
        case {} as nothing if not nothing and not runs:
            return
        case {"runs": int(count), "rest": int(rest), "label": label, "steps": int(steps), "emitted": int(emitted)} if (
            min(count, rest) >= 0
            and count + rest == len(runs)
            and 0 <= emitted <= steps <= PARTS_MAX
            and (label is None or (isinstance(label, int) and label in _I64))
        ):
            progress = Emitted(label, steps, emitted)
            yield from ((run, progress if index < count else Emitted()) for index, run in enumerate(runs))
        case other:
            raise CorruptDataError(f"stored state has impossible pending output pending={other!r:.100}")
