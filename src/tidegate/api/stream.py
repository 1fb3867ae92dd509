"""Streams: a user builds a plan with them. Every call checks its arguments at once; nothing runs here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregates import AggregateCall
from tidegate.api.checks import (
    aggregate_columns,
    check_event_time,
    check_same_key,
    key_names,
    need_expression,
    need_value,
    process_arguments,
    unlike,
)
from tidegate.errors import InvalidUseError
from tidegate.operators.aggregate import WindowAggregate
from tidegate.operators.expression import Filter, Project
from tidegate.operators.join import WindowJoin, joined_schema
from tidegate.operators.late import Late
from tidegate.operators.map import BatchMap, MapBatches
from tidegate.operators.process import BatchProcess, Process
from tidegate.operators.running import RunningAggregate
from tidegate.operators.sink import Write
from tidegate.operators.union import Union
from tidegate.operators.window import TimeWindow, Window
from tidegate.plan.capabilities import ChecksSchema
from tidegate.plan.columns import carried, check_names
from tidegate.plan.connector import Sink
from tidegate.plan.expressions import Column, column, need_column, passed_on, predicate
from tidegate.plan.identity import function_text
from tidegate.plan.logical import Named
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.parameter import Parameter, parameters_of
from tidegate.plan.schemas import (
    WINDOW_END,
    aggregate_schema,
    key_field,
    process_state,
    running_schema,
    schema_text,
)
from tidegate.planner.names import check_name

col = pc.field


class Stream:
    """Rows that are still to come.

    Immutable: every method returns a new stream. Used twice, it is read once.
    """

    __slots__ = ("_node",)

    def __init__(self, node: OperatorSpec) -> None:
        self._node = node

    def __repr__(self) -> str:
        return f"Stream({schema_text(self.schema)})"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._node.schema

    @property
    def event_time(self) -> str | None:
        """The column with the rows' event time, if the stream has one."""
        return self._node.event_time

    @property
    def node(self) -> OperatorSpec:
        """The logical plan that ends here."""
        return self._node

    def named(self, name: str) -> Stream:
        """The same stream; the operator that emits it has this name in explain, metrics and checkpoints."""
        return Stream(_named(self._node, name))

    def filter(self, condition: pc.Expression) -> Stream:
        """The rows for which the condition is true."""
        expression = need_expression("filter", condition)
        uses = predicate("filter", expression, self.schema)
        return Stream(Filter(**_over(self._node), expression=expression, uses=uses))

    def select(self, *columns: str | pc.Expression, **named: object) -> Stream:
        """These columns only, then the named expressions.

        Leaving out the event time means no windows afterwards.
        """
        chosen = [self._plain_column(each) for each in columns]
        chosen += [column("select", name, need_value("select", each), self.schema) for name, each in named.items()]
        if not chosen:
            raise InvalidUseError(f"select needs at least one column columns={', '.join(self.schema.names)}")
        return self._project("select", chosen)

    def with_columns(self, **named: object) -> Stream:
        """All columns and these: one of the same name is replaced, others come last."""
        if self.event_time in named:
            raise InvalidUseError(f"the event-time column can't be replaced, choose another name column={self.event_time!r}")
        where = "with_columns"
        values = {name: need_value(where, each) for name, each in named.items()}
        new = {name: column(where, name, each, self.schema) for name, each in values.items()}
        kept = [new.pop(field.name) if field.name in new else passed_on(field) for field in self.schema]
        return self._project(where, [*kept, *new.values()])

    def map_batches(self, function: BatchMap, schema: pa.Schema | None = None, *, parameters: Sequence[Parameter] = ()) -> Stream:
        """What the function makes of each RecordBatch.

        Without ``schema`` it must return the same columns. A function object with a method ``on_signal(kind, payload)`` hears of
        ``job.signal``. Parameters that the function reaches are found; name in ``parameters`` those that it gets in other ways.
        """
        if not callable(function):
            raise InvalidUseError(f"map_batches needs a function of a RecordBatch function={function!r}")
        if schema is not None and (not isinstance(schema, pa.Schema) or not schema.names):
            raise InvalidUseError(f"map_batches: schema is a pyarrow.Schema with columns schema={schema!r}")
        result = self.schema if schema is None else carried("map_batches", schema)
        time = self.event_time if self._keeps_event_time(result) else None
        read = parameters_of(function, parameters)
        return Stream(MapBatches(schema=result, event_time=time, inputs=(self._node,), function=function, parameters=read))

    def union(self, *others: Stream) -> Stream:
        """The rows of all of these streams, which must have the same columns."""
        if not others:
            raise InvalidUseError("union needs at least one other stream")
        return Stream(Union(**_over(self._node, *(self._alike(other) for other in others))))

    def join(self, other: Stream, on: str | Sequence[str], window: TimeWindow) -> Stream:
        """Pairs of rows with equal keys in the same window, emitted when the window closes.

        Columns: the keys, ``window_start``, ``window_end``, then the other columns of both sides; a name that
        is taken gets ``_right``. Null keys never match. The event time of the result is ``window_end``.
        """
        _check_stream("join", other)
        keys = key_names("join", (on,) if isinstance(on, str) else on)
        for key in keys:
            check_same_key(key, self.schema, other.schema)
        bound = self._window("join", window, other)
        bound.fixed("join")
        sides = (self._node, other._node)
        return Stream(
            WindowJoin(schema=joined_schema(keys, *sides), event_time=WINDOW_END, inputs=sides, keys=keys, window=bound)
        )

    def apply(self, operator: Callable[[OperatorSpec], OperatorSpec]) -> Stream:
        """What an operator of your own makes of this stream: ``operator`` gets the plan so far and returns a spec over it."""
        spec = operator(self._node) if callable(operator) else None
        if not isinstance(spec, OperatorSpec):
            raise InvalidUseError(f"apply needs a function that returns an OperatorSpec operator={operator!r}")
        return Stream(spec)

    def key_by(self, *columns: str) -> KeyedStream:
        """The rows by key: what follows is computed for each key on its own."""
        keys = key_names("key_by", columns)
        for key in keys:
            key_field("key_by", key, self.schema)
        return KeyedStream(self, keys)

    def late(self) -> Stream:
        """The rows that came too late for the windowed aggregate that emits this stream, as they came.

        The aggregate then takes all rows instead of partial results, which costs more. Late rows have no event
        time: every watermark has passed them.
        """
        node = self._node
        while isinstance(node, Named):
            node = node.specs[0]
        if not isinstance(node, WindowAggregate):
            raise InvalidUseError(
                "late() belongs to the result of a windowed aggregate: write key_by().window().aggregate().late()"
            )
        rows = node.inputs[0]
        return Stream(Late(schema=rows.schema, event_time=None, inputs=(node,)))

    def write_parquet(self, path: str | os.PathLike[str], **options: Any) -> Output:
        """Into a directory of Parquet files that shows committed epochs only.

        ``publish_every``: how often they appear, merged into few files. By default the first eight epochs at once, then all
        that is committed every ten seconds; ``"0s"`` shows every epoch at once, in files of its own.
        """
        from tidegate.api.sources import checked_call
        from tidegate.connectors.parquet import ParquetSink

        return self._written(checked_call(Stream.write_parquet, ParquetSink, path, **options), "write_parquet")

    def write(self, sink: Sink) -> Output:
        """Into any object that keeps the ``Sink`` protocol."""
        if not isinstance(sink, Sink):
            raise InvalidUseError(f"write needs a Sink, see tidegate.Sink sink={sink!r}")
        return self._written(sink, "write")

    def collect(self, name: str = "result") -> Output:
        """To the driver: ``job.collect(name)`` returns the committed rows."""
        from tidegate.connectors.collect import CollectSink

        return self._written(CollectSink(check_name("a result", name)), "collect")

    def to_dataframe(self, spark: Any) -> Output:
        """To the driver: ``job.to_dataframe(spark)`` returns the committed rows as a Spark DataFrame."""
        from tidegate.spark.results import need_session

        need_session(spark)
        return self.collect("dataframe")

    def for_each_batch(self, function: Callable[[pa.RecordBatch, int], object]) -> Output:
        """Call ``function(batch, epoch)`` on the driver, in epoch order; a crash may repeat a call."""
        from tidegate.connectors.foreach import ForEachBatchSink

        if not callable(function):
            raise InvalidUseError(f"for_each_batch needs a function of (batch, epoch) function={function!r}")
        return self._written(ForEachBatchSink(function), "for_each_batch", function_text(function))

    def _written(self, sink: Sink, method: str, identity: str = "") -> Output:
        if isinstance(sink, ChecksSchema):
            sink.check_schema(self.schema)
        return Output(Write(**_over(self._node), sink=sink, method=method, identity=identity))

    def _project(self, where: str, columns: list[Column]) -> Stream:
        check_names(where, [each.name for each in columns])
        schema = pa.schema([pa.field(each.name, each.type) for each in columns])
        time = self._event_time_among(columns)
        return Stream(Project(schema=schema, event_time=time, inputs=(self._node,), columns=tuple(columns)))

    def _event_time_among(self, columns: list[Column]) -> str | None:
        """The column that passes the event time on, under its own name or another."""
        if self.event_time is None:
            return None
        same = [each.name for each in columns if each.is_field(self.event_time)]
        return self.event_time if self.event_time in same else next(iter(same), None)

    def _plain_column(self, column_or_name: object) -> Column:
        if isinstance(column_or_name, pc.Expression):
            name = next((name for name in self.schema.names if column_or_name.equals(pc.field(name))), None)
            if name is None:
                column("select", "", column_or_name, self.schema)
                raise InvalidUseError(
                    f"select: a computed column needs a name, write select(name=...) expression={column_or_name}"
                )
            column_or_name = name
        return passed_on(need_column("select", column_or_name, self.schema))

    def _keeps_event_time(self, schema: pa.Schema) -> bool:
        time = self.event_time
        return time in schema.names and schema.field(time).type == self.schema.field(time).type

    def _alike(self, other: object) -> OperatorSpec:
        """The other stream with its columns in the order of this one's."""
        other = _check_stream("union", other)
        ours, theirs = ({field.name: field.type for field in each} for each in (self.schema, other.schema))
        if ours != theirs:
            raise InvalidUseError(f"union: {unlike(ours, theirs)}")
        if self.event_time != other.event_time:
            raise InvalidUseError(f"union needs the same event-time column columns={self.event_time}, {other.event_time}")
        return other._node if other.schema.names == self.schema.names else other.select(*self.schema.names)._node

    def _window(self, where: str, window: object, other: Stream | None = None) -> Window:
        """A window in this stream's unit; the other side of a join must have the same."""
        if not isinstance(window, TimeWindow):
            raise InvalidUseError(f"{where}: a window is written like tumbling('10s') window={window!r}")
        kinds = [_time_type(where, each) for each in (self, other) if each is not None]
        if any(kind != kinds[0] for kind in kinds):
            raise InvalidUseError(f"{where}: both sides need the same type of event time types={kinds[0]}, {kinds[1]}")
        return window.over(where, kinds[0])


