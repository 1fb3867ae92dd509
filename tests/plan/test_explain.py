"""What explain shows, against golden files.

After a change that is meant, ``TIDEGATE_REGENERATE=1 pytest tests/plan/test_explain.py`` writes them anew; read the
difference before you keep it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate import col
from tidegate.plan.physical import Edge, PhysicalPlan
from tidegate.planner.explain import explain

GOLDEN = Path(__file__).parent / "golden"
TEN = tg.tumbling("10s")
ON = tg.CheckpointConfig(interval="1s")


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("TIDEGATE_REGENERATE") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def two_sinks(bids: tg.Stream, people: tg.Stream) -> tg.Pipeline:
    per_key = (
        bids.filter(col("kind") != 0)
        .with_columns(cents=col("value") * 100)
        .key_by("key")
        .window(TEN)
        .aggregate(n=tg.count(), total=tg.sum("cents"), peak=tg.max("value"))
    )
    matched = bids.join(people, on="key", window=TEN)
    return tg.Pipeline("bids", per_key.collect("per_key"), matched.collect("matched"))


def one_sink(bids: tg.Stream, people: tg.Stream) -> tg.Pipeline:
    stream = bids.filter(col("kind") != 0).key_by("key").window(tg.sliding("1m", "10s")).aggregate(m=tg.mean("value"))
    return tg.Pipeline("one", stream.named("means").collect().named("out"))


def wide(bids: tg.Stream, people: tg.Stream) -> tg.Pipeline:
    mapped = bids.select("ts", "key").union(people.select("ts", "key")).map_batches(clean).named("clean")
    return tg.Pipeline("wide", mapped.collect("all"), mapped.filter(col("key") > 1).collect("some"))


def keyed(bids: tg.Stream, people: tg.Stream) -> tg.Pipeline:
    """Sessions with their late rows, running aggregates and a user's function with state."""
    sessions = (
        bids.key_by("key", "note")
        .window(tg.session("30s", allowed_lateness="5s"))
        .aggregate(opening=tg.first("value"), kinds=tg.count_distinct("kind"))
    )
    running = bids.key_by("note").aggregate(n=tg.count(), newest=tg.last("value"))
    state = pa.schema([("seen", pa.int64())])
    processed = people.key_by("key").process(remember, state=state, output=people.schema)
    return tg.Pipeline(
        "keyed",
        sessions.named("sessions").collect("sessions"),
        sessions.late().named("late").collect("late"),
        running.named("running").collect("running"),
        processed.named("process").collect("processed"),
    )


def remember(batch: Any, state: Any) -> Any:
    return batch, state


def clean(batch: object) -> object:
    return batch


Plan = Callable[[tg.Stream, tg.Stream], tg.Pipeline]


@pytest.mark.parametrize("plan", [two_sinks, one_sink, wide, keyed], ids=lambda plan: plan.__name__)
@pytest.mark.parametrize(("format", "ending"), [("text", "txt"), ("json", "json"), ("mermaid", "mmd")])
def test_explain_matches_its_golden_file(plan: Plan, format: str, ending: str, bids: tg.Stream, people: tg.Stream) -> None:
    golden(f"{plan.__name__}.{ending}", plan(bids, people).explain(parallelism=2, format=format))


def test_two_sinks_have_a_barrier_below_the_result(bids: tg.Stream, people: tg.Stream) -> None:
    lines = two_sinks(bids, people).explain().splitlines()
    assert lines[1] == "PhysicalResultCollect"
    assert lines[2] == "└─ PhysicalBarrier upstream_count=2"
    assert lines[3].startswith("   ├─ [0] PhysicalSink")


def test_one_sink_has_none(bids: tg.Stream, people: tg.Stream) -> None:
    assert one_sink(bids, people).explain().splitlines()[2].startswith("└─ PhysicalSink out")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_channels_follow_the_parallelism(parallelism: int, bids: tg.Stream, people: tg.Stream) -> None:
    text = two_sinks(bids, people).explain(parallelism=parallelism)
    assert text.count(f"PhysicalExchange hash keys=[key] channels={parallelism}") == 3
    assert f"PhysicalBarrier upstream_count={2 * parallelism}" in text
    assert text.splitlines()[0] == f"Pipeline bids parallelism={parallelism} key_groups=128"


