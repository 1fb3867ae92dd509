"""Control signals and parameters through running jobs: real nodes, sockets and control lines."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from runtime_jobs import WAIT_S, GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, once, until

import tidegate as tg
from tidegate.core.control.ask import SignalAnswer
from tidegate.errors import InvalidUseError, ProtocolError, SignalLost, SignalTimeout, TidegateError
from tidegate.operators.source import Read
from tidegate.plan.connector import Committable, WriterContext
from tidegate.plan.physical import PhysicalBarrier
from tidegate.runtime.assemble import assemble
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.threads import ThreadPools

EVENTS = events(4_000)
JUDGED = EVENTS.schema.append(pa.field("version", pa.int64()))


def endless(table: pa.Table = EVENTS, *, splits: int = 2, **options: Any) -> GatedSource:
    """A source that waits for more when it has given everything. A subtask reads one of its splits, so there is one for each."""
    return GatedSource(table, bounded=False, splits=splits, **options)


def judged_by(rules: tg.Parameter) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that writes the version of its rule to every row."""

    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("version", pa.array([rules.value["version"]] * batch.num_rows, pa.int64()))

    return judge


# -- SyncTest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_sync_test_is_answered_by_every_node(jobs: Jobs, parallelism: int) -> None:
    source, sink = endless(splits=parallelism), MemorySink()
    job = jobs.start(tg.Pipeline("sync", counts(tg.from_source(source)).write(sink)), parallelism)
    answers = [job.signal("SyncTest", timeout="30s") for _ in range(3)]
    assert [set(answer.latency_ms) for answer in answers] == [set(range(parallelism))] * 3
    assert [answer.kind for answer in answers] == ["SyncTest"] * 3
    ids = [answer.id for answer in answers]
    assert ids == sorted(set(ids)), "no number is used twice"
    assert all(0 <= each.total_ms == max(each.latency_ms.values()) for each in answers)
    assert job.metrics()["signals_answered"] == 3


def test_signals_pass_unions_joins_and_several_sinks(jobs: Jobs) -> None:
    left, right, sinks = endless(), endless(events(2_000, seed=3)), [MemorySink(str(number)) for number in range(3)]
    one, two = tg.from_source(left), tg.from_source(right)
    pipeline = tg.Pipeline(
        "shapes",
        one.union(two).map_batches(lambda batch: batch).write(sinks[0]),
        one.join(two, on="key", window=tg.tumbling("1s")).write(sinks[1]),
        counts(two).write(sinks[2]),
    )
    job = jobs.start(pipeline, 2)
    assert [set(job.signal("SyncTest").latency_ms) for _ in range(4)] == [{0, 1}] * 4
    job.checkpoint()
    assert set(job.signal("SyncTest").latency_ms) == {0, 1}


def test_a_signal_counts_as_arrived_at_what_has_ended(jobs: Jobs) -> None:
    """One source has ended, its sink too; the other goes on."""
    short, long, ended = GatedSource(events(100)), endless(), MemorySink()
    pipeline = tg.Pipeline(
        "ended",
        tg.from_source(short).write(ended),
        tg.from_source(short).union(tg.from_source(long)).map_batches(lambda batch: batch).write(MemorySink("both")),
    )
    job = jobs.start(pipeline, 2)
    until(lambda: job.metrics()["rows_out"] >= 100 + 4_000, "all rows")
    assert set(job.signal("SyncTest").latency_ms) == {0, 1}


def test_a_signal_that_is_asked_for_before_the_gang_runs_waits_for_it(jobs: Jobs) -> None:
    job = jobs.start(tg.Pipeline("early", tg.from_source(endless()).write(MemorySink())), 2)
    assert set(job.signal("SyncTest").latency_ms) == {0, 1}


# -- the user's kinds --------------------------------------------------------------------------------------------------


class Counting:
    """Counts its rows. Each subtask has its own copy on Spark; here they share one, so it says how many rows all had seen."""

    def __init__(self) -> None:
        self.rows = 0
        self.heard: list[tuple[str, bytes]] = []
        self.calls = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        return batch

    def on_signal(self, kind: str, payload: bytes) -> None:
        self.heard.append((kind, payload))


