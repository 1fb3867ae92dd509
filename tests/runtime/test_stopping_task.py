"""A task at a cut: its rows in hand go before the barrier, windows that are being emitted go on after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from specs import build, pre_aggregate, window_aggregate
from tidegate.core.barrier.effects import AdvanceWatermark
from tidegate.core.barrier.messages import (
    IDLE,
    Barrier,
    CheckpointBarrier,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.barrier.subtask import Subtask
from tidegate.operators import aggregate, closing
from tidegate.operators.fixed import FixedWindow
from tidegate.plan.physical import Edge, Stage
from tidegate.runtime import task as tasks
from tidegate.runtime.chain import Chain
from tidegate.runtime.task import StageTask
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import partial_schema
from tidegate.state.run import Frozen, Restored

ROWS = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
COUNT = (AggregateColumn.of("n", "count"),)
KEYS = 40
B1 = CheckpointBarrier(1, 1)
U1 = B1.as_unaligned()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 8)
    monkeypatch.setattr(aggregate, "PIECE_ROWS", 4)
    monkeypatch.setattr(tasks, "OUTPUT_ROOM_BYTES", 1)


class Snapshots:
    """Keeps what a task froze."""

    def __init__(self) -> None:
        self.frozen: dict[int, Mapping[str, Frozen]] = {}
        self.complete: list[Any] = []

    def fired(self, task: StageTask, barrier: CheckpointBarrier, frozen: Mapping[str, Frozen], _: object) -> None:
        self.frozen[barrier.checkpoint_id] = frozen

    def completed(self, task: StageTask, effect: Any) -> None:
        self.complete.append(effect)

    def failed(self, task: StageTask, effect: Any) -> None:
        raise AssertionError(effect)


def make(*, again: bool = False, **options: Any) -> tuple[StageTask, Snapshots]:
    """Counts per key and window of 10. ``again``: and the first half of the next aggregation, which buffers."""
    partials = partial_schema(("key",), COUNT, ROWS)
    output = pa.schema([("key", pa.int64()), ("window_start", pa.int64()), ("window_end", pa.int64()), ("n", pa.int64())])
    specs: list[Any] = [window_aggregate("agg", ("key",), FixedWindow("tumbling", 10, 10), COUNT, "ts", partials, output)]
    if again:
        window, total = FixedWindow("tumbling", 50, 50), (AggregateColumn.of("total", "sum", "n"),)
        schema = partial_schema(("key",), total, output)
        specs.append(pre_aggregate("pre", ("key",), window, total, "window_start", output, schema))
    stage = Stage("agg", tuple(specs), (), (Edge(0, "agg", "next", 0, "forward", specs[-1].schema),))
    snapshots = Snapshots()
    chain = Chain([(spec.name, build(spec, 0, 1)) for spec in specs])
    task = StageTask(
        stage,
        Subtask([0, 1], [0], **options),
        chain,
        subtask=0,
        parallelism=1,
        key_groups=128,
        ports=[0, 0],
        reader=None,
        injector=None,
        snapshots=snapshots,
        now_ms=lambda: 0,
    )
    return task, snapshots


def rows(pane: int, keys: int = KEYS) -> Event[pa.RecordBatch]:
    partials = partial_schema(("key",), COUNT, ROWS)
    return Event(pa.RecordBatch.from_arrays([[pane] * keys, list(range(keys)), [1] * keys], schema=partials), 100)


def receive(task: StageTask, *messages: StreamMessage[pa.RecordBatch], inputs: tuple[int, ...] = (0, 1)) -> None:
    for input_id in inputs:
        for message in messages:
            task.receive(input_id, message)


def run(task: StageTask) -> None:
    """Until there is nothing to do or no room."""
    while task.step():
        pass


def queued(task: StageTask) -> list[StreamMessage[pa.RecordBatch]]:
    return list(task.protocol.outputs[0]._queue)


def sent(task: StageTask) -> list[StreamMessage[pa.RecordBatch]]:
    """Give it room until it rests; what has left, in order."""
    out: list[StreamMessage[pa.RecordBatch]] = []
    run(task)
    while task.protocol.outputs[0].head() is not None:
        message, effects = task.protocol.taken(0)
        out.append(message)
        task.perform(effects)
        run(task)
    return out


def keys_of(messages: list[StreamMessage[pa.RecordBatch]]) -> list[int]:
    return [key for m in messages if isinstance(m, Event) for key in m.payload.column("key").to_pylist()]


def emitting() -> tuple[StageTask, Snapshots]:
    """A window is being emitted, and there is no room for more."""
    task, snapshots = make()
    receive(task, rows(0), inputs=(0,))
    receive(task, Watermark(10))
    run(task)
    assert 0 < len(keys_of(queued(task))) < KEYS and not isinstance(queued(task)[-1], Watermark)
    return task, snapshots


def test_a_cut_takes_one_step_of_a_window_and_the_rest_goes_after_the_barrier() -> None:
    task, snapshots = emitting()
    receive(task, Barrier(U1), inputs=(0,))
    before = keys_of(queued(task)[1:])
    assert queued(task)[0] == Barrier(U1) and 0 < len(before) < KEYS
    assert snapshots.frozen[1]["agg"].meta["pending"]["emitted"] > 0  # type: ignore[index, call-overload]
    everything = sent(task)
    assert sorted(keys_of(everything)) == list(range(KEYS))
    assert everything[-1] == Watermark(10), "time comes after the last row"
    (recorded,) = snapshots.complete or [None]
    assert recorded is None, "the other input's barrier is still to come"
    receive(task, Barrier(U1), inputs=(1,))
    assert keys_of(list(snapshots.complete[0].outputs[0])) == before


def test_what_is_emitted_after_the_barrier_is_what_a_restored_task_emits_first() -> None:
    task, snapshots = emitting()
    receive(task, Barrier(U1), inputs=(0,))
    before = keys_of(queued(task)[1:])
    other, _ = make()
    frozen = snapshots.frozen[1]["agg"]
    other.chain.named[0][1].restore([Restored(0, frozen.meta, frozen.runs)])
    other.resume()
    receive(other, Watermark(IDLE))
    out = sent(other)
    assert sorted(before + keys_of(out)) == list(range(KEYS))
    assert out[-1] == Watermark(IDLE) and all(isinstance(message, Event) for message in out[:-1])


def test_a_cut_before_a_restored_task_has_done_anything_has_the_same_pending_output() -> None:
    task, snapshots = emitting()
    receive(task, Barrier(U1), inputs=(0,))
    before = keys_of(queued(task)[1:])
    for _ in range(2):
        other, snapshots_of_other = make()
        frozen = snapshots.frozen[1]["agg"]
        other.chain.named[0][1].restore([Restored(0, frozen.meta, frozen.runs)])
        other.resume()
        receive(other, Barrier(U1), inputs=(0,))
        before += keys_of(queued(other)[1:])
        snapshots = snapshots_of_other
    assert sorted(before + keys_of(sent(other))) == list(range(KEYS))


def test_a_task_without_pending_output_has_nothing_to_resume() -> None:
    task, _ = make()
    task.resume()
    assert not task.step()


def test_work_that_waits_after_a_window_makes_all_of_it_go_before_the_barrier() -> None:
    """It was taken from the inputs before the cut, and only the last of the work may stop."""
    task, _ = make()
    receive(task, rows(0), rows(10), inputs=(0,))
    run(task)
    task.perform([AdvanceWatermark(10), AdvanceWatermark(20)])
    assert len(keys_of(queued(task))) < KEYS
    receive(task, Barrier(U1), inputs=(0,))
    before = queued(task)[1:]
    assert Watermark(10) in before and Watermark(20) not in before
    assert len(keys_of(before[: before.index(Watermark(10))])) == KEYS
    assert len(keys_of(sent(task))) == 2 * KEYS


def test_rows_that_the_next_operator_buffers_go_before_the_barrier_and_time_does_not() -> None:
    task, _ = make(again=True)
    receive(task, rows(0), inputs=(0,))
    receive(task, Watermark(10))
    while not task._work:
        task.perform(task.protocol.poll())
    assert not queued(task), "the next operator has all of it"
    receive(task, Barrier(U1), inputs=(0,))
    before = queued(task)[1:]
    assert 0 < len(keys_of(before)) < KEYS and not [m for m in before if isinstance(m, Watermark)]
    assert sorted(keys_of(sent(task))) == list(range(KEYS))


@pytest.mark.parametrize("in_line", [False, True])
def test_a_task_whose_inputs_have_ended_cuts_at_the_deadline_and_its_end_follows(in_line: bool) -> None:
    task, snapshots = make(aligned_only_outputs=[0] if in_line else [])
    receive(task, rows(0), inputs=(0,))
    receive(task, End())
    run(task)
    task.started(1, 1, aligned=False)
    assert not snapshots.frozen
    task.deadline(1)
    assert "pending" in snapshots.frozen[1]["agg"].meta
    barrier = Barrier(B1 if in_line else U1)
    assert queued(task)[-1 if in_line else 0] == barrier
    out = sent(task)
    assert out[-2:] == [Watermark((1 << 63) - 1), End()] and out.count(barrier) == 1
    assert sorted(keys_of(out)) == list(range(KEYS)) and task.ended
    assert len(snapshots.complete) == 1 and not snapshots.complete[0].finished


def test_a_task_that_has_emitted_everything_but_its_end_puts_it_after_the_barrier() -> None:
    task, snapshots = make(aligned_only_outputs=[0])
    task.protocol.emit(0, rows(0))
    receive(task, End())
    task.perform(task.protocol.poll())
    task.perform(task.protocol.poll())
    assert not task.ended, "there is no room for it"
    task.started(1, 1, aligned=False)
    task.deadline(1)
    assert snapshots.frozen and queued(task)[-1] == Barrier(B1)
    assert sent(task)[-1] == End()