def test_a_shared_source_is_shown_once_and_referred_to(bids: tg.Stream, people: tg.Stream) -> None:
    text = two_sinks(bids, people).explain()
    assert text.count("PhysicalSource read-bids") == 2
    assert text.count("(see #1 PhysicalSource read-bids") == 1
    nodes = json.loads(two_sinks(bids, people).explain(format="json"))["nodes"]
    (shared,) = [node["id"] for node in nodes if node["name"].startswith("read-bids")]
    assert sum(child["id"] == shared for node in nodes for child in node["children"]) == 2


def test_ports_stay_apart_below_the_barrier_of_a_join(bids: tg.Stream, people: tg.Stream) -> None:
    shown = json.loads(two_sinks(bids, people).explain(format="json"))
    nodes = {node["id"]: node for node in shown["nodes"]}
    (join,) = [node for node in nodes.values() if node["kind"] == "PhysicalJoin"]
    barrier = nodes[join["children"][0]["id"]]
    assert barrier["kind"] == "PhysicalBarrier"
    assert barrier["properties"] == {"upstream_count": 4}
    assert [child["port"] for child in barrier["children"]] == [0, 1]
    assert nodes[shown["root"]]["kind"] == "PhysicalResultCollect"


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (None, "checkpoint=aligned→unaligned after 1s"),
        (ON, "checkpoint=aligned→unaligned after 1s"),
        (replace(ON, alignment_timeout="200ms"), "checkpoint=aligned→unaligned after 200ms"),
        (replace(ON, unaligned="always"), "checkpoint=unaligned"),
        (replace(ON, unaligned="never"), "checkpoint=aligned-only: unaligned=never"),
        (tg.CheckpointConfig(), "checkpoint=off"),
    ],
)
def test_every_edge_shows_its_checkpoint_mode(
    config: tg.CheckpointConfig | None, mode: str, bids: tg.Stream, people: tg.Stream
) -> None:
    edges = [line for line in two_sinks(bids, people).explain(checkpoint=config).splitlines() if "checkpoint" in line]
    assert len(edges) == 4
    assert all(line.endswith(mode) for line in edges)


def with_reason(plan: PhysicalPlan, port: int, reason: str) -> PhysicalPlan:
    def changed(edge: Edge) -> Edge:
        return replace(edge, aligned_only=reason) if edge.port == port else edge

    stages = [replace(stage, inputs=tuple(changed(edge) for edge in stage.inputs)) for stage in plan.stages]
    return replace(plan, stages=tuple(stages))


def test_an_edge_that_must_align_says_why_and_so_do_its_neighbours(bids: tg.Stream, people: tg.Stream) -> None:
    pipeline = tg.Pipeline("job", bids.join(people, on="key", window=TEN).named("j").collect())
    text = explain(with_reason(pipeline.physical(2), 1, "broadcast"), ON)
    assert "[1] PhysicalExchange hash keys=[key] channels=2 checkpoint=aligned-only: broadcast" in text
    assert "checkpoint=aligned-only: another input of j is (broadcast)" in text


def test_an_unknown_format_is_refused(bids: tg.Stream) -> None:
    with pytest.raises(tg.InvalidUseError, match="explain knows text, json, mermaid format='xml'"):
        tg.Pipeline("job", bids.collect()).explain(format="xml")


def test_mermaid_quotes_what_would_break_it(bids: tg.Stream) -> None:
    text = tg.Pipeline("job", tg.generate(rows=1).filter(col("key") > 1).collect()).explain(format="mermaid")
    assert "(key &gt; 1)" in text
    assert all(line.count('"') in (0, 2) for line in text.splitlines())
