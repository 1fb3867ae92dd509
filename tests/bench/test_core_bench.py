"""The suite `core` measures every benchmark that the documents name, and says what it found, met or missed."""

from __future__ import annotations

import gc
import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.bench import core, nodes
from tidegate.bench.core import NOT_MEASURED, ONLY_LARGE, STAGES, CoreSettings, run
from tidegate.bench.large import LargeSettings
from tidegate.bench.timing import Reading, per_call, per_item
from tidegate.cli.bench_core import execute, warnings
from tidegate.cli.console import Console
from tidegate.cli.main import parser
from tidegate.core.barrier.inject import CheckpointBarrierInjector
from tidegate.core.barrier.subtask import Subtask
from tidegate.errors import InvalidUseError
from tidegate.runtime.logstore import LogStore
from tidegate.store.open import open_store
from tidegate.testing.connectors import check_source

TARGETS = {
    "bench_poll_barrier_no_pending": "< 10 ns",
    "bench_poll_barrier_with_pending": "< 30 ns",
    "bench_barrier_processing": "< 50 ns",
    "bench_stream_message_push_pop": "< 60 ns",
    "bench_barrier_injection_throughput": "> 50 M/s",
    "bench_barrier_injection_3_nodes": "< 50 ms",
    "bench_cross_node_barrier": "< 10 ms",
    "bench_distributed_checkpoint_3_nodes_100mb": "< 15 s",
    "bench_manifest_aggregation_10_nodes": "< 100 ms",
    "bench_manifest_commit": "< 500 ms",
    "bench_leader_failover": "< 5 s",
    "bench_hot_path_no_checkpoint": None,
    "bench_hot_path_with_checkpoint": "< 1 %",
}
QUICK = CoreSettings.quick()


def reading(*values: float, target: float | None = 10.0, higher: bool = False) -> Reading:
    return Reading(name="a", values=values, unit="ms", target=target, higher=higher, what="a thing")


def test_every_named_benchmark_is_measured_beside_its_target(tmp_path: Path) -> None:
    before, notes = threading.active_count(), list[str]()
    found = run(QUICK, tmp_path, notes.append)
    rows = {row["name"]: row for row in found["readings"]}
    assert {name: row["target"] for name, row in rows.items() if name.startswith("bench_")} == TARGETS
    assert len(rows) == len(found["readings"]), "a name comes twice"
    assert not rows.keys() & NOT_MEASURED.keys()
    assert found["not_measured"] == NOT_MEASURED | ONLY_LARGE
    assert all(row["min"] <= row["median"] <= row["max"] for row in rows.values())
    # A cost in percent may come out below zero; a time or a rate may not.
    assert all(row["min"] > 0 for row in rows.values() if row["unit"] != "%")
    assert all(row["what"] for row in rows.values())
    assert len(notes) == STAGES
    assert {path.name for path in tmp_path.iterdir()} <= {"manifests"}, "jobs leave nothing behind"
    assert threading.active_count() <= before + 1, "threads are left"


@pytest.mark.parametrize(
    ("reading", "met", "rounds_met"),
    [
        (reading(1, 2, 30), True, 2),
        (reading(1, 20, 30), False, 1),
        (reading(1, 10, 30), False, 1),
        (reading(1, 20, 30, higher=True), True, 2),
        (reading(1, 2, 30, higher=True), False, 1),
        (reading(1, 2, 3, target=None), None, None),
    ],
)
def test_the_median_is_held_against_the_target(reading: Reading, met: bool | None, rounds_met: int | None) -> None:
    assert (reading.row()["met"], reading.row()["rounds_met"]) == (met, rounds_met)
    assert reading.row()["rounds"] == 3


def test_preparing_is_not_counted_and_every_item_is_used_once() -> None:
    prepared: list[int] = []
    used: list[int] = []

    def prepare(count: int) -> list[int]:
        fresh = list(range(len(prepared), len(prepared) + count))
        prepared.extend(fresh)
        return fresh

    values = per_item(prepare, used.extend, 20, rounds=3)
    assert used == prepared and len(used) == 2 + 3 * 20
    assert len(values) == 3 and min(values) > 0


def test_garbage_collection_is_on_while_a_statement_is_timed() -> None:
    seen: set[bool] = set()
    assert len(per_call("look()", {"look": lambda: seen.add(gc.isenabled())}, 10, 2)) == 2
    assert seen == {True}


