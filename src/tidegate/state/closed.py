"""How far windows are closed, per key group. Integers in the event-time column's unit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.errors import CorruptDataError
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

    def __init__(self, own: range, groups: int) -> None:
        self.own = own
        self.through = NEVER
        self.promised = NEVER
        """By this time rows of the batch at hand are late, whatever is still open."""
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

    def to_json(self) -> Json:
        """The closed stretches of key groups: [first group, end of groups, closed through]."""
        values = [self.through if self._further is None else max(self.through, int(self._further[g])) for g in self.own]
        stretches: list[Json] = []
        group = self.own.start
        for value, members in groupby(values):
            length = len(list(members))
            if value != NEVER:
                stretches.append([group, group + length, value])
            group += length
        return stretches

    def restore(self, stored: Sequence[Json]) -> None:
        """Take over what the subtasks of a checkpoint had closed; the largest counts where they overlap."""
        further = np.full(self._groups, NEVER, np.int64)
        for stretches in stored:
            for first, end, through in checked_stretches(stretches, self._groups):
                np.maximum(further[first:end], through, out=further[first:end])
        mine = further[self.own.start : self.own.stop]
        if len(mine):
            self.through = int(mine.min())
            self._further = None if int(mine.max()) == self.through else further


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