class KeyedStream:
    """A stream by key. ``window``, ``aggregate`` or ``process`` comes next."""

    __slots__ = ("_keys", "_stream")

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    def window(self, window: TimeWindow) -> WindowedStream:
        """The rows of each key by time."""
        return WindowedStream(self._stream, self._keys, self._stream._window("window", window))

    def aggregate(self, **aggregates: AggregateCall) -> Stream:
        """Running aggregates: one row per key over all rows so far, with the keys and the results.

        Keys that changed come once per epoch, and at the end; without checkpoints, with every batch. A row
        replaces the key's rows before it. The result has no event time.
        """
        schema = self._stream.schema
        columns = aggregate_columns(aggregates, schema)
        check_event_time(columns, self._stream.event_time)
        return Stream(
            RunningAggregate(
                schema=running_schema(self._keys, columns, schema),
                event_time=None,
                inputs=(self._stream.node,),
                keys=self._keys,
                aggregates=columns,
            )
        )

    def process(
        self, function: BatchProcess, state: pa.Schema, output: pa.Schema, *, parameters: Sequence[Parameter] = ()
    ) -> Stream:
        """What ``function(batch, state) -> (output, state)`` makes of each RecordBatch.

        ``state`` has one row per distinct key of the batch: the keys and the columns of ``state=``, nulls for a
        new key. What the function returns replaces it; a key that is left out is forgotten. All rows of a key come to
        the same subtask, in batches of any size. The function runs on a thread of its own. Signals and parameters are as in
        ``map_batches``.
        """
        process_arguments(function, state, output)
        output = carried("process", output)
        complete = process_state("process", self._keys, state, self._stream.schema)
        time = self._stream.event_time if self._stream._keeps_event_time(output) else None
        return Stream(
            Process(
                schema=output,
                event_time=time,
                inputs=(self._stream.node,),
                keys=self._keys,
                state=complete,
                function=function,
                parameters=parameters_of(function, parameters),
            )
        )


