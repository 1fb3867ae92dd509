"""Drives keyed operators the way a gang would: senders that pre-aggregate, receivers by key group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from specs import build, context, pre_aggregate, process, running_aggregate, window_aggregate
from tidegate.operators.process import ProcessOperator
from tidegate.operators.window import Window
from tidegate.plan.operator import Operator
from tidegate.plan.schemas import aggregate_schema, process_state, running_schema, wide_schema
from tidegate.state.functions import AggregateColumn
from tidegate.state.keygroups import partition
from tidegate.state.partial import partial_schema
from tidegate.state.run import Frozen, Restored, Run

END_OF_TIME = (1 << 63) - 1


def through_ipc(frozen: Frozen) -> Frozen:
    """What is left of the state after a stay in a store."""
    stored = []
    for run in frozen.runs:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, run.batch.schema) as writer:
            writer.write_batch(run.batch)
        stored += [Run(batch) for batch in pa.ipc.open_stream(sink.getvalue())]
    return Frozen(frozen.meta, tuple(stored))


@dataclass
class Gang:
    """Receivers of keyed rows; ``sender`` comes before them, if there is one."""

    keys: tuple[str, ...]
    receivers: list[Operator]
    sender: Operator | None
    output: pa.Schema
    emitted: list[pa.RecordBatch] = field(default_factory=list)

    def feed(self, batch: pa.RecordBatch) -> None:
        self._send((batch,) if self.sender is None else self.sender.process(0, batch))

    def watermark(self, timestamp: int) -> None:
        if self.sender is not None:
            self._send(self.sender.watermark(timestamp))
        for receiver in self.receivers:
            self.emitted += receiver.watermark(timestamp)

    def barrier(self) -> list[Frozen]:
        """What happens at a barrier: rows before it, then the state."""
        if self.sender is not None:
            self._send(self.sender.before_barrier())
        for receiver in self.receivers:
            self.emitted += receiver.before_barrier()
        return [frozen for receiver in self.receivers if (frozen := receiver.freeze()) is not None]

    def restore(self, frozen: Iterable[Frozen]) -> None:
        pieces = [through_ipc(each) for each in frozen]
        for receiver in self.receivers:
            receiver.restore([Restored(subtask, piece.meta, piece.runs) for subtask, piece in enumerate(pieces)])

    def finish(self) -> pa.Table:
        self.watermark(END_OF_TIME)
        if self.sender is not None:
            self._send(self.sender.end())
        for receiver in self.receivers:
            self.emitted += receiver.end()
        return self.result()

    def result(self) -> pa.Table:
        return pa.Table.from_batches(self.emitted, self.output)

    @property
    def late_rows(self) -> int:
        return sum(receiver.late_rows for receiver in self.receivers)  # type: ignore[attr-defined]

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for receiver, part in zip(self.receivers, partition(batch, self.keys, len(self.receivers)), strict=True):
                if part is not None:
                    self.emitted += receiver.process(0, part)
                    if isinstance(receiver, ProcessOperator):
                        self.emitted.append(receiver.result())


def built(spec: Any, parallelism: int, *, checkpointing: bool = True) -> list[Operator]:
    return [build(spec, n, parallelism, checkpointing=checkpointing) for n in range(parallelism)]


def windowed_gang(
    schema: pa.Schema,
    keys: tuple[str, ...],
    window: Window,
    aggregates: tuple[AggregateColumn, ...],
    parallelism: int = 1,
    *,
    late: bool = False,
) -> Gang:
    output = aggregate_schema(keys, aggregates, schema, "ts")
    if late:
        output = wide_schema(output, schema)
        spec = window_aggregate("agg", keys, window, aggregates, "ts", schema, output, late=True)
        return Gang(keys, built(spec, parallelism), None, output)
    partials = partial_schema(keys, aggregates, schema, window.time_columns)
    (sender,) = built(pre_aggregate("pre", keys, window, aggregates, "ts", schema, partials), 1)
    spec = window_aggregate("agg", keys, window, aggregates, "ts", partials, output)
    return Gang(keys, built(spec, parallelism), sender, output)


def running_gang(
    schema: pa.Schema,
    keys: tuple[str, ...],
    aggregates: tuple[AggregateColumn, ...],
    parallelism: int = 1,
    *,
    checkpointing: bool = True,
) -> Gang:
    output = running_schema(keys, aggregates, schema)
    partials = partial_schema(keys, aggregates, schema, ())
    (sender,) = built(pre_aggregate("pre", keys, None, aggregates, "ts", schema, partials), 1)
    spec = running_aggregate("agg", keys, aggregates, partials, output)
    return Gang(keys, built(spec, parallelism, checkpointing=checkpointing), sender, output)


class Inline(Executor):
    """Calls at once, or keeps calls until they are let through."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.calls: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, lambda: function(*args, **kwargs)))
        if not self.hold:
            self.let()
        return future

    def let(self) -> None:
        calls, self.calls = self.calls, []
        for future, call in calls:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)


def process_gang(
    function: Any,
    schema: pa.Schema,
    keys: tuple[str, ...],
    state: pa.Schema,
    output: pa.Schema,
    parallelism: int = 1,
    executor: Executor | None = None,
) -> Gang:
    whole = process_state("process", keys, state, schema)
    spec = process("process", function, keys, whole, schema, output)
    receivers: list[Operator] = [
        ProcessOperator(spec, context(n, parallelism, executor=lambda _: executor or Inline())) for n in range(parallelism)
    ]
    return Gang(keys, receivers, None, output)
