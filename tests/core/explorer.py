"""Runs every interleaving of a small dataflow over the real protocol classes and checks the invariants.

A system is a handful of workers (a real ``Subtask`` and a toy operator) joined by edges. An edge is the sender's
``OutputQueue``, a wire, and the receiver's queue. Nothing here decides anything of the protocol: it only chooses
what happens next, in every possible order.

A worker's answer to a stimulus depends on nothing but the worker, so each (worker state, stimulus) runs once and is
remembered by number. The search over whole systems then moves small tuples.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from tidegate.core.barrier.align import DEFAULT_CONFIG, UnalignedCheckpointConfig
from tidegate.core.barrier.effects import (
    AdvanceWatermark,
    CheckpointFailed,
    Ended,
    Fire,
    ProcessEvent,
    SnapshotComplete,
    SubtaskEffect,
)
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, StreamMessage, Watermark
from tidegate.core.barrier.subtask import Subtask

V = TypeVar("V")


class Violation(AssertionError):
    """An invariant does not hold. The message names it and tells the way to it."""


# -- what is explored ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vertex:
    """One subtask of the system. A source has a script; the others have inputs.

    ``last``: what an operator emits one by one, as there is room, when its inputs have ended.
    """

    name: str
    script: tuple[StreamMessage[Any], ...] = ()
    last: tuple[StreamMessage[Any], ...] = ()
    aligned_only_inputs: bool = False
    aligned_only_outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Edge:
    """Output ``output`` of one vertex is input ``input`` of another. ``keep``: which payloads go this way."""

    sender: int
    output: int
    receiver: int
    input: int
    keep: Callable[[Any], bool] = field(default=lambda _: True, compare=False)


@dataclass(frozen=True)
class System:
    """A dataflow, its limits and what may happen to it."""

    name: str
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    config: UnalignedCheckpointConfig = DEFAULT_CONFIG
    checkpoints: int = 1
    aborts: int = 0
    crashes: int = 0
    deadlines: tuple[int, ...] | None = None  # the vertices whose deadlines may pass; None: all
    savepoint: bool = False
    late_news: bool = False  # the start of a checkpoint is heard at once, or at any time later
    credit: int = 2
    room: int = 1
    wire: bool = True  # False: what is sent is received in the same step
    eager: bool = False  # True: what can be sent is sent before anything else happens
    depth_max: int | None = None  # None: all states, however many steps away

    def sources(self) -> list[int]:
        return [v for v, vertex in enumerate(self.vertices) if vertex.script]

    def own(self, v: int) -> tuple[StreamMessage[Any], ...]:
        """What a vertex has to emit of its own; ``offset`` counts what it has emitted of it."""
        return self.vertices[v].script or self.vertices[v].last


def events(source: str, count: int, watermarks: bool = False) -> tuple[StreamMessage[Any], ...]:
    """A source's script: numbered events, each followed by its watermark if wanted, and the end."""
    script: list[StreamMessage[Any]] = []
    for number in range(count):
        script.append(Event((source, number), 1))
        if watermarks:
            script.append(Watermark(number + 1))
    return (*script, End())


# -- one worker ----------------------------------------------------------------------------------------------


class Worker:
    """A real subtask and a toy operator that remembers every payload and sends it on."""

    def __init__(self, system: System, index: int) -> None:
        vertex = system.vertices[index]
        self.index = index
        self.offset = 0
        self.seen: tuple[Any, ...] = ()
        self.watermark = -1
        self.fires = 0
        self.closing = False
        self.frozen: tuple[int, int, tuple[Any, ...]] = (0, 0, ())
        self.unsent: frozenset[int] = frozenset()  # the outputs that the barrier of the last cut has not left
        self.subtask: Subtask[Any] = Subtask(
            [e.input for e in system.edges if e.receiver == index],
            [e.output for e in system.edges if e.sender == index],
            system.config,
            aligned_only_inputs=vertex.aligned_only_inputs,
            aligned_only_outputs=vertex.aligned_only_outputs,
        )


class Ack(NamedTuple):
    """What one worker contributes to a checkpoint."""

    worker: int
    checkpoint_id: int
    offset: int
    seen: tuple[Any, ...]
    inputs: tuple[tuple[int, tuple[StreamMessage[Any], ...]], ...]
    outputs: tuple[tuple[int, tuple[StreamMessage[Any], ...]], ...]
    finished: bool


