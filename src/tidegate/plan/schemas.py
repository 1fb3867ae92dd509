"""The columns that aggregates and joins emit, which columns they can take, and how stored state is described."""

from __future__ import annotations

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.columns import carried, check_key_type, check_names, check_result_names
from tidegate.plan.expressions import need_column
from tidegate.state.functions import AggregateColumn
from tidegate.state.plain import plain
from tidegate.values import Json

WINDOW_START = "window_start"
WINDOW_END = "window_end"
BOUNDS = (WINDOW_START, WINDOW_END)
LATE = "__late"
"""The column that distinguishes late rows from results, and the beginning of the names of late rows' columns."""


def aggregate_schema(
    keys: tuple[str, ...], aggregates: tuple[AggregateColumn, ...], schema: pa.Schema, event_time: str
) -> pa.Schema:
    """Keys, window bounds (of the event time's type), then one column per aggregate."""
    results = [pa.field(each.name, aggregate_type(each, schema)) for each in aggregates]
    grouped = [pa.field(key, plain(schema.field(key).type)) for key in keys]
    fields = [*grouped, *_bounds(schema.field(event_time).type), *results]
    _check_results(fields, aggregates)
    return pa.schema([_plain(field) for field in fields])


def running_schema(keys: tuple[str, ...], aggregates: tuple[AggregateColumn, ...], schema: pa.Schema) -> pa.Schema:
    """Keys, then one column per aggregate."""
    results = [pa.field(each.name, aggregate_type(each, schema)) for each in aggregates]
    fields = [*(pa.field(key, plain(schema.field(key).type)) for key in keys), *results]
    _check_results(fields, aggregates)
    return pa.schema(fields)


def _check_results(fields: list[pa.Field], aggregates: tuple[AggregateColumn, ...]) -> None:
    check_names("aggregate", [field.name for field in fields])
    check_result_names("aggregate", [each.name for each in aggregates])


def process_state(where: str, keys: tuple[str, ...], state: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """The columns of a function's state: the keys, first unless the user's schema has them, then the user's."""
    state = carried(where, state)
    for key in keys:
        kind = plain(schema.field(key).type)
        if key in state.names and state.field(key).type != kind:
            raise InvalidUseError(
                f"{where}: the key {key!r} has another type in the state, leave it out or give it its own "
                f"types={kind}, {state.field(key).type}"
            )
    added = [pa.field(key, plain(schema.field(key).type)) for key in keys if key not in state.names]
    if len(state) + len(added) == len(keys):
        raise InvalidUseError(f"{where}: the state needs a column besides the keys state=[{schema_text(state)}]")
    return pa.schema([*added, *state])


def wide_schema(results: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The columns of an aggregate that emits late rows too."""
    fields = [pa.field(LATE, pa.bool_()), *results]
    return pa.schema([*fields, *(pa.field(late_name(field.name), field.type) for field in rows)])


def late_name(name: str) -> str:
    """A late row's column in the wide schema."""
    return f"{LATE}_{name}"


def aggregate_type(aggregate: AggregateColumn, schema: pa.Schema) -> pa.DataType:
    """The type of an aggregate's result; raises when the column is missing or of a type it can't take."""
    if aggregate.column is None:
        return pa.int64()
    where = f"{aggregate.name}={aggregate.function.name}({aggregate.column!r})"
    kind = need_column(where, aggregate.column, schema).type
    return aggregate.function.result_type(f"{where}: {aggregate.function.name}", kind)


def key_field(where: str, name: str, schema: pa.Schema) -> pa.Field:
    """A column that rows can be grouped by; raises if it is missing, of no such type or clashes with the result."""
    field = need_column(where, name, schema)
    check_key_type(where, field)
    if name in BOUNDS or name.startswith("__"):
        raise InvalidUseError(
            f"{where}: a key may not be called like a column of the result, rename it with select() column={name!r}"
        )
    return field


def join_schema(keys: tuple[str, ...], left: pa.Schema, right: pa.Schema, left_time: str) -> pa.Schema:
    """Keys, window bounds, the left's other columns, the right's other columns.

    A right column whose name is taken gets ``_right``; a left one that is called like a window bound gets
    ``_left``.
    """
    fields = [*(left.field(key) for key in keys), *_bounds(left.field(left_time).type)]
    names = {field.name for field in fields}
    for side, suffix in ((left, "_left"), (right, "_right")):
        others = [_renamed(field, suffix, names) for field in side if field.name not in keys]
        fields += others
        names |= {field.name for field in others}
    check_names("join", [field.name for field in fields])
    return pa.schema([_plain(field) for field in fields])


def schema_text(schema: pa.Schema) -> str:
    """Names and types in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _bounds(kind: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind) for name in BOUNDS]


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type)


def _renamed(field: pa.Field, suffix: str, taken: set[str]) -> pa.Field:
    return field.with_name(field.name + suffix) if field.name in taken else field


def keyed_shape(kind: str, keys: tuple[str, ...], schema: pa.Schema, key_groups: int) -> dict[str, Json]:
    """How stored state by key is described in a manifest. It says nothing of parallelism: state is cut anew by key group."""
    return {"kind": kind, "keys": [f"{key} {schema.field(key).type}" for key in keys], "key_groups": key_groups}


def column_texts(schema: pa.Schema) -> list[Json]:
    """Columns as a description of stored state has them."""
    return [f"{field.name} {field.type}" for field in schema]
