"""Direct-address grouping: where keys are integers that lie close together, an array with a bucket for each is the hash table.

Identifiers are often like that, and windows are: there are one or two of them in a batch. It is two to
five times as fast as Arrow's hash table. What does not fit (nulls, text, numbers far apart, other functions) is for Arrow.

Buckets are used again and again, one set per thread: fresh memory would cost more than the grouping.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Call: TypeAlias = tuple[str | list[str], str]
Numbers: TypeAlias = npt.NDArray[Any]
Buckets: TypeAlias = npt.NDArray[np.int64]

ROWS_MIN = 4_096
"""With fewer rows it does not matter."""
ROWS_MAX = 1 << 20
"""What is used again is kept, so there is a limit to it."""
BUCKETS_PER_ROW = 8
"""With nine it is still faster than the hash table, with eighteen no longer."""
BUCKETS_MAX = 1 << 20
SAMPLE_ROWS = 64

_TOGETHER: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class _Scratch(threading.local):
    """Arrays of eight-byte numbers, by what they are for."""

    def __init__(self) -> None:
        self._arrays: dict[str, Buckets] = {}

    def array(self, use: str, length: int, kind: type[np.int64] | type[np.float64]) -> Numbers:
        """An array with anything in it. The next call with the same ``use`` may return the same one."""
        if use not in self._arrays or len(self._arrays[use]) < length:
            self._arrays[use] = np.empty(1 << (length - 1).bit_length(), np.int64)
        return self._arrays[use][:length].view(kind)


_scratch = _Scratch()


def grouped(table: pa.Table, keys: Sequence[str], calls: Sequence[Call]) -> list[pa.Array] | None:
    """The distinct keys, in order, and the results of the calls, one array per column; ``None``: it does not fit."""
    if not ROWS_MIN <= table.num_rows <= ROWS_MAX or not all(_fits(table, call) for call in calls):
        return None
    limit = min(BUCKETS_MAX, BUCKETS_PER_ROW * table.num_rows)
    digits: list[_Digit] = []
    count = 1
    for key in keys:
        digit = _digit(table.column(key))
        if digit is None or count * digit.size > limit:
            return None
        digits.append(digit)
        count *= digit.size
    buckets = _buckets(digits, table.num_rows)
    rows = _scratch.array("rows", count, np.int64)
    rows.fill(0)
    np.add.at(rows, buckets, 1)
    found = np.flatnonzero(rows > 0)
    keys_found, rows_found = _keys(digits, found), pa.array(rows[found])
    values = {name: table.column(name).combine_chunks().to_numpy() for name, function in calls if function in _TOGETHER}
    with np.errstate(all="ignore"):  # infinities and what is no number are values like any other
        results = [
            pa.array(_result(values[name], function, buckets, count, found)) if function in _TOGETHER else rows_found
            for name, function in calls
        ]
    return [*keys_found, *results]


@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """A key column as numbers below ``size``: how far a value is above the lowest, or which of two it is."""

    kind: pa.DataType
    values: Numbers
    low: int
    high: int
    is_one_of_two: bool

    @property
    def size(self) -> int:
        return min(2, self.high - self.low + 1) if self.is_one_of_two else self.high - self.low + 1

    def write(self, buckets: Buckets) -> None:
        """The numbers, into this array."""
        if self.is_one_of_two:
            np.copyto(buckets, self.values == self.high)
        else:
            np.subtract(self.values, self.low, out=buckets, dtype=np.int64)

    def values_of(self, numbers: Buckets) -> pa.Array:
        """The values of numbers."""
        values = np.where(numbers, self.high, self.low) if self.is_one_of_two else numbers + self.low
        return pa.array(values).cast(self.kind)


def _digit(column: pa.ChunkedArray) -> _Digit | None:
    kind = column.type
    if not pa.types.is_integer(kind) or pa.types.is_uint64(kind) or column.null_count:
        return None
    values = column.combine_chunks().to_numpy()
    low, high = int(values.min()), int(values.max())
    is_one_of_two = _are_two(values[:SAMPLE_ROWS], low, high) and _are_two(values, low, high)
    return _Digit(kind, values, low, high, is_one_of_two)


def _are_two(values: Numbers, low: int, high: int) -> bool:
    return bool(np.logical_or(values == low, values == high).all())


def _buckets(digits: Sequence[_Digit], rows: int) -> Buckets:
    """The bucket of every row: its digits as one number."""
    buckets, more = (_scratch.array(use, rows, np.int64) for use in ("buckets", "more"))
    counting = [digit for digit in digits if digit.size > 1]
    if not counting:
        buckets.fill(0)
    for index, digit in enumerate(counting):
        if index:
            digit.write(more)
            buckets *= digit.size
            buckets += more
        else:
            digit.write(buckets)
    return buckets


def _keys(digits: Sequence[_Digit], found: Buckets) -> list[pa.Array]:
    keys: list[pa.Array] = []
    for digit in reversed(digits):
        found, numbers = (found // digit.size, found % digit.size) if len(digits) > 1 else (found, found)
        keys.append(digit.values_of(numbers))
    return keys[::-1]


def _fits(table: pa.Table, call: Call) -> bool:
    name, function = call
    if function == "count_all":
        return True
    if not isinstance(name, str) or function not in ("count", "sum", "min", "max"):
        return False
    column = table.column(name)
    return not column.null_count and (function == "count" or column.type in (pa.int64(), pa.float64()))


def _result(values: Numbers, function: str, buckets: Buckets, count: int, found: Buckets) -> Numbers:
    """What the function makes of the values in each bucket that was found."""
    gathered = _scratch.array("values", count, values.dtype.type)
    gathered.fill(_first(function, values.dtype.type))
    _TOGETHER[function].at(gathered, buckets, values)
    result = gathered[found]
    if function != "sum" and np.isnan(result).any():
        # Arrow passes over these; so do other functions, which take longer.
        gathered.fill(np.nan)
        (np.fmin if function == "min" else np.fmax).at(gathered, buckets, values)
        result = gathered[found]
    return result


def _first(function: str, kind: type[np.int64] | type[np.float64]) -> float:
    if function == "sum":
        return 0
    if kind is np.float64:
        return np.inf if function == "min" else -np.inf
    return int(np.iinfo(np.int64).max if function == "min" else np.iinfo(np.int64).min)
