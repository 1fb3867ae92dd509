"""The driver's view of one gang: who has joined, who is lost, and what to tell them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.core.failure.restart import Failure, FailureKind, first_cause
from tidegate.core.log.codec import parse
from tidegate.errors import CorruptDataError, FencedError, NodeStalled
from tidegate.ids import NO_TERM, GangNumber, NodeId, Term
from tidegate.runtime.activity import told
from tidegate.runtime.failure import failure_of
from tidegate.runtime.host import Launch
from tidegate.runtime.metrics import read_report
from tidegate.wire._gen import control_pb2 as pb


class Launcher(Protocol):
    """Starts the processes of gangs, one gang at a time."""

    def start(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        """Start one; ``on_exit`` is called once, when all of its processes have ended. Never blocks for long."""

    def running(self) -> int | None:
        """How many of its processes run now, by the word of whoever runs them; ``None``: not known. Never blocks for long."""

    def cancel(self) -> None:
        """End by force what is still running. Never blocks for long."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; True when it came."""


class GangHost(Protocol):
    """Where gangs run, as a leader sees it: its own driver, or one that is elsewhere. At most one gang at a time."""

    @property
    def attached(self) -> bool:
        """A gang could be started now."""

    def start(self, gang: GangNumber, restore_url: str | None, on_exit: Callable[[Exit | None], None]) -> None:
        """Start a gang; ``on_exit`` is called once, when all of its processes have ended. Never blocks for long."""

    def watch(self, gang: GangNumber, on_exit: Callable[[Exit | None], None]) -> None:
        """Say when the gang that runs already has ended: at once, if it does not run."""

    def running(self) -> int | None:
        """How many of its processes run now; ``None``: not known. Never blocks for long."""

    def cancel(self) -> None:
        """End by force what is still running. Never blocks for long."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; True when it came."""


class LocalHost:
    """Gangs of this process's own launcher. ``launch`` makes what a gang's processes are told."""

    attached = True

    def __init__(self, launcher: Launcher, launch: Callable[[GangNumber, str | None], Launch]) -> None:
        self._launcher = launcher
        self._launch = launch
        self._lock = threading.Lock()
        self._gang: GangNumber | None = None
        self._newest = -1
        self._on_exit: Callable[[Exit | None], None] = lambda why: None
        self._next: tuple[GangNumber, str | None, Callable[[Exit | None], None]] | None = None
        """What waits for the end of a gang that still runs."""

    def start(self, gang: GangNumber, restore_url: str | None, on_exit: Callable[[Exit | None], None]) -> None:
        """Launch it, once nothing else runs: a leader that was replaced may have left a gang. Its own late order is refused."""
        with self._lock:
            if gang <= self._newest:
                raise FencedError(f"a newer gang was started here gang={gang} newest={self._newest}")
            self._newest, self._next = gang, (gang, restore_url, on_exit)
            runs = self._gang is not None
        if runs:
            self._launcher.cancel()
        else:
            self._start_next()

    def _start_next(self) -> None:
        with self._lock:
            if self._next is None or self._gang is not None:
                return
            (gang, restore_url, on_exit), self._next = self._next, None
            self._gang, self._on_exit = gang, on_exit
        try:
            self._launcher.start(self._launch(gang, restore_url), partial(self._exited, gang))
        except BaseException:
            with self._lock:
                self._gang = None
            raise

    def watch(self, gang: GangNumber, on_exit: Callable[[Exit | None], None]) -> None:
        """Whoever asked before is told nothing any more."""
        with self._lock:
            runs, waits = self._gang == gang, self._next is not None and self._next[0] == gang
            if runs:
                self._on_exit = on_exit
            elif self._next is not None and waits:
                self._next = (gang, self._next[1], on_exit)
        if not runs and not waits:
            on_exit(Exit(FailureKind.LOST, "it does not run"))

    @property
    def gang(self) -> GangNumber | None:
        """The gang whose processes run; ``None``: none."""
        return self._gang

    def _exited(self, gang: GangNumber, why: Exit | None) -> None:
        with self._lock:
            on_exit = self._on_exit
            self._gang = None
        on_exit(why)
        self._start_next()

    def running(self) -> int | None:
        return self._launcher.running()

    def cancel(self) -> None:
        with self._lock:
            waited, self._next = self._next, None
        self._launcher.cancel()
        if waited is not None:
            waited[2](Exit(FailureKind.LOST, "it was cancelled before it could start"))

    def join(self, timeout_s: float) -> bool:
        return self._launcher.join(timeout_s)


