"""Leaders before and after this one: heartbeats, the gang that an earlier leader left, and following one that took over.

It performs; when somebody is silent, and what becomes of a gang, is decided by ``core.failure``. Runs in the leader's thread, but
for what says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from tidegate.clock import Clock
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.failure.election import BEATS, RESIGNED, LeaderBeat
from tidegate.core.failure.restart import Failure, FailureKind
from tidegate.core.log.entries import Takeover
from tidegate.errors import WAITED_FOR, TidegateError
from tidegate.ids import Term
from tidegate.runtime.blocking import BlockingWork
from tidegate.runtime.election import this_process
from tidegate.runtime.following import LOOK_MS, Following
from tidegate.runtime.gang import ControlStream, Exit, LocalHost
from tidegate.runtime.gangs import Gangs
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.report import stepped_down
from tidegate.runtime.sinks import SinkPublisher
from tidegate.runtime.threads import Threads
from tidegate.runtime.timers import Timers
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

DRIVER_GRACE_MS = 30_000
"""A driver whose line is gone may come back; its nodes go on meanwhile."""


ASK_LIMIT_S = 5.0

T = TypeVar("T")


class Leading(Protocol):
    """The leader, as its succession sees it."""

    job: str
    status: str

    @property
    def machine(self) -> DistributedCheckpointCoordinator:
        """The coordinator of now."""

    @property
    def over(self) -> bool:
        """The job has ended, as far as this process has to do with it."""

    def post(self, action: Callable[[], None]) -> None:
        """Have this done in the leader's thread. Any thread."""

    def later(self, name: str, work: Callable[[Any], ev.CoordinatorEvent | None], argument: Any) -> None:
        """Have this done on an executor; what it returns comes back as an event."""

    def choose_restore(self) -> None:
        """Start a gang from what the log says."""

    def lead_with(self, machine: DistributedCheckpointCoordinator) -> None:
        """Lead again, from the log as it is."""

    def finish(self, status: str) -> None:
        """The job has ended."""

    def give_up(self, cause: Failure) -> None:
        """The job has failed."""

    def why_stepped_down(self, reason: do.StepDownReason) -> str:
        """For people."""