class Info(NamedTuple):
    """What the search needs to know of a worker's state."""

    has_turn: bool
    has_room: bool
    script_left: bool
    finished: bool
    is_calm: bool
    heads: tuple[tuple[int, bool], ...]
    queued: dict[int, int]


Stimulus = tuple[Any, ...]
Fact = tuple[Any, ...]
Step = tuple[int, Stimulus]


class Workers:
    """All states of all workers by number, and what each does at each stimulus."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._numbers: dict[Hashable, int] = {}
        self._workers: list[Worker] = []
        self.infos: list[Info] = []
        self._steps: dict[tuple[int, Stimulus], tuple[int, tuple[Fact, ...]]] = {}
        self.messages: Table[StreamMessage[Any]] = Table()
        self.acks: Table[Ack] = Table()

    def number(self, worker: Worker) -> int:
        key = fingerprint(worker)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._workers)
            self._workers.append(worker)
            self.infos.append(self._info(worker))
        return number

    def step(self, number: int, stimulus: Stimulus) -> tuple[int, tuple[Fact, ...]]:
        answer = self._steps.get((number, stimulus))
        if answer is None:
            worker = clone(self._workers[number], {})
            facts: list[Fact] = []
            self._act(worker, stimulus, facts)
            self._check_barriers(worker, facts)
            answer = self._steps[(number, stimulus)] = (self.number(worker), tuple(facts))
        return answer

    def seen(self, number: int) -> tuple[Any, ...]:
        return self._workers[number].seen

    def _info(self, worker: Worker) -> Info:
        subtask, system = worker.subtask, self.system
        heads = tuple((o, _is_flagged(q.head())) for o, q in subtask.outputs.items() if len(q))
        return Info(
            subtask.has_turn,
            all(_data_count(q) < system.room for q in subtask.outputs.values()),
            self._has_more(worker),
            subtask.finished,
            "Barrier(" not in repr(fingerprint(subtask.outputs)) and "Barrier(" not in _queues(subtask),
            heads,
            {e.input: subtask.queued(e.input) for e in system.edges if e.receiver == worker.index},
        )

    def _has_more(self, worker: Worker) -> bool:
        """A source that has more to read; an operator whose inputs have ended and that has not."""
        if self.system.vertices[worker.index].script:
            return worker.offset < len(self.system.own(worker.index))
        return worker.closing and not worker.subtask.finished

    def _act(self, worker: Worker, stimulus: Stimulus, facts: list[Fact]) -> None:
        subtask = worker.subtask
        match stimulus:
            case ("read",):
                self._read(worker, facts)
            case ("poll",):
                self._perform(worker, subtask.poll(), facts)
            case ("receive", input_id, message):
                self._perform(worker, subtask.receive(input_id, self.messages.items[message]), facts)
            case ("take", output_id):
                message, effects = subtask.taken(output_id)
                if _is_barrier(message, worker.fires):
                    worker.unsent -= {output_id}
                facts.append(("sent", self.messages.number(message)))
                self._perform(worker, effects, facts)
            case ("started", checkpoint_id):
                effects = subtask.started(checkpoint_id, epoch=checkpoint_id, aligned=self.system.savepoint)
                self._perform(worker, effects, facts)
            case ("inject", checkpoint_id):
                self._perform(worker, subtask.inject(CheckpointBarrier(checkpoint_id, checkpoint_id)), facts)
            case ("deadline", checkpoint_id):
                self._perform(worker, subtask.deadline(checkpoint_id), facts)
            case ("abort", checkpoint_id):
                self._perform(worker, subtask.abort(checkpoint_id), facts)
            case _:
                raise AssertionError(stimulus)

    def _read(self, worker: Worker, facts: list[Fact]) -> None:
        message = self.system.own(worker.index)[worker.offset]
        worker.offset += 1
        if isinstance(message, End):
            self._perform(worker, worker.subtask.finish(), facts)
        else:
            self._send(worker, message)

    def _send(self, worker: Worker, message: StreamMessage[Any]) -> None:
        for edge in self.system.edges:
            if edge.sender == worker.index and not (isinstance(message, Event) and not edge.keep(message.payload)):
                worker.subtask.emit(edge.output, message)

    def _perform(self, worker: Worker, effects: Iterable[SubtaskEffect], facts: list[Fact]) -> None:
        for effect in effects:
            match effect:
                case ProcessEvent(_, payload):
                    if payload[1] < worker.watermark:
                        facts.append(("bad", f"watermark: {payload} came after {worker.watermark}"))
                    worker.seen = tuple(sorted((*worker.seen, payload)))
                    self._send(worker, Event(payload, 1))
                case AdvanceWatermark(timestamp):
                    worker.watermark = timestamp
                    self._send(worker, Watermark(timestamp))
                case Fire(barrier):
                    self._fire(worker, barrier, facts)
                case SnapshotComplete():
                    facts.append(("ack", effect.checkpoint_id, self._ack(worker, effect, facts)))
                case CheckpointFailed(checkpoint_id):
                    facts.append(("failed", checkpoint_id))
                case Ended():
                    worker.closing = bool(self.system.own(worker.index))
                    if not worker.closing:
                        self._perform(worker, worker.subtask.finish(), facts)
                case _:
                    raise AssertionError(effect)

    def _fire(self, worker: Worker, barrier: CheckpointBarrier, facts: list[Fact]) -> None:
        if barrier.checkpoint_id <= worker.fires:
            facts.append(("bad", f"I6: id {barrier.checkpoint_id} fired after {worker.fires}"))
        worker.fires = barrier.checkpoint_id
        answer = worker.subtask.fired(barrier)
        worker.unsent = frozenset(worker.subtask.outputs)
        worker.frozen = (barrier.checkpoint_id, worker.offset, worker.seen)
        self._perform(worker, answer, facts)

    def _check_barriers(self, worker: Worker, facts: list[Fact]) -> None:
        """I3: until the barrier of the last cut leaves an output it is there, and no later event is before it.

        A newer one may have replaced it: at its deadline an ended subtask promotes what it has not fired.
        """
        for output_id in sorted(worker.unsent):
            queue = list(worker.subtask.outputs[output_id]._queue)
            index = next((p for p, message in enumerate(queue) if _is_barrier(message, worker.fires)), None)
            if index is None:
                facts.append(("bad", f"I3: barrier {worker.fires} is not on output {output_id}"))
            elif any(self._is_later(worker, message) for message in queue[:index]):
                facts.append(("bad", f"I3: a later event is before barrier {worker.fires} on output {output_id}"))

    def _is_later(self, worker: Worker, message: StreamMessage[Any]) -> bool:
        """True for an event that the operator emitted after its last cut."""
        _, offset, seen = worker.frozen
        script = self.system.vertices[worker.index].script
        if not isinstance(message, Event):
            return False
        return message not in script[:offset] if script else message.payload not in seen

    def _ack(self, worker: Worker, whole: SnapshotComplete[Any], facts: list[Fact]) -> int:
        checkpoint_id, offset, seen = worker.frozen
        if whole.finished:
            offset, seen = worker.offset, worker.seen
        elif checkpoint_id != whole.checkpoint_id:
            facts.append(("bad", f"I4: {whole.checkpoint_id} is whole, {checkpoint_id} was frozen"))
        inputs, outputs = tuple(sorted(whole.inputs.items())), tuple(sorted(whole.outputs.items()))
        ack = Ack(worker.index, whole.checkpoint_id, offset, seen, inputs, outputs, whole.finished)
        return self.acks.number(ack)


class Table(Generic[V]):
    """Values by number."""

    def __init__(self) -> None:
        self.items: list[V] = []
        self._numbers: dict[V, int] = {}

    def number(self, item: V) -> int:
        if item not in self._numbers:
            self._numbers[item] = len(self.items)
            self.items.append(item)
        return self._numbers[item]


def _queues(subtask: Subtask[Any]) -> str:
    fan_in = subtask._fan_in
    return "" if fan_in is None else repr([channel.queue for channel in fan_in._channels.values()])


def _is_barrier(message: StreamMessage[Any], checkpoint_id: int) -> bool:
    return isinstance(message, Barrier) and message.barrier.checkpoint_id >= checkpoint_id


def _is_flagged(message: StreamMessage[Any] | None) -> bool:
    return isinstance(message, Barrier) and message.barrier.is_unaligned


def _data_count(queue: Any) -> int:
    return len(queue) - _is_flagged(queue.head())


# -- the search ----------------------------------------------------------------------------------------------


class State(NamedTuple):
    """A whole system at one moment."""

    workers: tuple[int, ...]
    wires: tuple[tuple[int, ...], ...]
    controls: tuple[tuple[Stimulus, ...], ...]  # what the coordinator sent and the worker has not yet heard
    timers: tuple[int, ...]  # per worker: the id whose deadline is still to come, else 0
    next_id: int
    current: int
    acks: tuple[int, ...]
    aborts: int
    crashes: int


@dataclass
class Report:
    """What a search has seen."""

    name: str
    states: int = 0
    steps: int = 0
    commits: int = 0
    restores: int = 0
    unaligned: int = 0
    finished: int = 0
    depth: int = 0
    complete: bool = True

    def __str__(self) -> str:
        how = f"all, depth {self.depth}" if self.complete else f"all to depth {self.depth}"
        return (
            f"{self.name:<35} {self.states:>8} states {self.steps:>9} steps  {how:<16} "
            f"{self.commits:>6} commits {self.restores:>6} restored {self.finished:>5} ends"
        )


class Explorer:
    """Breadth-first search over the states of a system. ``run`` raises ``Violation`` at the first broken promise.

    Every state within ``depth_max`` steps of the beginning is reached. From every tenth at the bound one way is
    followed to the end, for a run that can't end any more: its ends are further away than the bound.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.workers = Workers(system)
        self._from: dict[State, tuple[State, Step] | None] = {}
        self._expected = self._reach()
        self._unstalled: set[State] = set()
        self._restored: dict[int, int] = {}
        self._no_acks = tuple(-1 for _ in system.vertices)
        self._checked: set[tuple[int, ...]] = set()
        self._edges = {(edge.sender, edge.output): e for e, edge in enumerate(system.edges)}
        only_aligned = any(v.aligned_only_inputs or v.aligned_only_outputs for v in system.vertices)
        is_fallback_on = system.config.enabled and not system.savepoint and not only_aligned
        self._is_promised = system.deadlines is None and is_fallback_on
        self.report = Report(system.name)

    def run(self) -> Report:
        """Search. The states are all kept, so looking for garbage among them would be in vain."""
        gc.disable()
        try:
            return self._search()
        finally:
            gc.enable()

    def _search(self) -> Report:
        workers = [Worker(self.system, v) for v in range(len(self.system.vertices))]
        first = self.start(tuple(self.workers.number(worker) for worker in workers), 1, 0, 0)
        self._from[first], self._here = None, first
        level, depth = [first], 0
        while level and depth != self.system.depth_max:
            level = [new for state in level for new in self._unseen(state)]
            depth += bool(level)
        self.report.depth, self.report.complete, self.report.states = depth, not level, len(self._from)
        for state in level[::10]:
            self._run_on(state)
        return self.report

    def _unseen(self, state: State) -> Iterator[State]:
        self._here = state
        for step, new in self._successors(state):
            self.report.steps += 1
            if new not in self._from:
                self._from[new] = (state, step)
                yield new

    def _run_on(self, state: State | None) -> None:
        """One way from here to the end, or to where another way has been."""
        while state is not None:
            state = next(self._unseen(state), None)

    def start(self, workers: tuple[int, ...], next_id: int, aborts: int, crashes: int) -> State:
        nobody: tuple[tuple[Any, ...], ...] = tuple(() for _ in workers)
        wires = tuple(() for _ in self.system.edges)
        timers = tuple(0 for _ in workers)
        return State(workers, wires, nobody, timers, next_id, 0, self._no_acks, aborts, crashes)

    # -- what may happen next --------------------------------------------------------------------------------

    def _successors(self, state: State) -> Iterator[tuple[Step, State]]:
        moved = False
        for step in self._progress(state):
            moved = True
            yield from self._apply(state, step)
            if self._is_calm(state):
                return
        if not moved:
            self._check_end(state)
        if state.current:
            if self._is_promised:
                self._check_stalled(state)
            if state.aborts < self.system.aborts:
                yield (-1, ("abort", state.current)), self._abort(state)
        elif state.next_id <= self.system.checkpoints:
            yield (-1, ("trigger", state.next_id)), self._trigger(state)

    def _is_calm(self, state: State) -> bool:
        """No barrier is anywhere or will ever be: what is left is plain dataflow, and one order of it will do."""
        return (
            not state.current
            and state.next_id > self.system.checkpoints
            and not any(state.controls)
            and not any(state.timers)
            and all(self.workers.infos[number].is_calm for number in state.workers)
            and not any(self.workers.messages.items[m].is_barrier for wire in state.wires for m in wire)
        )

    def _progress(self, state: State, *, stalled: bool = False) -> Iterator[Step]:
        """Everything that may happen by itself. ``stalled``: no operator gets a turn and no source reads."""
        infos = [self.workers.infos[number] for number in state.workers]
        sends = [
            (v, ("take", output))
            for v, info in enumerate(infos)
            for output, is_flagged in info.heads
            if is_flagged or self._has_credit(state, infos, v, output)
        ]
        if sends and self.system.eager:
            yield sends[0]
            return
        yield from sends
        for v, info in enumerate(infos):
            if state.controls[v]:
                yield v, state.controls[v][0]
            if state.timers[v]:
                yield v, ("deadline", state.timers[v])
            if info.has_turn and info.has_room and not stalled:
                yield v, ("poll",)
            if info.script_left and info.has_room and not stalled:
                yield v, ("read",)
        for e, wire in enumerate(state.wires):
            if wire:
                yield self.system.edges[e].receiver, ("wire", e)

    def _has_credit(self, state: State, infos: list[Info], v: int, output: int) -> bool:
        e = self._edges[v, output]
        edge = self.system.edges[e]
        return len(state.wires[e]) + infos[edge.receiver].queued[edge.input] < self.system.credit

    def _apply(self, state: State, step: Step) -> Iterator[tuple[Step, State]]:
        worker, stimulus = step
        kind = stimulus[0]
        if kind == "wire":
            e = stimulus[1]
            stimulus = ("receive", self.system.edges[e].input, state.wires[e][0])
            state = state._replace(wires=_set(state.wires, e, state.wires[e][1:]))
        elif kind == "deadline":
            state = state._replace(timers=_set(state.timers, worker, 0))
        elif kind in ("started", "inject", "abort"):
            state = self._hear(state, worker, stimulus)
        state, facts = self._stimulate(state, worker, stimulus)
        yield from self._take_in(state, step, facts)

    def _stimulate(self, state: State, worker: int, stimulus: Stimulus) -> tuple[State, tuple[Fact, ...]]:
        number, facts = self.workers.step(state.workers[worker], stimulus)
        return state._replace(workers=_set(state.workers, worker, number)), facts

    def _hear(self, state: State, worker: int, stimulus: Stimulus) -> State:
        timers = state.timers
        if stimulus[0] == "started" and self._has_deadline(worker):
            timers = _set(timers, worker, stimulus[1])
        if stimulus[0] == "abort" and timers[worker] <= stimulus[1] and not self.system.late_news:
            timers = _set(timers, worker, 0)
        controls = _set(state.controls, worker, state.controls[worker][1:])
        return state._replace(controls=controls, timers=timers)

    def _has_deadline(self, worker: int) -> bool:
        return self.system.deadlines is None or worker in self.system.deadlines

    def _take_in(self, state: State, step: Step, facts: tuple[Fact, ...]) -> Iterator[tuple[Step, State]]:
        worker = step[0]
        for fact in facts:
            if fact[0] == "sent":
                state, more = self._send(state, worker, step[1][1], fact[1])
                state = self._note(state, step, self.system.edges[self._edges[worker, step[1][1]]].receiver, more)
            else:
                state = self._note(state, step, worker, (fact,))
        if state.current and -1 not in state.acks:
            yield from self._commit(state, step)
            state = state._replace(current=0, acks=self._no_acks)
        yield step, state

    def _send(self, state: State, worker: int, output: int, message: int) -> tuple[State, tuple[Fact, ...]]:
        e = self._edges[worker, output]
        if self.system.wire:
            return state._replace(wires=_set(state.wires, e, (*state.wires[e], message))), ()
        edge = self.system.edges[e]
        return self._stimulate(state, edge.receiver, ("receive", edge.input, message))

    def _note(self, state: State, step: Step, worker: int, facts: tuple[Fact, ...]) -> State:
        for fact in facts:
            match fact:
                case ("bad", text):
                    raise Violation(f"{text}\n{self._story(step)}")
                case ("failed", checkpoint_id):
                    if checkpoint_id == state.current:
                        state = self._abort(state)._replace(aborts=state.aborts)
                case ("ack", checkpoint_id, ack):
                    if checkpoint_id == state.current:
                        state = state._replace(acks=_set(state.acks, worker, ack))
                case _:
                    raise AssertionError(fact)
        return state

    # -- the coordinator -------------------------------------------------------------------------------------

    def _trigger(self, state: State) -> State:
        n, sources = state.next_id, self.system.sources()
        state = state._replace(next_id=n + 1, current=n)
        commands: list[tuple[Stimulus, ...]] = []
        for v in range(len(state.workers)):
            commands.append((("started", n), ("inject", n)) if v in sources else (("started", n),))
        state = state._replace(controls=_add(state.controls, commands))
        if self.system.late_news:
            return state
        for v in range(len(state.workers)):
            if len(state.controls[v]) == len(commands[v]):
                step = (v, ("started", n))
                state = [new for _, new in self._apply(state, step)][-1]
        return state

    def _abort(self, state: State) -> State:
        commands: list[tuple[Stimulus, ...]] = [(("abort", state.current),) for _ in state.workers]
        controls, aborts = _add(state.controls, commands), state.aborts + 1
        return state._replace(controls=controls, current=0, acks=self._no_acks, aborts=aborts)

    def _commit(self, state: State, step: Step) -> Iterator[tuple[Step, State]]:
        self.report.commits += 1
        acks = tuple(self.workers.acks.items[ack] for ack in state.acks)
        if state.acks not in self._checked:
            self._checked.add(state.acks)
            self._check_cut(state, acks, step)
        if state.crashes < self.system.crashes:
            self.report.restores += 1
            for number, ack in zip(state.acks, acks, strict=True):
                if number not in self._restored:
                    self._restored[number] = self.workers.number(self._restore(ack))
            # Aborts are spent: what a second attempt meets is what the first met.
            workers = tuple(self._restored[number] for number in state.acks)
            restored = self.start(workers, state.next_id, self.system.aborts, state.crashes + 1)
            yield (-1, ("crash and restore", state.current)), restored

    def _restore(self, ack: Ack) -> Worker:
        worker = Worker(self.system, ack.worker)
        worker.offset, worker.seen = ack.offset, ack.seen
        for input_id, messages in ack.inputs:
            for message in messages:
                worker.subtask.receive(input_id, message)
        for output_id, messages in ack.outputs:
            for message in messages:
                worker.subtask.emit(output_id, message)
        script = self.system.vertices[ack.worker].script
        if ack.finished or (script and ack.offset == len(script)):
            worker.subtask.finish()
        return worker

    # -- promises --------------------------------------------------------------------------------------------

    def _check_cut(self, state: State, acks: tuple[Ack, ...], step: Step) -> None:
        """I1, I2: each payload that a worker is to see is seen, recorded on its way, or not yet read; once."""
        for v, expected in enumerate(self._expected):
            found = Counter(acks[v].seen) + self._on_the_way(acks, v)
            if found != expected:
                lost, twice = dict(expected - found), dict(found - expected)
                raise Violation(
                    f"I1: at {self._name(v)} checkpoint {state.current} lost {lost} and has {twice} twice\n"
                    + "\n".join(map(str, acks))
                    + f"\n{self._story(step)}"
                )

    def _on_the_way(self, acks: tuple[Ack, ...], v: int) -> Counter[Any]:
        """What will still come to a worker, after a restore: unread or recorded."""
        found: Counter[Any] = Counter()
        paths = self._paths_to(v)
        for way in {path[index:] for path in paths for index in range(len(path))}:
            edge = way[0]
            found += _kept(self.system.own(edge.sender)[acks[edge.sender].offset :], way)
            found += _kept(dict(acks[edge.sender].outputs).get(edge.output, ()), way)
            found += _kept(dict(acks[edge.receiver].inputs).get(edge.input, ()), way[1:])
        return found

    def _paths_to(self, v: int) -> list[tuple[Edge, ...]]:
        """All ways from a source to a worker."""
        edges = [edge for edge in self.system.edges if edge.receiver == v]
        return [(*head, edge) for edge in edges for head in (self._paths_to(edge.sender) or [()])]

    def _reach(self) -> list[Counter[Any]]:
        expected: list[Counter[Any]] = []
        for v in range(len(self.system.vertices)):
            total: Counter[Any] = Counter()
            paths = self._paths_to(v)
            for way in {path[index:] for path in paths for index in range(len(path))}:
                total += _kept(self.system.own(way[0].sender), way)
            expected.append(total)
        return expected

    def _check_end(self, state: State) -> None:
        """Nothing can happen any more: then all is done, exactly, and no checkpoint hangs."""
        self.report.finished += 1
        if state.current:
            raise Violation(f"deadlock: checkpoint {state.current} hangs\n{self._story()}")
        for v, number in enumerate(state.workers):
            if not self.workers.infos[number].finished:
                raise Violation(f"deadlock: {self._name(v)} never ends\n{self._story()}")
            if Counter(self.workers.seen(number)) != self._expected[v]:
                seen = self.workers.seen(number)
                raise Violation(f"exact result: {self._name(v)} saw {seen}\n{self._story()}")

    def _check_stalled(self, state: State) -> None:
        """Once every deadline has passed, a checkpoint completes although no operator gets a turn."""
        while state.current and state not in self._unstalled:
            self._unstalled.add(state)  # every stalled step uses something up, so this ends
            move = next(self._progress(state, stalled=True), None)
            if move is None:
                raise Violation(f"stalled: checkpoint {state.current} waits for a turn\n{self._story()}")
            state = [new for _, new in self._apply(state, move)][-1]

    # -- for people ------------------------------------------------------------------------------------------

    def _name(self, v: int) -> str:
        return self.system.vertices[v].name

    def _story(self, last: Step | None = None) -> str:
        """The way here, one step per line."""
        steps = [] if last is None else [last]
        way = self._from[self._here]
        while way is not None:
            steps.append(way[1])
            way = self._from[way[0]]
        return f"{self.system.name}:\n  " + "\n  ".join(self._tell(step) for step in reversed(steps))

    def _tell(self, step: Step) -> str:
        worker, stimulus = step
        return f"{'coordinator' if worker < 0 else self._name(worker)}: {' '.join(map(str, stimulus))}"


