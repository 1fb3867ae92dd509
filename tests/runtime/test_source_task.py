"""A source's task at a cut: its time goes before the barrier, so that what it closes is not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from tidegate.core.barrier.inject import (
    BarrierInjectorConfig,
    CheckpointBarrierInjector,
    InjectBarrierCommand,
)
from tidegate.core.barrier.messages import IDLE, Barrier, End, Event, StreamMessage, Watermark
from tidegate.core.barrier.subtask import Subtask
from tidegate.operators.source import Read
from tidegate.plan.connector import Polled, Source
from tidegate.plan.physical import Edge, Stage
from tidegate.runtime.chain import Chain
from tidegate.runtime.task import WATERMARK_INTERVAL_MS, StageTask
from tidegate.state.run import Frozen, Restored
from tidegate.values import END_OF_TIME

ROWS = pa.schema([("ts", pa.int64())])


class Reader:
    """Returns one row a poll; its time is the row's number."""

    def __init__(self) -> None:
        self.rows_read = 0
        self.idle = self.finished = self.exact = False

    @property
    def rows(self) -> int:
        return self.rows_read

    @property
    def watermark(self) -> int:
        return END_OF_TIME if self.finished else self.rows_read

    def poll(self, max_rows: int) -> Polled:
        if self.finished or self.idle:
            return Polled(None, finished=self.finished)
        self.rows_read += 1
        return Polled(pa.RecordBatch.from_arrays([[self.rows_read]], schema=ROWS), 1, self.rows_read)

    def freeze(self) -> Frozen:
        return Frozen({"rows": self.rows_read})

    def drain(self) -> None:
        self.finished = True

    def restore(self, pieces: Sequence[Restored]) -> None:
        raise AssertionError(pieces)

    def close(self) -> None:
        return None


class Snapshots:
    def __init__(self) -> None:
        self.frozen: list[Mapping[str, Frozen]] = []

    def fired(self, task: StageTask, barrier: object, frozen: Mapping[str, Frozen], _: object) -> None:
        self.frozen.append(frozen)

    def completed(self, task: StageTask, effect: Any) -> None:
        return None

    def failed(self, task: StageTask, effect: Any) -> None:
        raise AssertionError(effect)


class World:
    """One source task, a clock that is set by hand, and what has left."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.reader, self.snapshots = Reader(), Snapshots()
        spec = Read(schema=ROWS, event_time="ts", name="read", source=cast(Source, None))
        stage = Stage("read", (spec,), (), (Edge(0, "read", "next", 0, "forward", ROWS),))
        self.task = StageTask(
            stage,
            Subtask([], [0]),
            Chain([]),
            subtask=0,
            parallelism=1,
            key_groups=128,
            ports=[],
            reader=self.reader,
            injector=CheckpointBarrierInjector(BarrierInjectorConfig(periodic_interval_ms=None)),
            snapshots=self.snapshots,
            now_ms=lambda: self.now_ms,
        )

    def sent(self) -> list[StreamMessage[pa.RecordBatch]]:
        out: list[StreamMessage[pa.RecordBatch]] = []
        while self.task.protocol.outputs[0].head() is not None:
            message, effects = self.task.protocol.taken(0)
            out.append(message)
            self.task.perform(effects)
        return out

    def checkpoint(self, checkpoint_id: int) -> list[object]:
        """What the cut puts out: times, 'barrier' and 'end'."""
        self.task.inject(InjectBarrierCommand(checkpoint_id, checkpoint_id))
        kinds = {Barrier: "barrier", End: "end", Event: "rows"}
        return [m.timestamp if isinstance(m, Watermark) else kinds[type(m)] for m in self.sent()]


@pytest.fixture
def world() -> World:
    """A source that has told its time just now, and read two rows since."""
    world = World()
    world.task.step()
    assert world.sent()[-1] == Watermark(1)
    world.now_ms += WATERMARK_INTERVAL_MS - 1
    world.task.step()
    world.task.step()
    assert not [message for message in world.sent() if isinstance(message, Watermark)]
    return world


def test_time_goes_before_the_barrier_though_it_is_not_due(world: World) -> None:
    assert world.checkpoint(1) == [3, "barrier"]
    assert world.snapshots.frozen[0]["read"].meta == {"rows": 3}


def test_time_that_was_told_at_a_cut_is_told_again_only_when_it_is_due(world: World) -> None:
    world.checkpoint(1)
    world.now_ms += WATERMARK_INTERVAL_MS - 1
    world.task.step()
    assert [type(message) for message in world.sent()] == [Event]
    world.now_ms += 1
    world.task.step()
    assert world.sent()[-1] == Watermark(5)


def test_time_that_has_not_moved_is_not_told_twice(world: World) -> None:
    world.checkpoint(1)
    assert world.checkpoint(2) == ["barrier"]


def test_a_source_that_is_to_read_no_more_says_the_end_of_time_at_its_end_only(world: World) -> None:
    world.reader.drain()
    assert world.checkpoint(1) == ["barrier"]
    world.task.step()
    assert world.sent() == [Watermark(END_OF_TIME), End()]


def test_a_source_that_is_idle_stays_it_at_a_cut(world: World) -> None:
    world.reader.idle = True
    world.task.step()
    assert world.sent()[-1] == Watermark(IDLE)
    assert world.checkpoint(1) == ["barrier"]