def test_the_steps_do_what_jobs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that silently did nothing would be quick: each must go through the whole of its way."""
    fired, emitted = list[int](), list[int]()
    real_fired, real_emitted = Subtask.fired, CheckpointBarrierInjector.emitted
    monkeypatch.setattr(Subtask, "fired", lambda self, b: (fired.append(b.checkpoint_id), real_fired(self, b))[1])
    monkeypatch.setattr(
        CheckpointBarrierInjector,
        "emitted",
        lambda self, b: (emitted.append(b.checkpoint_id), real_emitted(self, b))[1],
    )
    core.bench_barrier_processing(QUICK)
    core.bench_barrier_injection_throughput(QUICK)
    per_round = {core.bench_barrier_processing: fired, core.bench_barrier_injection_throughput: emitted}
    assert all(len(ids) > QUICK.rounds and min(ids) == 1 for ids in per_round.values())


def test_a_commit_of_the_benchmark_is_a_readable_entry_of_ten_nodes(tmp_path: Path) -> None:
    nodes.manifests(tmp_path, 2)
    log = LogStore(open_store(tmp_path), "bench")
    first, second = log.read()
    assert first.kind == second.kind == "commit"
    assert second.manifest.parent == first.slot
    assert len(second.manifest.nodes) == nodes.MANIFEST_NODES
    assert len(second.manifest.objects) == nodes.MANIFEST_NODES * nodes.RUNS


def test_the_rows_that_wait_keep_the_contract_of_a_source() -> None:
    source = nodes.WaitingSource(30 * nodes.PAYLOAD_BYTES)
    check_source(source, rows_max=10, poll_rows=4)
    source.emitted.clear()
    reader = source.open(source.splits()[0], None)
    polled = reader.poll(4)
    assert (polled.rows, source.emitted) == (4, {}), "reading is not emitting"
    assert reader.offset == 4 and set(source.emitted) == {"waiting-0"}


@pytest.mark.parametrize("name", ["calls", "rounds", "samples", "jobs", "state_bytes", "rows", "pairs"])
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(InvalidUseError, match=f"{name} is at least 1"):
        CoreSettings(**{name: 0})


def test_a_busy_machine_and_rounds_that_disagree_are_said_aloud() -> None:
    machine = {"cores": 2, "load_before": 0.1}
    clear = {"machine": machine, "readings": [reading(1, 2, 3).row(), reading(1, target=None).row()]}
    assert warnings(clear) == []
    unclear = {"machine": {**machine, "load_before": 1.5}, "readings": [reading(1, 2, 30).row()]}
    busy, torn = warnings(unclear)
    assert "busy before the start" in busy
    assert torn == "a: 2 of 3 rounds met the target, so the answer is not clear"
    cost = Reading(name="cost", values=(-45.0, -2.0, 0.5), unit="%", target=1, what="a cost")
    (noisy,) = warnings({"machine": machine, "readings": [cost.row()]})
    assert noisy == "cost: its rounds scatter by 45.5 points, so met or not means nothing"


def test_people_see_a_table_and_programs_one_document() -> None:
    people, programs = io.StringIO(), io.StringIO()
    assert execute(Console(False, people), QUICK) == 0
    assert execute(Console(True, programs), QUICK) == 0
    text = people.getvalue()
    assert all(name in text for name in TARGETS)
    assert all(word in text for word in ("median", "target", "< 10 ns", "not measured"))
    (line,) = programs.getvalue().splitlines()
    document = json.loads(line)
    assert document["suite"] == "core" and document["not_measured"] == NOT_MEASURED | ONLY_LARGE
    assert set(TARGETS) <= {row["name"] for row in document["readings"]}


def test_what_is_large_is_measured_when_it_is_asked_for() -> None:
    programs = io.StringIO()
    assert execute(Console(True, programs), replace(QUICK, large=LargeSettings(nodes=2, state_bytes=20_000))) == 0
    document = json.loads(programs.getvalue())
    assert set(TARGETS) | set(ONLY_LARGE) <= {row["name"] for row in document["readings"]}
    assert document["not_measured"] == NOT_MEASURED


def test_the_command_line_knows_the_suite() -> None:
    assert parser().parse_args(["bench", "core", "--json"]).suite == "core"
    assert parser().parse_args(["bench", "core", "--large"]).large
