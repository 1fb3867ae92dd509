"""The leader of a job, in the driver: the shell around the coordinator's state machine.

One thread takes events and performs effects. What blocks (the log, sinks, garbage) runs on executors and comes back as events.
It decides nothing about checkpoints; it decides when to give up restarting, by ``core.restart``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from tidegate.clock import Clock
from tidegate.core import events as ev
from tidegate.core import orders as do
from tidegate.core.adapt import UnalignedStreak
from tidegate.core.coordinate import DistributedCheckpointCoordinator, Mode
from tidegate.core.log import LogView
from tidegate.core.resolve import (
    AlreadyFinished,
    Decision,
    FallBack,
    Refuse,
    RestoreChoice,
    RestoreFrom,
    StartFresh,
    resolve,
)
from tidegate.core.restart import GiveUp, RestartAfter, RestartPolicy, Restarts
from tidegate.errors import InvalidUseError, JobFailedError, ProtocolError, RetryableError, TidegateError
from tidegate.runtime.chores import Chores
from tidegate.runtime.commands import command
from tidegate.runtime.gang import Cause, GangState, Launcher, NodeConnection, carried
from tidegate.runtime.host import Launch
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.report import aborted, added_up, committed, stepped_down
from tidegate.runtime.requests import Requests
from tidegate.runtime.savepoint import Savepoint
from tidegate.runtime.sinks import Publisher
from tidegate.runtime.supply import Spools
from tidegate.runtime.threads import Threads
from tidegate.runtime.timers import Timers
from tidegate.wire._gen import control_pb2 as pb

log = logging.getLogger("tidegate")

JOIN_LIMIT_MS = 60_000
RETURN_LIMIT_MS = 8_000
HISTORY_MAX = 1_000
STOP_LIMIT_MS = 45_000
RESTORE_TRIES = 6
RESTORE_RETRY_MS = 500  # the first wait for a store that does not answer; each is twice the one before
PERMANENT_EXITS = ("ModuleNotFoundError", "SparkStopped", "InvalidUseError", "NodeUnreachable")


@dataclass(frozen=True, slots=True)
class LeaderSetup:
    """What a leader needs. ``launch`` makes what a gang's processes are told."""

    coordinator: DistributedCheckpointCoordinator
    log: LogStore
    launcher: Launcher
    launch: Callable[[int, str | None], Launch]
    publisher: Publisher
    parallelism: int
    restore: RestoreChoice
    overwrite: bool
    checkpointing: bool
    restarts: RestartPolicy
    append: bool = False
    streak: UnalignedStreak = field(default_factory=UnalignedStreak)
    savepoint: Savepoint | None = None
    """Where to start from while the log has no commit."""
    spools: Spools = field(default_factory=Spools)


