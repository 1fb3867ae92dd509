"""One Spark task = one node: the loop that runs one subtask of every stage.

The loop thread owns every protocol object and never blocks: it takes steps downstream first, moves output queues as far as
credit goes, runs timers, and waits on one mailbox when there is nothing to do. Other threads only post to that mailbox.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import pyarrow as pa

from tidegate.clock import Clock
from tidegate.core.barrier.inject import InjectBarrierCommand
from tidegate.core.barrier.messages import StreamMessage
from tidegate.core.failure.election import LeaderBeat
from tidegate.errors import ProtocolError, RetryableError, ThreadDied, TidegateError
from tidegate.ids import Epoch, NodeId, Term
from tidegate.runtime.activity import Activity
from tidegate.runtime.assemble import Assembly, assemble
from tidegate.runtime.checkpointer import Checkpointer
from tidegate.runtime.failure import PeerLost, last_words
from tidegate.runtime.link import Intake, Link, LocalOutlet
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.nodesignals import NodeSignals
from tidegate.runtime.restore import RestorePlan
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.task import StageTask
from tidegate.runtime.threads import Threads
from tidegate.runtime.timers import Timers
from tidegate.store.interface import Store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.transport import ChannelId, Outbound, Transport

log = logging.getLogger("tidegate")

IDLE_WAIT_MS = 5
IDLE_WAIT_MAX_MS = 50
WINDOW_BYTES_MIN = 1 << 20
"""A channel gets this much credit, however many there are, unless all of them together have less."""
STEPS_PER_TURN = 16

Action = Callable[[], None]


class ControlLink(Protocol):
    """The node's line to the coordinator."""

    def send(self, message: pb.NodeMessage) -> None:
        """Say something. Never blocks."""