class ListeningSink(MemorySink):
    """A sink whose writers hear of signals."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, bytes, int]] = []

    def writer(self, context: WriterContext) -> Any:
        return _ListeningWriter(self, super().writer(context))


class _ListeningWriter:
    def __init__(self, sink: ListeningSink, inner: Any) -> None:
        self._sink = sink
        self._inner = inner
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._inner.write(batch)

    def prepare(self, checkpoint_id: int) -> Committable | None:
        found: Committable | None = self._inner.prepare(checkpoint_id)
        return found

    def close(self) -> None:
        self._inner.close()

    def on_signal(self, kind: str, payload: bytes) -> None:
        with self._sink.lock:
            self._sink.heard.append((kind, payload, self._rows))


@pytest.mark.parametrize("mode", ["barrier", "instant"])
def test_a_users_signal_reaches_functions_and_sinks_that_declare_it(jobs: Jobs, mode: Any) -> None:
    function, sink = Counting(), ListeningSink()
    job = jobs.start(tg.Pipeline("kinds", tg.from_source(endless()).map_batches(function).write(sink)), 2)
    answer = job.signal("flush", b"now", mode=mode)
    assert (answer.kind, answer.mode, set(answer.latency_ms)) == ("flush", mode, {0, 1})
    assert function.heard == [("flush", b"now")] * 2, "once per subtask"
    assert [(kind, payload) for kind, payload, _ in sink.heard] == [("flush", b"now")] * 2
    job.signal("SyncTest", mode=mode)
    assert len(function.heard) == 2, "what is ours is not for users"


def test_a_barrier_signal_comes_between_the_same_two_rows_at_functions_and_sinks(jobs: Jobs) -> None:
    """What the functions had taken before the signal is exactly what the sinks have before it."""
    source, function, sink = endless(splits=1, allowed=1_000), Counting(), ListeningSink()
    seen: list[int] = []
    function.on_signal = lambda kind, payload: seen.append(function.rows)  # type: ignore[method-assign]
    job = jobs.start(tg.Pipeline("between", tg.from_source(source).map_batches(function).write(sink)), 1)
    for _ in range(5):
        source.allow(300)
        job.signal("mark")
    assert [rows for _, _, rows in sink.heard] == seen
    assert len(seen) == 5


def test_what_on_signal_raises_ends_the_gang_and_is_told_to_whoever_sent_it(jobs: Jobs) -> None:
    function = Counting()

    def refuse(kind: str, payload: bytes) -> None:
        raise KeyError("no such rule")

    function.on_signal = refuse  # type: ignore[method-assign]
    job = jobs.start(tg.Pipeline("refusing", tg.from_source(endless()).map_batches(function).write(MemorySink())), 2)
    with pytest.raises(SignalLost, match=r"on_signal, raised KeyError\('no such rule'\).* kind=flush id="):
        job.signal("flush")
    assert set(job.signal("SyncTest").latency_ms) == {0, 1}, "the next gang is not told of it"


def test_a_long_payload_travels_through_the_store_and_is_checked(jobs: Jobs) -> None:
    function = Counting()
    job = jobs.start(tg.Pipeline("long", tg.from_source(endless()).map_batches(function).write(MemorySink())), 2)
    payload = bytes(range(256)) * 1_000
    job.signal("load", payload)
    assert function.heard == [("load", payload)] * 2
    job.signal("load", b"x" * 65_536)
    assert len(function.heard) == 4
    assert len(list(Path(jobs.store).rglob("*signal-*"))) == 1, "64 KiB still fit into the frame"
    job.checkpoint()
    job.checkpoint()
    until(lambda: not list(Path(jobs.store).rglob("*signal-*")), "the payload to be collected")


def test_a_long_payload_without_a_store_is_refused_with_what_to_do(jobs: Jobs) -> None:
    source = GatedSource(EVENTS, allowed=0)
    job = jobs.start(tg.Pipeline("nostore", tg.from_source(source).write(MemorySink())), 1, interval=None)
    with pytest.raises(InvalidUseError, match="start the job with store="):
        job.signal("load", b"x" * 70_000)
    with pytest.raises(InvalidUseError, match="mode='barrier'"):
        job.signal("load", b"x" * 70_000, mode="instant")
    source.allow()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"kind": "1st"}, "begins with a letter"),
        ({"kind": 7}, "has a kind, as text"),
        ({"kind": "flush", "payload": "text"}, "payload of bytes"),
        ({"kind": "flush", "mode": "soon"}, "'barrier' or 'instant'"),
        ({"kind": "SetParameter"}, "set_parameter"),
        ({"kind": "SyncTest", "payload": b"x"}, "no payload"),
        ({"kind": "StreamGracefulEnd", "mode": "instant"}, "mode='barrier'"),
    ],
)
def test_what_is_no_signal_is_refused_with_what_to_do(jobs: Jobs, call: dict[str, Any], why: str) -> None:
    job = jobs.start(tg.Pipeline("refused", tg.from_source(endless()).write(MemorySink())), 1)
    with pytest.raises(InvalidUseError, match=why):
        job.signal(**call)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_graceful_end_is_how_a_job_drains(jobs: Jobs, parallelism: int) -> None:
    source, sink = endless(splits=parallelism), MemorySink()
    job = jobs.start(tg.Pipeline("drain", counts(tg.from_source(source)).write(sink)), parallelism)
    until(lambda: source.emitted == EVENTS.num_rows, "all rows")
    job.stop(drain=True)
    assert job.status == "FINISHED"
    assert found_counts(sink) == expected_counts(EVENTS)


def test_the_end_can_be_asked_for_as_a_signal_and_nothing_follows_it(jobs: Jobs) -> None:
    source, sink = endless(), MemorySink()
    job = jobs.start(tg.Pipeline("end", tg.from_source(source).write(sink)), 2)
    until(lambda: source.emitted == EVENTS.num_rows, "all rows")
    answer = job.signal("StreamGracefulEnd")
    assert set(answer.latency_ms) == {0, 1}
    with pytest.raises(TidegateError):
        job.signal("SyncTest")
    assert job.await_termination(WAIT_S)
    assert (job.status, len(sink.rows())) == ("FINISHED", EVENTS.num_rows)


def test_a_drain_outlives_the_gang_that_was_told(jobs: Jobs) -> None:
    """The first gang dies after it was told to end; the second is told again."""
    sink, died = MemorySink(), threading.Event()

    def die(batch: pa.RecordBatch) -> None:
        if draining.is_set() and not died.is_set():
            died.set()
            raise OSError("the disk is gone")

    draining = threading.Event()
    sink.on_write = die
    source = endless(allowed=2_000)
    job = jobs.start(tg.Pipeline("again", counts(tg.from_source(source)).write(sink)), 2)
    until(lambda: source.emitted == 2_000, "the first half")
    job.checkpoint()
    source.allow(500)
    until(lambda: source.emitted == 2_500, "more")
    draining.set()
    job.stop(drain=True)
    assert (job.status, died.is_set(), job.metrics()["restarts"]) == ("FINISHED", True, 1)
    total = sum(row[2] for row in found_counts(sink))
    assert 2_000 <= total <= EVENTS.num_rows, "what was read when it was told to end is there, once"


# -- parameters --------------------------------------------------------------------------------------------------------


def versions_of(sink: MemorySink) -> dict[int, set[int]]:
    """By which versions each row was judged; a row is known by its event time."""
    found: dict[int, set[int]] = {}
    for row in sink.rows():
        found.setdefault(row[0], set()).add(row[-1])
    return found


def is_split_once(judged: list[tuple[int, int]]) -> bool:
    """Rows in reading order: the version never goes back."""
    versions = [version for _, version in sorted(judged)]
    return versions == sorted(versions)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_parameter_changes_between_the_same_two_rows_everywhere(jobs: Jobs, parallelism: int) -> None:
    """Two functions in a row, with an exchange in between, judge every row by the same version."""
    rules = tg.Parameter("rules", {"version": 0})
    source, sink = endless(splits=parallelism, allowed=0, rows_per_poll=10), MemorySink()
    first = tg.from_source(source).map_batches(judged_by(rules), schema=JUDGED)
    state = pa.schema([("seen", pa.int64())])

    def second(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return batch.append_column("again", pa.array([rules.value["version"]] * batch.num_rows, pa.int64())), state

    untimed = first.select("key", "value", at=tg.col("ts") + 0, version=tg.col("version"))  # rows need not wait for their time
    out = pa.schema([*untimed.schema, pa.field("again", pa.int64())])
    processed = untimed.key_by("key").process(second, state=state, output=out)
    job = jobs.start(tg.Pipeline("between", processed.write(sink)), parallelism)
    for version in range(1, 6):
        source.allow(EVENTS.num_rows // 5)
        job.set_parameter("rules", {"version": version})
    until(lambda: source.emitted == EVENTS.num_rows, "all rows")
    job.stop(drain=True)
    rows = sink.rows()
    assert len(rows) == EVENTS.num_rows, "every row is judged once"
    assert [row for row in rows if row[-1] != row[-2]] == [], "by the same version at both places"
    assert len({row[-1] for row in rows}) > 1, "the change came among the rows"
    assert job.metrics()["parameters"] == {"rules": 5}


def test_a_parameter_is_part_of_the_checkpoint_and_restored(jobs: Jobs) -> None:
    rules = tg.Parameter("rules", {"version": 0})

    def pipeline(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
        judged = tg.from_source(source).map_batches(judged_by(rules), schema=JUDGED)
        return tg.Pipeline("kept", judged.named("judge").write(sink).named("out"))

    sink = MemorySink()
    job = jobs.start(pipeline(endless(allowed=1_000), sink), 2)
    job.set_parameter("rules", {"version": 7})
    (entry,) = jobs.manifests("kept")[-1].parameters
    assert (entry.name, entry.version) == ("rules", 1)
    job.stop()
    job = jobs.start(pipeline(endless(), sink), 2)
    until(lambda: job.metrics()["parameters"] == {"rules": 1}, "the restored version")
    until(lambda: job.metrics()["rows_in"] == EVENTS.num_rows, "all rows")
    job.signal("SyncTest")
    job.stop(drain=True)
    counted = Counter(row[-1] for row in sink.rows())
    assert set(counted) <= {0, 7} and counted[7] >= 3_000, "nothing read after the restore is judged by the first version"
    assert sum(counted.values()) == EVENTS.num_rows


def test_after_a_crash_what_the_checkpoint_lacks_is_set_again_in_order(jobs: Jobs) -> None:
    """No checkpoint commits between the changes and the crash; after it the values are there again, the last one last."""
    rules, limit = tg.Parameter("rules", {"version": 0}), tg.Parameter("limit", 10)
    source, sink = endless(allowed=1_000), MemorySink()
    crash = threading.Event()

    def hold(checkpoint_id: int) -> None:
        if crash.is_set():
            crash.clear()
            raise OSError("the disk is gone")

    sink.on_prepare = hold

    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        version = rules.value["version"] * 1_000 + limit.value
        return batch.append_column("version", pa.array([version] * batch.num_rows, pa.int64()))

    job = jobs.start(tg.Pipeline("again", tg.from_source(source).map_batches(judge, schema=JUDGED).write(sink)), 2)
    job.checkpoint()
    crash.set()  # the checkpoint that would have kept the first change ends the gang
    job.set_parameter("rules", {"version": 1})
    job.set_parameter("limit", 20)
    job.set_parameter("rules", {"version": 2})
    assert job.metrics()["restarts"] == 1
    assert job.metrics()["parameters"] == {"rules": 2, "limit": 1}
    assert {each.name: each.version for each in jobs.manifests("again")[-1].parameters} == {"rules": 2, "limit": 1}
    source.allow()
    until(lambda: job.metrics()["rows_in"] == EVENTS.num_rows, "all rows")
    job.stop(drain=True)
    found = Counter(row[-1] for row in sink.rows())
    assert sum(found.values()) == EVENTS.num_rows
    assert set(found) <= {10, 1_010, 1_020, 2_020} and found[2_020] > 0


def test_a_signal_that_dies_with_its_gang_fails_by_name(jobs: Jobs) -> None:
    sink, broken = MemorySink(), threading.Event()
    function, entered, go_on = Counting(), threading.Event(), threading.Event()

    def slow(kind: str, payload: bytes) -> None:
        entered.set()
        go_on.wait(WAIT_S)

    def die(number: int) -> None:
        if broken.is_set():
            broken.clear()
            raise OSError("the disk is gone")

    function.on_signal = slow  # type: ignore[method-assign]
    source = endless(on_poll=die)
    job = jobs.start(tg.Pipeline("lost", tg.from_source(source).map_batches(function).write(sink)), 2)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(job.signal, "flush")
        assert entered.wait(WAIT_S)
        with pytest.raises(SignalTimeout, match="still on its way"):
            job.signal("SyncTest", timeout="1ms")
        broken.set()
        until(lambda: not broken.is_set(), "the crash")
        go_on.set()
        with pytest.raises(SignalLost, match="the disk is gone"):
            answer.result(WAIT_S)


def test_a_long_value_is_an_object_that_stays_as_long_as_a_manifest_needs_it(jobs: Jobs, tmp_path: Path) -> None:
    def table(version: int) -> pa.Table:
        return pa.table({"version": pa.array([version] * 20_000, pa.int64())})

    rules = tg.Parameter("rules", table(0))

    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("version", pa.array([rules.value["version"][0].as_py()] * batch.num_rows, pa.int64()))

    def pipeline(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
        judged = tg.from_source(source).map_batches(judge, schema=JUDGED)
        return tg.Pipeline("big", judged.named("judge").write(sink).named("out"))

    def objects() -> list[Path]:
        return list(Path(jobs.store).rglob("shared/*.arrow"))

    sink = MemorySink()
    job = jobs.start(pipeline(endless(allowed=1_000), sink), 2, retain=1)
    job.set_parameter("rules", table(1))
    job.set_parameter("rules", table(2))
    for _ in range(3):
        job.checkpoint()
    until(lambda: len(objects()) == 1, "the first value to be collected")
    job.savepoint(tmp_path / "saved")
    job.stop()
    other = Jobs(tmp_path / "elsewhere")
    moved = MemorySink()
    job = other.start(pipeline(endless(), moved), 2, savepoint=str(tmp_path / "saved"))
    try:
        assert set(job.signal("SyncTest").latency_ms) == {0, 1}
        job.checkpoint()
        (entry,) = other.manifests("big")[-1].parameters
        assert entry.version == 2 and entry.path is not None
        assert (Path(other.store) / entry.path).exists(), "the value is the new job's own"
        job.stop(drain=True)
        assert {row[-1] for row in moved.rows()} == {2}
    finally:
        other.stop_all()


def test_without_checkpoints_a_parameter_is_set_when_all_sinks_have_seen_it(jobs: Jobs) -> None:
    rules, sink = tg.Parameter("rules", {"version": 0}), MemorySink()
    source = GatedSource(EVENTS, allowed=100)
    pipeline = tg.Pipeline("plain", tg.from_source(source).map_batches(judged_by(rules), schema=JUDGED).write(sink))
    job = jobs.start(pipeline, 2, interval=None)
    until(lambda: job.metrics()["rows_out"] == 100, "rows of the first version")
    answer = job.set_parameter("rules", {"version": 1})
    assert isinstance(answer, SignalAnswer) and set(answer.latency_ms) == {0, 1}
    job.set_parameter("rules", {"version": 1, "note": "x" * 60_000})  # as much as a frame carries
    with pytest.raises(InvalidUseError, match="start the job with store="):
        job.set_parameter("rules", {"version": 1, "note": "x" * 70_000})
    source.allow()
    assert job.await_termination(WAIT_S)
    assert {version for found in versions_of(sink).values() for version in found} == {0, 1}


def test_an_unknown_parameter_or_one_of_another_shape_is_refused(jobs: Jobs) -> None:
    rules = tg.Parameter("rules", pa.table({"limit": [1]}))
    judged = tg.from_source(endless()).map_batches(lambda batch: batch, parameters=[rules])
    job = jobs.start(tg.Pipeline("unknown", judged.write(MemorySink())), 1)
    with pytest.raises(InvalidUseError, match="known=rules"):
        job.set_parameter("rule", pa.table({"limit": [1]}))
    with pytest.raises(InvalidUseError, match="initial=table of limit int64 given=table of limit double"):
        job.set_parameter("rules", pa.table({"limit": [1.5]}))


def test_rows_of_an_unaligned_checkpoint_are_judged_by_the_version_of_its_cut(jobs: Jobs) -> None:
    """Barriers that overtake may not overtake a signal: a checkpoint that begins while one is on its way stays aligned."""
    rules = tg.Parameter("rules", {"version": 0})
    source, sink = endless(rows_per_poll=20, allowed=0), MemorySink()
    source.on_poll = once(OSError("the disk is gone"), lambda number: source.emitted > EVENTS.num_rows // 2)
    judged = tg.from_source(source).map_batches(judged_by(rules), schema=JUDGED)
    job = jobs.start(tg.Pipeline("overtaking", judged.write(sink)), 2, interval="20ms", unaligned="always")
    for version in range(1, 9):
        source.allow(EVENTS.num_rows // 8)
        job.set_parameter("rules", {"version": version})
    source.allow()
    until(lambda: job.metrics()["rows_in"] == EVENTS.num_rows, "all rows")
    job.stop(drain=True)
    assert job.metrics()["restarts"] == 1
    assert len(sink.rows()) == EVENTS.num_rows
    found = versions_of(sink)
    assert all(len(versions) == 1 for versions in found.values())
    assert len({version for versions in found.values() for version in versions}) > 2


def test_a_parameter_read_outside_of_a_call_says_where_to_read_it() -> None:
    with pytest.raises(InvalidUseError, match="inside a function of map_batches or process"):
        tg.Parameter("rules", 1).value  # noqa: B018


def test_parameters_are_shown_by_explain() -> None:
    rules = tg.Parameter("rules", 1)
    stream = tg.from_source(endless()).map_batches(lambda batch: batch.slice(0, rules.value))
    assert "parameters=[rules]" in tg.Pipeline("shown", stream.write(MemorySink())).explain()


# -- the plan that runs ------------------------------------------------------------------------------------------------


def test_a_fan_in_has_the_inputs_that_its_barrier_in_the_plan_says() -> None:
    """The barriers that explain shows are those that run: a plan with another count is refused by the node."""
    source = GatedSource(EVENTS)
    plan = tg.Pipeline("planned", counts(tg.from_source(source)).write(MemorySink())).physical(2)
    splits = {spec.name: source.splits() for spec in plan.operators if isinstance(spec, Read)}
    setup = NodeSetup(plan, node=0, parallelism=2, gang=0, splits=splits, checkpoints=None)
    threads = ThreadPools("planned")

    def built(setup: NodeSetup) -> dict[str, int]:
        assembly = assemble(setup, Ignored(), threads, lambda action: None, lambda: 0)
        return {task.name: len(task.protocol._fan_in._channels) for task in assembly.tasks if task.protocol._fan_in is not None}

    try:
        fan_ins = {stage.name: stage.barrier.upstream_count(2) for stage in plan.stages if stage.barrier is not None}
        assert built(setup) == fan_ins == dict.fromkeys(fan_ins, 2)
        wrong = tuple(replace(s, barrier=PhysicalBarrier(exchanges=2)) if s.barrier else s for s in plan.stages)
        with pytest.raises(ProtocolError, match="upstream_count=4 channels=2"):
            built(replace(setup, plan=replace(plan, stages=wrong)))
    finally:
        threads.close()


class Ignored:
    """Takes snapshots that nobody wants."""

    def fired(self, *arguments: Any) -> None:
        raise AssertionError

    completed = failed = fired
