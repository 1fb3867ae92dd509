"""Every interleaving of signals and checkpoints in a small dataflow, over the real head and the real subtasks.

Two sources feed a fan-in, which feeds a sink. Commands for signals and for checkpoints come to a source in lanes of their own:
a new leader's words may overtake an old one's. What is checked: of a committed checkpoint every subtask has the same version of
the parameter, the one that the leader wrote into the manifest; and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from explorer import Violation, clone, fingerprint

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.barrier.effects import CheckpointFailed, Ended, Fire, Forward, ProcessEvent, SnapshotComplete, SubtaskEffect
from tidegate.core.barrier.messages import CheckpointBarrier, Control, Event, StreamMessage
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.control.ask import ControlChanged, EmitSignal, ReleaseCheckpoint, SignalAnswered, SignalRequest
from tidegate.core.control.head import ControlSourceProcessor
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import BarrierControlSignalKind

SOURCES, JOIN, SINK = (0, 1), 2, 3
CONFIG = UnalignedCheckpointConfig()


@dataclass(frozen=True)
class Play:
    """What may happen. ``ends``: the second source ends after its rows."""

    name: str
    signals: int = 1
    checkpoints: int = 1
    rows: tuple[int, int] = (0, 0)
    ends: bool = False


class Worker:
    """A real subtask; its operator passes everything on. ``version``: the last value that came to it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.subtask: Subtask[Any] = Subtask(range(inputs), range(outputs), CONFIG)
        self.version = 0
        self.frozen = (0, 0)
        self.overdue = 0


@dataclass
class World:
    """Everything at one moment."""

    head: ControlSourceProcessor = field(default_factory=ControlSourceProcessor)
    workers: list[Worker] = field(default_factory=lambda: [Worker(0, 1), Worker(0, 1), Worker(2, 1), Worker(1, 0)])
    control: ControlChanged = field(default_factory=ControlChanged)
    lanes: dict[int, list[Any]] = field(default_factory=lambda: {0: [], 1: [], 2: [], 3: []})
    words: dict[int, list[Any]] = field(default_factory=lambda: {0: [], 1: []})
    rows: list[int] = field(default_factory=list)
    asked: int = 0
    begun: int = 0
    live: int = 0
    pinned: bool = False
    expected: int = 0
    acks: dict[int, int] = field(default_factory=dict)
    answered: int = 0
    commits: int = 0


