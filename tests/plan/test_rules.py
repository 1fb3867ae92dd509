"""The rewrites: what each one does, and that none changes the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from stagewise import run

import tidegate as tg
from tidegate import col
from tidegate.operators.expression import Filter, Project
from tidegate.operators.late import part_late_rows
from tidegate.operators.preaggregate import PreAggregate
from tidegate.operators.source import Read
from tidegate.plan.logical import LogicalPlan, topological
from tidegate.planner import rules
from tidegate.planner.names import name_operators
from tidegate.planner.rules import (
    LOGICAL_RULES,
    aggregate_before_exchange,
    apply_rules,
    insert_barrier_for_fan_in,
    push_filters,
    push_projections,
)
from tidegate.planner.stages import build
from tidegate.planner.tree import PhysicalNode

TEN = tg.tumbling("10s")


def logical(*streams: tg.Stream) -> LogicalPlan:
    outputs = [stream.collect(f"result{number}") for number, stream in enumerate(streams)]
    return name_operators(tg.Pipeline("job", *outputs).plan)


def kinds(plan: LogicalPlan) -> list[str]:
    return [type(node).__name__ for node in topological(plan)]


def reads(plan: LogicalPlan) -> list[Read]:
    return [node for node in topological(plan) if isinstance(node, Read)]


def columns_read(plan: LogicalPlan) -> list[list[str]]:
    return [node.source.schema.names for node in reads(plan)]


# -- projections -------------------------------------------------------------------------------------------------------


def test_a_source_reads_only_the_columns_that_someone_needs(bids: tg.Stream) -> None:
    plan = push_projections(logical(bids.filter(col("kind") != 0).select("key")))
    assert columns_read(plan) == [["key", "kind"]]
    assert plan.sinks[0].schema.names == ["key"]


def test_an_aggregate_needs_its_keys_its_columns_and_the_event_time(bids: tg.Stream) -> None:
    stream = bids.with_columns(cents=col("value") * 100).key_by("key").window(TEN).aggregate(s=tg.sum("cents"))
    assert columns_read(push_projections(logical(stream))) == [["ts", "key", "value"]]


def test_a_shared_source_reads_what_either_branch_needs(bids: tg.Stream) -> None:
    plan = push_projections(logical(bids.select("note"), bids.select("value")))
    assert columns_read(plan) == [["value", "note"]]


def test_a_sink_or_a_function_of_batches_needs_every_column(bids: tg.Stream) -> None:
    assert len(columns_read(push_projections(logical(bids)))[0]) == 5
    assert len(columns_read(push_projections(logical(bids.map_batches(lambda batch: batch).select("key"))))[0]) == 5


def test_a_projection_that_computes_nothing_is_dropped_where_nobody_minds(bids: tg.Stream) -> None:
    wide = bids.select("ts", "key", "note").key_by("key").window(TEN).aggregate(n=tg.count())
    assert "Project" not in kinds(push_projections(logical(wide)))
    assert "Project" not in kinds(push_projections(logical(bids.select("key", "value"))))
    assert "Project" in kinds(push_projections(logical(bids.select("value", "key"))))


def test_a_literal_alone_still_reads_a_column_to_count_rows(bids: tg.Stream) -> None:
    plan = push_projections(logical(bids.select(x=col("value") + 1, y=col("key")).select(one=1)))
    assert [node.schema.names for node in topological(plan)] == [["value"], ["x"], ["one"], ["one"]]


def test_a_join_sends_only_what_is_needed_and_keeps_the_names(bids: tg.Stream, people: tg.Stream) -> None:
    joined = bids.filter(col("kind") != 0).join(people, on="key", window=TEN).select("key", "note_right")
    plan = push_projections(logical(joined))
    assert columns_read(plan) == [["ts", "key", "kind", "note"], ["ts", "key", "note"]]
    join = next(node for node in topological(plan) if type(node).__name__ == "WindowJoin")
    assert join.schema.names == ["key", "window_start", "window_end", "ts", "note", "ts_right", "note_right"]


def test_a_join_needs_no_column_of_a_side_that_nobody_asks_for(bids: tg.Stream, people: tg.Stream) -> None:
    plan = push_projections(logical(bids.join(people, on="key", window=TEN).select("key", "value")))
    assert columns_read(plan) == [["ts", "key", "value"], ["ts", "key"]]


def test_the_sides_of_a_union_are_narrowed_alike(bids: tg.Stream) -> None:
    both = bids.union(bids.filter(col("kind") == 1)).select("key", "value")
    plan = push_projections(logical(both))
    union = next(node for node in topological(plan) if type(node).__name__ == "Union")
    assert [child.schema.names for child in union.inputs] == [["key", "value"], ["key", "value"]]
    assert columns_read(plan) == [["key", "value", "kind"]]


# -- filters -----------------------------------------------------------------------------------------------------------


def test_a_filter_goes_into_a_source_that_takes_one(bids: tg.Stream) -> None:
    plan = push_filters(logical(bids.filter(col("kind") != 0)))
    assert kinds(plan) == ["Read", "Write"]
    assert str(reads(plan)[0].pushed) == "(kind != 0)"


def test_a_filter_stays_where_the_source_takes_none() -> None:
    assert "Filter" in kinds(push_filters(logical(tg.generate(rows=10).filter(col("kind") != 0))))


def test_a_filter_of_one_reader_does_not_narrow_the_others(bids: tg.Stream) -> None:
    plan = push_filters(logical(bids.filter(col("kind") != 0), bids))
    assert kinds(plan) == ["Read", "Filter", "Write", "Write"]
    assert reads(plan)[0].pushed is None


def test_a_second_filter_is_not_put_together_with_the_first(bids: tg.Stream) -> None:
    stream = bids.filter(col("kind") != 0).filter(col("key") * 10 / col("kind") > 0)
    assert kinds(push_filters(logical(stream))) == ["Read", "Filter", "Write"]
    (result,) = run(tg.Pipeline("job", stream.collect()).physical(1)).values()
    assert sorted(result["key"].to_pylist()) == [1, 1, 2, 2]


def test_a_filter_passes_below_columns_that_it_does_not_use(bids: tg.Stream) -> None:
    plan = push_filters(logical(bids.with_columns(cents=col("value") * 100).filter(col("kind") != 0)))
    assert kinds(plan) == ["Read", "Project", "Write"]
    assert reads(plan)[0].pushed is not None


def test_a_filter_on_a_computed_column_stays_above_it(bids: tg.Stream) -> None:
    plan = push_filters(logical(bids.with_columns(kind=col("kind") + 1).filter(col("kind") != 0)))
    assert kinds(plan) == ["Read", "Project", "Filter", "Write"]


def test_a_pushed_filter_frees_its_column(bids: tg.Stream) -> None:
    plan = apply_rules(logical(bids.filter(col("kind") != 0).select("key")))
    assert columns_read(plan) == [["key"]]


# -- exchanges and barriers --------------------------------------------------------------------------------------------


def test_senders_aggregate_before_the_exchange_once(bids: tg.Stream) -> None:
    plan = logical(bids.key_by("key").window(TEN).aggregate(n=tg.count()))
    once = aggregate_before_exchange(plan)
    assert kinds(once) == ["Read", "PreAggregate", "WindowAggregate", "Write"]
    assert kinds(aggregate_before_exchange(once)) == kinds(once)
    partial = next(node for node in topological(once) if isinstance(node, PreAggregate))
    assert partial.schema.names == ["__window", "key", "n__n"]


def tree(*children: PhysicalNode, kind: str = "PhysicalJoin") -> PhysicalNode:
    return PhysicalNode(kind, children=tuple(child.as_child(port) for port, child in enumerate(children)))


def test_a_node_with_several_children_gets_a_barrier_that_keeps_their_ports() -> None:
    left, right = PhysicalNode("A"), PhysicalNode("B")
    rewritten = insert_barrier_for_fan_in(tree(left, right))
    (barrier,) = rewritten.children
    assert (barrier.node.kind, barrier.node.properties) == ("PhysicalBarrier", {"upstream_count": 2})
    assert [(child.port, child.node.kind) for child in barrier.node.children] == [(0, "A"), (1, "B")]


def test_the_receiver_of_an_exchange_gets_a_barrier_over_all_channels() -> None:
    def exchange(channels: int) -> PhysicalNode:
        return replace(tree(PhysicalNode("A"), kind="PhysicalExchange"), properties={"channels": channels})

    single = insert_barrier_for_fan_in(tree(exchange(3)))
    assert single.children[0].node.properties == {"upstream_count": 3}
    double = insert_barrier_for_fan_in(tree(exchange(3), exchange(3)))
    assert double.children[0].node.properties == {"upstream_count": 6}
    assert insert_barrier_for_fan_in(tree(exchange(1))).children[0].node.properties == {"upstream_count": 1}


def test_a_node_with_one_plain_child_gets_no_barrier() -> None:
    assert insert_barrier_for_fan_in(tree(PhysicalNode("A"))).children[0].node.kind == "A"


def test_a_shared_child_is_rewritten_once() -> None:
    shared = tree(PhysicalNode("A"), PhysicalNode("B"))
    root = insert_barrier_for_fan_in(tree(tree(shared, kind="X"), tree(shared, kind="Y"), kind="PhysicalUnion"))
    above = root.children[0].node.children
    assert above[0].node.children[0].node is above[1].node.children[0].node


def test_the_rules_run_in_this_order() -> None:
    assert (part_late_rows, push_filters, push_projections, aggregate_before_exchange) == LOGICAL_RULES


# -- none changes the rows ---------------------------------------------------------------------------------------------


def everything(bids: tg.Stream, people: tg.Stream) -> dict[str, tg.Stream]:
    priced = bids.filter(col("kind") != 0).with_columns(cents=col("value") * 100)
    counts = priced.key_by("key").window(TEN).aggregate(n=tg.count(), s=tg.sum("cents"), m=tg.mean("value"))
    return {
        "select": priced.select("note", double=col("value") * 2),
        "filter above": priced.filter(col("cents") > 250).select("key"),
        "aggregate": counts,
        "stacked": counts.key_by("key").window(tg.tumbling("1m")).aggregate(windows=tg.count(), s=tg.sum("s")),
        "sliding": bids.key_by("key").window(tg.sliding("20s", "10s")).aggregate(n=tg.count("value")),
        "join": bids.join(people, on="key", window=TEN).select("key", "note_right", "window_end"),
        "self join": bids.join(bids, on="key", window=TEN).filter(col("ts") < col("ts_right")),
        "union": bids.union(priced.select("ts", "key", "value", "kind", "note")).select("key", "note"),
        "reordered union": bids.select("key", "ts").union(people.select("ts", "key")),
        "map": priced.map_batches(lambda batch: batch.slice(0, 1)).filter(col("kind") == 1).select("key"),
        "two windows joined": counts.join(people.key_by("key").window(TEN).aggregate(n=tg.count()), on="key", window=TEN).select(
            "key", "n", "n_right", "window_start_left", "window_end_right"
        ),
        "literal": bids.select(one=1),
        "literal above": tg.generate(rows=10).select("key", x=col("value")).filter(col("x") > -1).select(one=1),
        "literal of a literal": bids.select(x=col("value") + 1).select(one=1),
    }


def rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


def test_rules_change_no_rows(bids: tg.Stream, people: tg.Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {name: tg.Pipeline("job", each.collect()).plan for name, each in everything(bids, people).items()}
    optimised = {name: run(build(plan, 1)) for name, plan in plans.items()}
    monkeypatch.setattr(rules, "LOGICAL_RULES", (aggregate_before_exchange,))
    for name, plan in plans.items():
        (plain,), (quick,) = run(build(plan, 1)).values(), optimised[name].values()
        assert plain.num_rows > 0, name
        assert (quick.schema.names, rows(quick)) == (plain.schema.names, rows(plain)), name


def test_all_of_it_together_shares_its_sources(bids: tg.Stream, people: tg.Stream, tmp_path: Path) -> None:
    streams = everything(bids, people)
    streams.pop("self join")
    streams.pop("literal above")
    plan = apply_rules(logical(*streams.values()))
    assert len(reads(plan)) == 2
    assert not any(isinstance(node, Project | Filter) and not node.name for node in topological(plan))


# -- late rows and keyed operators ----------------------------------------------------------------------------------


def test_late_rows_come_from_the_aggregate_itself_which_then_takes_raw_rows(bids: tg.Stream) -> None:
    counted = bids.key_by("key").window(TEN).aggregate(n=tg.count(), s=tg.sum("value"))
    plain, parted = apply_rules(logical(counted)), apply_rules(logical(counted, counted.late()))
    assert "PreAggregate" in kinds(plain) and "PreAggregate" not in kinds(parted)
    assert kinds(parted).count("WindowAggregate") == 1 and "Late" not in kinds(parted)
    assert [sink.schema for sink in parted.sinks] == [counted.schema, bids.schema]
    assert columns_read(parted) == [bids.schema.names]


def test_asking_for_late_rows_changes_no_result(bids: tg.Stream) -> None:
    for window in (TEN, tg.sliding("20s", "10s"), tg.session("3s")):
        counted = (
            bids.key_by("key")
            .window(window)
            .aggregate(n=tg.count(), s=tg.sum("value"), a=tg.first("note"), z=tg.last("note"), d=tg.count_distinct("kind"))
        )
        alone = run(tg.Pipeline("job", counted.collect("a").named("a")).physical(1))
        both = tg.Pipeline("job", counted.collect("a").named("a"), counted.late().collect("b").named("b"))
        found = run(both.physical(1))
        assert rows(found["a"]) == rows(alone["a"]) and found["a"].num_rows > 2
        assert found["b"].num_rows == 0 and found["b"].schema == bids.schema


def test_a_running_aggregate_reads_the_event_time_only_to_tell_first_from_last(bids: tg.Stream) -> None:
    counted, newest = (bids.key_by("key").aggregate(x=call) for call in (tg.count(), tg.last("value")))
    assert columns_read(apply_rules(logical(counted))) == [["key"]]
    assert columns_read(apply_rules(logical(newest))) == [["ts", "key", "value"]]
    assert rows(run(tg.Pipeline("job", newest.collect().named("out")).physical(1))["out"]) == [
        "{'key': 1, 'x': 3.0}",
        "{'key': 2, 'x': 5.0}",
    ]
