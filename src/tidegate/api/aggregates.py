"""The aggregates: what to compute from the rows of a key and window.

Nulls are passed over, as in SQL; ``count()`` counts rows. ``sum`` of integers, uint64 too, is int64 and of floats
float64; an integer sum that does not fit is an error. ``mean`` is float64, counts are int64, the others keep the
column's type.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import InvalidUseError
from tidegate.state import functions
from tidegate.state.functions import AggregateFunction


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of one column, or of all rows."""

    function: AggregateFunction
    column: str | None = None


def count(column: str | None = None) -> AggregateCall:
    """How many rows there are; with a column, how many values that are not null."""
    return AggregateCall(functions.COUNT) if column is None else _of(functions.COUNT, column)


def sum(column: str) -> AggregateCall:
    """The sum of a column of numbers."""
    return _of(functions.SUM, column)


def min(column: str) -> AggregateCall:
    """The smallest value."""
    return _of(functions.MIN, column)


def max(column: str) -> AggregateCall:
    """The largest value."""
    return _of(functions.MAX, column)


def mean(column: str) -> AggregateCall:
    """The arithmetic mean of a column of numbers."""
    return _of(functions.MEAN, column)


def first(column: str) -> AggregateCall:
    """The value with the smallest event time; of several at that time the smallest."""
    return _of(functions.FIRST, column)


def last(column: str) -> AggregateCall:
    """The value with the largest event time; of several at that time the largest."""
    return _of(functions.LAST, column)


def count_distinct(column: str) -> AggregateCall:
    """How many different values that are not null. Exact: every different value is kept."""
    return _of(functions.COUNT_DISTINCT, column)


def _of(function: AggregateFunction, column: object) -> AggregateCall:
    if not isinstance(column, str):
        raise InvalidUseError(
            f"{function.name} takes the name of a column, compute it before with with_columns() column={column}"
        )
    return AggregateCall(function, column)