class Signalling:
    """A depth-first search over all worlds of a play."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.states = self.commits = self.overtaken = self.ends = 0

    def run(self) -> Signalling:
        """Raises ``Violation`` at the first broken promise."""
        first = World(rows=list(self._play.rows))
        self._head(first, first.head.gang_up(1, SOURCES, (), 0))
        seen, stack = {fingerprint(first)}, [(first, ("start",))]
        while stack:
            world, story = stack.pop()
            self.states += 1
            moved = False
            for move in list(self._moves(world)):
                moved = True
                after = clone(world, {})
                self._act(after, move, (*story, move))
                if (key := fingerprint(after)) not in seen:
                    seen.add(key)
                    stack.append((after, (*story, move)))
            if not moved:
                self._end(world, story)
        return self

    # -- what may happen

    def _moves(self, world: World) -> Iterator[tuple[Any, ...]]:
        for number, lane in world.lanes.items():
            if lane:
                yield ("hear", number)
        for node, words in world.words.items():
            if words:
                yield ("leader hears", node)
        for source in SOURCES:
            if world.rows[source] > 0 or (self._ends(source) and not world.workers[source].subtask.finished):
                yield ("read", source)
        for v in (JOIN, SINK):
            if world.workers[v].subtask.has_turn:
                yield ("poll", v)
            if world.workers[v].overdue and world.workers[v].overdue == world.live:
                yield ("deadline", v)
        if world.asked < self._play.signals:
            yield ("signal",)
        if world.begun < self._play.checkpoints and not world.live:
            yield ("checkpoint",)

    def _ends(self, source: int) -> bool:
        return self._play.ends and source == 1

    def _act(self, world: World, move: tuple[Any, ...], story: tuple[Any, ...]) -> None:
        match move:
            case ("hear", number):
                self._hear(world, number % 2, world.lanes[number].pop(0), story)
            case ("leader hears", node):
                kind, what = world.words[node].pop(0)
                told = {"emitted": world.head.emitted, "injected": world.head.injected, "seen": world.head.seen}[kind]
                for each in SOURCES if kind == "seen" else (node,):  # the sink speaks for both nodes
                    self._head(world, told(each, what, 0))
            case ("read", source):
                self._read(world, source, story)
            case ("poll", v):
                self._perform(world, v, world.workers[v].subtask.poll(), story)
            case ("deadline", v):
                world.workers[v].overdue = 0
                self._perform(world, v, world.workers[v].subtask.deadline(world.live), story)
            case ("signal",):
                world.asked += 1
                entry = ParameterEntry.of_bytes("p", world.asked, b"", 0)
                request = SignalRequest(f"r{world.asked}", BarrierControlSignalKind.SetParameter, entry=entry)
                self._head(world, world.head.request(request, 0))
            case ("checkpoint",):
                self._trigger(world, story)
        self._send(world, story)

    def _trigger(self, world: World, story: tuple[Any, ...]) -> None:
        world.begun += 1
        world.live, world.acks = world.begun, {}
        world.pinned = world.control.pinned
        world.expected = max((entry.version for entry in world.control.parameters), default=0)
        for v, worker in enumerate(world.workers):
            worker.overdue = 0 if world.pinned or v in SOURCES else world.live
            self._perform(world, v, worker.subtask.started(world.live, epoch=world.live, aligned=world.pinned), story)
        self._head(world, world.head.checkpoint(CheckpointBarrier(world.live, world.live)))

    def _head(self, world: World, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case EmitSignal(signal):
                    for source in SOURCES:
                        world.lanes[source].append(signal)
                case ReleaseCheckpoint(checkpoint_id):
                    for source in SOURCES:
                        world.lanes[2 + source].append(CheckpointBarrier(checkpoint_id, checkpoint_id))
                case ControlChanged():
                    world.control = effect
                case SignalAnswered():
                    world.answered += 1
                case _:
                    raise AssertionError(effect)

    # -- workers

    def _hear(self, world: World, source: int, command: Any, story: tuple[Any, ...]) -> None:
        worker = world.workers[source]
        if isinstance(command, CheckpointBarrier):
            self._perform(world, source, worker.subtask.inject(command), story)
            world.words[source].append(("injected", command.checkpoint_id))
            return
        worker.version = command.parameter.version
        if not worker.subtask.finished:
            worker.subtask.emit(0, Control(command))
        world.words[source].append(("emitted", command.barrier_id))

    def _read(self, world: World, source: int, story: tuple[Any, ...]) -> None:
        worker = world.workers[source]
        world.rows[source] -= 1
        if world.rows[source] >= 0:
            worker.subtask.emit(0, Event((source, world.rows[source]), 1))
        else:
            self._perform(world, source, worker.subtask.finish(), story)

    def _send(self, world: World, story: tuple[Any, ...]) -> None:
        """What is on an output is received at once: all waiting is in the receivers' queues."""
        for sender, receiver, input_id in ((0, JOIN, 0), (1, JOIN, 1), (JOIN, SINK, 0)):
            worker = world.workers[sender]
            while worker.subtask.outputs[0].head() is not None:
                message, effects = worker.subtask.taken(0)
                self._perform(world, receiver, world.workers[receiver].subtask.receive(input_id, message), story)
                self._perform(world, sender, effects, story)

    def _perform(self, world: World, v: int, effects: list[SubtaskEffect], story: tuple[Any, ...]) -> None:
        worker = world.workers[v]
        for effect in effects:
            match effect:
                case ProcessEvent(_, payload):
                    self._pass_on(worker, Event(payload, 1))
                case Forward(signal):
                    assert signal.parameter is not None
                    worker.version = signal.parameter.version
                    self._pass_on(worker, Control(signal))
                    if v == SINK:
                        world.words[0].append(("seen", signal.barrier_id))
                case Fire(barrier):
                    self.overtaken += barrier.is_unaligned
                    effects_after = worker.subtask.fired(barrier)
                    worker.frozen = (barrier.checkpoint_id, worker.version)
                    self._perform(world, v, effects_after, story)
                case SnapshotComplete(checkpoint_id, finished=finished):
                    self._ack(world, v, checkpoint_id, world.expected if finished else worker.frozen[1], story)
                case Ended():
                    self._perform(world, v, worker.subtask.finish(), story)
                case CheckpointFailed():
                    raise Violation(f"{effect}\n{story}")
                case _:
                    pass

    def _pass_on(self, worker: Worker, message: StreamMessage[Any]) -> None:
        for output_id in worker.subtask.outputs:
            worker.subtask.emit(output_id, message)

    def _ack(self, world: World, v: int, checkpoint_id: int, version: int, story: tuple[Any, ...]) -> None:
        if checkpoint_id != world.live:
            return
        world.acks[v] = version
        if len(world.acks) < len(world.workers):
            return
        if set(world.acks.values()) != {world.expected}:
            raise Violation(
                f"one version: checkpoint {world.live} has {world.acks} and says {world.expected}\n" + "\n".join(map(str, story))
            )
        self.commits += 1
        world.live = 0
        self._head(world, [e for e in world.head.committed(world.control.parameters) if not isinstance(e, SignalAnswered)])

    def _end(self, world: World, story: tuple[Any, ...]) -> None:
        """Nothing can happen any more: then nothing is left to happen."""
        self.ends += 1
        if world.live or world.control.pinned:
            what = f"checkpoint={world.live} signals_on_their_way={world.control.pinned}"
            raise Violation(f"deadlock: {what}\n" + "\n".join(map(str, story)))
