"""The head of the pipeline: numbers signals, puts them into one order with checkpoint barriers, and collects the answers.

Facts in, orders out; no clock, store or network. Signals go one after the other: the next barrier of either kind goes when every
source has emitted the last. A signal that dies with its gang fails by name; the end of the stream and values of parameters are
asked of the next gang again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.core.barrier.messages import CheckpointBarrier
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
    SignalRequest,
)
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.sequence import WAITING_MAX, CheckpointKey, Emit, HeadSequencer, Queued, key_of
from tidegate.core.control.signals import BarrierControlSignal, InstantControlSignal
from tidegate.errors import ChannelFull, InvalidUseError, SignalLost, TidegateError
from tidegate.ids import CheckpointId


@dataclass(slots=True, eq=False)
class Sent:
    """A request and how far its signal has come. ``signal`` is ``None`` while it waits for its turn."""

    request: SignalRequest
    signal: BarrierControlSignal | InstantControlSignal | None = None
    sequenced: bool = False
    sent_ms: int = 0
    fetched: set[int] = field(default_factory=set)
    emitted: set[int] = field(default_factory=set)
    latency_ms: dict[int, int] = field(default_factory=dict)
    answer: SignalAnswer | None = None
    saved: bool = False
    told: bool = False

    @property
    def parameter(self) -> str | None:
        """The parameter that it sets."""
        return None if self.request.entry is None else self.request.entry.name

    def again(self) -> Sent:
        """The same request for another gang. Whoever asked is told once."""
        return Sent(self.request, answer=self.answer, told=self.told)


class ControlSourceProcessor:
    """One leader's signals. ``saves``: a parameter is set when a manifest has it, else when all terminal points have seen it."""

    def __init__(self, *, saves: bool = True, waiting_max: int = WAITING_MAX) -> None:
        self._saves = saves
        self._waiting_max = waiting_max
        self._term = 0
        self._counter = 0
        self._nodes: frozenset[int] = frozenset()
        self._line: deque[Sent] = deque()
        self._flying: dict[int, Sent] = {}
        self._entering: Sent | None = None
        self._sequencer = HeadSequencer()
        self._injected: dict[int, set[int]] = {}
        self._set: list[Sent] = []
        self._current: dict[str, ParameterEntry] = {}
        self._versions: dict[str, int] = {}
        self._reserved: frozenset[str] = frozenset()
        self._end: Sent | None = None
        self._told: ControlChanged | None = ControlChanged()

    @property
    def versions(self) -> dict[str, int]:
        """The parameters of the running gang that were ever set, as of the newest signal in the order."""
        return {name: entry.version for name, entry in list(self._current.items())}

    @property
    def unsaved(self) -> bool:
        """A parameter has its value everywhere, and whoever set it waits for a manifest that has it."""
        return any(sent.answer is not None and not sent.told for sent in self._set)

    def next_version(self, name: str) -> int:
        """The version that the next value of this parameter gets."""
        return self._versions.get(name, 0) + 1

    # -- requests

    def request(self, request: SignalRequest, now_ms: int) -> list[ControlEffect]:
        """Somebody wants a signal sent. Without a gang it waits for the next."""
        self._check(request)
        sent = Sent(request)
        if request.kind.is_terminal:
            self._end = sent
        if request.entry is not None:
            self._versions[request.entry.name] = request.entry.version
        if request.mode == "instant" and self._nodes:  # it is in no order with anything
            return self._enter(sent, now_ms)
        self._line.append(sent)
        return [*self._advance(now_ms), *self._changed()]

    def _check(self, request: SignalRequest) -> None:
        kind = request.kind
        if self._end is not None:
            raise InvalidUseError(f"the stream has been told to end: no signal may follow kind={kind.name}")
        if request.mode == "instant" and (kind.is_terminal or request.entry is not None):
            raise InvalidUseError(f"this takes effect between two rows: send it with mode='barrier' kind={kind.name}")
        if len(self._line) >= self._waiting_max:
            raise ChannelFull(f"too many signals wait: try later kind={kind.name} waiting={len(self._line)}")

    def reserve(self, path: str) -> list[ControlEffect]:
        """A payload is about to be stored there, for a request to come: it must not be deleted meanwhile."""
        self._reserved |= {path}
        return self._changed()

    def released(self, path: str) -> list[ControlEffect]:
        """The request has come, or never will."""
        self._reserved -= {path}
        return self._changed()

    # -- checkpoints

    def checkpoint(self, barrier: CheckpointBarrier) -> list[ControlEffect]:
        """A checkpoint wants its barrier emitted; it is released now or when its turn comes."""
        return self._release(self._sequencer.request(barrier), 0)

    def injected(self, node: int, checkpoint_id: int, now_ms: int) -> list[ControlEffect]:
        """A node's sources have emitted a checkpoint's barrier."""
        nodes = self._injected.setdefault(checkpoint_id, set())
        nodes.add(node)
        if not self._nodes <= nodes:
            return []
        return self.checkpoint_over(checkpoint_id, now_ms)

    def checkpoint_over(self, checkpoint_id: int, now_ms: int) -> list[ControlEffect]:
        """All sources have emitted it, or it was given up: it holds nothing back any more. Idempotent."""
        self._injected.pop(checkpoint_id, None)
        return self._release(self._sequencer.abort(CheckpointKey(checkpoint_id)), now_ms)

    def _release(self, answer: Emit | Queued | None, now_ms: int) -> list[ControlEffect]:
        if not isinstance(answer, Emit):
            return []
        if isinstance(answer.barrier, CheckpointBarrier):
            return [ReleaseCheckpoint(answer.barrier.checkpoint_id)]
        return self._emit(self._flying[answer.barrier.barrier_id], answer.barrier, now_ms)

    # -- one signal after the other

    def _advance(self, now_ms: int) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        while self._nodes and self._entering is None and self._line:
            effects += self._enter(self._line.popleft(), now_ms)
        return effects

    def _enter(self, sent: Sent, now_ms: int) -> list[ControlEffect]:
        request = sent.request
        self._counter += 1
        number = CheckpointId.of(self._term, self._counter)
        made = BarrierControlSignal if request.mode == "barrier" else InstantControlSignal
        sent.signal = signal = made(request.kind, number, request.payload, request.stored, request.parameter)
        self._flying[number] = sent
        if isinstance(signal, InstantControlSignal):
            sent.sent_ms = now_ms
            return [SendInstant(signal)]
        self._entering = sent
        return [FetchPayload(signal)] if signal.stored is not None else self._sequence(sent, signal, now_ms)

    def _sequence(self, sent: Sent, signal: BarrierControlSignal, now_ms: int) -> list[ControlEffect]:
        sent.sequenced = True
        if (entry := sent.request.entry) is not None:
            self._set.append(sent)
            self._current[entry.name] = entry
        return self._release(self._sequencer.request(signal), now_ms)

    def _emit(self, sent: Sent, signal: BarrierControlSignal, now_ms: int) -> list[ControlEffect]:
        sent.sent_ms = now_ms
        return [EmitSignal(signal)]

    # -- what nodes say

    def fetched(self, node: int, barrier_id: int, why_not: str, now_ms: int) -> list[ControlEffect]:
        """A node has the payload, or can't have it."""
        sent = self._flying.get(barrier_id)
        if sent is None or sent is not self._entering or sent.sequenced:
            return []
        assert isinstance(sent.signal, BarrierControlSignal)
        sent.fetched.add(node)
        if why_not:
            del self._flying[barrier_id]
            self._entering = None
            lost = SignalLost(f"node {node} can't read the payload: {why_not} kind={sent.request.kind.name} id={barrier_id}")
            return [SignalFailed(sent.request.request_id, lost), *self._advance(now_ms), *self._changed()]
        if not self._nodes <= sent.fetched:
            return []
        return [*self._sequence(sent, sent.signal, now_ms), *self._changed()]

    def emitted(self, node: int, barrier_id: int, now_ms: int) -> list[ControlEffect]:
        """A node's sources have emitted a signal."""
        sent = self._flying.get(barrier_id)
        if sent is None or sent is not self._entering:
            return []
        sent.emitted.add(node)
        if not self._nodes <= sent.emitted:
            return []
        assert isinstance(sent.signal, BarrierControlSignal)
        self._entering = None
        released = self._release(self._sequencer.done(key_of(sent.signal)), now_ms)
        return [*released, *self._advance(now_ms), *self._changed()]

    def seen(self, node: int, barrier_id: int, now_ms: int) -> list[ControlEffect]:
        """The terminal points of a node have seen a signal; so its sources have emitted it."""
        sent = self._flying.get(barrier_id)
        if sent is None:
            return []
        effects = self.emitted(node, barrier_id, now_ms)
        sent.latency_ms.setdefault(node, now_ms - sent.sent_ms)
        if not self._nodes <= sent.latency_ms.keys():
            return effects
        del self._flying[barrier_id]
        sent.answer = sent.answer or SignalAnswer(barrier_id, sent.request.kind.name, sent.request.mode, dict(sent.latency_ms))
        return [*effects, *self._tell(sent), *self._changed()]

    def committed(self, parameters: Iterable[ParameterEntry]) -> list[ControlEffect]:
        """A manifest is in the log."""
        saved = {entry.name: entry.version for entry in parameters}
        effects: list[ControlEffect] = []
        for sent in list(self._set):
            entry = sent.request.entry
            if entry is not None and entry.version <= saved.get(entry.name, 0):
                sent.saved = True
                effects += self._tell(sent)
        return [*effects, *self._changed()]

    def _tell(self, sent: Sent) -> list[ControlEffect]:
        """Answer, once, if nothing is left to wait for. Of values that nobody waits for the last of each parameter is kept."""
        waits = sent.parameter is not None and self._saves and not sent.saved
        if sent.answer is None or waits:
            return []
        effects: list[ControlEffect] = [] if sent.told else [SignalAnswered(sent.request.request_id, sent.answer)]
        sent.told = True
        last = {each.parameter: each for each in self._set}
        self._set = [each for each in self._set if not each.told or last[each.parameter] is each]
        return effects

    # -- gangs

    def gang_up(self, term: int, nodes: Iterable[int], parameters: Iterable[ParameterEntry], now_ms: int) -> list[ControlEffect]:
        """All nodes are there, with the parameters of the checkpoint that they start from. What that lacks is set again."""
        self._counter = self._counter if term == self._term else 0
        self._term, self._nodes, self._told = term, frozenset(nodes), None
        self._sequencer, self._injected = HeadSequencer(), {}
        self._current = {entry.name: entry for entry in parameters}
        for name, entry in self._current.items():
            self._versions[name] = max(entry.version, self._versions.get(name, 0))
        lacking = [sent.again() for sent in self._set if self._is_lacking(sent)]
        self._set = [sent for sent in self._set if not self._is_lacking(sent)]
        self._line.extendleft(reversed(lacking))
        if self._end is not None and self._end not in self._line:  # even if it was answered: what came of it is gone
            self._end = self._end.again()
            self._line.append(self._end)
        return [*self._advance(now_ms), *self._changed()]

    def gang_lost(self, reason: str) -> list[ControlEffect]:
        """No process of the gang does anything for us any more."""
        self._nodes = frozenset()
        self._sequencer, self._injected = HeadSequencer(), {}
        again, effects = [], list[ControlEffect]()
        for sent in self._flying.values():
            if sent.parameter is not None and not sent.sequenced:
                again.append(sent.again())
            elif sent.parameter is None and sent is not self._end:
                effects.append(SignalFailed(sent.request.request_id, _lost(sent, reason)))
        self._flying, self._entering = {}, None
        self._line.extendleft(reversed(again))
        return [*effects, *self._changed()]

    def _is_lacking(self, sent: Sent) -> bool:
        entry = sent.request.entry
        current = None if entry is None else self._current.get(entry.name)
        return entry is not None and (current is None or current.version < entry.version)

    # -- what checkpoints must know

    def _changed(self) -> list[ControlEffect]:
        pinned = any(sent.sequenced for sent in self._flying.values())
        asked = (*self._set, *self._line, *self._flying.values())
        payloads = {sent.request.stored.path for sent in asked if sent.request.stored is not None}
        values = {entry.path for entry in self._current.values() if entry.path is not None}
        now = ControlChanged(pinned, tuple(self._current.values()), self._reserved | payloads | values)
        if now == self._told:
            return []
        self._told = now
        return [now]


def _lost(sent: Sent, reason: str) -> TidegateError:
    number = 0 if sent.signal is None else sent.signal.barrier_id
    return SignalLost(
        f"the signal was lost with its gang, send it again: {reason or 'it ended'} kind={sent.request.kind.name} id={number}"
    )
