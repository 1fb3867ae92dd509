"""The rewrites between what the user asked for and what runs: one rule, one function.

``LOGICAL_RULES`` run first, in this order. Then ``tidegate.plan.build`` chains operators into stages. Last of
all ``insert_barrier_for_fan_in`` makes every fan-in of the physical tree visible. No rule changes rows,
offsets or watermarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.plan.expressions import Column, passed_on
from tidegate.plan.logical import (
    Aggregate,
    Filter,
    Join,
    Late,
    LogicalPlan,
    Node,
    Partial,
    Project,
    Read,
    RunningAggregate,
    Union,
    consumers,
    rewrite,
    topological,
    with_inputs,
)
from tidegate.plan.physical import Window
from tidegate.plan.schemas import BOUNDS, LATE, late_name, wide_schema
from tidegate.plan.tree import PhysicalNode, is_exchange, upstream_count
from tidegate.state.partial import END, WINDOW, partial_schema


def push_projections(plan: LogicalPlan) -> LogicalPlan:
    """Read only the columns that someone needs, and send only those through an exchange."""
    wanted = _wanted(plan)
    exact = _read_whole(plan)
    return rewrite(plan, lambda node, inputs: _narrowed(node, inputs, wanted[node], node in exact))


def push_filters(plan: LogicalPlan) -> LogicalPlan:
    """Let the source apply a filter that is the only reader of it.

    One filter per source: a second one may divide by what the first has ruled out, so they are not put
    together.
    """
    readers = consumers(plan)
    only: dict[Node, bool] = {}

    def push(node: Node, inputs: tuple[Node, ...]) -> Node:
        pushed = with_inputs(node, inputs)
        if isinstance(pushed, Filter):
            pushed = _pushed(pushed, only)
        only[pushed] = readers[node] <= 1
        return pushed

    return rewrite(plan, push)


def part_late_rows(plan: LogicalPlan) -> LogicalPlan:
    """Where late rows are asked for, let the aggregate give them beside its results, and part the two behind
    it."""
    asked = {node.inputs[0] for node in topological(plan) if isinstance(node, Late)}
    wide: dict[Node, Node] = {}

    def part(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node, Late):
            return _late_view(node, wide[node.inputs[0]])
        whole = with_inputs(node, inputs)
        if node not in asked or not isinstance(whole, Aggregate):
            return whole
        schema = wide_schema(whole.schema, inputs[0].schema)
        wide[node] = replace(whole, late=True, schema=schema)
        return _results_view(whole, wide[node])

    return rewrite(plan, part) if asked else plan


def aggregate_before_exchange(plan: LogicalPlan) -> LogicalPlan:
    """Let the senders aggregate first: one row per key and window crosses the exchange instead of many.

    Late rows can't be told from their partials, so an aggregate that gives those back takes all rows.
    """
    return rewrite(plan, lambda node, inputs: _halved(with_inputs(node, inputs)))


LOGICAL_RULES: tuple[Callable[[LogicalPlan], LogicalPlan], ...] = (
    part_late_rows,
    push_filters,
    push_projections,
    aggregate_before_exchange,
)


def apply_rules(plan: LogicalPlan) -> LogicalPlan:
    """The plan after all logical rules."""
    for rule in LOGICAL_RULES:
        plan = rule(plan)
    return plan


def insert_barrier_for_fan_in(root: PhysicalNode) -> PhysicalNode:
    """Put a ``PhysicalBarrier`` above the children of every fan-in and of every receiver of an exchange.

    Shared children are rewritten once. Children keep their ports below the barrier, so a join still knows
    left from right.
    """
    done: dict[PhysicalNode, PhysicalNode] = {}

    def visit(node: PhysicalNode) -> PhysicalNode:
        if node not in done:
            children = tuple(replace(child, node=visit(child.node)) for child in node.children)
            done[node] = _fenced(replace(node, children=children))
        return done[node]

    return visit(root)


# -- projections ---------------------------------------------------------------------------------------------


def _wanted(plan: LogicalPlan) -> dict[Node, frozenset[str]]:
    """The columns of every node that its readers ask for; of a sink, all."""
    wanted: dict[Node, frozenset[str]] = {sink: frozenset(sink.schema.names) for sink in plan.sinks}
    for node in reversed(topological(plan)):
        for port, child in enumerate(node.inputs):
            asked = _asked(node, port, wanted[node]) or {child.schema.names[0]}
            wanted[child] = wanted.get(child, frozenset()) | asked
    return wanted


def _asked(node: Node, port: int, wanted: frozenset[str]) -> frozenset[str]:
    match node:
        case Filter():
            return wanted | node.uses
        case Project():
            return frozenset().union(*(each.uses for each in node.columns if each.name in wanted))
        case Union():
            return wanted
        case Aggregate(late=False) | RunningAggregate():
            return _aggregated(node)
        case Join():
            return _joined_columns(node, port, wanted)
        case _:
            return frozenset(node.inputs[port].schema.names)


def _aggregated(node: Aggregate | RunningAggregate) -> frozenset[str]:
    columns = {each.column for each in node.aggregates if each.column is not None}
    by_time = any(each.function in ("first", "last") for each in node.aggregates)
    times = _times(node) if isinstance(node, Aggregate) or by_time else set()
    return frozenset({*node.keys, *columns, *times})


def _times(node: Node) -> set[str]:
    return {child.event_time for child in node.inputs if child.event_time is not None}


def _joined_columns(node: Join, port: int, wanted: frozenset[str]) -> frozenset[str]:
    """A side's keys, time and wanted columns.

    A left column that gives a right one its suffix stays, to keep the name.
    """
    left, right = ([name for name in each.schema.names if name not in node.keys] for each in node.inputs)
    results = node.schema.names[len(node.keys) + len(BOUNDS) :]
    left_results, right_results = results[: len(left)], results[len(left) :]
    wanted_right = {name for name, result in zip(right, right_results, strict=True) if result in wanted}
    wanted_left = {
        name for name, result in zip(left, left_results, strict=True) if result in wanted | wanted_right
    }
    time = node.inputs[port].event_time
    assert time is not None
    return frozenset({*node.keys, time, *(wanted_left, wanted_right)[port]})


def _read_whole(plan: LogicalPlan) -> set[Node]:
    """The nodes with a reader that does not pick its columns by name, so that they may not have more of them."""
    readers = [node for node in topological(plan) if not _picks(node)]
    return {child for node in readers for child in node.inputs}


def _picks(node: Node) -> bool:
    return isinstance(node, Project | RunningAggregate) or (isinstance(node, Aggregate) and not node.late)


def _narrowed(node: Node, inputs: tuple[Node, ...], wanted: frozenset[str], exact: bool) -> Node:
    match node:
        case Read():
            return _narrowed_read(node, wanted)
        case Project():
            return _narrowed_project(node, inputs[0], wanted, exact)
        case Union():
            return _narrowed_union(node, inputs, wanted)
        case Join():
            return _narrowed_join(node, inputs, wanted)
        case _:
            return with_inputs(node, inputs)


def _narrowed_read(node: Read, wanted: frozenset[str]) -> Node:
    names = [name for name in node.schema.names if name in wanted]
    with_columns = getattr(node.source, "with_columns", None)
    if with_columns is None or len(names) == len(node.schema.names):
        return node
    source = with_columns(names)
    schema = pa.schema([node.schema.field(name) for name in source.schema.names])
    return replace(node, source=source, schema=schema, narrowed=True)


def _narrowed_project(node: Project, child: Node, wanted: frozenset[str], exact: bool) -> Node:
    """Without the columns that nobody wants; gone when it computes nothing and nobody minds more columns."""
    kept = tuple(each for each in node.columns if each.name in wanted)
    names = [each.name for each in kept]
    if all(each.is_same for each in kept) and (not exact or names == child.schema.names):
        return child
    schema = pa.schema([node.schema.field(name) for name in names])
    return replace(node, inputs=(child,), columns=kept, schema=schema)


def _narrowed_union(node: Union, inputs: tuple[Node, ...], wanted: frozenset[str]) -> Node:
    names = [name for name in node.schema.names if name in wanted]
    return with_inputs(node, tuple(_only(each, names, node.name, port) for port, each in enumerate(inputs)))


def _narrowed_join(node: Join, inputs: tuple[Node, ...], wanted: frozenset[str]) -> Node:
    sides = []
    for port, child in enumerate(inputs):
        asked = _joined_columns(node, port, wanted)
        sides.append(_only(child, [name for name in child.schema.names if name in asked], node.name, port))
    return with_inputs(node, tuple(sides))


def _only(node: Node, names: list[str], reader: str, port: int) -> Node:
    """The node with these columns only, in this order, for one of its readers."""
    if node.schema.names == names:
        return node
    kept = [node.schema.field(name) for name in names]
    return Project(
        schema=pa.schema(kept),
        event_time=node.event_time if node.event_time in names else None,
        inputs=(node,),
        name=f"{reader}.input{port}",
        columns=tuple(passed_on(field) for field in kept),
    )


# -- filters -------------------------------------------------------------------------------------------------


def _pushed(node: Filter, only: dict[Node, bool]) -> Node:
    """The filter as close to the source as it can go, and in it if the source takes one."""
    child = node.inputs[0]
    if not only[child]:
        return node
    match child:
        case Read(pushed=None):
            return _filtered_read(node, child)
        case Project() if _untouched(child, node.uses):
            below = _pushed(replace(node, inputs=child.inputs, schema=child.inputs[0].schema), only)
            only[below] = True
            return with_inputs(child, (below,))
        case _:
            return node


def _filtered_read(node: Filter, read: Read) -> Node:
    with_filter = getattr(read.source, "with_filter", None)
    # The filter was checked against decoded columns; a source would apply it to its own.
    if with_filter is None or read.source.schema.types != read.schema.types:
        return node
    return replace(read, source=with_filter(node.expression), pushed=node.expression)


def _untouched(project: Project, names: frozenset[str]) -> bool:
    return all(each.is_same for each in project.columns if each.name in names)


# -- late rows -----------------------------------------------------------------------------------------------


def _results_view(node: Aggregate, wide: Node) -> Node:
    columns = tuple(passed_on(field) for field in node.schema)
    only = _where(wide, ~pc.field(LATE), f"{node.name}.results.only")
    return Project(
        schema=node.schema,
        event_time=node.event_time,
        inputs=(only,),
        name=f"{node.name}.results",
        columns=columns,
    )


def _late_view(node: Late, wide: Node) -> Node:
    columns = tuple(
        Column(field.name, pc.field(late_name(field.name)), field.type, frozenset((late_name(field.name),)))
        for field in node.schema
    )
    only = _where(wide, pc.field(LATE), f"{node.name}.only")
    return Project(schema=node.schema, event_time=None, inputs=(only,), name=node.name, columns=columns)


def _where(wide: Node, condition: pc.Expression, name: str) -> Filter:
    return Filter(
        schema=wide.schema,
        event_time=wide.event_time,
        inputs=(wide,),
        name=name,
        expression=condition,
        uses=frozenset((LATE,)),
    )


# -- exchanges -----------------------------------------------------------------------------------------------


def _halved(node: Node) -> Node:
    if not isinstance(node, Aggregate | RunningAggregate) or isinstance(node.inputs[0], Partial):
        return node
    if isinstance(node, Aggregate) and node.late:
        return node
    child = node.inputs[0]
    window = node.window if isinstance(node, Aggregate) else None
    partial = Partial(
        schema=partial_schema(node.keys, node.aggregates, child.schema, _lead(window)),
        event_time=child.event_time,
        inputs=(child,),
        name=f"{node.name}.partial",
        keys=node.keys,
        window=window,
        aggregates=node.aggregates,
    )
    return replace(node, inputs=(partial,))


def _lead(window: Window | None) -> tuple[str, ...]:
    """Where in time a partial is: nowhere, in a pane, or from a start to an end."""
    if window is None:
        return ()
    return (WINDOW, END) if window.kind == "session" else (WINDOW,)


def _fenced(node: PhysicalNode) -> PhysicalNode:
    if len(node.children) < 2 and not any(is_exchange(child.node) for child in node.children):
        return node
    barrier = PhysicalNode(
        kind="PhysicalBarrier",
        properties={"upstream_count": upstream_count(node)},
        children=node.children,
    )
    return replace(node, children=(barrier.as_child(),))