class WindowedStream:
    """A stream by key and window. ``aggregate`` comes next."""

    __slots__ = ("_given", "_keys", "_stream", "_window")

    def __init__(self, stream: Stream, keys: tuple[str, ...], window: Window) -> None:
        self._stream = stream
        self._keys = keys
        self._window = window
        self._given: list[Stream] = []

    def late(self) -> Stream:
        """The late rows of this stream's aggregate, which must exist by now, and be the only one."""
        if len(self._given) != 1:
            raise InvalidUseError("late() belongs to one aggregate: write result = windowed.aggregate(...), then result.late()")
        return self._given[0].late()

    def aggregate(self, **aggregates: AggregateCall) -> Stream:
        """One row per key and window: keys, ``window_start``, ``window_end``, the results.

        It comes once, when the window closes. The event time of the result is ``window_end``, so windows can
        be put on windows: a row comes before the watermark that closed its window, so it is never late there.
        With ``allowed_lateness`` windows close as much later, and so do the windows on top of them.
        """
        columns = aggregate_columns(aggregates, self._stream.schema)
        time = self._stream.event_time
        assert time is not None
        result = Stream(
            WindowAggregate(
                schema=aggregate_schema(self._keys, columns, self._stream.schema, time),
                event_time=WINDOW_END,
                inputs=(self._stream.node,),
                keys=self._keys,
                window=self._window,
                aggregates=columns,
            )
        )
        self._given.append(result)
        return result


