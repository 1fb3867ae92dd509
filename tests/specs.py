"""Operators for tests: specs from plain values, and what a node would build of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate import WindowAggregate
from tidegate.operators.expression import Filter, Project
from tidegate.operators.join import WindowJoin
from tidegate.operators.preaggregate import PreAggregate
from tidegate.operators.process import Process
from tidegate.operators.running import RunningAggregate
from tidegate.operators.window import Window
from tidegate.plan.expressions import Column
from tidegate.plan.operator import Operator, OperatorContext, OperatorSpec, Port
from tidegate.state.functions import AggregateColumn

Keys = tuple[str, ...]
Aggregates = tuple[AggregateColumn, ...]


def context(
    subtask: int = 0,
    parallelism: int = 1,
    *,
    checkpointing: bool = True,
    executor: Callable[[str], Executor] | None = None,
    wake: Callable[[], None] = lambda: None,
) -> OperatorContext:
    return OperatorContext(
        subtask=subtask, parallelism=parallelism, key_groups=128, checkpointing=checkpointing, executor=executor, wake=wake
    )


def build(spec: OperatorSpec, subtask: int = 0, parallelism: int = 1, *, checkpointing: bool = True) -> Operator:
    return spec.build(context(subtask, parallelism, checkpointing=checkpointing))


def filtered(name: str, expression: pc.Expression, schema: pa.Schema) -> Filter:
    return Filter(schema=schema, event_time=None, inputs=(Port(schema),), name=name, expression=expression, uses=frozenset())


def projected(name: str, expressions: tuple[pc.Expression, ...], input: pa.Schema, output: pa.Schema) -> Project:
    columns = tuple(
        Column(field.name, expression, field.type, frozenset()) for field, expression in zip(output, expressions, strict=True)
    )
    return Project(schema=output, event_time=None, inputs=(Port(input),), name=name, columns=columns)


def pre_aggregate(
    name: str, keys: Keys, window: Window | None, aggregates: Aggregates, time: str | None, input: pa.Schema, output: pa.Schema
) -> PreAggregate:
    return PreAggregate(
        schema=output,
        event_time=time,
        inputs=(Port(input, time),),
        name=name,
        keys=keys,
        window=window,
        aggregates=aggregates,
    )


def window_aggregate(
    name: str,
    keys: Keys,
    window: Window,
    aggregates: Aggregates,
    time: str,
    input: pa.Schema,
    output: pa.Schema,
    *,
    late: bool = False,
) -> WindowAggregate:
    return WindowAggregate(
        schema=output,
        event_time="window_end",
        inputs=(Port(input, time),),
        name=name,
        keys=keys,
        window=window,
        aggregates=aggregates,
        late=late,
    )


def running_aggregate(name: str, keys: Keys, aggregates: Aggregates, input: pa.Schema, output: pa.Schema) -> RunningAggregate:
    return RunningAggregate(
        schema=output, event_time=None, inputs=(Port(input, "ts"),), name=name, keys=keys, aggregates=aggregates
    )


def process(name: str, function: Any, keys: Keys, state: pa.Schema, input: pa.Schema, output: pa.Schema) -> Process:
    return Process(schema=output, event_time=None, inputs=(Port(input),), name=name, keys=keys, state=state, function=function)


def window_join(
    name: str, keys: Keys, window: Window, left: pa.Schema, right: pa.Schema, times: tuple[str, str], output: pa.Schema
) -> WindowJoin:
    sides = (Port(left, times[0]), Port(right, times[1]))
    return WindowJoin(schema=output, event_time="window_end", inputs=sides, name=name, keys=keys, window=window)
