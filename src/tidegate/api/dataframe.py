"""Spark DataFrames in and out of streams."""

from __future__ import annotations

from typing import Any

from tidegate.api.sources import from_source
from tidegate.api.stream import Stream
from tidegate.core.duration import Duration
from tidegate.core.options import strict_options
from tidegate.errors import InvalidUseError


@strict_options
def from_dataframe(
    frame: Any,
    *,
    event_time: str | None = None,
    out_of_orderness: Duration = 0,
    name: str = "dataframe",
    trigger: Duration | None = None,
) -> Stream:
    """Rows of a Spark DataFrame, batch or streaming: whatever Spark can read, with all of Spark SQL in front.

    Spark computes it once and spools it into the job's store; a job that resumes reads the spool. ``name`` distinguishes several
    of a pipeline. ``trigger`` is for streaming ones: the time between micro-batches, or ``"available_now"`` to end when
    everything that is there now was read.
    """
    from tidegate.connectors.dataframe import DataFrameSource, DataFrameStreamSource
    from tidegate.spark.dataframe import FrameFeeder

    if not isinstance(name, str) or not name:
        raise InvalidUseError(f"from_dataframe: name is a word name={name!r}")
    feeder = FrameFeeder(frame, trigger)
    kind = DataFrameStreamSource if feeder.streaming else DataFrameSource
    return from_source(kind(feeder, feeder.schema(), event_time=event_time, out_of_orderness=out_of_orderness, name=name))
