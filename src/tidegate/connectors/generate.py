"""Made-up events, the same every time: a split can be opened at any offset, on any machine.

How rows are spread over splits does not change them, and fewer rows are the beginning of more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np

from tidegate.connectors.generate_rows import SCHEMA, Recipe, Skew, event_time, make_rows, zipf_table
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Offset, Polled, Split

SecondsClock: TypeAlias = Callable[[], float]

EVENT_RATE = 10_000
SLICE_ROWS = 65_536
SLICES_PER_SECOND = 10
SPLITS_MAX = 65_536
ROWS_MAX = 1 << 48
KEYS_MAX = {"uniform": 1 << 31, "zipf": 10_000_000}

SEED_MAX = (1 << 64) - 1

_SPLIT_ID = re.compile(r"([0-9]{1,15})\+([0-9]{1,5})x([0-9]{1,15}|endless)@([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lane:
    """The rows of one split: ``first``, ``first + step``, and so on; without end where ``rows`` is ``None``."""

    first: int
    step: int
    rows: int | None

    def name(self, fingerprint: str) -> str:
        """The split's id."""
        return f"{self.first}+{self.step}x{'endless' if self.rows is None else self.rows}@{fingerprint}"

    def number(self, offset: int) -> int:
        """The row that comes after ``offset`` rows of this lane."""
        return self.first + self.step * offset


