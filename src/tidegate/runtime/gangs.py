"""The gangs of one job, one after the other: started, joined, lost, started again. Runs in the leader's thread.

It performs; what follows from a loss is decided by ``core.failure``, what a gang is for by the coordinator. The coordinator hears
of a lost gang at once; only its order to start the next one waits for the back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, assert_never

from tidegate.clock import Clock
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.failure.adopt import ADOPT_TIMEOUT_MS, Adopt, Adoption, Replace, WaitForGang
from tidegate.core.failure.restart import (
    Failure,
    Joining,
    KeepWaiting,
    NotJoined,
    RestartAfter,
    RestartPolicy,
    Restarts,
    RestartVerdict,
)
from tidegate.ids import GangNumber, NodeId, Term
from tidegate.runtime.activity import told
from tidegate.runtime.gang import ControlStream, Exit, GangHost, GangState
from tidegate.runtime.host import STALL_TIMEOUT_S
from tidegate.runtime.metrics import NodeMetrics
from tidegate.runtime.report import Totals
from tidegate.runtime.savepoint import Savepoint
from tidegate.runtime.signals import Signals
from tidegate.runtime.sinks import Sinks
from tidegate.runtime.timers import Timers
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

RETURN_LIMIT_MS = 8_000
JOIN_TIMEOUT_MS = 60_000


class GangOwner(Protocol):
    """The leader, as its gangs see it."""

    job: str
    signals: Signals

    @property
    def term(self) -> Term:
        """The leader's term."""

    def handle(self, event: ev.CoordinatorEvent) -> None:
        """A fact for the coordinator."""

    def gang_runs(self, gang: GangState) -> None:
        """Every node has joined."""

    def verdict(self, failure: Failure) -> RestartVerdict:
        """Whether to start again, and when."""

    def adopted(self) -> None:
        """The gang of the leader before goes on under this one."""

    def not_adopted(self, failure: Failure) -> None:
        """The gang of the leader before has ended before it came over."""

    def gang_lost(self, failure: Failure, verdict: RestartVerdict) -> None:
        """All processes have ended, for this reason."""

    @property
    def ending(self) -> bool:
        """Nothing is left to restart a gang for."""