class Succession:
    """One process's part in who leads a job. ``following`` is there while somebody else does."""

    def __init__(
        self,
        leader: Leading,
        setup: LeaderSetup,
        gangs: Gangs,
        blocking: BlockingWork,
        *,
        clock: Clock,
        timers: Timers,
        threads: Threads,
    ) -> None:
        self._leader = leader
        self._setup = setup
        self._gangs = gangs
        self._blocking = blocking
        self._clock = clock
        self._timers = timers
        self._threads = threads
        self._host = setup.gangs.host
        self._waits_for_driver = False
        self._driver_changes = 0
        self._stop_wanted: bool | None = None
        """The user has asked for the end; True: by draining. Whoever leads is asked until it has come."""
        self._beats = 0
        self._beating = False
        self.adopts = setup.coordinator.role == "coordinator"
        """A gang may run that an earlier leader has started."""
        self.following: Following | None = None
        self.replaced_by: Takeover | None = None
        self.since_ms = clock.wall_ms()
        self.address = ""
        """Where nodes find this leader."""
        self.led_from: Callable[[str, Term], None] = lambda address, term: None
        """Tells the next gang where its leader is, and its term."""

    # -- the gang of an earlier leader -----------------------------------------------------------------------------

    def took_over(self) -> None:
        """This leader's term has begun."""
        term = self._leader.machine.term
        if isinstance(self._host, RemoteDriver) and term is not None:
            self._host.term = term
        elif self.address and term is not None:
            self.led_from(self.address, term)
        self.beat()

    def resolve(self) -> None:
        """Go on with the gang that runs, if there may be one, else start another. Without a driver neither can be."""
        view, adopts = self._leader.machine.log, self.adopts
        self.adopts = False
        lost = view.head_is_lost or (view.head is not None and view.head.final)
        if adopts and not lost:
            self._gangs.adopt(view.gang, view.head)
        elif self._host.attached:
            self._gangs.when_ready(partial(self._choose_as, self._leader.machine))
        else:
            self._waits_for_driver = True
            log.warning("waiting for a driver that can start the job's nodes job=%s", self._leader.job)

    def _choose_as(self, machine: DistributedCheckpointCoordinator) -> None:
        """Start another gang, unless somebody else leads now, or has led since: then it was for them to say."""
        if machine is self._leader.machine and self.following is None:
            self._leader.choose_restore()

    # -- the driver of a leader elsewhere ----------------------------------------------------------------------------

    def driver_changed(self) -> None:
        """The driver has come, or its line is gone. Any thread."""
        self._leader.post(self._driver_changed)

    def _driver_changed(self) -> None:
        self.beat()
        self._gangs.driver_changed()
        if self._host.attached and self._waits_for_driver:
            self._waits_for_driver = False
            self._gangs.when_ready(partial(self._choose_as, self._leader.machine))
        self._driver_changes += 1
        if not self._host.attached:
            self._timers.at(self._clock.now_ms() + DRIVER_GRACE_MS, partial(self._give_driver_up, self._driver_changes))

    def _give_driver_up(self, change: int) -> None:
        """It has not come back since it went."""
        if isinstance(self._host, RemoteDriver) and not self._host.attached and change == self._driver_changes:
            self._gangs.abandon("its driver is gone")
            self._host.given_up(f"its driver has been gone for {DRIVER_GRACE_MS / 1000:.0f} s")

    def driver_exited(self, connection: ControlStream, gang: int, why: Exit | None) -> None:
        """The driver says that a gang has ended. Any thread."""
        if isinstance(self._host, RemoteDriver) and self._host.is_mine(connection):
            self._host.exited(gang, why)

    # -- another leader ------------------------------------------------------------------------------------------------

    def resign(self) -> None:
        """Lead no more, without ending the job: whoever stands by takes over at once. Any thread."""
        self._leader.post(partial(self._leader.finish, RESIGNED))

    def step_down(self, reason: do.StepDownReason) -> None:
        """A driver whose job a coordinator has taken over follows it; everybody else is done."""
        by = reason.by if isinstance(reason, do.Replaced) else None
        if by is not None and by.role == "coordinator" and self._may_follow:
            told = stepped_down(reason)
            log.warning("a coordinator leads this job now, its nodes go on: %s job=%s", told, self._leader.job)
            self._follow(by.term)
            return
        self.replaced_by = by
        self._leader.give_up(Failure(FailureKind.SETUP, self._leader.why_stepped_down(reason)))

    @property
    def _may_follow(self) -> bool:
        setup = self._setup
        return self._leader.machine.role == "driver" and setup.connect is not None and setup.election is not None

    def _follow(self, term: int) -> None:
        setup, gang, machine = self._setup, self._gangs.hand_over(), self._leader.machine
        assert setup.election is not None and setup.connect is not None
        assert isinstance(self._host, LocalHost) and isinstance(setup.publisher, SinkPublisher)
        self.following = Following(
            self,
            host=self._host,
            publisher=setup.publisher,
            election=setup.election,
            connect=setup.connect,
            moved=self.led_from,
            threads=self._threads,
            timeout_ms=setup.leader_timeout_ms,
            hello=pb.Hello(attendant=pb.DRIVER, gang=gang or 0, pid=machine.pid, host=machine.host),
            term=term,
        )
        self._watch_leader()
        self._ask_to_stop()

    def _watch_leader(self) -> None:
        if self.following is not None:
            self._leader.later("election", self.following.look, None)
            self._timers.at(self._clock.now_ms() + LOOK_MS, self._watch_leader)

    @property
    def job(self) -> str:
        """The job's name."""
        return self._leader.job

    def asking(self) -> Callable[..., Future[Any]] | None:
        """How to ask the leader elsewhere; ``None`` while this process leads. Any thread."""
        following = self.following
        return None if following is None else following.ask

    def ask(self, verb: str, ours: Callable[[], T]) -> T:
        """What the leader elsewhere says; what this process knows when it leads itself, or nobody can be asked. Blocks."""
        following = self.following
        if following is None:
            return ours()
        try:
            return cast(T, following.ask(verb).result(ASK_LIMIT_S))
        except (TidegateError, TimeoutError):
            return ours()

    def lead_again(self, following: Following) -> None:
        """The leader elsewhere is gone: this driver leads, and its gang goes on. Any thread."""
        self._leader.post(partial(self._lead_again, following))

    def _lead_again(self, following: Following) -> None:
        if following is not self.following or self._setup.again is None:
            return  # it leads already
        self.following = None
        following.retire()
        log.warning("nobody leads, or nobody who can be reached: this driver takes over job=%s", self._leader.job)
        self._leader.later("election", lambda _: following.close(), None)
        self.adopts, self._beats = True, 0
        self._leader.lead_with(self._setup.again())

    def leader_found(self) -> None:
        """A leader elsewhere has come. Any thread."""
        self._leader.post(self._ask_to_stop)

    def replaced(self, by: LeaderBeat) -> None:
        """Another driver has taken over from the leader elsewhere: that ends this one. Any thread."""
        taken = Takeover(
            slot=by.term,
            term=by.term,
            write_id="heartbeat",
            leader=by.leader,
            host=by.host,
            pid=by.pid,
            wall_ms=by.since_ms,
            role=by.role,
        )
        why = stepped_down(do.Replaced(taken, by.term))
        self._leader.post(partial(self._leader.give_up, Failure(FailureKind.SETUP, why)))

    # -- the end that a user asks for: it outlives leaders ---------------------------------------------------------------

    def defers_stop(self, drain: bool) -> bool:
        """Remember it. True: whoever leads is asked, or it is done when the gang has come over."""
        self._stop_wanted = drain
        self._ask_to_stop()
        coming = (self.adopts or self._gangs.adopting) and self._host.attached
        return self.following is not None or coming

    def _ask_to_stop(self) -> None:
        if self.following is not None and self._stop_wanted is not None:
            self.following.ask("stop", drain=self._stop_wanted).add_done_callback(self._stop_asked)

    def _stop_asked(self, asked: Future[Any]) -> None:
        """A leader that was lost may not have heard it: whoever leads next is asked again. Any thread."""
        if asked.exception() is not None:
            at_ms = self._clock.now_ms() + LOOK_MS
            self._leader.post(lambda: self._timers.at(at_ms, self._ask_to_stop))

    @property
    def stop_deferred(self) -> bool | None:
        """What is to be done about the end now that the gang has come over, or is gone; True: drain it."""
        gang = self._gangs.gang
        drains = self._stop_wanted is True and gang is not None and gang.draining
        return None if drains else self._stop_wanted

    def led_to_its_end(self, status: str, error: str | None) -> None:
        """The leader elsewhere has ended the job. Any thread."""
        failure = Failure(FailureKind.DEFECT, error or "the job has failed")
        end = partial(self._leader.give_up, failure) if status == "FAILED" else partial(self._leader.finish, status)
        self._leader.post(end)

    def led_elsewhere(self, status: str) -> None:
        """What the leader elsewhere says. Any thread."""
        if self.following is not None and not self._leader.over:
            self._leader.status = status

    # -- heartbeats ------------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Say that this leader is there; and go on doing so."""
        machine, election = self._leader.machine, self._setup.election
        if election is None or self.following is not None or machine.term is None or self._leader.over:
            return
        slot = machine.log.next_slot - 1
        self._leader.later("beat", self._blocking.beat, (election, self._heartbeat(), slot))
        if not self._beating:
            self._beating = True
            self._timers.at(self._clock.now_ms() + self._setup.leader_timeout_ms // BEATS, self._beat_again)

    def _beat_again(self) -> None:
        self._beating = False
        self.beat()

    def _heartbeat(self) -> LeaderBeat:
        machine = self._leader.machine
        assert machine.term is not None
        host, pid, process = this_process()
        self._beats += 1
        return LeaderBeat(
            term=machine.term,
            sequence=self._beats,
            leader=machine.leader,
            role=machine.role,
            host=host,
            pid=pid,
            process=process,
            since_ms=self.since_ms,
            address=self.address,
            gang=machine.log.gang,
            status=self._leader.status,
            has_driver=self._host.attached,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def leaves_gang(self) -> bool:
        """The gang goes on without this leader: it is its successor's, and was never this process's."""
        elsewhere = isinstance(self._host, RemoteDriver)
        return elsewhere and (self.replaced_by is not None or self._leader.status == RESIGNED)

    def end(self) -> None:
        """Say how it ended: nobody needs to wait for this leader's silence. Only while nobody else leads. Blocks."""
        following, election = self.following, self._setup.election
        if isinstance(self._host, RemoteDriver):
            self._host.close()
        if following is not None:
            following.close()
        elif election is not None and self._leader.machine.term is not None and self.replaced_by is None:
            try:
                election.announce(self._heartbeat())
            except WAITED_FOR as error:
                told = "nobody could be told that this leader has ended, so a standby may take it for lost: %s job=%s"
                log.warning(told, error, self._leader.job)
