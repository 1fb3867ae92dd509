"""How far windows are closed, per key group, and what was late. Integers in the event-time column's unit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.errors import CorruptDataError
from tidegate.state.run import Frozen, Restored, Size
from tidegate.values import Json

NEVER = -(1 << 63)
_I64_MAX = (1 << 63) - 1

Stretch: TypeAlias = tuple[int, int, int]
"""Key groups from, key groups to, and a watermark."""


class Closed:
    """How far windows are closed, per key group of one subtask.

    As long as it runs, a subtask closes all its groups together. After a restore at another parallelism some
    groups may be closed further, because the subtask that had them saw a later watermark: their closed windows must
    neither take rows nor be emitted again, until the watermark has caught up.
    """

    kind: ClassVar[str] = "closed"

    def __init__(self, own: range, groups: int) -> None:
        self.own = own
        self.through = NEVER
        self.promised = NEVER
        """By this time rows of the batch at hand are late, whatever is still open."""
        self.late_rows = 0
        """Rows dropped or sent away as late, since the job began."""
        self._groups = groups
        self._further: npt.NDArray[np.int64] | None = None

    @property
    def uniform(self) -> bool:
        """True when all groups are closed through ``through``."""
        return self._further is None

    def advance(self, watermark: int) -> None:
        """The watermark has closed everything up to here."""
        self.through = watermark
        if self._further is not None and watermark >= int(self._further.max()):
            self._further = None

    def open_at(self, closing: int | npt.NDArray[np.int64], groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """For rows of these key groups: is a window that closes at ``closing`` still open?"""
        if self._further is None:
            return np.full(len(groups), closing > self.through)
        return (self._further[groups] < closing) & (closing > self.through)

    @property
    def judged_by(self) -> int:
        """Rows of windows that close up to here are late in every key group."""
        return max(self.through, self.promised)

    def all_in_time(self, closing: npt.NDArray[np.int64]) -> bool:
        """Are rows of windows that close at these watermarks in time in every key group?"""
        highest = self.judged_by if self._further is None else max(self.judged_by, int(self._further.max()))
        return not len(closing) or int(closing.min()) > highest

    def in_time(self, closing: npt.NDArray[np.int64], groups: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """For rows of these key groups, whose last windows close at these watermarks: are they in time?"""
        return self.open_at(closing, groups) & (closing > self.promised)

    def freeze(self) -> Frozen:
        """The closed stretches of key groups: [first group, end of groups, closed through], and how many rows were late."""
        return Frozen({"through": self._stretches(), "late_rows": self.late_rows, "first_group": self.own.start})

    def size(self) -> Size:
        """No rows."""
        return Size()

    def _stretches(self) -> list[Json]:
        values = [self.through if self._further is None else max(self.through, int(self._further[g])) for g in self.own]
        stretches: list[Json] = []
        group = self.own.start
        for value, members in groupby(values):
            length = len(list(members))
            if value != NEVER:
                stretches.append([group, group + length, value])
            group += length
        return stretches

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over what the subtasks of a checkpoint had closed; the largest counts where they overlap.

        Late rows that a stored subtask had counted are counted on by the one that has its first key group now.
        """
        self.late_rows = sum(_count(p.meta.get("late_rows")) for p in pieces if _count(p.meta.get("first_group")) in self.own)
        further = np.full(self._groups, NEVER, np.int64)
        for piece in pieces:
            for first, end, through in checked_stretches(piece.meta.get("through"), self._groups):
                np.maximum(further[first:end], through, out=further[first:end])
        mine = further[self.own.start : self.own.stop]
        if len(mine):
            self.through = int(mine.min())
            self._further = None if int(mine.max()) == self.through else further


class PendingGroups:
    """Key groups whose sessions are closed and were not all emitted yet, each with the watermark that closed them."""

    kind: ClassVar[str] = "pending groups"

    def __init__(self, own: range, groups: int) -> None:
        self._own = own
        self._groups = groups
        self.stretches: list[Stretch] = []

    def freeze(self) -> Frozen:
        """The stretches, if there are any."""
        stretches: list[Json] = [list(stretch) for stretch in self.stretches]
        return Frozen({"groups": stretches} if stretches else {})

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Those of our key groups."""
        stored = [stretch for piece in pieces for stretch in checked_stretches(piece.meta.get("groups", []), self._groups)]
        mine = [(max(first, self._own.start), min(end, self._own.stop), through) for first, end, through in stored]
        self.stretches = [stretch for stretch in mine if stretch[0] < stretch[1]]

    def size(self) -> Size:
        """No rows: their sessions are in the state of sessions."""
        return Size()


def _count(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptDataError(f"stored state has no such count value={value!r:.100}")
    return value


def checked_stretches(stretches: Json, groups: int) -> list[Stretch]:
    """Stored stretches of key groups, each with a watermark."""
    if not isinstance(stretches, list):
        raise CorruptDataError(f"stored state has no list of closed windows closed_through={stretches!r:.100}")
    checked: list[Stretch] = []
    for stretch in stretches:
        match stretch:
            case [int(first), int(end), int(through)] if 0 <= first < end <= groups and NEVER <= through <= _I64_MAX:
                checked.append((first, end, through))
            case _:
                raise CorruptDataError(f"stored state has an impossible closed window stretch={stretch!r:.100}")
    return checked
