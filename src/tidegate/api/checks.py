"""What a user's arguments must be; every refusal is one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregates import AggregateCall
from tidegate.api.windows import TimeWindow
from tidegate.errors import InvalidUseError
from tidegate.plan.expressions import need_column
from tidegate.plan.physical import Aggregate as AggregateColumn
from tidegate.plan.physical import Window
from tidegate.plan.schemas import WINDOW_END, key_field


def need_expression(where: str, given: object) -> pc.Expression:
    """The pyarrow expression that was given."""
    if not isinstance(given, pc.Expression):
        raise InvalidUseError(
            f"{where} takes an expression such as col('x') > 1, not {type(given).__name__} given={given!r}"
        )
    return given


def need_value(where: str, given: object) -> pc.Expression:
    """An expression, or a plain number or truth value as one."""
    return pc.scalar(given) if isinstance(given, bool | int | float) else need_expression(where, given)


def key_names(where: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names of one or more different key columns."""
    keys = tuple(names) if isinstance(names, list | tuple) else ()
    if not keys:
        raise InvalidUseError(f"{where} needs the name of at least one key column given={names!r}")
    if len(set(map(str, keys))) < len(keys):
        raise InvalidUseError(f"{where}: a key comes twice keys={', '.join(map(str, keys))}")
    return keys


def check_same_key(key: str, left: pa.Schema, right: pa.Schema) -> None:
    """Refuse a key that is missing on a side, or of different types."""
    ours, theirs = (
        key_field(f"join, {side} side", key, schema) for side, schema in (("left", left), ("right", right))
    )
    if ours.type != theirs.type:
        raise InvalidUseError(
            f"join: the key {key!r} has different types, cast one left={ours.type} right={theirs.type}"
        )


def unlike(ours: dict[str, pa.DataType], theirs: dict[str, pa.DataType]) -> str:
    """How the columns of two streams differ."""
    missing = sorted(ours.keys() ^ theirs.keys())
    if missing:
        return f"only one side has the column {missing[0]!r}, select the same ones on both"
    name = next(name for name in ours if ours[name] != theirs[name])
    return f"the column {name!r} has different types, cast one types={ours[name]}, {theirs[name]}"


def result_time(window: Window) -> str | None:
    """None for a window that closes later than it ends: watermarks have passed its rows when they come."""
    return WINDOW_END if window.allowed_lateness == 0 else None


def check_available(where: str, window: TimeWindow) -> None:
    """Refuse windows that have no operator yet."""
    if window.kind == "session":
        raise InvalidUseError(f"{where}: session windows are not available yet, use tumbling or sliding")


def aggregate_columns(aggregates: dict[str, AggregateCall], schema: pa.Schema) -> tuple[AggregateColumn, ...]:
    """The results of ``aggregate``, checked."""
    if not aggregates:
        raise InvalidUseError("aggregate needs at least one result, for example aggregate(n=count())")
    return tuple(aggregate_column(name, call, schema) for name, call in aggregates.items())


def aggregate_column(name: str, call: object, schema: pa.Schema) -> AggregateColumn:
    """One result, checked."""
    if not isinstance(call, AggregateCall):
        raise InvalidUseError(
            f"aggregate: {name} is no aggregate, write for example {name}=count() given={call!r}"
        )
    if call.function in ("first", "last", "count_distinct"):
        need_column(f"aggregate: {name}", call.column, schema)
        raise InvalidUseError(f"aggregate: {call.function} is not available yet result={name}")
    return AggregateColumn(name, call.function, call.column)
