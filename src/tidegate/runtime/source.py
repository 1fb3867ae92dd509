"""One subtask's share of a source: which splits it reads, how far it is, and what its watermark is.

Split k of n falls to subtask k mod parallelism, and each subtask reads its own in order. So all subtasks move through event
time side by side, and what has been read is one number and one offset, however many splits there are.

Where rows wait for the watermark, splits that are about the same time are read side by side: one after the other, the watermark
would stand still until the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Polled, Source, Split, SplitReader
from tidegate.runtime.splits import SplitList
from tidegate.state.run import Frozen, Restored
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME, Json

SIDE_BY_SIDE_MAX = 16
"""Splits that one subtask has open at a time, where rows wait for the watermark. Each may have a row group in memory."""


class Reader(Protocol):
    """What a task needs of its source, with or without an end."""

    rows_read: int
    exact: bool
    """Between which rows the watermark moves is the same in every run. It is passed on before the next row."""

    @property
    def rows(self) -> int:
        """Rows read, by earlier gangs too."""

    @property
    def finished(self) -> bool:
        """There is nothing more to read."""

    @property
    def idle(self) -> bool:
        """Nothing has come for so long that others should not wait for this subtask's watermark."""

    @property
    def watermark(self) -> int:
        """No more rows below this event time."""

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Go on where a checkpoint was."""

    def drain(self) -> None:
        """Read no more."""

    def poll(self, max_rows: int) -> Polled:
        """The next rows. Never blocks for long."""

    def freeze(self) -> Frozen:
        """Where reading would go on."""

    def close(self) -> None:
        """Let go of everything that is open."""


@dataclass(slots=True)
class _Open:
    reader: SplitReader
    highest: int | None
    lowest: int


class SourceReader:
    """Reads one split after the other, or a few that overlap in time by turns. Used by the loop thread only."""

    exact = False
    idle = False
    """A source with an end is never idle: what it has not returned yet, it will."""

    def __init__(
        self, name: str, source: Source, splits: Sequence[Split], subtask: int, parallelism: int, *, open_max: int = 1
    ) -> None:
        self._name = name
        self._source = source
        self._splits = SplitList.of(splits)
        self._subtask = subtask
        self._parallelism = parallelism
        self._inherited: list[int] = []
        self._resume: dict[int, tuple[Json, int | None]] = {}
        self._open_max = open_max
        self._open: dict[int, _Open] = {}
        self._draining = False
        self.rows_read = 0
        self._rows_before = 0
        self._assign()

    @property
    def rows(self) -> int:
        """Rows read for this subtask's part of the job, by earlier gangs too."""
        return self._rows_before + self.rows_read

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Go on where the subtasks of a checkpoint were, at whatever parallelism they had."""
        done: set[int] = set()
        for piece in pieces:
            if piece.meta.get("digest") != self._splits.digest:
                raise InvalidUseError(
                    f"the input of source {self._name!r} is not what the checkpoint was reading: files were changed, added or "
                    f"removed; put them back, or start with restore='none' source={self._name}"
                )
            done.update(self._restore_piece(piece.meta))
        self._inherited = sorted(done)
        if self._subtask == 0:
            self._rows_before = sum(cast(int, piece.meta["rows"]) for piece in pieces)
        self._assign()

    def _restore_piece(self, meta: Mapping[str, Json]) -> list[int]:
        """Remember what one subtask had begun; returns what it knew to be done."""
        match meta:
            case {"own": ranges, "position": int(position), "inherited": inherited, "begun": list(begun), "rows": int()} if (
                position >= 0
            ):
                own = expand(ranges, len(self._splits))
                early = expand(meta.get("done", []), len(self._splits))
            case _:
                raise CorruptDataError(f"the offsets of source {self._name!r} are damaged offsets={meta!r:.200}")
        for one in begun:
            match one:
                case [int(index), offset, (None | int()) as highest]:
                    self._resume[index] = (offset, highest)
                case _:
                    raise CorruptDataError(f"a begun split of source {self._name!r} is damaged split={one!r:.200}")
        return [*expand(inherited, len(self._splits)), *own[:position], *early]

    def _assign(self) -> None:
        """Take our share of what is left. The only step that takes longer the more splits there are."""
        done = set(self._inherited)
        share = range(self._subtask, len(self._splits), self._parallelism)
        self._own: Sequence[int] = [index for index in share if index not in done] if done else share
        self._next = 0
        self._done_early: set[int] = set()
        self._lowest = [BEGINNING_OF_TIME if each is None else each for each in self._splits.lowest(self._own)]
        self._floor = floors(self._lowest)
        self._resume = {index: progress for index, progress in self._resume.items() if index in share and index not in done}
        self._ranges = {"inherited": compress(self._inherited if self._subtask == 0 else ()), "own": compress(self._own)}

    @property
    def finished(self) -> bool:
        """Every split of this subtask has been read, or no more is to be."""
        return self._draining or (self._next >= len(self._own) and not self._open)

    def drain(self) -> None:
        """Read no more."""
        self._draining = True

    def poll(self, max_rows: int) -> Polled:
        """The next rows of the split under way; ``finished`` when there are no more splits. Never blocks for long."""
        if self.finished:
            return Polled(None, finished=True)
        self._open_due()
        position, current = min(self._open.items(), key=lambda each: self._time_of(each[1]))
        polled = current.reader.poll(max_rows)
        self.rows_read += polled.rows
        if polled.highest is not None and (current.highest is None or polled.highest > current.highest):
            current.highest = polled.highest
        if polled.finished:
            current.reader.close()
            del self._open[position]
            self._done_early.add(position)
            self._done_early = {each for each in self._done_early if each > self._position}
        return Polled(polled.batch, polled.rows, polled.highest, self.finished)

    @property
    def _position(self) -> int:
        """The first split that is not done."""
        return min(self._open, default=self._next)

    def _open_due(self) -> None:
        """Open the next split, and those that hold the watermark back if they may be read side by side."""
        while self._next < len(self._own) and len(self._open) < self._open_max:
            if self._open and self._floor[self._next] >= min(map(self._time_of, self._open.values())):
                return
            index = self._own[self._next]
            offset, highest = self._resume.pop(index, (None, None))
            self._open[self._next] = _Open(self._source.open(self._splits[index], offset), highest, self._lowest[self._next])
            self._next += 1

    def _time_of(self, each: _Open) -> int:
        return reached(each.lowest) if each.highest is None else reached(each.highest, self._source.out_of_orderness)

    @property
    def watermark(self) -> int:
        """The minimum over this subtask's unfinished splits, those not yet opened included."""
        if self.finished:
            return END_OF_TIME
        if self._open:
            return min(*map(self._time_of, self._open.values()), self._floor[self._next])
        _, highest = self._resume.get(self._own[self._next], (None, None))
        if highest is None:
            return reached(self._floor[self._next])
        return min(reached(highest, self._source.out_of_orderness), self._floor[self._next + 1])

    def freeze(self) -> Frozen:
        """The position, in time that does not grow with what was read, or is to be."""
        return Frozen(
            {
                "digest": self._splits.digest,
                "rows": self.rows,
                **self._ranges,
                "position": self._position,
                "begun": self._begun(),
                **({"done": compress([self._own[each] for each in sorted(self._done_early)])} if self._done_early else {}),
            }
        )

    def _begun(self) -> list[Json]:
        """Every split of ours that is read in part: the open one, and those that others had begun before a restore."""
        begun = dict(self._resume)
        for position, each in self._open.items():
            begun[self._own[position]] = (each.reader.offset, each.highest)
        return [[index, offset, highest] for index, (offset, highest) in sorted(begun.items())]

    def close(self) -> None:
        """Let go of the open splits."""
        for each in self._open.values():
            each.reader.close()


