"""The aggregate functions. Each says which partial columns it keeps, of which type its result is, and how that comes of them.

Nothing else in the tree knows a function by its name. A new one is an ``AggregateFunction``: here, or in a user's file, where
``register`` makes its stored state readable by name.

Nulls are SQL's: ``sum``, ``min``, ``max`` and ``mean`` pass over them and are null when there is nothing else; ``count(column)``
counts what is not null, ``count()`` counts rows. ``min`` and ``max`` pass over NaN unless there is nothing else. ``first`` and
``last`` go by event time and pass over nulls too; of several values at the same time ``first`` is the smallest and ``last`` the
largest, so that the order of arrival never matters. ``count_distinct`` is exact: partials have one row per key and distinct
value, and are counted at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.state.keygroups import canonical
from tidegate.state.plain import plain

PartFunction: TypeAlias = Literal["count_all", "count", "sum", "min", "max", "first", "last"]
ResultType: TypeAlias = Callable[[str, pa.DataType], pa.DataType]
"""From where it is used (for messages) and the column's type to the result's; raises for a type that it can't take."""
Finish: TypeAlias = Callable[[Sequence[pa.Array]], pa.Array]


@dataclass(frozen=True, slots=True)
class Part:
    """One partial column: ``function`` makes it from ``column`` of the rows; ``as_float``: after a cast to float64."""

    name: str
    function: PartFunction
    column: str | None = None
    as_float: bool = False

    @property
    def merge(self) -> PartFunction:
        """The function that merges several values of this column into one."""
        return "sum" if self.function in ("count", "count_all") else self.function

    @property
    def may_overflow(self) -> bool:
        """True for sums of values; counts are bounded by the rows there are."""
        return self.function == "sum"

    @property
    def by_time(self) -> bool:
        """True for a value that is chosen by its event time, which is kept in a column of its own."""
        return self.function in ("first", "last")

    @property
    def time(self) -> str:
        """The column with the event time of a value that is chosen by it."""
        return f"{self.name.removesuffix('__v')}__t"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the partials that belong to this."""
        return (self.name, self.time) if self.by_time else (self.name,)


def _first_part(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """What an aggregate computes. ``parts``: suffix and function of each partial column.

    ``finish`` gets the merged partial columns in that order. ``distinct``: it counts distinct values and has no parts.
    ``takes_rows``: without a column it counts rows.
    """

    name: str
    result_type: ResultType
    parts: tuple[tuple[str, PartFunction], ...] = ()
    finish: Finish = _first_part
    as_float: bool = False
    distinct: bool = False
    takes_rows: bool = False

    @property
    def by_time(self) -> bool:
        """It goes by event time, so the stream must have one."""
        return any(function in ("first", "last") for _, function in self.parts)


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """One result column: ``function`` over ``column`` (``None`` for a count of rows)."""

    name: str
    function: AggregateFunction
    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is None and not self.function.takes_rows:
            raise InvalidUseError(f"{self.function.name} needs a column aggregate={self.name}")

    @classmethod
    def of(cls, name: str, function: str, column: str | None = None) -> AggregateColumn:
        """The same with a function by its name."""
        return cls(name, named(function), column)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its partial columns."""
        if self.column is None:
            return (Part(f"{self.name}__n", "count_all"),)
        as_float = self.function.as_float
        return tuple(Part(f"{self.name}__{suffix}", part, self.column, as_float) for suffix, part in self.function.parts)

    @property
    def distinct_column(self) -> str | None:
        """The partial column of the distinct values, for a function that counts them."""
        return f"{self.name}__d" if self.function.distinct else None

    def text(self) -> str:
        """For people and for derived names."""
        return f"{self.name}={self.function.name}({self.column or ''})"

    def result(self, partials: pa.RecordBatch) -> pa.Array:
        """The result column, of merged partials with distinct values counted."""
        if self.distinct_column is not None:
            return partials.column(self.distinct_column)
        return self.function.finish([partials.column(part.name) for part in self.parts])


# -- result types --------------------------------------------------------------------------------------------


def _int64(where: str, kind: pa.DataType) -> pa.DataType:
    return pa.int64()


def _same(where: str, kind: pa.DataType) -> pa.DataType:
    return plain(kind)


def _float64(where: str, kind: pa.DataType) -> pa.DataType:
    _check_number(where, kind)
    return pa.float64()


def _sum_type(where: str, kind: pa.DataType) -> pa.DataType:
    _check_number(where, kind)
    if pa.types.is_decimal(kind):
        return pa.decimal256(76, kind.scale) if kind.bit_width > 128 else pa.decimal128(38, kind.scale)
    return pa.int64() if pa.types.is_integer(kind) else pa.float64()


def _check_number(where: str, kind: pa.DataType) -> None:
    floats = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (pa.types.is_decimal(kind) or pa.types.is_integer(kind) or floats):
        raise InvalidUseError(f"{where} needs a column of numbers type={kind}")


def _ordered(where: str, kind: pa.DataType) -> pa.DataType:
    if not can_be_ordered(plain(kind)):
        raise InvalidUseError(f"{where} can't order this column, cast it before type={kind}")
    return plain(kind)


def can_be_ordered(kind: pa.DataType) -> bool:
    """True for a column that ``min`` and ``max`` can take; found by trying."""
    if pa.types.is_null(kind):
        return False
    table = pa.table({"k": pa.array([], pa.int64()), "v": pa.nulls(0, kind)})
    try:
        pa.TableGroupBy(table, ["k"], use_threads=False).aggregate([("v", "min")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def _one_zero(parts: Sequence[pa.Array]) -> pa.Array:
    return canonical(parts[0])  # which of two zeros was met first must not show


def _mean(parts: Sequence[pa.Array]) -> pa.Array:
    total, count = parts  # total is null where count is 0
    return pc.divide(total, count.cast(pa.float64()))


# -- the functions -------------------------------------------------------------------------------------------

COUNT = AggregateFunction("count", _int64, (("n", "count"),), takes_rows=True)
SUM = AggregateFunction("sum", _sum_type, (("s", "sum"),))
MIN = AggregateFunction("min", _ordered, (("lo", "min"),), _one_zero)
MAX = AggregateFunction("max", _ordered, (("hi", "max"),), _one_zero)
MEAN = AggregateFunction("mean", _float64, (("s", "sum"), ("n", "count")), _mean, as_float=True)
FIRST = AggregateFunction("first", _same, (("v", "first"),))
LAST = AggregateFunction("last", _same, (("v", "last"),))
COUNT_DISTINCT = AggregateFunction("count_distinct", _int64, distinct=True)

_BY_NAME = {each.name: each for each in (COUNT, SUM, MIN, MAX, MEAN, FIRST, LAST, COUNT_DISTINCT)}


def register(function: AggregateFunction) -> AggregateFunction:
    """Let readers of checkpoints in this process decode state of a function that is not tidegate's own."""
    if _BY_NAME.setdefault(function.name, function) != function:
        raise InvalidUseError(f"another aggregate function has this name, choose another name={function.name}")
    return function


def named(name: str) -> AggregateFunction:
    """The function that is registered under this name."""
    if name not in _BY_NAME:
        raise InvalidUseError(f"no such aggregate function; there are: {', '.join(sorted(_BY_NAME))} function={name}")
    return _BY_NAME[name]
