"""A driver whose job is led from elsewhere: it keeps its gang and its sinks, performs what the leader orders, and watches it.

A driver is always a candidate. When the leader falls silent it takes over by itself, and its gang goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, assert_never

from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.failure.election import Alive, LeaderBeat, Silent, Unsure, Vacant
from tidegate.core.log.codec import build
from tidegate.errors import WAITED_FOR, FencedError, ProtocolError
from tidegate.ids import GangNumber, Term
from tidegate.runtime.calls import Calls, answer, arguments_of, refusal
from tidegate.runtime.election import Election, is_dead, watching
from tidegate.runtime.gang import Exit, LocalHost
from tidegate.runtime.leaderline import Connect, LeaderLine
from tidegate.runtime.sinks import SinkPublisher
from tidegate.runtime.threads import Threads
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

LOOK_MS = 250
PREFERENCE_MS = 300
"""A coordinator that stands by is let go first: it was put there to lead."""
NO_GANG = 1 << 62
FOR_EVER_S = 1e9


class Owner(Protocol):
    """The driver's own job, as this sees it. Called from any thread."""

    @property
    def job(self) -> str:
        """The job's name."""

    def lead_again(self, following: Following) -> None:
        """Nobody leads, or nobody who can be reached: take over."""

    def leader_found(self) -> None:
        """There is a line to a leader."""

    def replaced(self, by: LeaderBeat) -> None:
        """Another driver leads: this one has nothing more to do."""

    def led_to_its_end(self, status: str, error: str | None) -> None:
        """The leader says that the job is over."""

    def led_elsewhere(self, status: str) -> None:
        """What the leader says of the job."""