def reached(highest: int, out_of_orderness: int = 0) -> int:
    """The watermark of rows up to this time. That of the end of time is kept for a source that has ended."""
    return max(BEGINNING_OF_TIME, min(highest, END_OF_TIME - 1) - out_of_orderness)


def floors(lowest: Sequence[int | None]) -> list[int]:
    """For each position the smallest event time from there on; the beginning of time where one is unknown."""
    result = [END_OF_TIME]
    for value in reversed(lowest):
        result.append(min(result[-1], BEGINNING_OF_TIME if value is None else value))
    return result[::-1]


def compress(indices: Sequence[int]) -> list[Json]:
    """Ascending numbers as [start, stop, step] triples: a subtask's share is one of them."""
    ranges: list[Json] = []
    at = 0
    while at < len(indices):
        end = at + 1
        step = indices[end] - indices[at] if end < len(indices) else 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        ranges.append([indices[at], indices[end - 1] + 1, step])
        at = end
    return ranges


def expand(ranges: Json, count: int) -> list[int]:
    """The numbers of ``compress``'s triples, all below ``count``: a damaged triple must not fill the memory."""
    found: list[int] = []
    at = 0
    for triple in ranges if isinstance(ranges, list) else [ranges]:
        match triple:
            case [int(start), int(stop), int(step)] if at <= start < stop <= count and step > 0:
                found += range(start, stop, step)
                at = stop
            case _:
                raise CorruptDataError(f"stored numbers of splits are damaged splits={count} range={triple!r:.100}")
    return found
