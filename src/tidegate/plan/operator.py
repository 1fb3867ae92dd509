"""What an operator is (``OperatorSpec``, data that travels in the plan) and what it does (``Operator``, on a node).

Whoever needs to know something of an operator asks its spec: the planner, pre-flight, explain, the coordinator, readers of
checkpoints. None of them has a list of kinds. A new operator is one file with a spec and what the spec builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import pyarrow as pa

from tidegate.state.backend import MEMORY, Backend
from tidegate.state.keygroups import range_of
from tidegate.state.operatorstate import OperatorState
from tidegate.state.ownership import EVERYTHING, Ownership
from tidegate.state.run import Frozen, Restored
from tidegate.values import Json

# -- what it is ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Port:
    """The rows that come in at one input of an operator that runs: their columns, and the one with their event time."""

    schema: pa.Schema
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What is true of every operator of a kind.

    ``kind`` is its name in derived names, ``physical`` in explain. ``keyed``: a subtask has the rows of its key groups, whatever
    the parallelism. ``stateful``: a checkpoint has state of it. ``chained``: it may run in the chain of its input.
    ``picks_columns``: it takes columns by name, so its input may have more. ``fused``: neighbours with the same word are built
    together. ``waits_for_time``: it keeps rows until event time has passed them.
    """

    kind: str
    physical: str
    keyed: bool = False
    stateful: bool = False
    chained: bool = True
    picks_columns: bool = False
    endpoint: bool = False
    fused: str | None = None
    waits_for_time: bool = False


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Where an operator runs. ``executor`` has one thread per name; ``wake`` makes the loop look up, from any thread; ``backend``
    keeps its state."""

    subtask: int
    parallelism: int
    key_groups: int
    gang: int = 0
    checkpointing: bool = True
    executor: Callable[[str], Executor] | None = None
    wake: Callable[[], None] = lambda: None
    backend: Backend = MEMORY

    @property
    def own(self) -> range:
        """The key groups of this subtask."""
        return range_of(self.subtask, self.parallelism, self.key_groups)

    def state(self, keys: Sequence[str] | None = None) -> OperatorState:
        """The operator's state, nothing declared yet. ``keys`` are the columns by which rows come to subtasks, if they do."""
        ownership = EVERYTHING if keys is None else Ownership(tuple(keys), self.own, self.key_groups)
        return OperatorState(ownership, self.backend)

    def thread(self, name: str) -> Executor:
        """One more thread for this operator."""
        assert self.executor is not None, "this operator needs a thread"
        return self.executor(name)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OperatorSpec:
    """One operator of a plan: the rows it emits, the column with their event time, its inputs and its name.

    Two specs are the same when they are the same object, so a stream that is used twice stays one through every rewrite. In the
    logical plan inputs are specs; in a stage they are ports.
    """

    description: ClassVar[Description]

    schema: pa.Schema
    event_time: str | None
    inputs: tuple[OperatorSpec | Port, ...] = ()
    name: str = ""
    keys: tuple[str, ...] = ()
    """The columns by which rows come to a subtask, if it is keyed."""

    @property
    def kind(self) -> str:
        """The operator's kind, as it appears in derived names."""
        return self.description.kind

    @property
    def input(self) -> pa.Schema:
        """The columns of its only input."""
        return self.inputs[0].schema

    @property
    def time(self) -> str:
        """The column of its first input with the rows' event time."""
        time = self.inputs[0].event_time
        assert time is not None, "the operator was planned without an event time"
        return time

    @property
    def specs(self) -> tuple[OperatorSpec, ...]:
        """Its inputs in a logical plan."""
        return tuple(each for each in self.inputs if isinstance(each, OperatorSpec))

    def with_inputs(self, inputs: Sequence[OperatorSpec | Port]) -> Self:
        """The same operator over other inputs; override it where the schema follows the input's."""
        return self if tuple(inputs) == self.inputs else self._replaced(inputs=tuple(inputs))

    def as_stage_member(self) -> Self:
        """What runs: inputs are ports."""
        return self._replaced(inputs=tuple(Port(each.schema, each.event_time) for each in self.inputs))

    def _replaced(self, **changes: Any) -> Self:
        return replace(self, **changes)

    # -- for the planner

    @property
    def picks_columns(self) -> bool:
        """It takes its columns by name, so its input may have more."""
        return self.description.picks_columns

    def label(self) -> str:
        """The beginning of its derived name."""
        return self.kind

    def meaning(self) -> Json:
        """What it computes, as far as it can be told: a derived name changes with it."""
        return None

    def columns_used(self, port: int, wanted: frozenset[str]) -> frozenset[str]:
        """The columns that it needs of an input when its readers want these."""
        return frozenset(self.inputs[port].schema.names)

    def narrowed(self, inputs: tuple[OperatorSpec, ...], wanted: frozenset[str], exact: bool) -> OperatorSpec:
        """Over these inputs and without columns that nobody wants; ``exact``: a reader minds columns that it did not ask for."""
        return self.with_inputs(inputs)

    def split(self) -> OperatorSpec:
        """Over an operator that does a part of the work before the exchange, if it can be."""
        return self

    @property
    def orders_by_time(self) -> bool:
        """It depends on the rows of a key coming nearly in the order of their event time: sources are read side by side."""
        return False

    # -- for people, and for pre-flight

    def properties(self) -> dict[str, Json]:
        """What explain shows of it."""
        return {}

    def state_shape(self, key_groups: int) -> dict[str, Json] | None:
        """What its stored state is made of, as JSON; ``None``: nothing is stored. A checkpoint whose shape differs is refused."""
        return None

    # -- for the runtime

    def build(self, context: OperatorContext) -> Operator:
        """The operator of one subtask."""
        raise NotImplementedError

    def build_fused(self, following: Sequence[OperatorSpec], context: OperatorContext) -> Operator:
        """One operator for this and the neighbours that follow it, which have the same word in ``fused``."""
        assert not following
        return self.build(context)


