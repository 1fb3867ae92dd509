"""What a user's arguments must be; every refusal is one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregates import AggregateCall
from tidegate.errors import InvalidUseError
from tidegate.plan.schemas import aggregate_type, key_field
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import partial_schema


def need_expression(where: str, value: object) -> pc.Expression:
    """The pyarrow expression that was given."""
    if not isinstance(value, pc.Expression):
        raise InvalidUseError(f"{where} takes an expression such as col('x') > 1, not {type(value).__name__} given={value!r}")
    return value


def need_value(where: str, value: object) -> pc.Expression:
    """An expression, or a plain number or truth value as one."""
    return pc.scalar(value) if isinstance(value, bool | int | float) else need_expression(where, value)


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
    ours, theirs = (key_field(f"join, {side} side", key, schema) for side, schema in (("left", left), ("right", right)))
    if ours.type != theirs.type:
        raise InvalidUseError(f"join: the key {key!r} has different types, cast one left={ours.type} right={theirs.type}")


def unlike(ours: dict[str, pa.DataType], theirs: dict[str, pa.DataType]) -> str:
    """How the columns of two streams differ."""
    missing = sorted(ours.keys() ^ theirs.keys())
    if missing:
        return f"only one side has the column {missing[0]!r}, select the same ones on both"
    name = next(name for name in ours if ours[name] != theirs[name])
    return f"the column {name!r} has different types, cast one types={ours[name]}, {theirs[name]}"


def process_arguments(function: object, state: object, output: object) -> None:
    """Refuse what is no function, or no schema with columns."""
    if not callable(function):
        raise InvalidUseError(f"process needs a function of (batch, state) function={function!r}")
    for name, schema in (("state", state), ("output", output)):
        if not isinstance(schema, pa.Schema) or not schema.names:
            raise InvalidUseError(f"process: {name} is a pyarrow.Schema with columns {name}={schema!r}")


def check_event_time(aggregates: Sequence[AggregateColumn], event_time: str | None) -> None:
    """``first`` and ``last`` need one."""
    for each in aggregates:
        if each.function.by_time and event_time is None:
            raise InvalidUseError(
                f"aggregate: {each.function.name} goes by event time, give event_time= to the source and keep that "
                f"column result={each.name}"
            )


def aggregate_columns(aggregates: dict[str, AggregateCall], schema: pa.Schema) -> tuple[AggregateColumn, ...]:
    """The results of ``aggregate``, checked."""
    if not aggregates:
        raise InvalidUseError("aggregate needs at least one result, for example aggregate(n=count())")
    return tuple(aggregate_column(name, call, schema) for name, call in aggregates.items())


def aggregate_column(name: str, call: object, schema: pa.Schema) -> AggregateColumn:
    """One result, checked."""
    if not isinstance(call, AggregateCall):
        raise InvalidUseError(f"aggregate: {name} is no aggregate, write for example {name}=count() given={call!r}")
    column = AggregateColumn(name, call.function, call.column)
    aggregate_type(column, schema)
    partial_schema((), (column,), schema)
    return column
