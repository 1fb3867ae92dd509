"""The physical plan: what the nodes of a gang run. Data only; the rules make it, ``explain`` shows it, the runtime builds it.

A stage is a chain of operators that hand batches to each other by plain calls. Between stages are edges; every node hosts one
subtask of every stage. A *forward* edge connects subtask i with subtask i on the same node. A *hash* edge connects every
subtask with every other, by key group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.connector import Sink, Source

KEY_GROUPS = 128


@dataclass(frozen=True, slots=True)
class Window:
    """Time windows of ``size`` every ``slide`` (equal for tumbling), in the event-time column's unit."""

    kind: Literal["tumbling", "sliding", "session"]
    size: int
    slide: int
    allowed_lateness: int = 0


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One result column: ``function`` over ``column`` (``None`` for a plain count)."""

    name: str
    function: Literal["count", "sum", "min", "max", "mean", "first", "last", "count_distinct"]
    column: str | None = None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Reads the splits of a source that fall to this subtask."""

    name: str
    source: Source
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """Keeps the rows for which the expression is true."""

    name: str
    expression: pc.Expression
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """Computes the output's columns, in its order, one expression each."""

    name: str
    expressions: tuple[pc.Expression, ...]
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class MapSpec:
    """Calls a user's function on every batch, on a thread of its own."""

    name: str
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    output: pa.Schema
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class UnionSpec:
    """Passes on what comes on any input."""

    name: str
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class PreAggregateSpec:
    """The sender's half of an aggregate: partial results per key, and window if any. Holds no state across a barrier."""

    name: str
    keys: tuple[str, ...]
    window: Window | None
    aggregates: tuple[Aggregate, ...]
    event_time: str | None
    input: pa.Schema
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """Windowed aggregates per key. Its input is a ``PreAggregateSpec``'s output.

    With ``late`` its input are raw rows, and late ones come out too: flag, results, late rows' columns.
    """

    name: str
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[Aggregate, ...]
    event_time: str
    input: pa.Schema
    output: pa.Schema
    late: bool = False


@dataclass(frozen=True, slots=True)
class RunningAggregateSpec:
    """Aggregates per key over all rows so far. Its input is a ``PreAggregateSpec``'s output."""

    name: str
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    input: pa.Schema
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Calls a user's function with a batch and the states of its keys, on a thread of its own.

    ``state`` has the keys among its columns.
    """

    name: str
    function: Callable[[pa.RecordBatch, pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]]
    keys: tuple[str, ...]
    state: pa.Schema
    input: pa.Schema
    output: pa.Schema
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """Inner join per key and window; port 0 is left, port 1 right. Emitted when the window closes."""

    name: str
    keys: tuple[str, ...]
    window: Window
    left: pa.Schema
    right: pa.Schema
    left_time: str
    right_time: str
    output: pa.Schema


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Hands batches to a sink's writer."""

    name: str
    sink: Sink
    output: pa.Schema


OperatorSpec: TypeAlias = (
    SourceSpec
    | FilterSpec
    | ProjectSpec
    | MapSpec
    | UnionSpec
    | PreAggregateSpec
    | AggregateSpec
    | RunningAggregateSpec
    | ProcessSpec
    | JoinSpec
    | SinkSpec
)


@dataclass(frozen=True, slots=True)
class Edge:
    """From one stage to a port of another. ``aligned_only`` is the reason why barriers never overtake here, if so."""

    id: int
    source: str
    target: str
    port: int
    kind: Literal["forward", "hash"]
    schema: pa.Schema
    keys: tuple[str, ...] = ()
    aligned_only: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A chain of operators with the edges that come in and go out. Its name is its first stateful operator's, or its first's."""

    name: str
    operators: tuple[OperatorSpec, ...]
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Stages in topological order, sources first.

    ``notes`` are for people: ``sinks`` (names in the user's order) and ``sources`` (what was pushed into each).
    """

    job: str
    stages: tuple[Stage, ...]
    key_groups: int = KEY_GROUPS
    notes: dict[str, Any] = field(default_factory=dict)
    parallelism: int = 1

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge once, in the order of its target stage and port."""
        return tuple(edge for stage in self.stages for edge in stage.inputs)

    def stage(self, name: str) -> Stage:
        """The stage with this name."""
        return next(stage for stage in self.stages if stage.name == name)