@dataclass(frozen=True, slots=True)
class GangSetup:
    """What it takes to start gangs."""

    host: GangHost
    publisher: Sinks
    parallelism: int
    savepoint: Savepoint | None = None
    """Where to start from while the log has no commit."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    join_timeout_ms: int = JOIN_TIMEOUT_MS
    stall_timeout_ms: int = int(1000 * STALL_TIMEOUT_S)
    adopt_timeout_ms: int = ADOPT_TIMEOUT_MS


class Gangs:
    """At most one gang at a time. ``post`` brings what other threads say into the leader's thread."""

    def __init__(
        self,
        setup: GangSetup,
        owner: GangOwner,
        *,
        clock: Clock,
        timers: Timers,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._setup = setup
        self._owner = owner
        self._clock = clock
        self._timers = timers
        self._post = post
        self._joining = Joining(setup.parallelism, setup.join_timeout_ms, 0)
        self._adoption = Adoption(setup.parallelism, 0)
        self._slowest_ms = 0
        self._resume_at: int | None = 0
        self._restarting_since: int | None = None
        self.gang: GangState | None = None
        self.restarts = Restarts(setup.restarts)
        self.totals = Totals()
        self.recoveries_ms: list[int] = []
        self.stale_messages = 0

    # -- starting --------------------------------------------------------------------------------------------------

    def when_ready(self, start: Callable[[], None]) -> None:
        """Do this when the wait after the last loss is over: at once after none, never when it was the last."""
        if self._resume_at is not None and self._resume_at <= self._clock.now_ms():
            start()
        elif self._resume_at is not None:
            self._timers.at(self._resume_at, start)

    def start(self, effect: do.StartGang) -> None:
        keep = () if effect.manifest is None else effect.manifest.committables
        savepoint = self._setup.savepoint if effect.manifest is None else None
        fresh = effect.manifest is None and savepoint is None  # an earlier log, in memory, may have had this number too
        self._setup.publisher.sweep(GangNumber(effect.gang + fresh), keep)
        manifest = savepoint.manifest if savepoint else effect.manifest
        gang = self.gang = GangState(effect.gang, self._setup.parallelism, manifest, self._owner.term)
        epoch = None if effect.manifest is None else effect.manifest.epoch
        self.totals.started(effect.gang, epoch)
        now_ms = self._clock.now_ms()
        log.info("starting gang=%s epoch=%s job=%s", effect.gang, epoch, self._owner.job)
        size, limit_ms = self._setup.parallelism, self._setup.join_timeout_ms
        self._joining = Joining(size, limit_ms, now_ms, slowest_ms=self._slowest_ms)
        self._setup.host.start(effect.gang, savepoint.url if savepoint else None, self._on_exit(gang))
        self._timers.at(now_ms + limit_ms, partial(self._check_joined, gang))

    def _on_exit(self, gang: GangState) -> Callable[[Exit | None], None]:
        return lambda why: self._post(partial(self._exited, gang, why))

    # -- adopting --------------------------------------------------------------------------------------------------

    def adopt(self, number: GangNumber, manifest: CheckpointManifest | None) -> None:
        """Go on with the gang of an earlier leader, if all of it comes over."""
        # Nodes that were not welcomed yet start where the others did: from the savepoint, while nothing is committed.
        savepoint = self._setup.savepoint if manifest is None else None
        start = savepoint.manifest if savepoint else manifest
        gang = self.gang = GangState(number, self._setup.parallelism, start, self._owner.term, adopting=True, head=manifest)
        self.totals.adopted(number)
        size, limit_ms, host = self._setup.parallelism, self._setup.adopt_timeout_ms, self._setup.host
        self._adoption = Adoption(size, self._clock.now_ms(), limit_ms, has_driver=host.attached)
        log.info("waiting for the nodes of gang=%s to come over job=%s", number, self._owner.job)
        if host.attached:
            host.watch(number, self._on_exit(gang))
        self._look_at_adoption(gang)

    def driver_changed(self) -> None:
        """The driver of a gang has come or gone."""
        gang, host = self.gang, self._setup.host
        if gang is None:
            return
        if host.attached:  # it may have told of the gang's end while there was no line
            host.watch(gang.number, self._on_exit(gang))
        if gang.adopting:
            self._adoption = self._adoption.driver(there=host.attached)
            self._look_at_adoption(gang)

    @property
    def adopting(self) -> bool:
        """The gang of an earlier leader is coming over."""
        return self.gang is not None and self.gang.adopting

    def abandon(self, reason: str) -> None:
        """Nobody can run this gang any more. Nodes that are left end by themselves."""
        if self.gang is not None:
            self.gang.stop(reason)

    def _look_at_adoption(self, gang: GangState) -> None:
        if self.gang is not gang or not gang.adopting or gang.stopping:
            return
        outcome = self._adoption.look(self._clock.now_ms())
        match outcome:
            case Adopt():
                gang.adopt()
                log.info("adopted gang=%s nodes=%s job=%s", gang.number, len(gang.members), self._owner.job)
                self._runs(gang)
                self._owner.adopted()
                for node in sorted(gang.drained_early):
                    self._owner.handle(ev.NodeDrained(node, gang.number))
            case WaitForGang(until_ms):
                if until_ms is not None:
                    self._timers.at(until_ms, partial(self._look_at_adoption, gang))
            case Replace(reason):
                gang.not_joined(reason)
                self._end(gang, reason)
            case _:
                assert_never(outcome)

    def hand_over(self) -> GangNumber | None:
        """Another leader goes on with this gang: nobody is stopped. Gives its number."""
        gang, self.gang = self.gang, None
        return None if gang is None or gang.stopping else gang.number

    def _check_joined(self, gang: GangState) -> None:
        if self.gang is not gang or gang.welcomed or gang.stopping:
            return
        verdict = self._joining.look(self._clock.now_ms(), self._setup.host.running())
        match verdict:
            case KeepWaiting(until_ms):
                there = f"{len(gang.members)} of {self._setup.parallelism} nodes have joined"
                log.warning("still waiting for nodes: %s gang=%s job=%s", there, gang.number, self._owner.job)
                self._timers.at(until_ms, partial(self._check_joined, gang))
            case NotJoined(reason):
                gang.not_joined(reason)
                gang.stop("not all nodes joined")
                self._force(gang)
            case _:
                assert_never(verdict)

    def joined(self, connection: ControlStream) -> None:
        """A node opened its stream and said hello."""
        gang = self.gang
        if gang is None:
            self.turn_away(connection)
            return
        complete = gang.join(connection.hello, connection)
        if gang.node_of(connection) is not None:
            self._joining = self._joining.arrived(NodeId(connection.hello.node), self._clock.now_ms())
        if gang.adopting:
            if gang.node_of(connection) is not None:
                hello = connection.hello
                self._adoption = self._adoption.arrived(NodeId(hello.node), signalled=hello.signalled)
            self._look_at_adoption(gang)
        elif complete:
            self._slowest_ms = max(self._slowest_ms, self._joining.took_ms)
            gang.welcome()
            self._runs(gang)

    def turn_away(self, connection: ControlStream) -> None:
        """A node that nobody waits for. Any thread."""
        connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason="no gang is wanted now")))

    def _runs(self, gang: GangState) -> None:
        if self._restarting_since is not None:
            self.recoveries_ms.append(self._clock.now_ms() - self._restarting_since)
            self._restarting_since = None
        self._owner.gang_runs(gang)
        self._look_at_calls(gang)
        nodes = frozenset(gang.members)
        self._owner.handle(ev.GangRunning(gang.number, nodes, nodes))

    # -- what nodes say --------------------------------------------------------------------------------------------

    def said(self, connection: ControlStream, message: pb.NodeMessage, payload: Any) -> None:
        gang = self.gang
        node = gang.node_of(connection) if gang is not None else None
        if gang is None or node is None:
            return
        if message.term > gang.term:
            self._moved(gang, node)
            return
        if gang.is_stale(message):
            self.stale_messages += 1
            log.warning(
                "refused a stale message: term=%s gang=%s ours=%s/%s node=%s job=%s",
                message.term, message.gang, gang.term, gang.number, node, self._owner.job,
            )  # fmt: skip
            return
        match message.WhichOneof("body"):
            case "injection_ack":
                ack = message.injection_ack
                numbers = GangNumber(ack.gang), Term(ack.term), ack.checkpoint_id
                self._owner.handle(ev.InjectionAcked(node, *numbers, ack.source_count))
            case "prepared":
                self.totals.prepared(payload)
                self._owner.handle(ev.NodePrepared(payload))
            case "declined":
                declined = message.declined
                self._owner.handle(ev.NodeDeclined(node, GangNumber(declined.gang), declined.checkpoint_id, declined.reason))
            case "commit_ack":
                number = message.commit_ack.checkpoint_id
                self._owner.handle(ev.CommitAcked(node, GangNumber(message.gang), Term(message.term), number))
            case "drained" if gang.adopting:
                gang.drained_early.add(node)
            case "drained":
                self._owner.handle(ev.NodeDrained(node, GangNumber(message.drained.gang)))
            case "signal":
                self._owner.signals.said(node, message.signal)
            case "progress":
                self.totals.report(gang.number, node, payload)
            case "failed":
                gang.failed(node, message.failed)
                self._end(gang, "another node failed")
            case _:
                pass  # heartbeats, and a last word before a stream ends

    def _moved(self, gang: GangState, node: NodeId) -> None:
        """It obeys a later leader now, and the others will: nobody is stopped while that may be true."""
        gang.members[node].moved = True
        self._timers.at(self._clock.now_ms() + self._setup.adopt_timeout_ms, partial(self._check_moved, gang))

    def _check_moved(self, gang: GangState) -> None:
        if self.gang is gang and any(member.moved and member.left for member in gang.members.values()):
            self._end(gang, "a node obeys a leader that nobody knows")

    def left(self, connection: ControlStream, error: Exception | None) -> None:
        """A node's stream ended. Whoever stands still will not return by itself: when only such are left, nobody waits."""
        gang = self.gang
        node = gang.node_of(connection) if gang is not None else None
        if gang is None or node is None:
            return
        gang.lost(node, error)
        if gang.members[node].moved:
            return
        self._end(gang, "a node was lost")
        if gang.stands_still and gang.all_left:
            self._force(gang)

    def _look_at_calls(self, gang: GangState) -> None:
        """A function that merely runs long is no stall: it is named, once, and left alone."""
        if self.gang is not gang or gang.stopping:
            return
        limit_ms = self._setup.stall_timeout_ms
        for who, what, for_ms in gang.long_calls(limit_ms):
            log.warning("%s has been in %s for %.0f s job=%s", who, what, for_ms / 1000, self._owner.job)
        self._timers.at(self._clock.now_ms() + limit_ms, partial(self._look_at_calls, gang))

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self, gang: GangState, reason: str) -> None:
        """Nodes have a limited time to return by themselves."""
        if not gang.stopping:
            gang.stop(reason)
            self._timers.at(self._clock.now_ms() + RETURN_LIMIT_MS, partial(self._force, gang))

    def stop(self, effect: do.StopGang) -> None:
        gang = self.gang
        if gang is None or gang.number != effect.gang:
            self._owner.handle(ev.GangLost(effect.gang, "it was not running"))
            return
        gang.stop(effect.reason)
        self._timers.at(self._clock.now_ms() + RETURN_LIMIT_MS, partial(self._force, gang))

    def _force(self, gang: GangState) -> None:
        """Nodes had their time to return by themselves."""
        if self.gang is gang:
            gang.forced = True
            self._setup.host.cancel()

    def _exited(self, gang: GangState, why: Exit | None) -> None:
        if self.gang is not gang:
            return
        self.gang = None
        if gang.adopting:
            self._owner.not_adopted(gang.exited(why))
            return
        if self._owner.ending:
            self._owner.handle(ev.GangLost(gang.number, "stopped"))
            return
        failure = gang.exited(why)
        verdict = self._owner.verdict(failure)
        now_ms = self._clock.now_ms()
        self._restarting_since = now_ms
        self._resume_at = now_ms + verdict.wait_ms if isinstance(verdict, RestartAfter) else None
        self._owner.gang_lost(failure, verdict)
        self._owner.handle(ev.GangLost(gang.number, failure.text, failure.node))

    # -- for people ------------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeMetrics]:
        """Who is there and what each does. Any thread."""
        gang = self.gang
        members = dict(gang.members) if gang is not None else {}
        return [
            {"node": node, "pid": m.pid, "host": m.host, "doing": told(m.connection.heartbeat)}
            for node, m in sorted(members.items())
        ]
