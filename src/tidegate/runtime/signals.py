"""Control signals in the leader: the shell around the head of the pipeline. It performs what ``core.control`` orders.

Public methods may be called from any thread; everything else runs in the leader's thread.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.control.ask import (
    ControlChanged,
    ControlEffect,
    EmitSignal,
    FetchPayload,
    ReleaseCheckpoint,
    SendInstant,
    SignalAnswer,
    SignalAnswered,
    SignalFailed,
    SignalMode,
    SignalRequest,
)
from tidegate.core.control.head import ControlSourceProcessor
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import (
    INLINE_PAYLOAD_BYTES,
    BarrierControlSignalKind,
    ControlSignal,
    StoredPayload,
)
from tidegate.core.log.paths import JobPaths
from tidegate.errors import InvalidUseError, SignalLost, TidegateError
from tidegate.plan.parameter import Parameter
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.commands import command
from tidegate.runtime.gang import GangState
from tidegate.runtime.nodesignals import stored_value
from tidegate.runtime.requests import Requests
from tidegate.runtime.snapshotfile import crc32c
from tidegate.runtime.threads import Threads
from tidegate.store.interface import Store
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

ENTRY_BYTES_MAX = 4 * 1024
"""A longer value of a parameter is an object of its own, if there is a store: every manifest would carry it."""

Kind = BarrierControlSignalKind
Ask = Callable[..., "Future[Any]"]
"""A verb with arguments, asked over a control line."""


@dataclass(frozen=True, slots=True)
class SignalSetup:
    """What signals need of a job. ``store`` is one that nodes can read too; ``None``: there is none."""

    parameters: Mapping[str, Parameter] | None = None
    """``None``: a leader without the plan, which carries on with what checkpoints have."""
    store: Store | None = None
    saves: bool = True

    @classmethod
    def of(cls, plan: PhysicalPlan, store: Store | None, *, saves: bool) -> SignalSetup:
        """For a job with this plan."""
        return cls({each.name: each for each in plan.parameters}, store, saves)


@dataclass(frozen=True, slots=True)
class SignalOwner:
    """The leader, as its signals see it. ``post`` may be called from any thread, the others from the leader's."""

    handle: Callable[[ev.CoordinatorEvent], None]
    """A fact for the coordinator."""
    post: Callable[[Callable[[], None]], None]
    """Do this in the leader's thread."""
    now_ms: Callable[[], int]
    next_checkpoint_id: Callable[[], int]
    """An id that no collection so far reaches."""
    gang: Callable[[], GangState | None]
    """The gang under way."""
    elsewhere: Callable[[], Ask | None]
    """How to ask the process that leads the job, when it is another one. Any thread."""
    drains: Callable[[], None]
    """The stream was told to end."""


def asked_elsewhere(ask: Ask, kind: str, payload: bytes, mode: SignalMode, parameter: str | None) -> Future[SignalAnswer]:
    """Have the leader of another process send it. A leader that is lost meanwhile leaves it unknown whether it was."""
    answered: Future[SignalAnswer] = Future()

    def done(asked: Future[Any]) -> None:
        error = asked.exception()
        if error is not None:
            answered.set_exception(error)
        else:
            answer = asked.result()
            latency_ms = {int(node): took for node, took in answer["latency_ms"].items()}
            answered.set_result(SignalAnswer(answer["id"], answer["kind"], answer["mode"], latency_ms))

    encoded = base64.b64encode(payload).decode()
    ask("signal", kind=kind, payload=encoded, mode=mode, parameter=parameter).add_done_callback(done)
    return answered


