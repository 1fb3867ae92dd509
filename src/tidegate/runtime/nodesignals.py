"""Control signals on a node: payloads are fetched, sources emit, and the node says when its terminal points have seen one.

Loop thread only, but for ``_read``, which runs on a thread of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from tidegate.core.control.collect import ResultCollectProcessor
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import ControlSignal, ParameterVersion, StoredPayload, unpack
from tidegate.errors import CorruptDataError, ProtocolError
from tidegate.plan.parameter import decode_value
from tidegate.plan.physical import PhysicalPlan
from tidegate.plan.signals import Told
from tidegate.runtime.snapshotfile import crc32c
from tidegate.runtime.task import StageTask
from tidegate.runtime.threads import Threads
from tidegate.store.interface import Store
from tidegate.wire._gen import control_pb2 as pb

Post = Callable[[Callable[[], None]], None]


class NodeSignals:
    """What signals are on their way through this node. Its sinks come together as the plan's ``PhysicalResultCollect`` says."""

    def __init__(
        self,
        plan: PhysicalPlan,
        tasks: Sequence[StageTask],
        store: Store | None,
        threads: Threads,
        post: Post,
        say: Callable[[pb.SignalProgress], None],
    ) -> None:
        self._tasks = tasks
        self._terminal = {task.name: index for index, task in enumerate(tasks) if task.name in plan.result.sinks}
        self._collect = ResultCollectProcessor(self._terminal.values())
        self._store = store
        self._threads = threads
        self._post = post
        self._say = say
        self._payloads: dict[int, bytes] = {}
        self._unseen: list[ControlSignal] = []
        self._decoded: tuple[int, Told | None] = (0, None)
        self._cuts: dict[int, int] = {}
        self._last = self._saved = 0
        self.draining = False
        for task in tasks:
            task.signals = self

    @property
    def unsettled(self) -> bool:
        """A signal is on its way here, or has set a parameter that no manifest is known to have: another leader can't go on."""
        return self._last > self._saved or any(not signal.is_terminal for signal in self._unseen)

    def injected(self, checkpoint_id: int) -> None:
        """A checkpoint is cut after what was emitted so far."""
        self._cuts[checkpoint_id] = self._last

    def committed(self, checkpoint_id: int) -> None:
        """It is in the log, with the parameters of its cut."""
        self._saved = max(self._saved, self._cuts.get(checkpoint_id, 0))
        self._cuts = {other: last for other, last in self._cuts.items() if other > checkpoint_id}

    # -- what the leader orders

    def commanded(self, command: pb.Signal) -> None:
        """The leader wants something done with a signal."""
        signal = unpack(command.frame)
        match command.step:
            case pb.SIGNAL_FETCH:
                self._fetch(signal)
            case pb.SIGNAL_EMIT:
                for task in self._tasks:
                    task.signal(signal)
                self._answer(signal, pb.SIGNAL_EMIT)
                self._unseen.append(signal)
                self._last = self._last if signal.parameter is None else signal.barrier_id
                self.draining = self.draining or signal.is_terminal
            case pb.SIGNAL_INSTANT:
                told = self.told(signal)
                for task in self._tasks:
                    task.hear(told)
                self._unseen.append(signal)
            case _:
                raise ProtocolError(f"an unknown step of a signal step={command.step}")

    def look(self) -> None:
        """Say what has passed since. Called at every turn of the loop, so it costs nothing while no signal is on its way."""
        if not self._unseen:
            return
        for index in self._terminal.values():
            if self._tasks[index].ended:
                self._collect.ended(index)
        if any(task.is_hearing for task in self._tasks):
            return
        passed = [s for s in self._unseen if not s.is_barrier or self._collect.has_passed(s.barrier_id)]
        for signal in passed:
            self._unseen.remove(signal)
            self._payloads.pop(signal.barrier_id, None)
            self._answer(signal, pb.SIGNAL_SEEN)

    def _answer(self, signal: ControlSignal, step: pb.SignalStep, error: str = "") -> None:
        self._say(pb.SignalProgress(id=signal.barrier_id, step=step, error=error))

    # -- what tasks ask

    def told(self, signal: ControlSignal) -> Told | None:
        """The signal as operators hear it; ``None``: it is not for them."""
        if self._decoded[0] != signal.barrier_id:  # all tasks of this node share the value
            self._decoded = (signal.barrier_id, self._decode(signal))
        return self._decoded[1]

    def _decode(self, signal: ControlSignal) -> Told | None:
        parameter = signal.parameter
        if parameter is not None:
            return Told(signal.kind.name, parameter=parameter, value=decode_value(self._payload(signal)))
        return Told(signal.kind.name, self._payload(signal)) if signal.kind.is_users else None

    def passed(self, task: StageTask, signal: ControlSignal) -> None:
        """It is after the task's rows so far and on all of its outputs."""
        if task.name in self._terminal:
            self._collect.seen(self._terminal[task.name], signal)

    def _payload(self, signal: ControlSignal) -> bytes:
        if signal.stored is None:
            return signal.payload
        if signal.barrier_id not in self._payloads:
            raise ProtocolError(f"a signal was emitted before its payload was here id={signal.barrier_id}")
        return self._payloads[signal.barrier_id]

    # -- payloads

    def _fetch(self, signal: ControlSignal) -> None:
        assert signal.stored is not None, "only a stored payload is fetched"
        reading = self._threads.executor("signals").submit(self._read, signal.stored)
        reading.add_done_callback(lambda done: self._post(partial(self._fetched, signal, done)))

    def _read(self, stored: StoredPayload) -> bytes:
        if self._store is None:
            raise CorruptDataError(f"this node has no store path={stored.path}", path=stored.path)
        data = self._store.get(stored.path)
        if len(data) != stored.size_bytes or hashlib.sha256(data).hexdigest() != stored.sha256:
            raise CorruptDataError(f"the payload is not what was stored path={stored.path} bytes={len(data)}", path=stored.path)
        return data

    def _fetched(self, signal: ControlSignal, done: Future[bytes]) -> None:
        error = done.exception()
        if error is None:
            self._payloads[signal.barrier_id] = done.result()
        self._answer(signal, pb.SIGNAL_FETCH, "" if error is None else repr(error))


def restore_parameters(entries: Sequence[ParameterEntry], tasks: Sequence[StageTask], store: Store | None) -> None:
    """Give every function the values of a checkpoint. Blocks."""
    for entry in entries:
        told = Told(
            "SetParameter", parameter=ParameterVersion(entry.name, entry.version), value=decode_value(stored_value(entry, store))
        )
        for task in tasks:
            task.hear(told)


def stored_value(entry: ParameterEntry, store: Store | None) -> bytes:
    """The bytes of a checkpoint's parameter. Blocks."""
    if entry.path is None:
        data = entry.inline_bytes()
    else:
        assert store is not None, "a checkpoint with objects has a store"
        data = store.get(entry.path)
    if len(data) != entry.size_bytes or crc32c(data) != entry.crc32c:
        raise CorruptDataError(f"the checksum of a parameter differs name={entry.name}", path=entry.path or "inline")
    return data
