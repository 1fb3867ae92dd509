"""Where streams begin. The connectors are imported when they are used."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from tidegate.api.stream import Stream
from tidegate.core.duration import Duration
from tidegate.core.options import check_options, option_names
from tidegate.errors import InvalidUseError
from tidegate.operators.source import Read
from tidegate.plan.columns import carried
from tidegate.plan.connector import Source
from tidegate.plan.expressions import need_column
from tidegate.plan.identity import last_part
from tidegate.plan.units import is_event_time

T = TypeVar("T")
LocalPath: TypeAlias = str | os.PathLike[str]


def read_parquet(
    path: LocalPath | Sequence[LocalPath],
    *,
    event_time: str | None = None,
    out_of_orderness: Duration = 0,
    continuous: bool = False,
    **watching: Any,
) -> Stream:
    """Rows of a Parquet file, a directory or a list of files.

    ``event_time`` names an int64 (milliseconds) or timestamp column. With ``continuous=True`` the directory is watched, and
    files that appear are read too; then ``schema`` tells the columns of a directory that is still empty, and
    ``idle_timeout`` after which time without rows the watermark of others is no longer held back.
    """
    from tidegate.connectors.parquet import ParquetDirectorySource, ParquetSource

    if not continuous and {"schema", "idle_timeout"} & watching.keys():
        raise InvalidUseError("read_parquet: schema and idle_timeout are for a directory that is watched: add continuous=True")
    kind = ParquetDirectorySource if continuous else ParquetSource
    times = {"event_time": event_time, "out_of_orderness": out_of_orderness}
    source: Source = checked_call(read_parquet, kind, path, **times, **watching)
    first = path if isinstance(path, str | os.PathLike) else path[0]
    return _stream(source, os.path.basename(os.path.abspath(first)))


def generate(rows: int | None = None, rows_per_second: float | None = None, **options: Any) -> Stream:
    """Made-up rows, the same ones every time: as many as ``rows`` or without end, at full speed or paced."""
    from tidegate.connectors.generate import GenerateSource

    return from_source(checked_call(generate, GenerateSource, rows=rows, rows_per_second=rows_per_second, **options))


def from_source(source: Source) -> Stream:
    """Rows of any object that keeps the ``Source`` protocol; its ``path`` or ``name`` names the operator."""
    return _stream(source, last_part(source))


def _stream(source: Source, identity: str) -> Stream:
    if not isinstance(source, Source):
        raise InvalidUseError(f"from_source needs a Source, see tidegate.Source source={source!r}")
    if not source.schema.names:
        raise InvalidUseError("a source needs at least one column")
    schema = carried("source", source.schema)
    if source.event_time is not None:
        _check_event_time(schema, source.event_time)
    return Stream(Read(schema=schema, event_time=source.event_time, source=source, identity=identity))


def checked_call(public: Callable[..., object], function: Callable[..., T], *values: Any, **options: Any) -> T:
    """Call what does the work of ``public``, with a clear error for options that neither of them knows."""
    where = public.__name__
    taken = option_names(function)[len(values) :]
    check_options(where, (name for name in options if name not in taken), [*option_names(public), *taken])
    try:
        inspect.signature(function).bind(*values, **options)
    except TypeError as error:
        raise InvalidUseError(f"{where}: {error}") from None
    return function(*values, **options)


def _check_event_time(schema: pa.Schema, name: str) -> None:
    kind = need_column("event_time", name, schema).type
    if not is_event_time(kind):
        raise InvalidUseError(f"event time is int64 milliseconds or a timestamp column={name!r} type={kind}")