def _kept(messages: Iterable[StreamMessage[Any]], path: tuple[Edge, ...]) -> Counter[Any]:
    payloads = (message.payload for message in messages if isinstance(message, Event))
    return Counter(p for p in payloads if all(edge.keep(p) for edge in path))


def _set(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _add(controls: tuple[tuple[Stimulus, ...], ...], commands: list[tuple[Stimulus, ...]]) -> Any:
    return tuple((*old, *new) for old, new in zip(controls, commands, strict=True))


# -- copies and fingerprints of real objects -----------------------------------------------------------------

_ATOMS = (int, str, bytes, float, bool, type(None), Enum)
_UNSEEN = {"unaligned_count", "threshold_switches", "total_inflight_bytes"} | {"_inputs"}  # counters decide nothing; an alias


@cache
def _is_value(kind: type) -> bool:
    return issubclass(kind, _ATOMS) or (is_dataclass(kind) and kind.__dataclass_params__.frozen)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))


def _attributes(thing: Any) -> list[str]:
    return [name for name in (*_slots(type(thing)), *getattr(thing, "__dict__", ())) if hasattr(thing, name)]


def clone(thing: Any, memo: dict[int, Any]) -> Any:
    """A deep copy that shares all immutable values."""
    if _is_value(type(thing)) or isinstance(thing, (tuple, frozenset)):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    copy: Any
    if isinstance(thing, dict):
        copy = {key: clone(value, memo) for key, value in thing.items()}
    elif isinstance(thing, (list, deque, set)):
        copy = type(thing)(clone(value, memo) for value in thing)
    else:
        copy = object.__new__(type(thing))
        memo[id(thing)] = copy
        for name in _attributes(thing):
            setattr(copy, name, clone(getattr(thing, name), memo))
    memo[id(thing)] = copy
    return copy


def fingerprint(thing: Any) -> Hashable:
    """Equal for objects that behave alike."""
    if _is_value(type(thing)):
        return thing
    if isinstance(thing, dict):
        return tuple((key, fingerprint(value)) for key, value in sorted(thing.items()))
    if isinstance(thing, (list, deque, tuple)):
        return tuple(fingerprint(value) for value in thing)
    if isinstance(thing, (set, frozenset)):
        return frozenset(thing)
    names = [name for name in _attributes(thing) if name not in _UNSEEN]
    return (type(thing).__name__, *(fingerprint(getattr(thing, name)) for name in names))