class Following:
    """From the day on which another leader took over to the day on which this driver leads again."""

    def __init__(
        self,
        owner: Owner,
        *,
        host: LocalHost,
        publisher: SinkPublisher,
        election: Election,
        connect: Connect,
        moved: Callable[[str, Term], None],
        threads: Threads,
        timeout_ms: int,
        hello: pb.Hello,
        term: int,
    ) -> None:
        self._owner = owner
        self._host = host
        self._publisher = publisher
        self._election = election
        self._moved = moved
        self._threads = threads
        self._hello = hello
        self._term = self._first_term = term
        self._over = False
        self._broken = False
        self._watch = watching(election, timeout_ms + PREFERENCE_MS)
        self._quick = watching(election, timeout_ms // 2)
        self._timeout_ms = timeout_ms
        self._calls = Calls(lambda call: None)
        self._calls.lost(ProtocolError("no leader has been found yet"))
        self._line = LeaderLine(
            self, connect, None, election=election, gang=lambda: NO_GANG, grace_s=FOR_EVER_S, term=term - 1, same_again=True
        )

    def ask(self, verb: str, **arguments: Any) -> Future[Any]:
        """Ask the leader."""
        return self._calls.call(verb, **arguments)

    def retire(self) -> None:
        """Obey nobody from now on. Never blocks."""
        self._over = True

    def close(self) -> None:
        """Follow no more. Blocks for a while."""
        self._over = True
        self._line.close()
        self._calls.lost(ProtocolError("this driver leads again"))

    # -- the line: called from its threads -----------------------------------------------------------------------------

    def leader_found(self, beat: LeaderBeat) -> None:
        """Say hello, and what runs here."""
        self._broken = False
        self._moved(beat.address, beat.term)
        self._calls = Calls(lambda call: self._line.send(pb.NodeMessage(term=self._term, call=call)))
        self._line.send(pb.NodeMessage(term=self._term, hello=self._hello))
        log.info("following the leader: %s job=%s", beat.whereabouts, self._owner.job)
        self._owner.leader_found()

    def leader_lost(self, reason: Exception) -> None:
        """The gang goes on."""
        self._broken = True
        self._calls.lost(reason)
        log.warning("the leader was lost, the data goes on: %s job=%s", reason, self._owner.job)

    def control_lost(self, reason: Exception) -> None:
        """The leader's last heartbeat says that the job has ended, or the line can't be used at all: look decides."""
        self._broken = True
        self._calls.lost(reason)

    def control_message(self, message: pb.CoordinatorMessage) -> None:
        """An order, or an answer."""
        match message.WhichOneof("body"):
            case "reply":
                self._calls.replied(message.reply)
            case "call":
                if message.term < self._term:
                    stale = FencedError(f"this order is of a leader that was replaced term={message.term} newest={self._term}")
                    self._reply(refusal(message.call, stale))
                    return
                self._term = message.term
                self._threads.executor("sinks").submit(self._perform, message.call)  # beside nothing that this driver publishes
            case _:
                pass  # what is said to nodes

    def _reply(self, reply: pb.Reply) -> None:
        self._line.send(pb.NodeMessage(term=self._term, reply=reply))

    # -- orders: one at a time, on their own thread ----------------------------------------------------------------------

    def _perform(self, call: pb.Call) -> None:
        if self._over:
            return
        try:
            self._do(call.verb, arguments_of(call))
        except Exception as error:
            self._reply(refusal(call, error))
        else:
            self._reply(answer(call))

    def _do(self, verb: str, arguments: dict[str, Any]) -> None:
        entries = [build(CommittableEntry, each, "order") for each in arguments.get("committables", ())]
        match verb:
            case "start":
                if "sweep_gang" in arguments:
                    self._publisher.sweep(arguments["sweep_gang"], entries)
                gang = GangNumber(int(arguments["gang"]))
                self._host.start(gang, arguments["restore_url"], partial(self._exited, gang))
            case "watch":
                gang = GangNumber(int(arguments["gang"]))
                self._host.watch(gang, partial(self._exited, gang))
            case "cancel":
                self._host.cancel()
            case "publish":
                self._publisher.publish(entries)
            case "hide":
                self._publisher.hide(entries)
            case "hide_unnamed":
                self._publisher.hide_unnamed(arguments["gang"], arguments["checkpoint_id"], entries)
            case "ended":
                self._owner.led_to_its_end(arguments["status"], arguments["error"])
            case _:
                raise ProtocolError(f"an unknown order of the leader verb={verb!r}")

    def _exited(self, gang: GangNumber, why: Exit | None) -> None:
        told = {} if why is None else {"kind": int(why.kind), "text": why.text}
        self._calls.call("exited", gang=gang, **told)

    # -- is the leader there? --------------------------------------------------------------------------------------------

    def look(self, _: None = None) -> None:
        """Take over when the leader has fallen silent. Blocks for a request; called every ``LOOK_MS``."""
        if self._over:
            return
        try:
            beat = self._election.newest()
        except WAITED_FOR:
            self._watch.missed()
            self._quick.missed()
            return
        now_ms, dead = int(time.monotonic() * 1000), beat is not None and is_dead(beat)
        quick = self._quick.look(beat, now_ms, dead=dead)
        seen = self._watch.look(beat, now_ms, dead=dead)
        match seen:
            case Vacant(LeaderBeat(status="FINISHED" | "STOPPED" as status)):
                self._owner.led_to_its_end(status, None)
            case Vacant(None, absent_ms) if absent_ms < self._timeout_ms:
                pass  # somebody has taken over: its first heartbeat is to come
            case Vacant() | Silent():
                self._owner.lead_again(self)
            case Alive(newest) | Unsure(newest):
                self._look_at(newest, silent=isinstance(quick, Silent))
            case _:
                assert_never(seen)

    def _look_at(self, newest: LeaderBeat, *, silent: bool) -> None:
        """Its heartbeats come, but perhaps nothing else does: one that is cut off from the driver leads nobody."""
        if newest.role == "driver" and newest.term > self._first_term:
            self._owner.replaced(newest)
        elif (self._broken and silent) or self._line.unheard(self._timeout_ms / 1000):
            self._owner.lead_again(self)
        else:
            self._owner.led_elsewhere(newest.status)