class GenerateSource:
    """Events with the columns ts (int64 ms), key, value and kind (0 to 3), for demos, tests and load.

    ``rows`` is the number over all splits, ``None`` for no end; ``rows_per_second`` is the pace over all splits
    in real time, ``None`` for as fast as it goes. In event time a second has ``event_rate`` rows (the pace, if
    there is one), from ``start`` on, and a row is at most ``out_of_orderness`` before the latest.

    With an end, splits are slices of event time, to be read one after the other. Without an end they are lanes
    that must be read side by side, one unless ``splits`` says more. ``clock`` is for tests; it is not pickled.
    """

    schema = SCHEMA
    event_time = "ts"

    def __init__(
        self,
        rows: int | None = None,
        rows_per_second: float | None = None,
        *,
        keys: int = 1000,
        splits: int | None = None,
        seed: int = 0,
        skew: Skew = "uniform",
        event_rate: int | None = None,
        start: int = 0,
        out_of_orderness: Duration = "1s",
        clock: SecondsClock = time.monotonic,
    ) -> None:
        _check_number("rows", rows, 0, ROWS_MAX, optional=True)
        _check_pace(rows_per_second)
        if skew not in get_args(Skew):
            raise InvalidUseError(f"skew must be one of {', '.join(get_args(Skew))} skew={skew!r}")
        _check_number("keys", keys, 1, KEYS_MAX[skew])
        _check_number("splits", splits, 1, SPLITS_MAX, optional=True)
        _check_number("seed", seed, 0, SEED_MAX)
        _check_number("event_rate", event_rate, 1, 1 << 40, optional=True)
        _check_number("start", start, -(1 << 60), 1 << 60)
        disorder_ms = parse_duration_ms(out_of_orderness, name="out_of_orderness")
        rate = event_rate or max(1, round(rows_per_second or EVENT_RATE))
        self._rows = rows
        self._rows_per_second = rows_per_second
        self._splits = splits
        self._recipe = Recipe(keys, seed, skew, rate, start, disorder_ms)
        self._pace = Pace(rows_per_second, clock)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pace": Pace(self._rows_per_second, time.monotonic)}

    def __repr__(self) -> str:
        return f"GenerateSource(rows={self._rows}, rows_per_second={self._rows_per_second})"

    @property
    def out_of_orderness(self) -> int:
        """In milliseconds, as the event times are."""
        return self._recipe.disorder_ms

    @property
    def bounded(self) -> bool:
        """True when there is a number of rows."""
        return self._rows is not None

    def splits(self) -> list[Split]:
        """Slices in the order of event time, or lanes."""
        lanes = self._lanes()
        lowest = event_time(self._recipe, np.array([lane.first for lane in lanes], dtype=np.int64))
        mark = self._recipe.fingerprint
        return [Split(lane.name(mark), time, lane.rows) for lane, time in zip(lanes, lowest.tolist(), strict=True)]

    def open(self, split: Split, offset: Offset) -> GenerateReader:
        """A reader of one split. The pace starts, at this offset, when the first one is opened in a process."""
        lane = self._lane_of(split.id)
        first = 0 if offset is None else offset
        limit = ROWS_MAX if lane.rows is None else lane.rows
        if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first <= limit:
            raise InvalidUseError(f"this offset is not within the split split={split.id} rows={lane.rows} offset={offset!r}")
        self._pace.begin(lane.number(first))
        return GenerateReader(self._recipe, lane, first, self._pace)

    def _lanes(self) -> list[Lane]:
        if self._rows is None:
            lanes = self._splits or 1
            return [Lane(number, lanes, None) for number in range(lanes)]
        size = self._slice_rows(self._rows)
        return [Lane(first, 1, min(size, self._rows - first)) for first in range(0, self._rows, size)]

    def _slice_rows(self, rows: int) -> int:
        if self._splits is not None:
            return max(1, -(-rows // self._splits))
        pace = self._rows_per_second
        # Paced slices are short: while one is being read, the next waits for its turn in another subtask.
        size = SLICE_ROWS if pace is None else max(1, min(SLICE_ROWS, round(pace / SLICES_PER_SECOND)))
        return max(size, -(-rows // SPLITS_MAX))

    def _lane_of(self, split_id: str) -> Lane:
        found = _SPLIT_ID.fullmatch(split_id)
        if not found or found[4] != self._recipe.fingerprint or (found[3] == "endless") == self.bounded:
            raise InvalidUseError(f"this is no split of this source split={split_id}")
        return Lane(int(found[1]), int(found[2]), None if found[3] == "endless" else int(found[3]))


TICK_S = 0.02
"""Rows fall due this far apart: a poll returns a batch that is worth its while or nothing, never a handful."""


class Pace:
    """When rows are due, in one process: from the first opened row on, ``rows_per_second``. Catches up after a pause."""

    def __init__(self, rows_per_second: float | None, clock: SecondsClock) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._begun: tuple[float, int] | None = None

    def begin(self, number: int) -> None:
        """Row ``number`` is the first; only the first call counts."""
        if self._begun is None:
            self._begun = (self._clock(), number)

    def due(self) -> int:
        """Every row below this number is due."""
        if self._rows_per_second is None or self._begun is None:
            return 1 << 62
        opened, first = self._begun
        ticks = int((self._clock() - opened) / TICK_S)
        return first + int(ticks * TICK_S * self._rows_per_second)


class GenerateReader:
    """A ``SplitReader``; the offset is the number of rows made. Before a row is due a poll returns nothing."""

    def __init__(self, recipe: Recipe, lane: Lane, offset: int, pace: Pace) -> None:
        self._recipe = recipe
        self._lane = lane
        self._rows = ROWS_MAX if lane.rows is None else lane.rows
        self._offset = offset
        self._pace = pace
        self._zipf = zipf_table(recipe.keys) if recipe.skew == "zipf" else None

    @property
    def offset(self) -> Offset:
        """Rows made so far."""
        return self._offset

    def poll(self, max_rows: int) -> Polled:
        """The rows that are due, at most ``max_rows``. Never waits."""
        if max_rows < 1:
            raise InvalidUseError(f"a poll must ask for a row or more max_rows={max_rows}")
        if self._offset >= self._rows:
            return Polled(None, finished=True)
        count = min(max_rows, self._rows - self._offset, self._due())
        if count < 1:
            return Polled(None)
        numbers = self._lane.number(self._offset) + self._lane.step * np.arange(count, dtype=np.int64)
        batch = make_rows(self._recipe, numbers, self._zipf)
        self._offset += count
        highest = int(batch.column(0).to_numpy().max())
        return Polled(batch, count, highest, finished=self._offset >= self._rows)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _due(self) -> int:
        due = self._pace.due() - self._lane.number(self._offset)
        return -(-due // self._lane.step)


def _check_number(name: str, value: object, lowest: int, highest: int, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidUseError(f"{name} must be a whole number from {lowest} to {highest} {name}={value!r}")


def _check_pace(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e12:
        raise InvalidUseError(f"rows_per_second must be more than 0 rows_per_second={value!r}")
