"""A source that is later in event time waits for the slowest, as long as the slowest moves and only windows are fed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts

import tidegate as tg
from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.barrier.messages import IDLE, End, StreamMessage, Watermark
from tidegate.core.barrier.subtask import Subtask
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.runtime import skew
from tidegate.runtime import task as tasks
from tidegate.runtime.assemble import assemble
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.skew import SKEW_MAX_MS, STALLED_MS, InputSkew, SkewLimit
from tidegate.runtime.threads import InlineThreads

MINE, OTHER = 0, 1
STEP_MS = 20
AT_MOST = (SKEW_MAX_MS + STALLED_MS) // STEP_MS + 2


class FanIn:
    """Two inputs, and a lead of the first, looked at after every watermark."""

    def __init__(self) -> None:
        self.subtask: Subtask[pa.RecordBatch] = Subtask((MINE, OTHER), (), UnalignedCheckpointConfig())
        self.lead = InputSkew(self.subtask, MINE)
        self.now_ms = 1_000

    def tell(self, input_id: int, message: StreamMessage[pa.RecordBatch]) -> None:
        self.subtask.receive(input_id, message)
        while self.subtask.has_turn:
            self.subtask.poll()

    def step(self, mine: int, other: int | None) -> bool:
        """Both have got so far, a moment later: is the first to wait?"""
        self.now_ms += STEP_MS
        self.tell(MINE, Watermark(mine))
        if other is not None:
            self.tell(OTHER, Watermark(other))
        return self.lead.is_long(self.now_ms)


def test_sources_side_by_side_do_not_wait() -> None:
    fan_in = FanIn()
    assert not any(fan_in.step(n + 1, n) for n in range(100))


def test_the_faster_waits_until_the_slower_has_come_near() -> None:
    fan_in = FanIn()
    waits = [fan_in.step(10 * n, n) for n in range(AT_MOST)]
    assert waits[-1], "too much skew"
    near = 10 * AT_MOST - 30
    assert [fan_in.step(0, near + n) for n in range(3)] == [False] * 3


def test_a_distance_in_event_time_alone_is_no_reason_to_wait() -> None:
    fan_in = FanIn()
    assert not any(fan_in.step(n * 1_000_000, (n - 1) * 1_000_000) for n in range(1, 100))


def test_nobody_waits_for_one_that_does_not_move() -> None:
    fan_in = FanIn()
    waits = [fan_in.step(10 * n, n) for n in range(AT_MOST)]
    assert waits[-1]
    later = [fan_in.step(0, None) for _ in range(STALLED_MS // STEP_MS + 1)]
    assert not later[-1], "the slowest has stalled"
    assert fan_in.step(0, AT_MOST), "it moves again"


def test_nobody_waits_for_one_that_never_says_a_time() -> None:
    fan_in = FanIn()
    assert not any(fan_in.step(n, None) for n in range(100))


@pytest.mark.parametrize("message", [Watermark(IDLE), End()], ids=["idle", "ended"])
def test_nobody_waits_for_one_that_does_not_count(message: StreamMessage[pa.RecordBatch]) -> None:
    fan_in = FanIn()
    fan_in.step(1, 1)
    fan_in.tell(OTHER, message)
    assert not any(fan_in.step(10 * n, None) for n in range(2, 100))


def test_a_long_lead_is_remembered_in_little_memory() -> None:
    fan_in = FanIn()
    fan_in.step(1, 1)
    for n in range(2, 5_000):
        fan_in.step(n, None)
    assert fan_in.step(5_000, 2), "it moves, and is far earlier"
    assert len(fan_in.lead._seen) < 100


def test_a_source_waits_only_when_every_stage_that_it_feeds_has_enough() -> None:
    fast, even = FanIn(), FanIn()
    both = SkewLimit((fast.lead, even.lead))
    for n in range(AT_MOST):
        fast.step(10 * n, n)
        even.step(n, n)
    assert not both.must_wait(fast.now_ms)
    assert SkewLimit((fast.lead,)).must_wait(fast.now_ms)
    assert not SkewLimit().must_wait(fast.now_ms)


# -- in a job -------------------------------------------------------------------------------------------------------


def skews_of(*outputs: Any) -> int:
    """How many stages the source of this pipeline looks at, on the first of two nodes."""
    plan = tg.Pipeline("paced", *outputs).physical(2)
    sources: list[Any] = [stage.operators[0] for stage in plan.stages if not stage.inputs]
    splits = {source.name: source.source.splits() for source in sources}
    setup = NodeSetup(plan=plan, node=0, gang=1, parallelism=2, splits=splits, checkpoints=None)
    nobody: Any = None  # nothing is frozen here
    assembly = assemble(setup, nobody, InlineThreads(), lambda action: None, lambda: 0)
    return sum(len(task.pace._skews) for task in assembly.tasks)


def test_only_windows_hold_a_source_back() -> None:
    stream = tg.from_source(GatedSource(events(10)))
    windows = counts(stream).write(MemorySink())
    assert skews_of(windows) == 1
    assert skews_of(stream.key_by("key").aggregate(n=tg.count()).write(MemorySink())) == 0
    assert skews_of(windows, stream.write(MemorySink("rows"))) == 0


class Uneven(GatedSource):
    """Every second split, which is all of the second node, is read slowly. Knows the largest skew."""

    def __init__(self, table: pa.Table, splits: int) -> None:
        super().__init__(table, splits=splits)
        self.rows = {0: 0, 1: 0}
        self.skew_max = 0
        self._each = table.num_rows // splits
        self._counting = threading.Lock()

    def open(self, split: Split, offset: Offset) -> Any:
        node = int(split.id.split("-")[0]) // self._each % 2
        return _Counted(self, super().open(split, offset), node)


class _Counted:
    def __init__(self, source: Uneven, reader: Any, node: int) -> None:
        self._source, self._reader, self._node = source, reader, node

    @property
    def offset(self) -> Offset:
        offset: Offset = self._reader.offset
        return offset

    def poll(self, max_rows: int) -> Polled:
        time.sleep(0.005 if self._node else 0.001)
        polled: Polled = self._reader.poll(max_rows)
        source = self._source
        with source._counting:
            source.rows[self._node] += polled.rows
            if source.rows[1] < source.table.num_rows // 2:
                source.skew_max = max(source.skew_max, source.rows[0] - source.rows[1])
        return polled

    def close(self) -> None:
        self._reader.close()


def test_a_slow_node_keeps_the_others_near(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "SKEW_MAX_MS", 20)
    monkeypatch.setattr(tasks, "WATERMARK_INTERVAL_MS", 5)
    table = events(20_000)
    source, sink = Uneven(table, splits=200), MemorySink()
    jobs.finish(tg.Pipeline("uneven", counts(tg.from_source(source)).write(sink)), 2)
    assert found_counts(sink) == expected_counts(table)
    # On its own the first node reads its 10,000 rows while the second reads 2,000.
    assert source.skew_max < 5_000
