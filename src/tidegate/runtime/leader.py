"""The leader of a job, in the driver: the shell around the coordinator's state machine.

One thread takes events and performs effects. What blocks (the log, sinks, garbage) runs on executors and comes back as events.
It decides nothing about checkpoints; it decides when to stop restarting, by ``core.failure``.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, assert_never

from tidegate.clock import Clock
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.coordinate import Mode
from tidegate.core.failure.patience import Patience
from tidegate.core.failure.problems import Problem, ProblemKind
from tidegate.core.failure.restart import Failure, FailureKind, RestartAfter, RestartVerdict, StopRestarting
from tidegate.core.log.resolve import AlreadyFinished, Decision, FallBack, Refuse
from tidegate.errors import (
    WAITED_FOR,
    FencedError,
    InvalidUseError,
    JobFailedError,
    ProtocolError,
    ThreadDied,
    TidegateError,
)
from tidegate.runtime.blocking import BlockingWork
from tidegate.runtime.commands import command
from tidegate.runtime.failure import kind_of, where_of
from tidegate.runtime.gang import ControlStream, GangState, carried
from tidegate.runtime.gangs import RETURN_LIMIT_MS, Gangs
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.opening import Opening
from tidegate.runtime.report import aborted, committed, stepped_down
from tidegate.runtime.requests import Requests
from tidegate.runtime.threads import Threads
from tidegate.runtime.timers import Timers
from tidegate.runtime.watch import ProblemWatch
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

HISTORY_MAX = 1_000
STOP_LIMIT_MS = 45_000


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
        self._gangs = Gangs(setup.gangs, self, clock=clock, timers=self._timers, post=lambda act: self._mailbox.post(act))
        self.opening = Opening(
            setup.log, setup.publisher, self._machine.shape, self._machine.leader, stays=setup.stays, restore=setup.restore,
            overwrite=setup.overwrite, append=setup.append, moved=setup.gangs.savepoint is not None,
        )  # fmt: skip
        self._patience, self._restore_patience = (Patience(setup.storage_timeout_ms) for _ in range(2))
        self._held = setup.hold
        self._taken_over = threading.Event()
        self._requests = Requests()
        self._history: list[dict[str, Any]] = []
        self._committed = 0
        self._streak = setup.streak
        self._stop_requested = self._draining = False
        self.job = setup.log.paths.job
        self._watch = ProblemWatch(self.job, clock, self._timers)
        self.log, self.publisher = setup.log, setup.publisher
        self.checkpointing = setup.checkpointing
        self.status = "STARTING"
        self.error: JobFailedError | None = None
        self.cause: str | None = None
        self._over = False
        self.ended = threading.Event()
        self.on_end: Callable[[], None] = lambda: None

    @property
    def _gang(self) -> GangState | None:
        return self._gangs.gang

    @property
    def term(self) -> int:
        """The slot of this leader's takeover. Only once it has taken over."""
        assert self._machine.term is not None
        return self._machine.term

    # -- before anything starts ------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Read the log and refuse a start that can't be, before anything is started or changed. True: it is done. Blocks."""
        return isinstance(self.opening.look(), AlreadyFinished)

    @property
    def restored_from(self) -> int | None:
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
            self.handle(self.opening.request(decision, self._machine.log))

        self._mailbox.post(go)

    def run(self) -> None:
        """The leader's thread: from the takeover to the job's end. Raises nothing."""
        try:
            if self.checkpointing and self._blocking.sweeps:
                self._later("garbage", self._blocking.sweep, None)
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
            self._fail(_caused("the leader failed", error))
        finally:
            self._wind_up()

    def _wind_up(self) -> None:
        """Nothing of the job is left running after its end, and whoever waits for it is told even if some of this fails."""
        for step in (self._end_processes, self.on_end, self._threads.close, self.publisher.release):
            try:
                step()
            except Exception:
                log.exception("something may be left after the job's end job=%s", self.job)
        self._requests.close(f"the job has ended status={self.status} job={self.job}")
        self.ended.set()
        self._taken_over.set()

    def _end_processes(self) -> None:
        if self._gang is not None:
            self._gang.stop("the job has ended")
        for action in self._mailbox.take(0):  # nodes that have just come would wait for an answer
            if getattr(action, "func", None) == self._gangs.joined:
                self._gangs.turn_away(action.args[0])  # type: ignore[attr-defined]
        if not self._setup.gangs.launcher.join(RETURN_LIMIT_MS / 1000):
            self._setup.gangs.launcher.cancel()
            self._setup.gangs.launcher.join(RETURN_LIMIT_MS / 1000)

    # -- what users ask --------------------------------------------------------------------------------------------

    def request_checkpoint(self, savepoint: str | None = None) -> Future[int]:
        """Ask for a checkpoint; the future's result is its epoch."""
        request, future = self._requests.open()
        if self._over:
            raise InvalidUseError(f"the job has ended status={self.status} job={self.job}")
        self._mailbox.post(partial(self.handle, ev.TriggerRequested(request, savepoint)))
        return future

    def cancel_checkpoint(self, checkpoint_id: int) -> Future[None]:
        """Ask for a checkpoint's abort."""
        request, future = self._requests.open()

        def cancel() -> None:
            try:
                self.handle(ev.CancelRequested(checkpoint_id))
                self._requests.answer((request,), None)
            except TidegateError as error:
                self._requests.answer((request,), error)

        self._mailbox.post(cancel)
        return future

    def stop(self, *, drain: bool = False) -> None:
        """Ask for the end."""
        self._mailbox.post(partial(self._stop, drain))

    def fail(self, reason: str) -> None:
        """End the job as failed: something that it needs beside its gang is gone."""
        self._mailbox.post(partial(self._fail, Failure(FailureKind.DEFECT, reason)))

    def _stop(self, drain: bool) -> None:
        if self._over:
            return
        self.status = "STOPPING"
        self._draining = drain
        if drain:
            if self._gang is not None:  # else the next one is told as soon as it runs
                self._gang.tell_all(pb.CoordinatorMessage(drain=pb.Drain()))
            return
        self._stop_requested = True
        why = "stopped while a sink or the store did not answer: the next start publishes what is committed"
        unsettled = Failure(FailureKind.TRANSIENT, why)
        self._timers.at(self._clock.now_ms() + STOP_LIMIT_MS, partial(self._fail, unsettled))
        self.handle(ev.StopRequested())

    def checkpoints(self) -> list[dict[str, Any]]:
        """Committed and aborted checkpoints of this run."""
        return list(self._history)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the store and the sinks now, the oldest first."""
        return self._watch.current

    def metrics(self) -> dict[str, Any]:
        """The newest reports of the nodes, added up."""
        gang = self._gang
        return {
            "status": self.status,
            **self._gangs.totals.added_up(),
            **self._watch.metrics(),
            "put_retries": self._machine.metrics.put_retries,
            "publish_retries": self._machine.metrics.publish_retries,
            "stale_messages": self._machine.metrics.stale_messages + self._gangs.stale_messages,
            "checkpoints_committed": self._committed,
            "restarts": self._gangs.restarts.total + self._patience.total,
            "recoveries_ms": list(self._gangs.recoveries_ms),
            "gang": None if gang is None else gang.number,
            "nodes": self._gangs.nodes(),
        }

    # -- what nodes say: called from the server's threads ----------------------------------------------------------

    def joined(self, connection: ControlStream) -> None:
        """A node opened its stream and said hello."""
        if self._over:
            self._gangs.turn_away(connection)
        else:
            self._mailbox.post(partial(self._gangs.joined, connection))

    def message(self, connection: ControlStream, message: pb.NodeMessage) -> None:
        """A node said something. What can't be read is raised here: then the server ends the stream, and the node is lost."""
        self._mailbox.post(partial(self._gangs.said, connection, message, carried(message, connection.hello.node)))

    def left(self, connection: ControlStream, error: Exception | None) -> None:
        """A node's stream ended."""
        self._mailbox.post(partial(self._gangs.left, connection, error))

    def broken(self, death: ThreadDied) -> None:
        """A thread of the control line died: nobody would notice a node that is lost."""
        self._mailbox.post(partial(self._fail, _caused("the control line", death)))

    def gang_runs(self, gang: GangState) -> None:
        """Every node has joined."""
        if self.status != "STOPPING":
            self.status = "RUNNING"
        if self._draining:  # asked for while nodes were still joining, or of a gang that was lost
            self.status = "STOPPING"
            gang.tell_all(pb.CoordinatorMessage(drain=pb.Drain()))

    def verdict(self, failure: Failure) -> RestartVerdict:
        """A store that somebody has to fix first is waited for; that is none of the restarts that are counted."""
        if not failure.waits(has_run=self._committed > 0 or self.restored_from is not None):
            return self._gangs.restarts.lost(failure)
        self._watch.failed(ProblemKind.NODES, failure.text)
        return self._patience.failed()

    def gang_lost(self, failure: Failure, verdict: RestartVerdict) -> None:
        """All processes of a gang have ended."""
        self.cause = failure.text
        match verdict:
            case StopRestarting(failures):
                self._fail(failure, failures)
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
        for effect in effects:
            self._watch.note(effect)
            self._perform(effect)
        self._requests.published(self._machine.is_public)

    def _perform(self, effect: do.CoordinatorEffect) -> None:
        match effect:
            case do.PutEntry():
                self._later("log", self._blocking.put, effect)
            case do.ReadLog():
                self._later("log", self._blocking.read, None)
            case do.CheckLog():
                self._later("log", self._blocking.check, effect.slot)
            case do.WriteLatestHint():
                self._later("hint", self._blocking.write_hint, effect.epoch)
            case do.CollectGarbage() | do.TrimLog():
                if self._blocking.want_collected(effect):
                    self._later("garbage", self._blocking.collect_wanted, None)
            case do.Publish():
                self._later("sinks", self._blocking.publish, effect)
            case do.Hide():
                self._later("sinks", self._blocking.hide, effect)
            case do.ResolveRestore():
                self._taken_over.set()
                if not self._held:
                    self._gangs.when_ready(self._choose_restore)
            case do.StartGang():
                self._restore_patience.passed()
                self._gangs.start(effect)
            case do.StopGang():
                self._gangs.stop(effect)
            case do.SetTimer():
                self._timers.at(effect.at_ms, partial(self.handle, ev.Tick()))
            case do.CheckpointCompleted() | do.CheckpointAborted() | do.RequestRefused():
                self._note(effect)
            case do.JobFinished():
                self._finish("FINISHED")
            case do.JobStopped():
                self._finish("STOPPED")
            case do.StepDown():
                self._fail(Failure(FailureKind.SETUP, self._stepped_down(effect.reason)))
            case _:
                if self._gang is not None and self._gang.number == effect.stamp.gang:
                    self._gang.tell(effect.node, command(effect))

    def _stepped_down(self, reason: do.StepDownReason) -> str:
        """A store or a sink that was waited for in vain has told more than the coordinator knows."""
        stuck = next((p for p in self.problems if p.kind in (ProblemKind.LOG, ProblemKind.SINKS)), None)
        return stepped_down(reason) if stuck is None or isinstance(reason, do.Replaced) else f"gave up, {stuck}"

    def _later(self, name: str, work: Callable[[Any], ev.CoordinatorEvent | None], argument: Any) -> None:
        """Run blocking work on an executor; what it returns comes back as an event."""

        def done(future: Future[ev.CoordinatorEvent | None]) -> None:
            error = future.exception() if not future.cancelled() else None
            if error is not None:
                self._mailbox.post(partial(self._fail, _caused(name, error)))
            elif not future.cancelled():
                event = future.result()
                if event is not None:
                    self._mailbox.post(partial(self.handle, event))

        self._threads.executor(name).submit(work, argument).add_done_callback(done)

    # -- what to restore -------------------------------------------------------------------------------------------

    def _choose_restore(self) -> None:
        self._later("log", self._decide, None)

    def _choose_again(self, why: str) -> None:
        self._watch.failed(ProblemKind.RESTORE, why)
        match self._restore_patience.failed():
            case StopRestarting(failures):
                unread = f"the checkpoint to go on from can't be read: {why}"
                self._fail(Failure(FailureKind.STORAGE_UNAVAILABLE, unread), failures)
            case RestartAfter(wait_ms):
                self._timers.at(self._clock.now_ms() + wait_ms, self._choose_restore)

    def _decide(self, _: None) -> ev.CoordinatorEvent | None:
        # The coordinator has looked into the log before it asked, and changes nothing until this is answered.
        try:
            decision = self.opening.resolve(self._machine.log)
            # Another leader may have collected what seems to be damaged.
            if isinstance(decision, FallBack | Refuse) and (replaced := self._blocking.replaced(self._machine.log.next_slot - 1)):
                return replaced
        except WAITED_FOR as error:
            self._mailbox.post(partial(self._choose_again, str(error)))
            return None
        return self.opening.request(decision, self._machine.log)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _note(self, effect: do.CheckpointCompleted | do.CheckpointAborted | do.RequestRefused) -> None:
        match effect:
            case do.CheckpointCompleted():
                self._committed += 1
                self._gangs.restarts.progressed()
                self._gangs.totals.committed(effect.checkpoint_id, effect.epoch)
                self._patience.passed()
                if warning := self._streak.committed(effect.manifest.is_unaligned):
                    # Not raised as a warning: this thread must outlive whoever turns warnings into errors.
                    log.warning("ThresholdTooLow: %s job=%s", warning, self.job)
                self._remember(committed(effect))
                self._requests.committed(effect.requests, effect.epoch, wait=effect.manifest.is_savepoint)
            case do.CheckpointAborted():
                log.info("checkpoint aborted: %s checkpoint_id=%s job=%s", effect.reason, effect.checkpoint_id, self.job)
                self._remember(aborted(effect))
                self._requests.answer(effect.requests, effect.error)
            case do.RequestRefused():
                self._requests.answer((effect.request_id,), InvalidUseError(effect.reason))

    def _remember(self, record: dict[str, Any]) -> None:
        self._history.append(record)
        del self._history[:-HISTORY_MAX]

    def _finish(self, status: str) -> None:
        self.status = status
        self._over = True

    def _fail(self, cause: Failure, failures: int = 1) -> None:
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
        self._fail(_caused("the leader died", death))
        self.ended.set()


def _caused(what: str, error: BaseException) -> Failure:
    """Work on the driver failed. With the traceback: of ``for_each_batch`` and of own sinks it is the user's."""
    if isinstance(error, FencedError):  # it says all there is to say
        return Failure(FailureKind.DEFECT, str(error), None, type(error).__name__)
    cause = error.__cause__ if isinstance(error, ThreadDied) and error.__cause__ is not None else error
    lines = "".join(traceback.format_exception(cause))
    return Failure(kind_of(error), f"{what}: {error!r}", None, type(error).__name__, where_of(cause), lines)
