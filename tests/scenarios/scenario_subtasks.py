"""The world of subtasks: fan-ins, output queues and the channels between them. The operators only remember.

Messages are written ``a`` (an event; ``a*5`` has five bytes), ``W7`` (a watermark), ``B1`` (a barrier), ``B1!``
(a flagged one), ``B1=`` (a pinned one, of a savepoint), ``C1`` (a control barrier), ``End``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from play import step, words_of

from tidegate.core.barrier.align import Aligning, Idle, Recording, UnalignedCheckpointConfig, as_pinned
from tidegate.core.barrier.effects import (
    AdvanceWatermark,
    CheckpointFailed,
    Ended,
    Fire,
    Forward,
    ProcessEvent,
    SnapshotComplete,
    SubtaskEffect,
)
from tidegate.core.barrier.messages import (
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.barrier.subtask import Subtask
from tidegate.core.control.signals import BarrierControlSignalKind

Message = StreamMessage[str]


def parse_message(text: str) -> Message:
    """The message that is written like this."""
    if text == "End":
        return End()
    if found := re.fullmatch(r"B(\d+)([!=]?)", text):
        barrier = CheckpointBarrier(int(found[1]), int(found[1]))
        flagged = {"!": barrier.as_unaligned(), "=": as_pinned(barrier), "": barrier}[found[2]]
        return Barrier(flagged)
    if found := re.fullmatch(r"W(\d+)", text):
        return Watermark(int(found[1]))
    if found := re.fullmatch(r"C(\d+)", text):
        return Control(BarrierControlSignalKind.SyncTest.with_id(int(found[1])))
    name, _, size = text.partition("*")
    return Event(name, int(size or 1))


def show_message(message: Message) -> str:
    """How this message is written."""
    match message:
        case Event(payload, _):
            return payload
        case Watermark(timestamp):
            return f"W{timestamp}"
        case Barrier(barrier):
            return f"B{barrier.checkpoint_id}" + {0: "", 1: "!", 2: "="}[barrier.flags]
        case Control(signal):
            return f"C{signal.key[0]}"
        case _:
            return "End"


def show(messages: Iterable[Message]) -> str:
    return "[" + " ".join(show_message(message) for message in messages) + "]"


def numbers(text: str) -> list[int]:
    """``0 1`` and ``0-3``."""
    found: list[int] = []
    for part in text.split():
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def ranges(values: Iterable[int]) -> str:
    """The other way round."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def config_of(text: str) -> UnalignedCheckpointConfig:
    if found := re.fullmatch(r"limit (\d+)", text):
        return UnalignedCheckpointConfig(max_inflight_buffer_bytes=int(found[1]))
    return UnalignedCheckpointConfig(enabled=text != "never unaligned", force_unaligned=text == "forced unaligned")


@dataclass
class Cut:
    """What a subtask has acknowledged for one checkpoint."""

    state: tuple[str, ...]
    offset: int
    complete: SnapshotComplete[str]


