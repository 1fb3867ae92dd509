"""``spark.read.format("tidegate")``: checkpoints, state and in-flight data as DataFrames.

Options: ``store``; ``operator``, and ``epoch`` and ``job`` where they are needed, for state; ``table`` = ``state``,
``checkpoints`` or ``inflight`` (with ``operator``: the recorded rows, without: what was recorded where).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch
from tidegate.runtime import inspect
from tidegate.spark.results import spark_schema

TABLES = ("state", "checkpoints", "inflight")
OPTIONS = {"store", "operator", "epoch", "job", "table", "path"}
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """What the options ask for."""

    store: str
    table: str
    operator: str | None
    epoch: int | None
    job: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Request:
        """The options, checked."""
        chosen = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(chosen) - OPTIONS)
        if unknown:
            raise InvalidUseError(f"no such option of this format; there are {', '.join(sorted(OPTIONS))} option={unknown[0]}")
        store = chosen.get("store") or chosen.get("path")
        operator = chosen.get("operator") or None
        table = chosen.get("table", "state")
        epoch = chosen.get("epoch")
        if not store:
            raise InvalidUseError('the tidegate format needs option("store", ...), the store of a job')
        if table not in TABLES:
            raise InvalidUseError(f"table is one of {', '.join(TABLES)} table={table}")
        if table == "state" and operator is None:
            raise InvalidUseError('state needs option("operator", ...); option("table", "checkpoints") lists what there is')
        if epoch is not None and not epoch.isdecimal():
            raise InvalidUseError(f"an epoch is a number epoch={epoch!r}")
        return cls(store, table, operator, None if epoch is None else int(epoch), chosen.get("job") or None)

    def found(self) -> inspect.Found:
        """The checkpoint that is asked for."""
        epoch = None if self.epoch is None else Epoch(self.epoch)
        return inspect.find(self.store, job=self.job, epoch=epoch, operator=self.operator)

    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        if self.table == "checkpoints":
            return inspect.CHECKPOINTS
        if self.table == "state":
            assert self.operator is not None
            return inspect.state_schema(self.found(), self.operator)
        return inspect.INFLIGHT if self.operator is None else inspect.read_inflight(self.found(), self.operator).schema

    def read(self, subtask: int | None) -> pa.Table:
        """The rows of the answer; of one subtask's state where that is named."""
        if self.table == "checkpoints":
            return inspect.read_checkpoints(self.store, self.job)
        if self.table == "state":
            assert self.operator is not None
            return inspect.read_state(self.found(), self.operator, None if subtask is None else [subtask])
        if self.operator is None:
            return inspect.list_inflight(self.found())
        return inspect.read_inflight(self.found(), self.operator)


class TidegateDataSource(DataSource):
    """The format's entry. Made by Spark, on the driver, once per read."""

    @classmethod
    def name(cls) -> str:
        """What goes into ``format(...)``."""
        return "tidegate"

    def schema(self) -> StructType:
        """Reads a little of the checkpoint."""
        return spark_schema(Request.of(self.options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """The head of the log is looked up once, so that all tasks read the same checkpoint."""
        request = Request.of(self.options)
        if request.table != "checkpoints" and (request.epoch is None or request.job is None):
            manifest = request.found().manifest
            request = Request(request.store, request.table, request.operator, manifest.epoch, manifest.job)
        return TidegateReader(request)


class TidegateReader(DataSourceReader):
    """One task per subtask of an operator; everything else is small and read by one."""

    def __init__(self, request: Request) -> None:
        self._request = request
        # Spark checks batches against its own idea of the types: microseconds, and UTC for times with a zone.
        self._schema = to_arrow_schema(spark_schema(request.schema()), timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """The subtasks."""
        if self._request.table != "state":
            return [InputPartition(None)]
        assert self._request.operator is not None
        return [InputPartition(entry.subtask) for entry in self._request.found().entries(self._request.operator)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches, in the columns that ``schema`` promised."""
        table = self._request.read(partition.value)
        columns = {
            field.name: table.column(field.name).cast(field.type)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in self._schema
        }
        yield from pa.table(columns, schema=self._schema).to_batches(max_chunksize=BATCH_ROWS)