class Signals:
    """All signals of one job."""

    def __init__(self, setup: SignalSetup, paths: JobPaths, owner: SignalOwner, requests: Requests, threads: Threads) -> None:
        self._setup = setup
        self._owner = owner
        self._requests = requests
        self._threads = threads
        self._paths = paths
        self._head = ControlSourceProcessor(saves=setup.saves)
        self._held: dict[int, list[do.SendInject]] = {}
        self._released = 0
        self._asked = False
        self._moved: dict[ParameterEntry, ParameterEntry] = {}
        self.answered = 0

    # -- what users ask: any thread --------------------------------------------------------------------------------

    def send(self, kind: str, payload: bytes = b"", mode: SignalMode = "barrier") -> Future[SignalAnswer]:
        """Send a signal; the future gives the answer. Refuses at once what can't be sent."""
        if mode not in ("barrier", "instant"):
            raise InvalidUseError(f"a signal's mode is 'barrier' or 'instant' mode={mode!r}")
        if not isinstance(kind, str) or not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidUseError(
                f"a signal has a kind, as text, and a payload of bytes kind={kind!r} payload={type(payload).__name__}"
            )
        if Kind(kind) == Kind.SetParameter:
            raise InvalidUseError("parameters are set by job.set_parameter(name, value)")
        if payload and not Kind(kind).is_users:
            raise InvalidUseError(f"this kind of signal has no payload, choose a kind of your own kind={kind}")
        return self._open(Kind(kind), bytes(payload), mode)

    def set_parameter(self, name: str, value: object) -> Future[SignalAnswer]:
        """Change a parameter between the same two rows everywhere."""
        known = self._setup.parameters or {}
        if name not in known:
            raise InvalidUseError(
                f"no function of this job reads such a parameter name={name!r} known={', '.join(known) or 'none'}"
            )
        return self.set_encoded(name, known[name].encode(value))

    def set_encoded(self, name: str, value: bytes) -> Future[SignalAnswer]:
        """The same, with a value that the driver has encoded."""
        return self._open(Kind.SetParameter, value, "barrier", name)

    def _open(self, kind: Kind, payload: bytes, mode: SignalMode, parameter: str | None = None) -> Future[SignalAnswer]:
        if (ask := self._owner.elsewhere()) is not None:
            return asked_elsewhere(ask, kind.name, payload, mode, parameter)
        if len(payload) > INLINE_PAYLOAD_BYTES:
            self._check_long(kind, len(payload), mode)
        request, future = self._requests.open()
        self._owner.post(partial(self._begin, request, kind, payload, mode, parameter))
        if kind.is_terminal:
            self._owner.post(self._owner.drains)
        return future

    def _check_long(self, kind: Kind, size: int, mode: SignalMode) -> None:
        if mode == "instant":
            raise InvalidUseError(
                f"an instant signal carries at most {INLINE_PAYLOAD_BYTES} bytes, use mode='barrier' bytes={size}"
            )
        if self._setup.store is None:
            raise InvalidUseError(
                f"more than {INLINE_PAYLOAD_BYTES} bytes travel through the job's store, and it has none: start the job with "
                f"store= and checkpoint=, or send less kind={kind.name} bytes={size}"
            )

    # -- sending ---------------------------------------------------------------------------------------------------

    def _begin(self, request: str, kind: Kind, payload: bytes, mode: SignalMode, parameter: str | None) -> None:
        limit = INLINE_PAYLOAD_BYTES if parameter is None or self._setup.store is None else ENTRY_BYTES_MAX
        if len(payload) <= limit:
            self._request(request, kind, payload, mode, None, parameter)
            return
        path = self._paths.shared(self._owner.next_checkpoint_id(), f"signal-{request}")
        stored = StoredPayload(path, len(payload), crc32c(payload), hashlib.sha256(payload).hexdigest())
        self._perform(self._head.reserve(path))
        assert self._setup.store is not None
        putting = self._threads.executor("signals").submit(self._setup.store.put, path, payload)
        putting.add_done_callback(lambda done: self._owner.post(partial(self._stored, request, kind, stored, parameter, done)))

    def _stored(self, request: str, kind: Kind, stored: StoredPayload, parameter: str | None, done: Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._request(request, kind, b"", "barrier", stored, parameter)
        else:
            why = error if isinstance(error, TidegateError) else SignalLost(f"the payload could not be stored: {error!r}")
            self._requests.answer((request,), why)
        self._perform(self._head.released(stored.path))

    def _request(
        self, request: str, kind: Kind, payload: bytes, mode: SignalMode, stored: StoredPayload | None, parameter: str | None
    ) -> None:
        try:
            entry = None if parameter is None else self._entry(parameter, payload, stored)
            effects = self._head.request(SignalRequest(request, kind, mode, payload, stored, entry), self._owner.now_ms())
        except TidegateError as error:
            self._requests.answer((request,), error)
            return
        self._perform(effects)

    def _entry(self, name: str, payload: bytes, stored: StoredPayload | None) -> ParameterEntry:
        version = self._head.next_version(name)
        if stored is None:
            return ParameterEntry.of_bytes(name, version, payload, crc32c(payload))
        return ParameterEntry(name, version, stored.path, stored.size_bytes, stored.crc32c)

    # -- what happens in the job -----------------------------------------------------------------------------------

    def move(self, manifest: CheckpointManifest, origin: Store) -> None:
        """The job starts from a savepoint: values that are objects there become objects of this job's store. Blocks."""
        for entry in manifest.parameters:
            if entry.path is not None and self._setup.store is not None:
                path = self._paths.shared(self._owner.next_checkpoint_id(), f"moved-{entry.name}")
                self._setup.store.put(path, stored_value(entry, origin))
                self._moved[entry] = ParameterEntry(entry.name, entry.version, path, entry.size_bytes, entry.crc32c)

    def gang_up(self, gang: GangState) -> None:
        """All nodes are there."""
        self._held.clear()
        self._released = 0
        known = self._setup.parameters
        stored: Iterable[ParameterEntry] = () if gang.manifest is None else gang.manifest.parameters
        entries = [self._moved.get(each, each) for each in stored if known is None or each.name in known]
        self._perform(self._head.gang_up(gang.term, gang.members, entries, self._owner.now_ms()))

    def heard(self, event: ev.CoordinatorEvent) -> None:
        """The coordinator was told this."""
        now_ms = self._owner.now_ms()
        match event:
            case ev.InjectionAcked(node, _, _, checkpoint_id):
                self._perform(self._head.injected(node, checkpoint_id, now_ms))
            case ev.GangLost(_, reason):
                self._held.clear()
                self._perform(self._head.gang_lost(reason))
            case _:
                pass

    def said(self, node: int, progress: pb.SignalProgress) -> None:
        """A node says how far a signal has come."""
        now_ms = self._owner.now_ms()
        match progress.step:
            case pb.SIGNAL_FETCH:
                self._perform(self._head.fetched(node, progress.id, progress.error, now_ms))
            case pb.SIGNAL_EMIT:
                self._perform(self._head.emitted(node, progress.id, now_ms))
            case pb.SIGNAL_SEEN:
                self._perform(self._head.seen(node, progress.id, now_ms))
                self._ask()
            case _:
                log.warning("a node says something unknown of a signal step=%s node=%s", progress.step, node)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def inject(self, order: do.SendInject) -> None:
        """A checkpoint's barrier goes when it is its turn among all barriers."""
        if order.checkpoint_id == self._released:
            self._tell_inject(order)
        elif order.checkpoint_id in self._held:
            self._held[order.checkpoint_id].append(order)
        else:
            self._held[order.checkpoint_id] = [order]
            self._perform(self._head.checkpoint(CheckpointBarrier(order.checkpoint_id, order.epoch)))

    def completed(self, manifest: CheckpointManifest) -> None:
        """A manifest is in the log."""
        self._over(manifest.checkpoint_id)
        self._perform(self._head.committed(manifest.parameters))
        self._ask()

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up."""
        self._over(checkpoint_id)

    def _over(self, checkpoint_id: int) -> None:
        self._asked = False
        self._held.pop(checkpoint_id, None)
        self._perform(self._head.checkpoint_over(checkpoint_id, self._owner.now_ms()))

    def _ask(self) -> None:
        """Whoever set a parameter waits for a manifest that has it: there is no reason to let the schedule decide when."""
        if self._head.unsaved and self._setup.saves and not self._asked:
            self._asked = True
            self._owner.post(partial(self._owner.handle, ev.TriggerRequested("set_parameter")))

    # -- performing ------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[ControlEffect]) -> None:
        for effect in effects:
            match effect:
                case FetchPayload(signal):
                    self._tell(pb.SIGNAL_FETCH, signal)
                case EmitSignal(signal):
                    self._tell(pb.SIGNAL_EMIT, signal)
                case SendInstant(signal):
                    self._tell(pb.SIGNAL_INSTANT, signal)
                case ReleaseCheckpoint(checkpoint_id):
                    self._released = checkpoint_id
                    for order in self._held.pop(checkpoint_id, ()):
                        self._tell_inject(order)
                case SignalAnswered(request_id, answer):
                    self.answered += 1
                    self._requests.answer((request_id,), answer)
                case SignalFailed(request_id, error):
                    self._requests.answer((request_id,), error)
                case ControlChanged():
                    self._owner.handle(effect)
                case _:
                    assert_never(effect)

    def _tell(self, step: pb.SignalStep, signal: ControlSignal) -> None:
        gang = self._owner.gang()
        if gang is not None:
            gang.tell_all(pb.CoordinatorMessage(signal=pb.Signal(step=step, frame=signal.pack())))

    def _tell_inject(self, order: do.SendInject) -> None:
        gang = self._owner.gang()
        if gang is not None and gang.number == order.stamp.gang:
            gang.tell(order.node, command(order))

    # -- for people ------------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, int]:
        """The versions of all parameters; 0 is the initial value. Any thread."""
        return dict.fromkeys(self._setup.parameters or {}, 0) | self._head.versions