class ControlStream(Protocol):
    """A node's control stream, as the server has it."""

    @property
    def hello(self) -> pb.Hello:
        """What the node said first."""

    @property
    def heartbeat(self) -> pb.Heartbeat:
        """What the node said last that it was doing."""

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Never blocks."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Why a gang's processes ended, as whoever ran them knows it."""

    kind: FailureKind
    text: str


@dataclass(slots=True)
class JoinedNode:
    """A node that has joined."""

    connection: ControlStream
    address: str
    pid: int
    host: str
    left: bool = False
    moved: bool = False
    """It has said that it obeys a later leader."""
    named: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"on {self.host} (pid {self.pid})"


class GangState:
    """Facts about the gang under way. Leader thread only."""

    def __init__(
        self,
        number: GangNumber,
        size: int,
        manifest: CheckpointManifest | None,
        term: Term = NO_TERM,
        *,
        adopting: bool = False,
        head: CheckpointManifest | None = None,
    ) -> None:
        self.number = number
        self._head = head
        """The log's newest checkpoint, where it may differ from what the gang started from: a savepoint is of another log."""
        self.adopting = adopting
        self.drained_early: set[NodeId] = set()
        """Nodes that came over and were at their end before all had come: they say it once to each leader."""
        """It was started by an earlier leader, and its nodes are coming over."""
        self.term = term
        self.manifest = manifest
        self._size = size
        self.members: dict[NodeId, JoinedNode] = {}
        self.cause: Failure | None = None
        self.welcomed = False
        self.stopping = False
        self.forced = False

    def join(self, hello: pb.Hello, connection: ControlStream) -> bool:
        """A node said hello. True when that was the last one."""
        if hello.gang != self.number or hello.node >= self._size or hello.node in self.members:
            reason = f"this is gang {self.number}, with nodes 0 to {self._size - 1}, each once"
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))
            return False
        if self.stopping:
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the gang is over already")))
            return False
        self.members[NodeId(hello.node)] = JoinedNode(connection, hello.address, hello.pid, hello.host)
        if self.adopting and hello.rejoins:
            self.tell(NodeId(hello.node), pb.CoordinatorMessage(adopted=self._adopted()))
        # One that could not be built only comes to say why: a gang with it never runs.
        return len(self.members) == self._size and not any(m.connection.hello.unable for m in self.members.values())

    def welcome(self) -> None:
        """Tell every node its peers and what to restore."""
        self.welcomed = True
        self.tell_all(pb.CoordinatorMessage(welcome=self._welcome()))

    def adopt(self) -> None:
        """All are there. Those that the earlier leader did not welcome any more are welcome now."""
        self.adopting, self.welcomed = False, True
        for node, member in self.members.items():
            if not member.connection.hello.rejoins:
                self.tell(node, pb.CoordinatorMessage(welcome=self._welcome()))

    @property
    def draining(self) -> bool:
        """A node was told to read no more, by an earlier leader."""
        return any(member.connection.hello.draining for member in self.members.values())

    def _adopted(self) -> pb.Adopted:
        if self._head is None:
            return pb.Adopted(epoch=-1)
        return pb.Adopted(epoch=self._head.epoch, checkpoint_id=self._head.checkpoint_id)

    def _welcome(self) -> pb.Welcome:
        peers = [pb.Peer(node=node, address=member.address) for node, member in self.members.items()]
        restore = b"" if self.manifest is None else self.manifest.to_json()
        return pb.Welcome(gang=self.number, peers=peers, restore=restore)

    def tell(self, node: NodeId, message: pb.CoordinatorMessage) -> None:
        """Say something to one node, if it is there."""
        member = self.members.get(node)
        if member is not None:
            member.connection.send(self._stamped(message))

    def tell_all(self, message: pb.CoordinatorMessage) -> None:
        """Say something to everyone."""
        self._stamped(message)
        for member in self.members.values():
            member.connection.send(message)

    def _stamped(self, message: pb.CoordinatorMessage) -> pb.CoordinatorMessage:
        message.term, message.gang = self.term, self.number
        return message

    def is_stale(self, message: pb.NodeMessage) -> bool:
        """It was said in another gang, or to another leader. A node that was not welcomed yet knows no term."""
        known = message.term == self.term or (message.term == 0 and not self.welcomed) or self.adopting
        return message.gang != self.number or not known

    def stop(self, reason: str) -> None:
        """Ask every node to return by itself."""
        if not self.stopping:
            self.stopping = True
            self.tell_all(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))

    def failed(self, node: NodeId, failed: pb.Failed) -> None:
        """A node reported why it fails."""
        self._blame(failure_of(node, self._who(node), failed))

    def lost(self, node: NodeId, error: Exception | None) -> None:
        """A node's line is gone. That it returned when it was told to, or was ended by force, is no reason for anything."""
        member = self.members[node]
        member.left = True
        if self.forced or member.moved or (error is None and self.stopping):
            return
        stalled = isinstance(error, NodeStalled)
        text = f"{self._who(node)} {'stands still' if stalled else 'is gone'}: {error or 'it returned by itself'}"
        if (doing := told(member.connection.heartbeat)) is not None:
            text = f"{text}; the last it said is that it was {doing}"
        if stalled:
            text = f"{text}; {_why_stalled(member)}"
        self._blame(Failure(FailureKind.STALLED if stalled else FailureKind.LOST, text, node))

    def long_calls(self, limit_ms: int) -> Iterator[tuple[str, str, int]]:
        """Who has been in what for longer than this; each function of each node once."""
        for node, member in self.members.items():
            for doing in member.connection.heartbeat.doing:
                if doing.running and doing.for_ms >= limit_ms and doing.what not in member.named:
                    member.named.add(doing.what)
                    yield self._who(node), doing.what, doing.for_ms

    def not_joined(self, reason: str) -> None:
        """Some nodes did not come."""
        self._blame(Failure(FailureKind.NOT_JOINED, f"gang {self.number}: {reason}"))

    def exited(self, why: Exit | None) -> Failure:
        """All of its processes have ended: the reason for it all."""
        if why is not None:
            self._blame(Failure(why.kind, f"gang {self.number} was lost: {why.text}"))
        if self.cause is None:
            self._blame(Failure(FailureKind.LOST, f"gang {self.number} was lost: every node returned"))
        assert self.cause is not None
        return self.cause

    @property
    def stands_still(self) -> bool:
        """It is over because a node stood still."""
        return self.cause is not None and self.cause.kind is FailureKind.STALLED

    @property
    def all_left(self) -> bool:
        """Nobody is there any more who could return by itself."""
        return bool(self.members) and all(member.left for member in self.members.values())

    def _blame(self, failure: Failure) -> None:
        self.cause = first_cause(self.cause, failure)

    def _who(self, node: NodeId) -> str:
        return f"node {node} of gang {self.number} {self.members[node]}"

    def node_of(self, connection: ControlStream) -> NodeId | None:
        """Which node this stream belongs to."""
        return next((node for node, member in self.members.items() if member.connection is connection), None)


def _why_stalled(member: JoinedNode) -> str:
    """What can be known from here: the state of a process on this machine."""
    if member.host == socket.gethostname() and process_state(member.pid) in ("T", "t"):
        return "its process is stopped (SIGSTOP or a debugger): let it go on, or leave it to the restart"
    return (
        "a function that holds the interpreter, a stopped process or a machine without air: release the interpreter in "
        "long calls, or give start a longer stall_timeout"
    )


def process_state(pid: int) -> str | None:
    """The state of a process of this machine, as the kernel names it; ``None``: not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def carried(message: pb.NodeMessage, node: NodeId) -> Any:
    """The JSON in this node's message, decoded; ``None`` if it has none. What can't be read is ``CorruptDataError``."""
    match message.WhichOneof("body"):
        case "prepared":
            ack = PrepareAck.from_json(message.prepared.json)
            if ack.node != node:
                raise CorruptDataError(f"a node speaks for another node={node} speaks_for={ack.node}", path="ack")
            return ack
        case "progress":
            return read_report(parse(message.progress.json, "progress"))
        case _:
            return None
