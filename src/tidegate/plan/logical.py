"""The logical plan: what the user asked for, as a graph of frozen nodes.

Two nodes are the same when they are the same object, so a stream that is used twice stays one node through
every rewrite. Nothing here knows of stages, channels or parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.connector import Sink, Source
from tidegate.plan.expressions import Column
from tidegate.plan.physical import Aggregate as AggregateColumn
from tidegate.plan.physical import Window
from tidegate.plan.schemas import join_schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """One operator: the rows it gives, the column with their event time, its inputs and its name."""

    schema: pa.Schema
    event_time: str | None
    inputs: tuple[Node, ...] = ()
    name: str = ""

    @property
    def kind(self) -> str:
        """The operator's kind, as it appears in derived names."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(Node):
    """Rows of a source.

    ``pushed`` is a filter that the source applies itself; ``narrowed``: it reads fewer columns.
    """

    source: Source
    identity: str = ""
    pushed: pc.Expression | None = None
    narrowed: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(Node):
    """The input's rows for which the expression is true."""

    expression: pc.Expression
    uses: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Project(Node):
    """Computed columns, in this order."""

    columns: tuple[Column, ...]

    @property
    def kind(self) -> str:
        """A projection is what a user calls select."""
        return "select"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapBatches(Node):
    """What a user's function makes of each batch."""

    function: Callable[[pa.RecordBatch], pa.RecordBatch]

    @property
    def kind(self) -> str:
        """Short, for names."""
        return "map"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(Node):
    """The rows of all inputs, in any order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Node):
    """One row per key and window, given when the window closes. Only a rule sets ``late``."""

    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[AggregateColumn, ...]
    late: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Late(Node):
    """The late rows of its input, which is an ``Aggregate``. A rule replaces it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunningAggregate(Node):
    """One row per key, given again whenever it has changed."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateColumn, ...]

    @property
    def kind(self) -> str:
        """Short, for names."""
        return "running"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Process(Node):
    """What a user's function makes of each batch and the states of its keys."""

    keys: tuple[str, ...]
    state: pa.Schema
    function: Callable[[pa.RecordBatch, pa.RecordBatch], tuple[pa.RecordBatch, pa.RecordBatch]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Partial(Node):
    """The sender's half of an aggregate. Only a rule makes it."""

    keys: tuple[str, ...]
    window: Window | None
    aggregates: tuple[AggregateColumn, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Node):
    """Pairs of rows with the same key in the same window. ``inputs`` are left and right."""

    keys: tuple[str, ...]
    window: Window


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Named(Node):
    """Gives its input a name. Gone before the rules run, so that naming a stream does not read it twice."""

    label: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(Node):
    """Rows into a sink.

    ``label`` is the method that made it; ``identity`` tells like sinks apart, for names only.
    """

    sink: Sink
    label: str
    identity: str = ""

    @property
    def kind(self) -> str:
        """The method that made it."""
        return self.label


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """A job's name and its sinks; everything else hangs below them."""

    job: str
    sinks: tuple[Node, ...]


def topological(plan: LogicalPlan) -> list[Node]:
    """Every node once, inputs before those who read them, in the order of the sinks."""
    order: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(sink, False) for sink in reversed(plan.sinks)]
    while stack:
        node, inputs_done = stack.pop()
        if node in order:
            continue
        if inputs_done:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.inputs))
    return list(order)


def consumers(plan: LogicalPlan) -> Counter[Node]:
    """How many inputs read each node. A node that one join reads on both ports counts twice."""
    return Counter(child for node in topological(plan) for child in node.inputs)


def rewrite(plan: LogicalPlan, rule: Callable[[Node, tuple[Node, ...]], Node]) -> LogicalPlan:
    """Replace every node, inputs first and shared ones once.

    ``rule`` gets the old node and its new inputs.
    """
    done: dict[Node, Node] = {}
    for node in topological(plan):
        done[node] = rule(node, tuple(done[child] for child in node.inputs))
    return replace(plan, sinks=tuple(done[sink] for sink in plan.sinks))


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operator over other inputs; the schema follows where the operator passes columns on."""
    if inputs == node.inputs:
        return node
    match node:
        case Filter() | Union():
            return replace(node, inputs=inputs, schema=inputs[0].schema)
        case Join():
            return replace(node, inputs=inputs, schema=joined(node.keys, *inputs))
        case _:
            return replace(node, inputs=inputs)


def joined(keys: tuple[str, ...], left: Node, right: Node) -> pa.Schema:
    """The columns of a join of these two."""
    assert left.event_time is not None
    return join_schema(keys, left.schema, right.schema, left.event_time)
