"""Chaining: which operators share a stage, and the edges between stages."""

from __future__ import annotations

import pickle

import pytest
from pyspark import cloudpickle
from stagewise import run

import tidegate as tg
from tidegate import col
from tidegate.errors import InvalidUseError
from tidegate.operators.aggregate import WindowAggregate
from tidegate.operators.join import WindowJoin
from tidegate.plan.physical import PhysicalPlan, Stage

TEN = tg.tumbling("10s")


def physical(*outputs: tg.Output) -> PhysicalPlan:
    return tg.Pipeline("job", *outputs).physical(2)


def chains(plan: PhysicalPlan) -> list[list[str]]:
    return [[spec.description.physical for spec in stage.operators] for stage in plan.stages]


def edges(plan: PhysicalPlan) -> list[tuple[str, str, int, str]]:
    return [(edge.source, edge.target, edge.port, edge.kind) for edge in plan.edges]


def counted(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("key").window(TEN).aggregate(n=tg.count())


def test_a_chain_breaks_at_the_hash_exchange_and_the_senders_aggregate_last() -> None:
    made = tg.generate(rows=10).named("in").filter(col("kind") != 0).with_columns(x=col("value") * 2)
    plan = physical(made.key_by("key").window(TEN).aggregate(s=tg.sum("x")).named("agg").collect())
    assert chains(plan) == [["Source", "Filter", "Project", "PreAggregate"], ["Aggregate", "Sink"]]
    assert edges(plan) == [("in", "agg", 0, "hash")]
    edge = plan.edges[0]
    assert edge.keys == ("key",)
    assert edge.schema.names == ["__window", "key", "__rows", "s__s"]
    assert (plan.stages[0].outputs, plan.stages[1].inputs) == ((edge,), (edge,))


def test_a_node_with_several_readers_ends_its_chain_with_forward_edges(bids: tg.Stream) -> None:
    shared = bids.named("in").map_batches(lambda batch: batch).named("shared")
    plan = physical(
        shared.filter(col("kind") == 1).named("f").collect("a").named("left"),
        counted(shared).named("agg").collect("b"),
    )
    assert chains(plan) == [["Source"], ["Map"], ["Filter", "Sink"], ["PreAggregate"], ["Aggregate", "Sink"]]
    assert edges(plan) == [
        ("in", "shared", 0, "forward"),
        ("shared", "left", 0, "forward"),
        ("shared", "agg.partial", 0, "forward"),
        ("agg.partial", "agg", 0, "hash"),
    ]


def test_a_users_function_begins_a_stage_and_what_follows_is_chained_to_it(bids: tg.Stream) -> None:
    mapped = bids.filter(col("key") > 0).map_batches(lambda batch: batch).filter(col("kind") == 1)
    assert chains(physical(mapped.collect())) == [["Source"], ["Map", "Filter", "Sink"]]


def test_a_join_has_two_hash_edges_with_ports(bids: tg.Stream, people: tg.Stream) -> None:
    plan = physical(bids.named("l").join(people.named("r"), on="key", window=TEN).named("j").collect())
    assert chains(plan) == [["Source"], ["Source"], ["Join", "Sink"]]
    assert edges(plan) == [("l", "j", 0, "hash"), ("r", "j", 1, "hash")]
    (join,) = [spec for spec in plan.stage("j").operators if isinstance(spec, WindowJoin)]
    assert [side.event_time for side in join.inputs] == ["ts", "ts"]
    assert [edge.schema for edge in plan.edges] == [side.schema for side in join.inputs]


def test_a_stream_joined_with_itself_is_read_once(bids: tg.Stream) -> None:
    plan = physical(bids.named("in").join(bids, on="key", window=TEN).named("j").collect())
    assert edges(plan) == [("in", "j", 0, "hash"), ("in", "j", 1, "hash")]


def test_a_union_has_one_forward_edge_per_input(bids: tg.Stream) -> None:
    both = bids.named("in").union(bids.filter(col("kind") == 1).named("f"), bids).collect().named("u")
    assert edges(physical(both)) == [
        ("in", "f", 0, "forward"),
        ("in", "u", 0, "forward"),
        ("f", "u", 1, "forward"),
        ("in", "u", 2, "forward"),
    ]


def test_stages_are_in_topological_order_and_sources_come_first(bids: tg.Stream, people: tg.Stream) -> None:
    plan = physical(counted(bids).collect("a"), counted(counted(bids)).collect("b"), people.collect("c"))
    position = {stage.name: index for index, stage in enumerate(plan.stages)}
    assert all(position[edge.source] < position[edge.target] for edge in plan.edges)
    assert [index for index, stage in enumerate(plan.stages) if not stage.inputs] == [0, 1]
    assert [edge.id for edge in plan.edges] == list(range(len(plan.edges)))


def test_every_edge_is_an_output_of_one_stage_and_an_input_of_another(bids: tg.Stream, people: tg.Stream) -> None:
    plan = physical(bids.join(people, on="key", window=TEN).collect("a"), counted(bids).collect("b"))
    out = sorted(edge.id for stage in plan.stages for edge in stage.outputs)
    assert out == [edge.id for edge in plan.edges]


def test_a_stage_is_named_after_what_it_keeps(bids: tg.Stream) -> None:
    shared = bids.named("in").map_batches(lambda batch: batch).named("m")
    plan = physical(shared.filter(col("kind") == 1).collect("a").named("s"), shared.collect("b").named("t"))
    assert [stage.name for stage in plan.stages] == ["in", "m", "s", "t"]


def test_the_result_of_a_window_has_its_end_as_event_time(bids: tg.Stream) -> None:
    plan = physical(counted(counted(bids).named("inner")).named("outer").collect())
    outer = plan.stage("outer").operators[0]
    assert isinstance(outer, WindowAggregate)
    partial = plan.stage("inner").operators[-1]
    assert partial.name == "outer.partial"
    assert getattr(partial, "event_time", None) == "window_end"


def test_stages_survive_cloudpickle_and_still_compute_the_same(bids: tg.Stream) -> None:
    factor = 3
    stream = (
        bids.filter(col("kind") != 0).map_batches(lambda batch: batch.slice(0, factor)).with_columns(cents=col("value") * 100)
    )
    plan = physical(counted(stream).collect())
    copy = pickle.loads(cloudpickle.dumps(plan))
    stage = pickle.loads(cloudpickle.dumps(plan.stages[1]))
    assert isinstance(stage, Stage)
    (ours,), (theirs,) = run(plan).values(), run(copy).values()
    assert ours.equals(theirs)
    assert ours.num_rows > 0


@pytest.mark.parametrize("parallelism", [0, -1, 129, True, 1.5, "2", None])
def test_parallelism_is_a_number_of_subtasks(bids: tg.Stream, parallelism: object) -> None:
    pipeline = tg.Pipeline("job", bids.collect())
    with pytest.raises(InvalidUseError, match="parallelism is a whole number from 1 to 128"):
        pipeline.physical(parallelism)  # type: ignore[arg-type]
    assert pipeline.physical(128).parallelism == 128
