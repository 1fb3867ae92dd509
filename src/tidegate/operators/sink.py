"""Hands rows to a sink's writer, on its own thread, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from tidegate.operators.map import Done
from tidegate.plan.connector import Committable, Sink, SinkWriter, WriterContext
from tidegate.plan.identity import labelled, last_part
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Stateless
from tidegate.plan.signals import HearsSignals, Told
from tidegate.values import Json

SINK_BACKLOG_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(OperatorSpec):
    """Rows into a sink.

    ``method`` is the one that made it; ``identity`` distinguishes like sinks, for names only.
    """

    description = Description("write", "Sink", endpoint=True)

    sink: Sink
    method: str
    identity: str = ""

    @property
    def kind(self) -> str:
        """The method that made it."""
        return self.method

    def label(self) -> str:
        """With what distinguishes the sink."""
        return labelled(self.method, last_part(self.sink))

    def meaning(self) -> Json:
        """The sink's kind and what distinguishes it."""
        return [type(self.sink).__name__, last_part(self.sink), self.identity]

    def properties(self) -> dict[str, Json]:
        """Which sink, and where it writes to."""
        to = last_part(self.sink)
        return {"sink": type(self.sink).__name__, "to": to} if to else {"sink": type(self.sink).__name__}

    def state_shape(self, key_groups: int) -> dict[str, Json]:
        """Committables hold rows with these columns."""
        return {"kind": "sink", "columns": [f"{field.name} {field.type}" for field in self.schema]}

    def build(self, context: OperatorContext) -> SinkOperator:
        """A writer of this subtask, on a thread of its own."""
        writer = self.sink.writer(WriterContext(self.name, context.subtask, context.gang, self.schema))
        return SinkOperator(writer, context.thread(f"sink-{self.name}"), context.wake)


class SinkOperator(Stateless):
    """The end of a chain: batches go to the sink's writer, on its own thread, in order."""

    def __init__(self, writer: SinkWriter, executor: Executor, done: Done) -> None:
        self.writer = writer
        self._hears = writer if isinstance(writer, HearsSignals) else None
        self._executor = executor
        self._done = done
        self._backlog_bytes = 0
        self._writes: deque[tuple[Future[None], int]] = deque()
        self._broken: BaseException | None = None
        self.rows = 0

    @property
    def ready(self) -> bool:
        """The writer keeps up: another batch may come. Raises what the writer raised."""
        while self._writes and self._writes[0][0].done():
            write, size = self._writes.popleft()
            self._backlog_bytes -= size
            write.result()
        return self._backlog_bytes < SINK_BACKLOG_BYTES

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        if batch.num_rows:
            self.rows += batch.num_rows
            size = batch.nbytes
            self._backlog_bytes += size
            write = self._executor.submit(self._write, batch)
            write.add_done_callback(lambda _: self._done())
            self._writes.append((write, size))
        return ()

    def signal(self, told: Told) -> Sequence[Future[None]]:
        """The writer hears of it, after the batches that were handed to it before."""
        if told.parameter is not None or self._hears is None:
            return ()
        call = self._executor.submit(self._hears.on_signal, told.kind, told.payload)
        call.add_done_callback(lambda _: self._done())
        return (call,)

    def prepare(self, checkpoint_id: int) -> Future[Committable | None]:
        """Everything taken so far becomes one committable; it is durable when the future is done.

        It fails if any write before it did: the loop may not have noticed that yet, and the cut would count rows that are
        nowhere.
        """
        return cast("Future[Committable | None]", self._executor.submit(self._prepare, checkpoint_id))

    def _write(self, batch: pa.RecordBatch) -> None:
        try:
            self.writer.write(batch)
        except BaseException as error:
            self._broken = self._broken or error  # those after the first only say that there was one
            raise

    def _prepare(self, checkpoint_id: int) -> Committable | None:
        if self._broken is not None:
            raise self._broken
        return self.writer.prepare(checkpoint_id)