@dataclass
class Task:
    """A real subtask, an operator that remembers all it has seen, and, for a source, what it has read."""

    name: str
    inputs: list[int]
    outputs: list[int]
    config: UnalignedCheckpointConfig
    subtask: Subtask[str] = field(init=False)
    state: list[str] = field(default_factory=list)
    script: list[tuple[str, list[int]]] = field(default_factory=list)
    offset: int = 0
    frozen: tuple[tuple[str, ...], int] = ((), 0)
    acked: dict[int, Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subtask = Subtask(self.inputs, self.outputs, self.config)

    def __str__(self) -> str:
        parts = [self._stance()]
        fan_in = self.subtask._fan_in
        if fan_in is not None:
            queues = [(i, show(channel.queue)) for i, channel in fan_in._channels.items() if channel.queue]
            alike = [(q, ranges(i for i, _ in same)) for q, same in groupby(queues, key=lambda pair: pair[1])]
            parts.append("queued " + (" ".join(f"{inputs}{q}" for q, inputs in alike) or "nothing"))
        if self.outputs:
            parts.append("out " + " ".join(f"{o}{show(q._queue)}" for o, q in self.subtask.outputs.items()))
        parts.append("seen [" + " ".join(self.state) + "]" if self.inputs else f"offset {self.offset}")
        return f"{self.name}: " + " | ".join(parts)

    def _stance(self) -> str:
        if self.subtask.finished:
            return "finished"
        match None if self.subtask._fan_in is None else self.subtask._fan_in.state:
            case Aligning(barrier, arrived):
                return f"aligning {barrier.checkpoint_id}, {ranges(arrived)} arrived"
            case Recording(barrier, missing):
                return f"recording {barrier.checkpoint_id}, {ranges(missing)} missing"
            case Idle():
                return "idle"
            case _:
                return "reading"


class Subtasks:
    """Tasks by name and the channels that join them. A channel that nobody joined is played by the file."""

    def __init__(self) -> None:
        self.words = words_of(Subtasks)
        self.tasks: dict[str, Task] = {}
        self.edges: dict[tuple[str, int], tuple[str, int]] = {}
        self.trace: list[str] = []
        self.touched: list[str] = []

    def take_trace(self) -> list[str]:
        lines = self.trace + [str(self.tasks[name]) for name in dict.fromkeys(self.touched)]
        self.trace, self.touched = [], []
        return lines

    # -- building

    @step(r"source (\w+) outputs ([\d ]+)")
    def add_source(self, name: str, outputs: str) -> None:
        self._add(Task(name, [], numbers(outputs), UnalignedCheckpointConfig()))

    @step(r"subtask (\w+) inputs ([\d -]+?)(?: outputs ([\d ]+?))?(?:, (.+))?")
    def add_subtask(self, name: str, inputs: str, outputs: str | None, config: str | None) -> None:
        self._add(Task(name, numbers(inputs), numbers(outputs or ""), config_of(config or "")))

    def _add(self, task: Task) -> None:
        self.tasks[task.name] = task
        self.touched.append(task.name)

    @step(r"output (\d+) of (\w+) is input (\d+) of (\w+)")
    def join(self, output: str, sender: str, input_id: str, receiver: str) -> None:
        self.edges[sender, int(output)] = (receiver, int(input_id))

    # -- data

    @step(r"(\w+) reads ([\w* ]+?)(?: for output (\d+))?")
    def read_source(self, name: str, payloads: str, output: str | None) -> None:
        """A source reads events and queues them on its outputs."""
        task = self._touch(name)
        for payload in payloads.split():
            task.script.append((payload, task.outputs if output is None else [int(output)]))
            self._read_next(task)

    def _read_next(self, task: Task) -> None:
        payload, outputs = task.script[task.offset]
        task.offset += 1
        for output in outputs:
            task.subtask.emit(output, parse_message(payload))

    @step(r"(\w+) receives (.+) on ([\d -]+)")
    def receive(self, name: str, messages: str, inputs: str) -> None:
        task = self._touch(name)
        for input_id in numbers(inputs):
            for message in messages.split():
                self._perform(task, task.subtask.receive(input_id, parse_message(message)))

    @step(r"(\w+) polls(?: (\d+) times)?")
    def poll(self, name: str, times: str | None) -> None:
        task = self._touch(name)
        for _ in range(int(times or 1)):
            self._perform(task, task.subtask.poll())

    @step(r"(\w+) runs dry")
    def run_dry(self, name: str) -> None:
        """Give turns until nothing can run."""
        task = self._touch(name)
        while task.subtask.has_turn:
            self._perform(task, task.subtask.poll())

    @step(r"(\w+) sends(?: (\d+))? on (\d+)")
    def send(self, name: str, count: str | None, output: str) -> None:
        """The transport takes the head of an output; the channel's other end, if it is joined, receives it."""
        for _ in range(int(count or 1)):
            self._send(self._touch(name), int(output))

    def _send(self, task: Task, output: int) -> None:
        message, effects = task.subtask.taken(output)
        self._say(task, f"sends {show_message(message)} on {output}")
        self._perform(task, effects)
        if (task.name, output) in self.edges:
            receiver, input_id = self.edges[task.name, output]
            self._perform(self._touch(receiver), self.tasks[receiver].subtask.receive(input_id, message))

    @step(r"(\w+) ends")
    def end(self, name: str) -> None:
        task = self._touch(name)
        self._perform(task, task.subtask.finish())

    # -- checkpoints

    @step(r"(\w+) hears that (savepoint )?(\d+) has started")
    def started(self, name: str, savepoint: str | None, number: str) -> None:
        task, checkpoint_id = self._touch(name), int(number)
        aligned = savepoint is not None
        self._perform(task, task.subtask.started(checkpoint_id, epoch=checkpoint_id, aligned=aligned))

    @step(r"(\w+) is told to inject (B\d+!?)")
    def inject(self, name: str, text: str) -> None:
        message = parse_message(text)
        assert isinstance(message, Barrier)
        self._perform(self._touch(name), self.tasks[name].subtask.inject(message.barrier))

    @step(r"deadline (\d+) at ([\w ]+)")
    def deadline(self, number: str, names: str) -> None:
        for name in names.split():
            self._perform(self._touch(name), self.tasks[name].subtask.deadline(int(number)))

    @step(r"abort (\d+) at ([\w ]+)")
    def abort(self, number: str, names: str) -> None:
        for name in names.split():
            self._perform(self._touch(name), self.tasks[name].subtask.abort(int(number), "the coordinator says so"))

    @step(r"is (\d+) complete\?")
    def is_complete(self, number: str) -> None:
        """The cut, as far as it was acknowledged."""
        missing = [name for name, task in self.tasks.items() if int(number) not in task.acked]
        for task in self.tasks.values():
            if int(number) in task.acked:
                self._say(task, "is part of it with " + _cut(task, task.acked[int(number)]))
        self.trace.append(f"not yet: {' '.join(missing)}" if missing else "yes")

    # -- failure

    @step(r"all crash and start from (\d+)")
    def restore(self, number: str) -> None:
        """Per channel: what the receiver had recorded, then what the sender had, then new data."""
        cuts = {name: task.acked[int(number)] for name, task in self.tasks.items()}
        for name, cut in cuts.items():
            old = self.tasks[name]
            new = Task(name, old.inputs, old.outputs, old.config, state=list(cut.state), script=old.script)
            new.offset, new.acked = cut.offset, old.acked
            self.tasks[name] = new
            self.touched.append(name)
        for name, cut in cuts.items():
            for input_id, messages in sorted(cut.complete.inputs.items()):
                self._replay(name, input_id, messages)
        for (sender, output), (receiver, input_id) in self.edges.items():
            self._replay(receiver, input_id, cuts[sender].complete.outputs.get(output, ()))
        for name, cut in cuts.items():
            if cut.complete.finished:
                self.tasks[name].subtask.finish()

    def _replay(self, name: str, input_id: int, messages: Iterable[Message]) -> None:
        for message in messages:
            self._say(self.tasks[name], f"gets {show_message(message)} on {input_id} again")
            self._perform(self.tasks[name], self.tasks[name].subtask.receive(input_id, message))

    @step(r"everything runs to the end")
    def run_out(self) -> None:
        """Sources read on and end, every channel is emptied. Says what each subtask has seen."""
        for task in self.tasks.values():
            while task.offset < len(task.script):
                self._read_next(task)
            if not task.inputs:
                task.subtask.finish()
        while self._move():
            pass
        self.trace = []
        for task in self.tasks.values():
            if task.inputs:
                twice = sorted({payload for payload in task.state if task.state.count(payload) > 1})
                lost = sorted(self._due(task.name) - set(task.state))
                verdict = f"lost {lost}, twice {twice}" if lost or twice else "each once"
                self._say(task, f"has seen {' '.join(sorted(task.state))}: {verdict}")
        self.touched = []

    def _move(self) -> bool:
        for task in self.tasks.values():
            for output, queue in task.subtask.outputs.items():
                if len(queue):
                    self._send(task, output)
                    return True
            if task.subtask.has_turn:
                self._perform(task, task.subtask.poll())
                return True
        return False

    def _due(self, name: str) -> set[str]:
        """Every event that some source has read and that leads here."""
        due: set[str] = set()
        for (sender, output), (receiver, _) in self.edges.items():
            if receiver == name:
                due |= {p for p, outputs in self.tasks[sender].script if output in outputs}
                due |= self._due(sender)
        return due

    # -- effects

    def _touch(self, name: str) -> Task:
        self.touched.append(name)
        return self.tasks[name]

    def _say(self, task: Task, what: str) -> None:
        self.trace.append(f"{task.name} {what}")

    def _perform(self, task: Task, effects: Iterable[SubtaskEffect]) -> None:
        for effect in effects:
            self._obey(task, effect)

    def _obey(self, task: Task, effect: SubtaskEffect) -> None:
        match effect:
            case ProcessEvent(input_id, payload, size):
                self._say(task, f"processes {payload} from {input_id}")
                task.state.append(payload)
                self._pass_on(task, Event(payload, size))
            case AdvanceWatermark(timestamp):
                self._say(task, f"advances to {show_message(Watermark(timestamp))}")
                self._pass_on(task, Watermark(timestamp))
            case Forward(signal):
                self._say(task, f"passes C{signal.key[0]} on")
                self._pass_on(task, Control(signal))
            case Fire(barrier):
                self._fire(task, barrier)
            case SnapshotComplete():
                self._acknowledge(task, effect)
            case CheckpointFailed(checkpoint_id, error):
                self._say(task, f"gives {checkpoint_id} up: {type(error).__name__}: {error}")
            case Ended():
                self._say(task, "has seen the end of every input")
                self._perform(task, task.subtask.finish())
            case _:
                raise AssertionError(effect)

    def _pass_on(self, task: Task, message: Message) -> None:
        for output in task.outputs:
            task.subtask.emit(output, message)

    def _fire(self, task: Task, barrier: CheckpointBarrier) -> None:
        mode = "unaligned" if barrier.is_unaligned else "aligned"
        self._say(task, f"fires {barrier.checkpoint_id} {mode}")
        effects = task.subtask.fired(barrier)
        task.frozen = (tuple(task.state), task.offset)
        self._perform(task, effects)

    def _acknowledge(self, task: Task, complete: SnapshotComplete[Any]) -> None:
        state, offset = (tuple(task.state), task.offset) if complete.finished else task.frozen
        cut = Cut(state, offset, complete)
        task.acked[complete.checkpoint_id] = cut
        self._say(task, f"acknowledges {complete.checkpoint_id}: {_cut(task, cut)}")


def _cut(task: Task, cut: Cut) -> str:
    parts = ["final state" if cut.complete.finished else "unaligned" if cut.complete.unaligned else "aligned"]
    parts.append("seen [" + " ".join(cut.state) + "]" if task.inputs else f"offset {cut.offset}")
    parts += [f"recorded on input {i} {show(messages)}" for i, messages in sorted(cut.complete.inputs.items())]
    parts += [f"recorded on output {o} {show(messages)}" for o, messages in sorted(cut.complete.outputs.items())]
    return ", ".join(parts)