class Output:
    """A stream with a sink: what a ``Pipeline`` is made of."""

    __slots__ = ("_node",)

    def __init__(self, node: OperatorSpec) -> None:
        self._node = node

    def __repr__(self) -> str:
        return f"Output({schema_text(self._node.schema)})"

    @property
    def node(self) -> OperatorSpec:
        """The logical plan that ends here."""
        return self._node

    def named(self, name: str) -> Output:
        """The same output; its sink has this name in explain, metrics and checkpoints."""
        return Output(_named(self._node, name))

    def to_dataframe(self, spark: Any) -> Any:
        """The rows that are published now, as a Spark DataFrame. For ``write_parquet``; a job does it for ``collect`` too."""
        from tidegate.spark.results import committed_rows

        node = self._node
        while not isinstance(node, Write):
            node = node.specs[0]
        return committed_rows(spark, [("", node.sink, node.inputs[0].schema)])


def _over(*inputs: OperatorSpec) -> dict[str, Any]:
    """What an operator has that passes on the columns of its inputs."""
    return {"schema": inputs[0].schema, "event_time": inputs[0].event_time, "inputs": inputs}


def _named(node: OperatorSpec, name: str) -> OperatorSpec:
    return Named(**_over(node), alias=check_name("an operator", name))


def _check_stream(where: str, other: object) -> Stream:
    if not isinstance(other, Stream):
        raise InvalidUseError(f"{where} needs another stream other={other!r}")
    return other


def _time_type(where: str, stream: Stream) -> pa.DataType:
    if stream.event_time is None:
        raise InvalidUseError(
            f"{where}: the stream has no event time, give event_time= to its source and keep that column "
            f"columns={', '.join(stream.schema.names)}"
        )
    return stream.schema.field(stream.event_time).type