class Leader:
    """Runs one job to its end. Public methods may be called from any thread."""

    def __init__(self, setup: LeaderSetup, *, clock: Clock, threads: Threads) -> None:
        self._setup = setup
        self._clock = clock
        self._threads = threads
        self._machine = setup.coordinator
        self._chores = Chores(setup.log, setup.publisher, setup.spools)
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self._timers = Timers()
        self._gang: GangState | None = None
        self._restarts = Restarts(setup.restarts)
        self._choice: RestoreChoice = setup.restore
        self._requests = Requests()
        self._history: list[dict[str, Any]] = []
        self._committed = 0
        self._streak = setup.streak
        self._last_reports: dict[int, dict[str, Any]] = {}
        self._stop_requested = self._draining = False
        self._restarting_since: int | None = None
        self._recoveries_ms: list[int] = []
        self.job = setup.log.paths.job
        self.log, self.publisher = setup.log, setup.publisher
        self.checkpointing = setup.checkpointing
        self.status = "STARTING"
        self.error: JobFailedError | None = None
        self.cause: str | None = None
        self.restored_from: int | None = None
        self.skipped: tuple[tuple[int, str], ...] = ()
        self._over = False
        self.ended = threading.Event()
        self.on_end: Callable[[], None] = lambda: None

    # -- before anything starts ------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Read the log and refuse a start that can't be, before anything is started or changed. True: it is done. Blocks."""
        self._setup.publisher.check()
        self._read = self._setup.log.recent()
        view = self._read.view()
        self._setup.log.warn_of(view.damage)
        match decision := self._resolve(view):
            case Refuse(why):
                raise InvalidUseError(why)
            case StartFresh() if self._setup.savepoint is None or not self._setup.append:
                self._setup.publisher.prepare_fresh_start(self._setup.overwrite)
            case StartFresh():
                self._setup.publisher.adopt()  # the user says that sinks show what the savepoint's job had written, and no more
            case RestoreFrom(manifest) | FallBack(manifest) | AlreadyFinished(manifest):
                self.restored_from = manifest.epoch
                self._setup.publisher.claim()
        return isinstance(decision, AlreadyFinished)

    def _resolve(self, view: LogView) -> Decision:
        return resolve(view, self._machine.shape, self._setup.log.fault, self._choice, **self._setup.publisher.hiding)

    def run(self) -> None:
        """The leader's thread: from the takeover to the job's end. Raises nothing."""
        try:
            self._handle(self._read)
            self._read = ev.LogRead(())  # the coordinator keeps what may still be restored
            while not self._over:
                self._timers.run_due(self._clock.now_ms())
                wait_ms = 0 if self._over else self._timers.wait_ms(self._clock.now_ms())  # a timer may have ended the job
                for action in self._mailbox.take(wait_ms):
                    if not self._over:  # what came together with the end must not change how the job ended
                        action()
        except Exception as error:
            log.exception("the leader failed job=%s", self.job)
            self._fail(Cause(f"the leader failed: {error!r}"))
        finally:
            self._wind_up()

    def _wind_up(self) -> None:
        """Nothing of the job is left running behind its end, and whoever waits for it is told even if some of this fails."""
        for step in (self._end_processes, self.on_end, self._threads.close):
            try:
                step()
            except Exception:
                log.exception("something may be left behind the job's end job=%s", self.job)
        self._requests.close(f"the job has ended status={self.status} job={self.job}")
        self.ended.set()

    def _end_processes(self) -> None:
        if self._gang is not None:
            self._gang.stop("the job has ended")
        if not self._setup.launcher.join(RETURN_LIMIT_MS / 1000):
            self._setup.launcher.cancel()
            self._setup.launcher.join(RETURN_LIMIT_MS / 1000)

    # -- what users ask --------------------------------------------------------------------------------------------

    def request_checkpoint(self, savepoint: str | None = None) -> Future[int]:
        """Ask for a checkpoint; the future gives its epoch."""
        request, future = self._requests.open()
        if self._over:
            raise InvalidUseError(f"the job has ended status={self.status} job={self.job}")
        self._mailbox.post(partial(self._handle, ev.TriggerRequested(request, savepoint)))
        return future

    def cancel_checkpoint(self, checkpoint_id: int) -> Future[None]:
        """Ask for a checkpoint's abort."""
        request, future = self._requests.open()

        def cancel() -> None:
            try:
                self._handle(ev.CancelRequested(checkpoint_id))
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
        self._mailbox.post(partial(self._fail, Cause(reason)))

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
        unsettled = Cause("stopped while a sink or the store gave no answer: the next start publishes what is committed")
        self._timers.at(self._clock.now_ms() + STOP_LIMIT_MS, partial(self._fail, unsettled))
        self._handle(ev.StopRequested())

    def checkpoints(self) -> list[dict[str, Any]]:
        """Committed and aborted checkpoints of this run."""
        return list(self._history)

    def metrics(self) -> dict[str, Any]:
        """The newest reports of the nodes, added up."""
        gang = self._gang
        members = dict(gang.members) if gang is not None else {}
        reports = {node: member.report for node, member in members.items() if member.report} or self._last_reports
        return {
            "status": self.status,
            **added_up(reports),
            "checkpoints_committed": self._committed,
            "restarts": self._restarts.total,
            "recoveries_ms": list(self._recoveries_ms),
            "gang": None if gang is None else gang.number,
            "nodes": [{"node": node, "pid": m.pid, "host": m.host} for node, m in sorted(members.items())],
        }

    # -- what nodes say: called from the server's threads ----------------------------------------------------------

    def joined(self, connection: NodeConnection) -> None:
        """A node opened its stream and said hello."""
        self._mailbox.post(partial(self._node_joined, connection))

    def message(self, connection: NodeConnection, message: pb.NodeMessage) -> None:
        """A node said something. What can't be read is raised here: then the server ends the stream, and the node is lost."""
        self._mailbox.post(partial(self._node_said, connection, message, carried(message, connection.hello.node)))

    def left(self, connection: NodeConnection, error: Exception | None) -> None:
        """A node's stream ended."""
        self._mailbox.post(partial(self._node_left, connection, error))

    def _node_joined(self, connection: NodeConnection) -> None:
        if self._gang is None:
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason="no gang is wanted now")))
        elif self._gang.join(connection.hello, connection):
            self._gang.welcome()
            self._running(self._gang)

    def _node_said(self, connection: NodeConnection, message: pb.NodeMessage, payload: Any) -> None:
        gang = self._gang
        node = gang.node_of(connection) if gang is not None else None
        if gang is None or node is None:
            return
        match message.WhichOneof("body"):
            case "injection_ack":
                ack = message.injection_ack
                self._handle(ev.InjectionAcked(node, ack.gang, ack.term, ack.checkpoint_id))
            case "prepared":
                self._handle(ev.NodePrepared(payload))
            case "declined":
                declined = message.declined
                self._handle(ev.NodeDeclined(node, declined.gang, declined.checkpoint_id, declined.reason))
            case "drained":
                self._handle(ev.NodeDrained(node, message.drained.gang))
            case "progress":
                gang.report(node, payload)
            case "failed":
                gang.failed(node, message.failed)
                self._end(gang, "another node failed")
            case _:
                pass  # heartbeats, and a last word before a stream ends

    def _node_left(self, connection: NodeConnection, error: Exception | None) -> None:
        gang = self._gang
        node = gang.node_of(connection) if gang is not None else None
        if gang is None or node is None or gang.stopping:
            return
        gang.lost(f"node {node} is gone{f': {error}' if error else ''}")
        self._end(gang, "a node was lost")

    def _end(self, gang: GangState, reason: str) -> None:
        """Nodes have a limited time to return by themselves."""
        if not gang.stopping:
            gang.stop(reason)
            self._timers.at(self._clock.now_ms() + RETURN_LIMIT_MS, partial(self._force, gang))

    def _running(self, gang: GangState) -> None:
        if self._restarting_since is not None:
            self._recoveries_ms.append(self._clock.now_ms() - self._restarting_since)
            self._restarting_since = None
        if self.status != "STOPPING":
            self.status = "RUNNING"
        if self._draining:  # asked for while nodes were still joining, or of a gang that was lost
            self.status = "STOPPING"
            gang.tell_all(pb.CoordinatorMessage(drain=pb.Drain()))
        nodes = frozenset(gang.members)
        self._handle(ev.GangRunning(gang.number, nodes, nodes))

    # -- performing ------------------------------------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        try:
            effects = self._machine.handle(event, self._clock.now_ms(), self._clock.wall_ms())
        except ProtocolError as error:  # it changed nothing; the story is for whoever mends the bug
            log.error("refused: %s job=%s story=%s", error, self.job, error.story[-5:])
            return
        for effect in effects:
            self._perform(effect)
        self._requests.published(self._machine.is_public)

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.PutEntry():
                self._later("log", self._chores.put, effect)
            case do.ReadLog():
                self._later("log", self._chores.read, None)
            case do.CheckLog():
                self._later("log", self._chores.check, effect.slot)
            case do.WriteLatestHint():
                self._later("hint", self._chores.write_hint, effect.epoch)
            case do.CollectGarbage() | do.TrimLog():
                if self._chores.want_collected(effect):
                    self._later("garbage", self._chores.collect_wanted, None)
            case do.Publish():
                self._later("sinks", self._chores.publish, effect)
            case do.Hide():
                self._later("sinks", self._chores.hide, effect)
            case do.ResolveRestore():
                self._later("log", self._decide, RESTORE_TRIES)
            case do.StartGang():
                self._start_gang(effect)
            case do.StopGang():
                self._stop_gang(effect)
            case do.SetTimer():
                self._timers.at(effect.at_ms, partial(self._handle, ev.Tick()))
            case do.CheckpointCompleted() | do.CheckpointAborted() | do.RequestRefused():
                self._note(effect)
            case do.JobFinished():
                self._finish("FINISHED")
            case do.JobStopped():
                self._finish("STOPPED")
            case do.StepDown():
                self._fail(Cause(stepped_down(effect.reason)))
            case _:
                if self._gang is not None and self._gang.number == effect.stamp.gang:
                    self._gang.tell(effect.node, command(effect))

    def _later(self, name: str, work: Callable[[Any], ev.Event | None], argument: Any) -> None:
        """Run blocking work on an executor; what it gives comes back as an event."""

        def done(future: Future[ev.Event | None]) -> None:
            error = future.exception() if not future.cancelled() else None
            if error is not None:
                self._mailbox.post(partial(self._fail, Cause.of(name, error)))
            elif not future.cancelled():
                event = future.result()
                if event is not None:
                    self._mailbox.post(partial(self._handle, event))

        self._threads.executor(name).submit(work, argument).add_done_callback(done)

    # -- gangs -----------------------------------------------------------------------------------------------------

    def _choose_again(self, tries: int, why: str) -> None:
        wait_ms = RESTORE_RETRY_MS << (RESTORE_TRIES - 1 - tries)
        log.warning("the store does not answer, looking again in %s ms: %s job=%s", wait_ms, why, self.job)
        self._timers.at(self._clock.now_ms() + wait_ms, partial(self._later, "log", self._decide, tries))

    def _decide(self, tries: int) -> ev.Event | None:
        # The coordinator has looked into the log before it asked, and changes nothing until this is answered.
        try:
            decision = self._resolve(self._machine.log)
            # Another leader may have collected what seems to be damaged.
            if isinstance(decision, FallBack | Refuse) and (replaced := self._chores.replaced(self._machine.log.next_slot - 1)):
                return replaced
        except RetryableError as error:
            if tries <= 1:
                raise
            self._mailbox.post(partial(self._choose_again, tries - 1, str(error)))
            return None
        self._choice = "latest"
        match decision:
            case StartFresh():
                return ev.RestoreRequested(None)
            case RestoreFrom(manifest) | AlreadyFinished(manifest):
                return ev.RestoreRequested(manifest.epoch)
            case FallBack(manifest, skipped):
                self.skipped = skipped
                for epoch, why in skipped:
                    log.warning("checkpoint skipped: %s epoch=%s job=%s", why, epoch, self.job)
                self.restored_from = manifest.epoch
                return ev.RestoreRequested(manifest.epoch)
            case Refuse(why):
                raise InvalidUseError(why)
            case _:
                assert_never(decision)

    def _start_gang(self, effect: do.StartGang) -> None:
        keep = () if effect.manifest is None else effect.manifest.committables
        savepoint = self._setup.savepoint if effect.manifest is None else None
        fresh = effect.manifest is None and savepoint is None  # an earlier log, in memory, may have had this number too
        self._setup.publisher.sweep(effect.gang + fresh, keep)
        gang = GangState(effect.gang, self._setup.parallelism, savepoint.manifest if savepoint else effect.manifest)
        self._gang = gang
        log.info("starting gang=%s epoch=%s job=%s", effect.gang, effect.manifest and effect.manifest.epoch, self.job)
        launch = self._setup.launch(effect.gang, savepoint.url if savepoint else None)
        self._setup.launcher.start(launch, lambda why: self._mailbox.post(partial(self._gang_exited, gang, why)))
        self._timers.at(self._clock.now_ms() + JOIN_LIMIT_MS, partial(self._check_joined, gang))

    def _check_joined(self, gang: GangState) -> None:
        if self._gang is gang and not gang.welcomed and not gang.stopping:
            missing = self._setup.parallelism - len(gang.members)
            gang.cause = Cause(
                f"{missing} of {self._setup.parallelism} nodes did not reach the driver within {JOIN_LIMIT_MS // 1000} s: check "
                "that executors can connect to the driver's address and that nothing else holds the slots"
            )
            gang.stop("not all nodes joined")
            self._force(gang)

    def _stop_gang(self, effect: do.StopGang) -> None:
        gang = self._gang
        if gang is None or gang.number != effect.gang:
            self._handle(ev.GangLost(effect.gang, "it was not running"))
            return
        gang.stop(effect.reason)
        self._timers.at(self._clock.now_ms() + RETURN_LIMIT_MS, partial(self._force, gang))

    def _force(self, gang: GangState) -> None:
        """Nodes had their time to return by themselves."""
        if self._gang is gang:
            self._setup.launcher.cancel()

    def _gang_exited(self, gang: GangState, why: str | None) -> None:
        if self._gang is not gang:
            return
        self._last_reports = {node: m.report for node, m in gang.members.items() if m.report} or self._last_reports
        self._gang = None
        if self._stop_requested or self._machine.mode is Mode.FINISHING:  # nothing is left to restart it for
            self._handle(ev.GangLost(gang.number, "stopped"))
            return
        permanent = why is not None and why.startswith(PERMANENT_EXITS)
        cause = gang.cause or Cause(f"lost: {why or 'every node returned'}", user_error=permanent)
        self.cause = cause.text
        match self._restarts.lost(user_error=cause.user_error, error=cause.text):
            case GiveUp(failures):
                self._fail(cause, failures)
            case RestartAfter(wait_ms):
                log.warning("the gang was lost, starting again in %s ms: %s job=%s", wait_ms, cause.text, self.job)
                self.status = "RESTARTING"
                self._restarting_since = self._clock.now_ms()
                self._timers.at(self._clock.now_ms() + wait_ms, partial(self._handle, ev.GangLost(gang.number, cause.text)))

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _note(self, effect: do.CheckpointCompleted | do.CheckpointAborted | do.RequestRefused) -> None:
        match effect:
            case do.CheckpointCompleted():
                self._committed += 1
                self._restarts.progressed()
                if warning := self._streak.committed(effect.manifest.is_unaligned):
                    # Not raised as a warning: this thread must outlive whoever turns warnings into errors.
                    log.warning("ThresholdTooLow: %s job=%s", warning, self.job)
                self._remember(committed(effect))
                self._requests.committed(effect.requests, effect.epoch, wait=effect.manifest.is_savepoint)
            case do.CheckpointAborted():
                log.warning("checkpoint aborted: %s checkpoint_id=%s job=%s", effect.reason, effect.checkpoint_id, self.job)
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

    def _fail(self, cause: Cause, failures: int = 1) -> None:
        if self.status in ("FINISHED", "STOPPED", "FAILED"):
            return
        text = cause.text if failures <= 1 else f"{cause.text} (failed {failures} times without progress)"
        if cause.traceback:
            text = f"{text}\n\n{cause.traceback}"
        self.error = JobFailedError(text)
        self.cause = cause.text
        self.status = "FAILED"
        self._over = True
