"""A user's function on every batch, on its own thread: the loop thread never waits for it.

What is under way is bounded, and comes back through a callback that the loop thread runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.operators.entrance import Entrance
from tidegate.plan.identity import function_name, function_text
from tidegate.plan.operator import Description, OperatorContext, OperatorSpec, Stateful
from tidegate.plan.parameter import Parameter, bound
from tidegate.plan.signals import HearsSignals, Told
from tidegate.state.operatorstate import OperatorState
from tidegate.state.runs import empty_batch
from tidegate.values import Json

BatchMap: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
Done: TypeAlias = Callable[[], None]
"""Called from the executor's thread when something finished; must be quick and thread-safe."""


class UserFunctionError(InvalidUseError):
    """A user's function raised, or returned something that does not fit its schema. The cause is the user's own exception."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapBatches(OperatorSpec):
    """What a user's function makes of each batch."""

    description = Description("map", "Map", stateful=True, chained=False)

    function: BatchMap

    def meaning(self) -> Json:
        """The function's code."""
        return function_text(self.function)

    def properties(self) -> dict[str, Json]:
        """The function's name, and the parameters that it reads."""
        return {"function": function_name(self.function)} | shown(self.parameters)

    def build(self, context: OperatorContext) -> MapOperator:
        """The function on its own thread."""
        thread = context.thread(f"map-{self.name}")
        called = Called(self.function, self.parameters)
        return MapOperator(self.name, called, self.schema, context.state(), thread, context.wake, self.event_time)


def shown(parameters: Sequence[Parameter]) -> dict[str, Json]:
    """What explain shows of parameters."""
    return {"parameters": [each.name for each in parameters]} if parameters else {}


class Called:
    """A user's function with the values of its parameters. A call sees those of the moment in which it was submitted."""

    def __init__(self, function: Callable[..., Any], parameters: Iterable[Parameter] = ()) -> None:
        self._function = function
        self._hears = function if isinstance(function, HearsSignals) else None
        self._values: Mapping[str, object] = {each.name: each.initial for each in parameters}
        self.versions: dict[str, int] = dict.fromkeys(self._values, 0)

    def submit(self, executor: Executor, *arguments: object) -> Future[Any]:
        """Have it called on another thread."""
        return executor.submit(bound, self._values, self._function, *arguments)

    def signal(self, told: Told, executor: Executor) -> Sequence[Future[None]]:
        """A signal between two calls: it sets a parameter, or is the function's own business."""
        if told.parameter is not None:
            name, version = told.parameter.name, told.parameter.version
            if name in self._values:
                self._values = {**self._values, name: told.value}  # calls that were submitted keep theirs
                self.versions[name] = version
            return ()
        if self._hears is None:
            return ()
        return (executor.submit(bound, self._values, self._hears.on_signal, told.kind, told.payload),)


class MapOperator(Stateful):
    """Calls a user's function on its own thread, one batch at a time.

    The batch that the function has now is this operator's state: a snapshot that can't wait for the function stores its input,
    and a restore calls the function again.
    """

    def __init__(
        self,
        name: str,
        function: Called,
        output: pa.Schema,
        state: OperatorState,
        executor: Executor,
        done: Done,
        event_time: str | None = None,
        *,
        kind: str = "map_batches",
        role: str = "",
        input_schema: pa.Schema | None = None,
    ) -> None:
        self._name = name
        self._what = f"the function of {kind} {name!r}"
        self._function = function
        self._output = output
        self._entrance = Entrance(self._what, output, event_time, UserFunctionError, role)
        self._executor = executor
        self._done = done
        self.state = state
        self._queue = state.queue("input", input_schema)
        self._call: Future[pa.RecordBatch] | None = None

    @property
    def busy(self) -> bool:
        """The function has a batch, or one waits for it: the loop hands over no other."""
        return self._call is not None or len(self._queue) > 0

    def result(self) -> pa.RecordBatch | None:
        """What the function returned, once; ``None`` while it is still at it."""
        self._start_next()
        if self._call is None or not self._call.done():
            return None
        call, self._call = self._call, None
        self._queue.done()
        return self._checked(call)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Start the function with the batch."""
        self._queue.insert(batch)
        self._start_next()
        return ()

    def _start_next(self) -> None:
        if self._call is None and len(self._queue):
            self._start(self._queue.start())

    def _start(self, batch: pa.RecordBatch) -> None:
        self._submit(batch)

    def _submit(self, *arguments: pa.RecordBatch) -> None:
        self._call = self._function.submit(self._executor, *arguments)
        self._call.add_done_callback(lambda _: self._done())

    def _checked(self, call: Future[pa.RecordBatch]) -> pa.RecordBatch:
        error = call.exception()
        if error is not None:
            raise UserFunctionError(f"{self._what} raised {error!r}") from error
        returned = call.result()
        return empty_batch(self._output) if returned is None else self._entrance.admitted(returned)

    def signal(self, told: Told) -> Sequence[Future[None]]:
        """The function hears of it on its own thread, after the calls that were submitted before."""
        heard = [_named(call, f"{self._what}, on_signal,") for call in self._function.signal(told, self._executor)]
        for call in heard:
            call.add_done_callback(lambda _: self._done())
        return heard

    def release(self, timestamp: int) -> None:
        """Event time is about to reach this: rows that waited for it go to the function before it is passed on."""


def _named(call: Future[None], what: str) -> Future[None]:
    """The same call; what it raises says whose fault it is."""
    named: Future[None] = Future()

    def pass_on(done: Future[None]) -> None:
        if done.cancelled():
            named.cancel()
            return
        error = done.exception()
        if error is None:
            named.set_result(None)
            return
        wrapped = UserFunctionError(f"{what} raised {error!r}")
        wrapped.__cause__ = error
        named.set_exception(wrapped)

    call.add_done_callback(pass_on)
    return named
