"""Work that the loop thread must not wait for: a user's function, a sink's writer.

Both hand work to an executor that the outermost layer made, keep what is under way bounded, and come back through a callback
that the loop thread runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from typing import cast

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Committable, SinkWriter
from tidegate.runtime.entrance import Entrance
from tidegate.runtime.operator import Frozen, Restored, Run
from tidegate.state.runs import empty_batch

SINK_BACKLOG_BYTES = 32 << 20

Done = Callable[[], None]
"""Called from the executor's thread when something finished; must be quick and thread-safe."""


class UserFunctionError(InvalidUseError):
    """A user's function raised, or gave something that does not fit its schema. The cause is the user's own exception."""


class MapOperator:
    """Calls a user's function on a thread of its own, one batch at a time.

    The batch that the function has now is this operator's state: a snapshot that can't wait for the function stores its input,
    and a restore calls the function again.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        output: pa.Schema,
        executor: Executor,
        done: Done,
        event_time: str | None = None,
        *,
        kind: str = "map_batches",
        role: str = "",
    ) -> None:
        self._name = name
        self._what = f"the function of {kind} {name!r}"
        self._function = function
        self._output = output
        self._entrance = Entrance(self._what, output, event_time, UserFunctionError, role)
        self._executor = executor
        self._done = done
        self._waiting: deque[pa.RecordBatch] = deque()
        self._input: pa.RecordBatch | None = None
        self._call: Future[pa.RecordBatch] | None = None

    @property
    def busy(self) -> bool:
        """The function has a batch, or one waits for it: the loop gives no other."""
        return self._call is not None or bool(self._waiting)

    def result(self) -> pa.RecordBatch | None:
        """What the function gave, once; ``None`` while it is still at it."""
        if self._call is None and self._waiting:
            self._start(self._waiting.popleft())
        if self._call is None or not self._call.done():
            return None
        call, self._call, self._input = self._call, None, None
        return self._checked(call)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self._start(batch)
        return ()

    def _start(self, batch: pa.RecordBatch) -> None:
        self._input = batch
        self._call = self._executor.submit(self._function, batch)
        self._call.add_done_callback(lambda _: self._done())

    def _checked(self, call: Future[pa.RecordBatch]) -> pa.RecordBatch:
        error = call.exception()
        if error is not None:
            raise UserFunctionError(f"{self._what} raised {error!r}") from error
        given = call.result()
        return empty_batch(self._output) if given is None else self._entrance.admitted(given)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        return ()

    def freeze(self) -> Frozen:
        held = ([self._input] if self._input is not None else []) + list(self._waiting)
        return Frozen({}, tuple(Run(batch) for batch in held))

    def restore(self, pieces: Sequence[Restored]) -> None:
        self._waiting.extend(run.batch for piece in pieces for run in piece.runs)


class SinkOperator:
    """The end of a chain: batches go to the sink's writer, on its own thread, in order."""

    def __init__(self, writer: SinkWriter, executor: Executor, done: Done) -> None:
        self._writer = writer
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

    def prepare(self, checkpoint_id: int) -> Future[Committable | None]:
        """Everything taken so far becomes one committable; it is durable when the future is done.

        It fails if any write before it did: the loop may not have noticed that yet, and the cut would count rows that are
        nowhere.
        """
        return cast("Future[Committable | None]", self._executor.submit(self._prepare, checkpoint_id))

    def _write(self, batch: pa.RecordBatch) -> None:
        try:
            self._writer.write(batch)
        except BaseException as error:
            self._broken = error
            raise

    def _prepare(self, checkpoint_id: int) -> Committable | None:
        if self._broken is not None:
            raise self._broken
        return self._writer.prepare(checkpoint_id)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        return ()

    def freeze(self) -> Frozen | None:
        return None

    def restore(self, pieces: Sequence[Restored]) -> None:
        return None