# -- what it does --------------------------------------------------------------------------------------------


class Operator(Protocol):
    """One operator of a chain. It knows batches, watermarks and its own state; nothing of barriers, channels or stores.

    All calls come from the node's loop thread. Methods that return batches may be generators: the loop takes the next piece only
    when the outputs have room, so yield pieces of at most ``PIECE_ROWS`` rows, and an empty one where the work before the next is
    long. Until a generator is exhausted the loop calls no other method of this operator; it does so when a snapshot is due. An
    operator whose watermark emits much can stop there: see ``Stoppable``.
    """

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take a batch; emit what comes of it."""

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Event time has reached ``timestamp``. The loop passes the watermark on after what this emits. Idempotent."""

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Rows still buffered that are to go before a barrier."""

    def end(self) -> Iterable[pa.RecordBatch]:
        """All inputs have ended (after a last watermark of the end of time)."""

    def freeze(self) -> Frozen | None:
        """The state at this moment, by reference, in time that does not grow with it. ``None``: has no state."""

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the state of a checkpoint. Called once, before anything else."""


@runtime_checkable
class Stoppable(Protocol):
    """An operator that need not emit at once all that a watermark closes.

    While ``stopping`` is set, what ``watermark`` returns ends after the step at hand, and what was not emitted is part of the
    state. ``has_pending``: so it was, or so it was restored, and ``watermark`` is to be called again, with the same or any time,
    before anything else comes in.
    """

    stopping: bool
    has_pending: bool


@runtime_checkable
class Judging(Protocol):
    """An operator that takes rows for late."""

    def promise(self, timestamp: int) -> None:
        """Rows of the batches to come are late by this time at least, even where windows of theirs are still open."""


@runtime_checkable
class Waiting(Protocol):
    """An operator that may keep rows until event time has passed them, though it emits little when it has."""

    @property
    def waits_for_time(self) -> bool:
        """It does."""


@runtime_checkable
class Delaying(Protocol):
    """An operator after which time is earlier by ``watermark_delay``: it keeps windows open for late rows."""

    watermark_delay: int


@runtime_checkable
class Measured(Protocol):
    """An operator with state that people can ask the size of."""

    @property
    def late_rows(self) -> int:
        """Rows dropped or sent away as late, since the job began."""

    @property
    def state_rows(self) -> int:
        """Rows of state held now."""

    @property
    def state_bytes(self) -> int:
        """Bytes held for them."""


class Stateless:
    """What operators without state and buffers have in common."""

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        """Emits nothing."""
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """Emits nothing."""
        return ()

    def freeze(self) -> Frozen | None:
        """There is no state."""
        return None

    def restore(self, pieces: Sequence[Restored]) -> None:
        """There is nothing to take over."""


class Stateful(Stateless):
    """An operator that has declared its state: freeze, restore, rescaling and size come from there."""

    state: OperatorState

    @property
    def late_rows(self) -> int:
        """None is late where there are no windows."""
        return 0

    @property
    def state_rows(self) -> int:
        """Rows of state held now."""
        return self.state.size().rows

    @property
    def state_bytes(self) -> int:
        """Bytes held for them."""
        return self.state.size().nbytes

    def freeze(self) -> Frozen:
        """All state by reference."""
        return self.state.freeze()

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Take over the state of a checkpoint, as far as it is ours."""
        self.state.restore(pieces)
