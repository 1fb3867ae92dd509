"""The driver's view of one gang: who has joined, who is lost, and what to tell them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.core.failure.restart import Failure, FailureKind, first_cause
from tidegate.core.log.codec import parse
from tidegate.errors import CorruptDataError, NodeStalled
from tidegate.runtime.activity import told
from tidegate.runtime.failure import failure_of
from tidegate.runtime.host import Launch
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
    named: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"on {self.host} (pid {self.pid})"


class GangState:
    """Facts about the gang under way. Leader thread only."""

    def __init__(self, number: int, size: int, manifest: CheckpointManifest | None, term: int = 0) -> None:
        self.number = number
        self.term = term
        self.manifest = manifest
        self._size = size
        self.members: dict[int, JoinedNode] = {}
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
        self.members[hello.node] = JoinedNode(connection, hello.address, hello.pid, hello.host)
        # One that could not be built only comes to say why: a gang with it never runs.
        return len(self.members) == self._size and not any(m.connection.hello.unable for m in self.members.values())

    def welcome(self) -> None:
        """Tell every node its peers and what to restore."""
        peers = [pb.Peer(node=node, address=member.address) for node, member in self.members.items()]
        restore = b"" if self.manifest is None else self.manifest.to_json()
        self.welcomed = True
        self.tell_all(pb.CoordinatorMessage(welcome=pb.Welcome(gang=self.number, peers=peers, restore=restore)))

    def tell(self, node: int, message: pb.CoordinatorMessage) -> None:
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
        known = message.term == self.term or (message.term == 0 and not self.welcomed)
        return message.gang != self.number or not known

    def stop(self, reason: str) -> None:
        """Ask every node to return by itself."""
        if not self.stopping:
            self.stopping = True
            self.tell_all(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))

    def failed(self, node: int, failed: pb.Failed) -> None:
        """A node reported why it fails."""
        self._blame(failure_of(node, self._who(node), failed))

    def lost(self, node: int, error: Exception | None) -> None:
        """A node's line is gone. That it returned when it was told to, or was ended by force, is no reason for anything."""
        member = self.members[node]
        member.left = True
        if self.forced or (error is None and self.stopping):
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

    def _who(self, node: int) -> str:
        return f"node {node} of gang {self.number} {self.members[node]}"

    def node_of(self, connection: ControlStream) -> int | None:
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


def carried(message: pb.NodeMessage, node: int) -> Any:
    """The JSON in this node's message, decoded; ``None`` if it has none. What can't be read is ``CorruptDataError``."""
    match message.WhichOneof("body"):
        case "prepared":
            ack = PrepareAck.from_json(message.prepared.json)
            if ack.node != node:
                raise CorruptDataError(f"a node speaks for another node={node} speaks_for={ack.node}", path="ack")
            return ack
        case "progress":
            progress = parse(message.progress.json, "progress")
            if not isinstance(progress, dict):
                raise CorruptDataError(f"a node's metrics are no JSON object progress={progress!r:.100}", path="progress")
            return progress
        case _:
            return None
