"""Committed rows of sinks as Spark DataFrames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import InvalidUseError
from tidegate.plan.capabilities import Collects, name_of, path_of


def committed_rows(spark: Any, sinks: Sequence[tuple[str, Any, pa.Schema]], name: str | None = None) -> DataFrame:
    """What a sink shows now; what is committed later is in a DataFrame that is made later."""
    session = need_session(spark)
    label, sink, schema = _chosen(sinks, name)
    if isinstance(sink, Collects):
        return session.createDataFrame(sink.table())
    path = path_of(sink)
    if path is None:
        raise InvalidUseError(f"this sink keeps no rows to read, use write_parquet or collect sink={label or sink!r}")
    if not os.path.isdir(path):
        return session.createDataFrame([], spark_schema(schema))
    return session.read.schema(spark_schema(schema)).parquet(str(path))


def need_session(spark: object) -> SparkSession:
    """The Spark session that was given."""
    if not isinstance(spark, SparkSession):
        raise InvalidUseError(f"to_dataframe needs a Spark session given={type(spark).__name__}")
    return spark


def _chosen(sinks: Sequence[tuple[str, Any, pa.Schema]], name: str | None) -> tuple[str, Any, pa.Schema]:
    found = [each for each in sinks if name is None or name in (each[0], name_of(each[1]))]
    if len(found) != 1:
        names = ", ".join(repr(label) for label, _, _ in sinks)
        raise InvalidUseError(f"name one of the pipeline's sinks, they are {names} sink={name!r}")
    return found[0]


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns in Spark's types. Unsigned numbers, which Spark has not, become the next larger signed ones."""
    try:
        return from_arrow_schema(signed(schema))
    except (PySparkException, TypeError) as error:
        raise InvalidUseError(f"Spark has no type for one of the columns: {error}") from error


def signed(schema: pa.Schema) -> pa.Schema:
    """The schema without unsigned numbers."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
    return pa.schema([field.with_type(wider.get(field.type, field.type)) for field in schema])
