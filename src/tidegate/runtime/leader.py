"""The leader of a job, in the driver: the shell around the coordinator's state machine.

One thread takes events and performs effects. What blocks (the log, sinks, garbage) runs on executors and comes back as events.
It decides nothing about checkpoints; it decides when to stop restarting, by ``core.failure``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, assert_never, cast

from tidegate.clock import Clock
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator, Mode
from tidegate.core.failure.patience import Patience
from tidegate.core.failure.problems import Problem, ProblemKind
from tidegate.core.failure.restart import Failure, FailureKind, RestartAfter, RestartVerdict, StopRestarting
from tidegate.core.log.resolve import AlreadyFinished, Decision
from tidegate.errors import (
    InvalidUseError,
    JobFailedError,
    ProtocolError,
    ThreadDied,
    TidegateError,
)
from tidegate.ids import Epoch, NodeId, Term
from tidegate.runtime.blocking import BlockingWork
from tidegate.runtime.choosing import RestoreChoosing
from tidegate.runtime.commands import command
from tidegate.runtime.failure import caused
from tidegate.runtime.gang import ControlStream, GangState, carried
from tidegate.runtime.gangs import RETURN_LIMIT_MS, Gangs
from tidegate.runtime.jobmetrics import job_metrics
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.metrics import JobMetrics
from tidegate.runtime.opening import Opening
from tidegate.runtime.operations import Operations
from tidegate.runtime.outcomes import Outcomes
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.report import stepped_down
from tidegate.runtime.requests import Requests
from tidegate.runtime.signals import SignalOwner, Signals
from tidegate.runtime.sinks import SinkPublisher
from tidegate.runtime.succession import Succession
from tidegate.runtime.threads import Threads
from tidegate.runtime.timers import Timers
from tidegate.runtime.watch import ProblemWatch
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

STOP_LIMIT_MS = 45_000

T = TypeVar("T")


class Leader:
    """Runs one job to its end. Public methods may be called from any thread."""

    def __init__(self, setup: LeaderSetup, *, clock: Clock, threads: Threads) -> None:
        self._setup = setup
        self._clock = clock
        self._threads = threads
        self._machine = setup.coordinator
        self._blocking = BlockingWork(setup.log, setup.publisher, setup.spools)
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self._timers = Timers()
        self.job = setup.log.paths.job
        self._watch = ProblemWatch(self.job, clock, self._timers)
        self._gangs = Gangs(setup.gangs, self, clock=clock, timers=self._timers, post=lambda act: self._mailbox.post(act))
        self.opening = Opening(
            setup.log, cast(SinkPublisher, setup.publisher), self._machine.shape, self._machine.leader, stays=setup.stays,
            restore=setup.restore, overwrite=setup.overwrite, append=setup.append, moved=setup.gangs.savepoint is not None,
        )  # fmt: skip
        self._patience = Patience(setup.storage_timeout_ms)
        self._choosing = RestoreChoosing(
            self, self.opening, self._blocking, self._watch, setup.storage_timeout_ms, clock=clock, timers=self._timers
        )
        self._held = setup.hold
        self._taken_over = threading.Event()
        self._requests = Requests()
        self._stop_requested = self._draining = self._over = False
        self.log = setup.log
        self._operations = Operations(self, setup.gangs.host)
        self.succession = Succession(self, setup, self._gangs, self._blocking, clock=clock, timers=self._timers, threads=threads)
        owner = SignalOwner(
            self.handle, self.post, clock.now_ms, next_checkpoint_id=lambda: self._machine.next_id,
            gang=lambda: self._gangs.gang, elsewhere=self.succession.asking, drains=self._drains,
        )  # fmt: skip
        self.signals = Signals(setup.signals, setup.log.paths, owner, self._requests, threads)
        self.signal, self.set_parameter = self.signals.send, self.signals.set_parameter
        self._outcomes = Outcomes(self.job, self._gangs, self._patience, self._requests, self.signals, setup.streak)
        self.checkpointing = setup.checkpointing
        self.status = "RUNNING" if self.succession.adopts else "STARTING"
        self.error: JobFailedError | None = None
        self.cause: str | None = None
        self.ended = threading.Event()
        self.on_end: Callable[[], None] = lambda: None

    @property
    def _gang(self) -> GangState | None:
        return self._gangs.gang

    @property
    def publisher(self) -> SinkPublisher:
        """The sinks of this process. A leader outside of the driver has none."""
        assert isinstance(self._setup.publisher, SinkPublisher)
        return self._setup.publisher

    @property
    def term(self) -> Term:
        """The slot of this leader's takeover. Only once it has taken over."""
        assert self._machine.term is not None
        return self._machine.term

    # -- before anything starts ------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Read the log and refuse a start that can't be, before anything is started or changed. True: it is done. Blocks."""
        return isinstance(self.opening.look(), AlreadyFinished)

    @property
    def restored_from(self) -> Epoch | None:
        """The epoch that this job was started from."""
        return self.opening.restored_from

    def take(self) -> Decision:
        """Wait until this leader has taken over, and take the sinks; returns what to start from. Blocks. Only with ``hold``."""
        self._taken_over.wait()
        if self.ended.is_set() or self._machine.term is None:
            raise self.error or JobFailedError(f"the job ended before it started status={self.status} job={self.job}")
        return self.opening.take(self._machine.log, self._machine.term)

    def proceed(self, decision: Decision, spools: Spools) -> None:
        """All is there that a gang needs: start it from this. The other half of ``take``."""

        def go() -> None:
            self._held = False
            self._blocking.spools = spools
            self.succession.beat()
            self.handle(self.opening.request(decision, self._machine.log))

        self._mailbox.post(go)

    def run(self) -> None:
        """The leader's thread: from the takeover to the job's end. Raises nothing."""
        try:
            if self.checkpointing and self._blocking.sweeps:
                self.later("garbage", self._blocking.sweep, None)
            self.handle(self.opening.read)
            self.opening.read = ev.LogRead(())  # the coordinator keeps what may still be restored
            while not self._over:
                self._timers.run_due(self._clock.now_ms())
                wait_ms = 0 if self._over else self._timers.wait_ms(self._clock.now_ms())  # a timer may have ended the job
                for action in self._mailbox.take(wait_ms):
                    if not self._over:  # what came together with the end must not change how the job ended
                        action()
        except Exception as error:
            log.exception("the leader failed job=%s", self.job)
            self.give_up(caused("the leader failed", error))
        finally:
            self._wind_up()

    def _wind_up(self) -> None:
        """Nothing of the job is left running after its end, and whoever waits for it is told even if some of this fails."""
        for step in (self._end_processes, self.succession.end, self.on_end, self._threads.close, self._setup.publisher.release):
            try:
                step()
            except Exception:
                log.exception("something may be left after the job's end job=%s", self.job)
        self._requests.close(f"the job has ended status={self.status} job={self.job}")
        self.ended.set()
        self._taken_over.set()

    def _end_processes(self) -> None:
        if self.succession.leaves_gang:
            return
        if self._gang is not None:
            self._gang.stop("the job has ended")
        for action in self._mailbox.take(0):  # nodes that have just come would wait for an answer
            if isinstance(action, partial) and action.func == self._gangs.joined:
                self._gangs.turn_away(action.args[0])
        host = self._setup.gangs.host
        if not host.join(RETURN_LIMIT_MS / 1000):
            host.cancel()
            host.join(RETURN_LIMIT_MS / 1000)
        if isinstance(host, RemoteDriver):
            host.ended(self.status, None if self.error is None else str(self.error))

    # -- what users ask --------------------------------------------------------------------------------------------

    def request_checkpoint(self, savepoint: str | None = None) -> Future[int]:
        """Ask for a checkpoint; the future's result is its epoch."""
        if (following := self.succession.following) is not None:
            return following.ask("checkpoint", savepoint=savepoint)
        request, future = self._requests.open()
        if self._over:
            raise InvalidUseError(f"the job has ended status={self.status} job={self.job}")
        self._mailbox.post(partial(self.handle, ev.TriggerRequested(request, savepoint)))
        return future

    def cancel_checkpoint(self, checkpoint_id: int) -> Future[None]:
        """Ask for a checkpoint's abort."""
        if (following := self.succession.following) is not None:
            return following.ask("cancel", checkpoint_id=checkpoint_id)
        request, future = self._requests.open()

        def cancel() -> None:
            try:
                self.handle(ev.CancelRequested(checkpoint_id))
                self._requests.answer((request,), None)
            except TidegateError as error:
                self._requests.answer((request,), error)

        self._mailbox.post(cancel)
        return future

    def post(self, action: Callable[[], None]) -> None:
        """Have this done in the leader's thread."""
        self._mailbox.post(action)

    def stop(self, *, drain: bool = False) -> None:
        """Ask for the end."""
        self._mailbox.post(partial(self._stop, drain))

    def fail(self, reason: str) -> None:
        """End the job as failed: something that it needs beside its gang is gone."""
        self._mailbox.post(partial(self.give_up, Failure(FailureKind.DEFECT, reason)))

    def _stop(self, drain: bool) -> None:
        if self._over:
            return
        if not self.succession.defers_stop(drain):
            self._stop_now(drain)

    def _stop_now(self, drain: bool) -> None:
        if drain:
            self.signal("StreamGracefulEnd")
            return
        self.status = "STOPPING"
        self._stop_requested = True
        why = "stopped while a sink or the store did not answer: the next start publishes what is committed"
        unsettled = Failure(FailureKind.TRANSIENT, why)
        self._timers.at(self._clock.now_ms() + STOP_LIMIT_MS, partial(self.give_up, unsettled))
        self.handle(ev.StopRequested())

    def _drains(self) -> None:
        if not self._over:
            self.status, self._draining = "STOPPING", True

    def checkpoints(self) -> list[dict[str, Any]]:
        """Committed and aborted checkpoints of this run."""
        return self.succession.ask("checkpoints", lambda: list(self._outcomes.history))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the store and the sinks now, the oldest first."""
        return self._watch.current

    def metrics(self) -> JobMetrics:
        """The newest reports of the nodes, added up."""
        return self.succession.ask("metrics", self._metrics)

    def in_background(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Run blocking work of an operation on an executor."""
        return self._threads.executor(name).submit(work)

    def _metrics(self) -> JobMetrics:
        counts = {"committed": self._outcomes.committed, "waits": self._patience.total}
        return job_metrics(self.status, self._gangs, self._watch, self.signals, self._machine, **counts)

    # -- what nodes say: called from the server's threads ----------------------------------------------------------

    def joined(self, connection: ControlStream) -> None:
        """A node, a driver or an operator opened its stream and said hello."""
        if self._operations.joined(connection):
            return
        if self._over:
            self._gangs.turn_away(connection)
        else:
            self._mailbox.post(partial(self._gangs.joined, connection))

    def message(self, connection: ControlStream, message: pb.NodeMessage) -> None:
        """A node said something. What can't be read is raised here: then the server ends the stream, and the node is lost."""
        if self._operations.said(connection, message):
            return
        self._mailbox.post(partial(self._gangs.said, connection, message, carried(message, NodeId(connection.hello.node))))

    def left(self, connection: ControlStream, error: Exception | None) -> None:
        """A stream ended."""
        if self._operations.left(connection, error):
            return
        self._mailbox.post(partial(self._gangs.left, connection, error))

    def broken(self, death: ThreadDied) -> None:
        """A thread of the control line died: nobody would notice a node that is lost."""
        self._mailbox.post(partial(self.give_up, caused("the control line", death)))

    def gang_runs(self, gang: GangState) -> None:
        """Every node has joined."""
        if self.status != "STOPPING":
            self.status = "STOPPING" if self._draining else "RUNNING"
        self.succession.beat()
        self.signals.gang_up(gang)
        if gang.draining and not self._draining:
            self.signal("StreamGracefulEnd")

    def verdict(self, failure: Failure) -> RestartVerdict:
        """A store that somebody has to fix first is waited for; that is none of the restarts that are counted."""
        if not failure.waits(has_run=self._outcomes.committed > 0 or self.restored_from is not None):
            return self._gangs.restarts.lost(failure)
        self._watch.failed(ProblemKind.NODES, failure.text)
        return self._patience.failed()

    def gang_lost(self, failure: Failure, verdict: RestartVerdict) -> None:
        """All processes of a gang have ended."""
        self.cause = failure.text
        match verdict:
            case StopRestarting(failures):
                self.give_up(failure, failures)
            case RestartAfter(wait_ms):
                log.warning("the gang was lost, starting again in %s ms: %s job=%s", wait_ms, failure.text, self.job)
                self.status = "RESTARTING"
            case _:
                assert_never(verdict)

    @property
    def ending(self) -> bool:
        """Nothing is left to restart a gang for."""
        return self._stop_requested or self._machine.mode is Mode.FINISHING

    # -- performing ------------------------------------------------------------------------------------------------

    def handle(self, event: ev.CoordinatorEvent) -> None:
        """An event for the coordinator; its effects are performed. Leader thread only."""
        try:
            effects = self._machine.handle(event, self._clock.now_ms(), self._clock.wall_ms())
        except ProtocolError as error:  # it changed nothing; the story is for whoever fixes the bug
            log.error("refused: %s job=%s story=%s", error, self.job, error.story[-5:])
            return
        self._watch.note(event)
        self.signals.heard(event)
        for effect in effects:
            self._watch.note(effect)
            self._perform(effect)
        self._requests.published(self._machine.is_public)

    def _perform(self, effect: do.CoordinatorEffect) -> None:
        match effect:
            case do.PutEntry():
                self.later("log", self._blocking.put, effect)
            case do.ReadLog():
                self.later("log", self._blocking.read, None)
            case do.CheckLog():
                self.later("log", self._blocking.check, effect.slot)
            case do.WriteLatestHint():
                self.later("hint", self._blocking.write_hint, effect.epoch)
            case do.CollectGarbage() | do.TrimLog():
                if self._blocking.want_collected(effect):
                    self.later("garbage", self._blocking.collect_wanted, None)
            case do.Publish():
                self.later("sinks", self._blocking.publish, effect)
            case do.Hide():
                self.later("sinks", self._blocking.hide, effect)
            case do.ResolveRestore():
                self._taken_over.set()
                self.succession.took_over()
                if not self._held:
                    self.succession.resolve()
            case do.StartGang():
                self._choosing.passed()
                self._gangs.start(effect)
            case do.StopGang():
                self._gangs.stop(effect)
            case do.SetTimer():
                self._timers.at(effect.at_ms, partial(self.handle, ev.Tick()))
            case do.SendInject():
                self.signals.inject(effect)
            case do.CheckpointCompleted() | do.CheckpointAborted() | do.RequestRefused():
                self._outcomes.note(effect)
            case do.JobFinished():
                self.finish("FINISHED")
            case do.JobStopped():
                self.finish("STOPPED")
            case do.StepDown():
                self.succession.step_down(effect.reason)
            case _:
                if self._gang is not None and self._gang.number == effect.stamp.gang:
                    self._gang.tell(effect.node, command(effect))

    @property
    def machine(self) -> DistributedCheckpointCoordinator:
        """The coordinator of now."""
        return self._machine

    @property
    def over(self) -> bool:
        """The job has ended, as far as this process has to do with it."""
        return self._over

    def lead_with(self, machine: DistributedCheckpointCoordinator) -> None:
        """Lead again, from the log as it is. Leader thread only."""
        self._machine, self._stop_requested = machine, False
        self.later("log", self._blocking.read, None)

    def choose_restore(self) -> None:
        """Start a gang from what the log says. Leader thread only."""
        self._choosing.choose()

    def adopted(self) -> None:
        """The gang of the leader before goes on under this one. Its attempt is dead: the next one begins at once."""
        if (drain := self.succession.stop_deferred) is not None:
            self._stop_now(drain)
        elif self._machine.config.checkpoint_interval_ms is not None:
            self.handle(ev.TriggerRequested("adoption", None))

    def not_adopted(self, failure: Failure) -> None:
        """It is over: another is started."""
        log.warning("the gang was not adopted, starting another: %s job=%s", failure.text, self.job)
        if self.succession.stop_deferred is False:
            self._stop_now(drain=False)
        else:
            self.succession.resolve()

    def why_stepped_down(self, reason: do.StepDownReason) -> str:
        """A store or a sink that was waited for in vain has told more than the coordinator knows."""
        stuck = next((p for p in self.problems if p.kind in (ProblemKind.LOG, ProblemKind.SINKS)), None)
        return stepped_down(reason) if stuck is None or isinstance(reason, do.Replaced) else f"gave up, {stuck}"

    def later(self, name: str, work: Callable[[Any], ev.CoordinatorEvent | None], argument: Any) -> None:
        """Run blocking work on an executor; what it returns comes back as an event, for the coordinator that asked."""
        machine = self._machine

        def done(future: Future[ev.CoordinatorEvent | None]) -> None:
            error = future.exception() if not future.cancelled() else None
            if error is not None:
                self._mailbox.post(partial(self.give_up, caused(name, error)))
            elif not future.cancelled():
                event = future.result()
                if event is not None:
                    self._mailbox.post(lambda: self.handle(event) if machine is self._machine else None)

        self._threads.executor(name).submit(work, argument).add_done_callback(done)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def finish(self, status: str) -> None:
        self.status = status
        self._over = True

    def give_up(self, cause: Failure, failures: int = 1) -> None:
        if self.status in ("FINISHED", "STOPPED", "FAILED"):
            return
        text = cause.text if failures <= 1 else f"{cause.text} (failed {failures} times without progress)"
        text += self._watch.last_words(text)
        if cause.traceback:
            text = f"{text}\n\n{cause.traceback}"
        self.error = JobFailedError(text)
        self.cause = cause.text
        self.status = "FAILED"
        self._over = True

    def died(self, death: ThreadDied) -> None:
        """The leader's own thread is gone: the job has failed, and whoever waits for it is told."""
        self.give_up(caused("the leader died", death))
        self.ended.set()
