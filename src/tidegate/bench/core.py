"""The suite `core`: the steps of the protocol one by one, each beside the target that F-DCKP-001, F-DCKP-008 and
F-STREAM-013 set for it.

Here are the steps that need nothing but this process, and the order of the suite. What needs nodes is in ``nodes``. Nothing
is tuned for the figures: every step goes through the classes that jobs use, with all their checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.bench import nodes
from tidegate.bench.large import LargeSettings, processes
from tidegate.bench.timing import Reading, per_call, per_item
from tidegate.core.barrier.inject import (
    BarrierInjectorConfig,
    CheckpointBarrierInjector,
    InjectBarrierCommand,
)
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, Event
from tidegate.core.barrier.output import OutputQueue
from tidegate.core.barrier.subtask import Subtask
from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch

NOT_MEASURED = {
    "bench_hot_path_with_wal_async": "the write-ahead log belongs to pushed rows; a pipeline's source is read again instead",
}
"""What the documents name and this suite leaves out, and why."""
ONLY_LARGE = dict.fromkeys(
    ("bench_distributed_checkpoint_10_nodes_1gb", "bench_recovery_time"),
    "takes minutes and gigabytes: ask for it with --large",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """How much to measure. ``calls`` is per round of a step, ``samples`` how often what takes milliseconds is done.

    ``large``: also what takes minutes.
    """

    calls: int = 50_000
    rounds: int = 7
    samples: int = 20
    jobs: int = 3
    state_bytes: int = 100_000_000
    rows: int = 40_000_000
    pairs: int = 3
    large: LargeSettings | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InvalidUseError(f"{name} is at least 1 {name}={value}")

    @property
    def stages(self) -> int:
        """How often ``run`` tells what comes."""
        return STAGES + (self.large is not None)

    @classmethod
    def quick(cls) -> CoreSettings:
        """Just enough to see that everything works; the figures are worth nothing."""
        return cls(calls=20, rounds=2, samples=2, jobs=1, state_bytes=30_000, rows=2_000, pairs=1)


# -- F-DCKP-001: a source's injector -------------------------------------------------------------------------


def python_call(settings: CoreSettings) -> Reading:
    """What to compare the nanoseconds with: no Python function can be quicker than an empty one."""

    def nothing(now_ms: int) -> None:
        return None

    values = per_call("nothing(0)", {"nothing": nothing}, settings.calls, settings.rounds)
    return Reading(name="python_call", values=values, unit="ns", what="an empty Python function, for comparison")


def bench_poll_barrier_no_pending(settings: CoreSettings) -> Reading:
    """A source asks between two batches whether a barrier is due, and none is."""
    injector = _injector()
    values = per_call("poll(0)", {"poll": injector.poll_barrier}, settings.calls, settings.rounds)
    what = "poll_barrier() without a command"
    return Reading(name="bench_poll_barrier_no_pending", values=values, unit="ns", target=10, what=what)


def bench_poll_barrier_with_pending(settings: CoreSettings) -> Reading:
    """The same with a command waiting: it is taken, checked and made a barrier."""

    def waiting(count: int) -> Iterable[Callable[[int], CheckpointBarrier | None]]:
        for number in range(1, count + 1):
            injector = _injector()
            injector.coordinator_handle().inject(InjectBarrierCommand(number, Epoch(number)))
            yield injector.poll_barrier

    def poll_all(polls: Iterable[Callable[[int], CheckpointBarrier | None]]) -> None:
        for poll in polls:
            poll(0)

    values = per_item(waiting, poll_all, settings.calls // 5 or 1, settings.rounds)
    what = "poll_barrier() that takes one command and makes the barrier"
    return Reading(name="bench_poll_barrier_with_pending", values=values, unit="ns", target=30, what=what)


def bench_barrier_injection_throughput(settings: CoreSettings) -> Reading:
    """Command, barrier, confirmation, over and over in one thread."""

    def work(commands: Iterable[InjectBarrierCommand]) -> None:
        injector = _injector()
        inject, poll, emitted = injector.coordinator_handle().inject, injector.poll_barrier, injector.emitted
        for command in commands:
            inject(command)
            barrier = poll(0)
            assert barrier is not None
            emitted(barrier)

    def commands(count: int) -> Iterable[InjectBarrierCommand]:
        return (InjectBarrierCommand(number, Epoch(number)) for number in range(1, count + 1))

    nanoseconds = per_item(commands, work, settings.calls // 5 or 1, settings.rounds)
    return Reading(
        name="bench_barrier_injection_throughput",
        values=tuple(1e3 / each for each in nanoseconds),
        unit="M/s",
        target=50,
        higher=True,
        what="barriers through one injector: inject(), poll_barrier(), emitted()",
    )


# -- F-DCKP-001: a subtask -----------------------------------------------------------------------------------


def bench_barrier_processing(settings: CoreSettings) -> Reading:
    """A barrier comes in, has its turn, fires, goes onto the output and leaves it. There is no state to freeze."""

    def work(messages: Iterable[Barrier[Any]]) -> None:
        subtask: Subtask[Any] = Subtask([0], [0])
        for message in messages:
            subtask.receive(0, message)
            subtask.poll()
            subtask.fired(message.barrier)
            subtask.taken(0)

    def barriers(count: int) -> Iterable[Barrier[Any]]:
        return (Barrier(CheckpointBarrier(number, Epoch(number))) for number in range(1, count + 1))

    values = per_item(barriers, work, settings.calls // 10 or 1, settings.rounds)
    what = "a barrier through a subtask: receive, poll, fired, taken"
    return Reading(name="bench_barrier_processing", values=values, unit="ns", target=50, what=what)


def bench_stream_message_push_pop(settings: CoreSettings) -> Reading:
    """One event into the queue of a channel and out of it."""
    queue: OutputQueue[Any] = OutputQueue(0)
    names = {"put": queue.put, "take": queue.take, "event": Event("payload", 100)}
    values = per_call("put(event); take()", names, settings.calls, settings.rounds)
    what = "an event through a channel's queue: put, take (without the network)"
    return Reading(name="bench_stream_message_push_pop", values=values, unit="ns", target=60, what=what)


def subtask_event(settings: CoreSettings) -> Reading:
    """What the protocol costs a batch of rows at one subtask, whatever the rows cost."""
    subtask: Subtask[Any] = Subtask([0], [0])
    names = {"s": subtask, "event": Event("payload", 100)}
    statement = "s.receive(0, event); s.poll(); s.emit(0, event); s.taken(0)"
    values = per_call(statement, names, settings.calls, settings.rounds)
    what = "an event through a subtask: receive, poll, emit, taken"
    return Reading(name="subtask_event", values=values, unit="ns", what=what)


def _injector() -> CheckpointBarrierInjector:
    return CheckpointBarrierInjector(BarrierInjectorConfig(periodic_interval_ms=None))


# -- the suite -----------------------------------------------------------------------------------------------

STEPS = (
    python_call,
    bench_poll_barrier_no_pending,
    bench_poll_barrier_with_pending,
    bench_barrier_processing,
    bench_stream_message_push_pop,
    subtask_event,
    bench_barrier_injection_throughput,
)
STAGES = 7


def run(settings: CoreSettings, work: Path, step: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything; returns one document. Blocks for most of a minute.

    ``step`` is told what comes, ``settings.stages`` times.
    """
    step("single steps")
    readings = [measure(settings) for measure in STEPS]
    step("manifests of ten nodes")
    readings += nodes.manifests(work / "manifests", settings.samples)
    step("a barrier over TCP")
    readings.append(nodes.cross_node_barrier(settings.samples * 10))
    step("barriers into three nodes")
    readings.append(nodes.barrier_injection(work / "injection", settings.samples))
    step("leaders that take over")
    readings.append(nodes.leader_failover(work / "failover", settings.jobs))
    step("a checkpoint of three nodes")
    readings.append(nodes.distributed_checkpoint(work / "state", settings.jobs, settings.state_bytes))
    step("rows with and without checkpoints")
    readings += nodes.hot_path(work / "rows", settings.pairs, settings.rows)
    if settings.large is None:
        return _document(readings, NOT_MEASURED | ONLY_LARGE)
    step("ten nodes as processes, for minutes")
    return _document(readings + processes(work / "large", settings.large), NOT_MEASURED)


def _document(readings: list[Reading], not_measured: dict[str, str]) -> dict[str, Any]:
    return {"readings": [reading.row() for reading in readings], "not_measured": not_measured}