class Node:
    """Runs until the coordinator says stop, the work is done, or something is lost."""

    def __init__(
        self,
        setup: NodeSetup,
        *,
        clock: Clock,
        mailbox: Mailbox[Action],
        store: Store | None,
        threads: Threads,
        origin: Store | None = None,
        activity: Activity | None = None,
    ) -> None:
        self._setup = setup
        self._clock = clock
        self._activity = activity or Activity()
        self._mailbox = mailbox
        self._origin = origin or store
        self._threads = threads
        self._timers = Timers()
        self._transport: Transport
        self._control: ControlLink
        self._checkpointer = Checkpointer(setup, store, threads, mailbox.post, clock.now_ms, self._say_prepared, self._decline)
        self._assembly: Assembly = assemble(setup, self._checkpointer, threads, mailbox.post, clock.now_ms)
        self._checkpointer.tasks = self._assembly.tasks
        self._signals = NodeSignals(setup.plan, self._assembly.tasks, store, threads, mailbox.post, self._say_signal)
        self._links: dict[ChannelId, Link] = {}
        self._intakes: dict[ChannelId, Intake] = {}
        self._early: list[tuple[ChannelId, StreamMessage[pa.RecordBatch]]] = []
        self._running = False
        self._connecting = False
        self._interrupted = False
        self._term = 0
        self._hello = pb.Hello()
        self._stale_commands = 0
        self._drained_said = False
        self._idle_ms = IDLE_WAIT_MS
        self._outcome: str | None = None
        self._error: BaseException | None = None

    # -- what other threads call: they only post -------------------------------------------------------------------

    def received(self, channel: ChannelId, message: StreamMessage[pa.RecordBatch], size_bytes: int) -> None:
        self._mailbox.post(partial(self._received, channel, message))

    def credited(self, channel: ChannelId, size_bytes: int) -> None:
        self._mailbox.post(partial(self._credited, channel, size_bytes))

    def sendable(self, channel: ChannelId) -> None:
        self._mailbox.post(_nothing)

    def closed(self, channel: ChannelId, error: Exception | None) -> None:
        if error is not None:
            self._mailbox.post(partial(self._channel_closed, channel, error))

    def broken(self, death: ThreadDied) -> None:
        self._mailbox.post(partial(self._fail, death))

    def control_message(self, message: pb.CoordinatorMessage) -> None:
        if message.WhichOneof("body") == "stop" and not self._is_stale(message):
            self._interrupt()
        self._mailbox.post(partial(self._commanded, message))

    def leader_lost(self, reason: Exception) -> None:
        self._mailbox.post(partial(self._leaderless, reason))

    def leader_found(self, beat: LeaderBeat) -> None:
        self._mailbox.post(self._rejoin)

    def control_lost(self, reason: Exception) -> None:
        self._interrupt()
        lost = reason if isinstance(reason, ThreadDied) else PeerLost(f"the coordinator was lost: {reason}")
        self._mailbox.post(partial(self._lost, lost))

    def _interrupt(self) -> None:
        """The loop may be waiting for a peer that is gone: opening channels is the one thing it blocks on."""
        self._interrupted = True
        if self._connecting:
            self._transport.give_up()

    # -- life ------------------------------------------------------------------------------------------------------

    def run(self, transport: Transport, control: ControlLink, *, pid: int, host: str) -> str:
        """Join the gang and work. Returns why it stopped; raises nothing but ``KeyboardInterrupt``."""
        self._transport = transport
        self._control = control
        try:
            for channel, schema in self._assembly.inbound_remote():
                transport.expect(channel, schema)
            self._hello = pb.Hello(node=self._setup.node, gang=self._setup.gang, address=transport.address, pid=pid, host=host)
            self._say(pb.NodeMessage(hello=self._hello))
            self._loop()
        except Exception as error:
            self._report(error)
        finally:
            self._close()
        return self._outcome or "stopped"

    def _loop(self) -> None:
        tasks = list(reversed(self._assembly.tasks))
        while self._outcome is None:
            progressed = False
            if self._running:
                for task in tasks:
                    progressed |= self._step(task)
                for link in self._links.values():
                    progressed |= link.pump()
                self._signals.look()
                if progressed:
                    self._idle_ms = IDLE_WAIT_MS
                else:
                    self._rest()
            progressed |= self._timers.run_due(self._clock.now_ms())
            for action in self._mailbox.take(0 if progressed else self._wait_ms()):
                action()

    def _step(self, task: StageTask) -> bool:
        self._activity.entered(task.doing)
        worked = _work(task)
        self._activity.left(task.doing, worked=worked)
        return worked

    def _rest(self) -> None:
        """Nothing to do now: return the credit that is due, and notice the end."""
        for intake in self._intakes.values():
            intake.settle()
        if not self._drained_said and self._assembly.drained():
            self._drained_said = True
            self._say_progress()  # before it: the counts of a finished job are final
            self._say(pb.NodeMessage(drained=pb.Drained(gang=self._setup.gang)))

    def _wait_ms(self) -> int | None:
        """Until the next timer, or until a source that had nothing is asked again: the longer it is idle, the later."""
        until_timer = self._timers.wait_ms(self._clock.now_ms())
        if any(task.pace.waiting for task in self._assembly.tasks):
            return IDLE_WAIT_MS if until_timer is None else min(IDLE_WAIT_MS, until_timer)
        if not any(task.idle and not task.ended for task in self._assembly.tasks):
            return until_timer
        self._idle_ms = min(2 * self._idle_ms, IDLE_WAIT_MAX_MS)
        return self._idle_ms if until_timer is None else min(self._idle_ms, until_timer)

    def _report(self, error: Exception) -> None:
        """Tell the coordinator why this node fails."""
        self._outcome = f"failed: {error!r}"
        self._say(pb.NodeMessage(failed=last_words(self._setup.gang, error)))

    def abandon(self) -> None:
        """Let go of everything that a node has before ``run``: its lines could not be opened."""
        self._each(self._assembly.close, self._threads.close, self._assembly.close_writers)

    def _each(self, *steps: Callable[[], None]) -> None:
        """All of these, whatever some of them raise: the process lives on and must not collect what nodes leave behind."""
        for step in steps:
            try:
                step()
            except Exception as error:
                log.warning("a node could not let go of something: %r job=%s", error, self._setup.plan.job)

    def _close(self) -> None:
        self._each(self._say_progress, self._assembly.close, self._transport.close)
        self._each(self._threads.close, self._assembly.close_writers)
        self._say(pb.NodeMessage(stopped=pb.Stopped(gang=self._setup.gang)))

    # -- channels --------------------------------------------------------------------------------------------------

    def _connect(self, addresses: dict[NodeId, str]) -> None:
        credit_bytes = self._setup.credit_bytes
        window = max(min(WINDOW_BYTES_MIN, credit_bytes), credit_bytes // max(1, len(self._assembly.inbound)))
        for channel, (task, output_id) in self._assembly.outbound.items():
            if channel.receiver == self._setup.node:
                target, input_id = self._assembly.inbound[channel]
                link = Link(task, output_id, LocalOutlet(target, input_id), window)
                self._intakes[channel] = Intake(window, link.credited)
            else:
                outbound = self._opened(channel, addresses[channel.receiver])
                link = Link(task, output_id, outbound, window)
            self._links[channel] = link
        for channel in self._assembly.inbound:
            if channel.sender != self._setup.node:
                self._intakes[channel] = Intake(window, partial(self._transport.credit, channel))
        self._assembly.on_consumed(self._intakes)

    def _opened(self, channel: ChannelId, address: str) -> Outbound:
        try:
            return self._transport.connect(channel, address)
        except RetryableError as error:
            raise PeerLost(f"no channel to node {channel.receiver}: {error}") from error

    def _received(self, channel: ChannelId, message: StreamMessage[pa.RecordBatch]) -> None:
        if not self._running:
            self._early.append((channel, message))
            return
        task, input_id = self._assembly.inbound[channel]
        task.receive(input_id, message)

    def _credited(self, channel: ChannelId, size_bytes: int) -> None:
        self._links[channel].credited(size_bytes)

    def _channel_closed(self, channel: ChannelId, error: Exception) -> None:
        """A peer's end is distinguished from what went wrong at this one."""
        peer = channel.sender if channel.receiver == self._setup.node else channel.receiver
        lost = f"the channel {channel} to node {peer} was lost: {error}"
        self._lost(PeerLost(lost) if isinstance(error, RetryableError) else error)

    def _lost(self, error: Exception) -> None:
        if self._outcome is None and not self._drained_said:
            raise error
        if self._outcome is None:
            self._outcome = str(error)

    def _fail(self, error: Exception) -> None:
        raise error

    # -- commands --------------------------------------------------------------------------------------------------

    def _say(self, message: pb.NodeMessage) -> None:
        message.term, message.gang = self._term, self._setup.gang
        self._control.send(message)

    def _is_stale(self, message: pb.CoordinatorMessage) -> bool:
        """From a replaced leader, or for another gang. A node that is turned away is told without a stamp."""
        unstamped = not message.gang and not message.term
        turned_away = message.WhichOneof("body") == "stop" and not self._running and unstamped
        return not turned_away and (message.gang != self._setup.gang or message.term < self._term)

    def _commanded(self, message: pb.CoordinatorMessage) -> None:
        if self._is_stale(message):
            self._stale_commands += 1
            log.warning(
                "refused a stale command: term=%s gang=%s ours=%s/%s",
                message.term, message.gang, self._term, self._setup.gang,
            )  # fmt: skip
            return
        self._term = max(self._term, message.term)
        kind = message.WhichOneof("body")
        match kind:
            case "welcome":
                self._welcome(message.welcome)
            case "started":
                self._started(message.started)
            case "inject":
                self._inject(message.inject)
            case "promote":
                self._deadline(message.promote.checkpoint_id)
            case "abort":
                self._abort(message.abort.checkpoint_id, message.abort.reason)
            case "committed":
                self._committed(message.committed)
            case "finalize":
                pass  # every task has ended, so Started had their last state already
            case "stop":
                self._outcome = message.stop.reason or "stopped"
            case "adopted":
                self._adopted(message.adopted)
            case "signal":
                self._signals.commanded(message.signal)
            case _:
                raise ProtocolError(f"an unknown command from the coordinator kind={kind}")

    def _welcome(self, welcome: pb.Welcome) -> None:
        if welcome.gang != self._setup.gang:
            raise ProtocolError(f"welcomed into another gang gang={welcome.gang} ours={self._setup.gang}")
        self._connecting = True
        if self._interrupted:
            raise PeerLost("the gang was over before its channels were open")
        self._connect({NodeId(peer.node): peer.address for peer in welcome.peers})
        self._connecting = False
        if welcome.restore:
            replayed = RestorePlan.load(bytes(welcome.restore), self._setup, self._origin).apply(self._assembly)
            for channel, events in replayed.items():
                self._intakes[channel].owes_nothing_for(events)
        self._running = True
        early, self._early = self._early, []
        for channel, message in early:
            self._received(channel, message)
        self._timers.at(self._clock.now_ms(), self._progress)

    # -- leaders come and go; the data does not wait for them -----------------------------------------------------------

    def _leaderless(self, reason: Exception) -> None:
        """The attempt in progress is dead: nobody waits for it, and what it holds back goes on."""
        log.warning("node %s goes on without a leader: %s", self._setup.node, reason)
        self._abort(((self._term + 1) << 32) - 1, "the leader was lost")

    def _rejoin(self) -> None:
        self._hello.rejoins = self._running
        self._hello.draining, self._hello.signalled = self._signals.draining, self._signals.unsettled
        self._say(pb.NodeMessage(hello=self._hello))

    def _adopted(self, adopted: pb.Adopted) -> None:
        """Another leader goes on with this gang: what it knows to be committed is, everything else below its term is dead."""
        if adopted.epoch >= 0:
            self._checkpointer.committed(Epoch(adopted.epoch), adopted.checkpoint_id)
            self._signals.committed(adopted.checkpoint_id)
        self._abort(self._term << 32, "another leader has taken over")
        self._drained_said = False  # whoever heard it is gone

    def _started(self, started: pb.Started) -> None:
        """A checkpoint begins somewhere: from now on its deadline counts here, barrier or not."""
        parent = _epoch(started.parent_epoch)
        self._checkpointer.started(started.checkpoint_id, Term(started.term), parent, compacts=started.compacts)
        for task in self._assembly.tasks:
            task.started(started.checkpoint_id, Epoch(started.epoch), aligned=started.aligned)
        now_ms = self._clock.now_ms()
        if not started.aligned:
            due = now_ms + max(0, started.alignment_timeout_ms - started.age_ms)
            self._timers.at(due, partial(self._deadline, started.checkpoint_id))
        due = now_ms + max(0, started.timeout_ms - started.age_ms)
        self._timers.at(due, partial(self._expire, started.checkpoint_id))

    def _inject(self, inject: pb.Inject) -> None:
        command = InjectBarrierCommand(inject.checkpoint_id, Epoch(inject.epoch), inject.unaligned)
        self._signals.injected(inject.checkpoint_id)
        sources = [task for task in self._assembly.tasks if task.injector is not None]
        for task in sources:
            task.inject(command)
        ack = pb.InjectionAck(
            checkpoint_id=inject.checkpoint_id, gang=self._setup.gang, term=inject.term, source_count=len(sources)
        )
        self._say(pb.NodeMessage(injection_ack=ack))

    def _committed(self, committed: pb.Committed) -> None:
        """The coordinator says it again until it has an answer. Idempotent."""
        self._checkpointer.committed(Epoch(committed.epoch), committed.checkpoint_id)
        self._signals.committed(committed.checkpoint_id)
        self._say(pb.NodeMessage(commit_ack=pb.CommitAck(checkpoint_id=committed.checkpoint_id)))

    def _deadline(self, checkpoint_id: int) -> None:
        for task in self._assembly.tasks:
            task.deadline(checkpoint_id)

    def _abort(self, checkpoint_id: int, reason: str) -> None:
        self._checkpointer.abort(checkpoint_id)
        for task in self._assembly.tasks:
            task.abort(checkpoint_id, reason)

    def _expire(self, checkpoint_id: int) -> None:
        """The checkpoint's own deadline: no word came that it was committed or aborted, so drop it."""
        if self._checkpointer.is_live(checkpoint_id):
            self._abort(checkpoint_id, "its deadline passed on this node")

    # -- reports ---------------------------------------------------------------------------------------------------

    def _say_prepared(self, ack: bytes) -> None:
        self._say(pb.NodeMessage(prepared=pb.Prepared(json=ack)))

    def _decline(self, checkpoint_id: int, error: TidegateError) -> None:
        declined = pb.Declined(checkpoint_id=checkpoint_id, gang=self._setup.gang, reason=str(error))
        self._say(pb.NodeMessage(declined=declined))

    def _say_signal(self, progress: pb.SignalProgress) -> None:
        self._say(pb.NodeMessage(signal=progress))

    def _say_progress(self) -> None:
        report = self._assembly.report(upload_retries=self._checkpointer.upload_retries, stale_commands=self._stale_commands)
        self._say(pb.NodeMessage(progress=pb.Progress(json=json.dumps(report).encode())))

    def _progress(self) -> None:
        self._say_progress()
        self._timers.at(self._clock.now_ms() + self._setup.progress_interval_ms, self._progress)


def _work(task: StageTask) -> bool:
    """Let a task work. A source reads one batch, others take all they have: no backlog builds up before barriers."""
    worked = False
    for _ in range(1 if task.reader is not None else STEPS_PER_TURN):
        if not task.step():
            break
        worked = True
    return worked


def _nothing() -> None:
    """Wakes the loop."""


def _epoch(number: int) -> Epoch | None:
    return None if number < 0 else Epoch(number)
