"""The driver's view of one gang: who has joined, who is lost, and what to tell them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.core.codec import parse
from tidegate.core.manifest import CheckpointManifest
from tidegate.core.prepare import PrepareAck
from tidegate.errors import CorruptDataError, FencedError, StorageRefused, StorageUnavailable, TidegateError
from tidegate.runtime.host import Launch
from tidegate.wire._gen import control_pb2 as pb


class Launcher(Protocol):
    """Starts the processes of gangs, one gang at a time."""

    def start(self, launch: Launch, on_exit: Callable[[str | None], None]) -> None:
        """Start one; ``on_exit`` is called once, when all of its processes have ended. Never blocks for long."""

    def cancel(self) -> None:
        """End by force what is still running. Never blocks for long."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; True when it came."""


class NodeConnection(Protocol):
    """A node's control stream, as the server gives it."""

    @property
    def hello(self) -> pb.Hello:
        """What the node said first."""

    def send(self, message: pb.CoordinatorMessage) -> None:
        """Never blocks."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a gang is over, for people and for the restart policy."""

    text: str
    user_error: bool = False
    traceback: str = ""
    storage: type[TidegateError] | None = None
    """The kind of error if a node could not read or write a store or a sink."""

    def waits(self, *, has_run: bool) -> bool:
        """Not worth a restart that counts: somebody has to make room first. A job that never ran there is set up wrongly."""
        return self.storage is StorageUnavailable or (self.storage is StorageRefused and has_run)

    @classmethod
    def of(cls, what: str, error: BaseException) -> Cause:
        """Work on the driver failed. With the traceback: of ``for_each_batch`` and of own sinks it is the user's."""
        if isinstance(error, FencedError):  # it says all there is to say
            return cls(str(error))
        return cls(f"{what}: {error!r}", traceback="".join(traceback.format_exception(error)))


@dataclass(slots=True)
class Member:
    """A node that has joined."""

    connection: NodeConnection
    address: str
    pid: int
    host: str
    report: dict[str, Any] = field(default_factory=dict)


PERMANENT = {
    "UserFunctionError",
    "InvalidUseError",
    "ProtocolError",
    "CorruptDataError",
    "TypeError",
    "AssertionError",
    "AttributeError",
    "KeyError",
    "NotImplementedError",
    "ArrowInvalid",
    "ArrowKeyError",
    "ArrowNotImplementedError",
    "ArrowTypeError",
    "StorageRefused",
}
"""Errors that will most likely come again: they get fewer restarts."""
STORAGE = {kind.__name__: kind for kind in (StorageUnavailable, StorageRefused)}


class GangState:
    """Facts about the gang under way. Leader thread only."""

    def __init__(self, number: int, size: int, manifest: CheckpointManifest | None) -> None:
        self.number = number
        self.manifest = manifest
        self._size = size
        self.members: dict[int, Member] = {}
        self.cause: Cause | None = None
        self.welcomed = False
        self.stopping = False

    def join(self, hello: pb.Hello, connection: NodeConnection) -> bool:
        """A node said hello. True when that was the last one."""
        if hello.gang != self.number or hello.node >= self._size or hello.node in self.members:
            reason = f"this is gang {self.number}, with nodes 0 to {self._size - 1}, each once"
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))
            return False
        if self.stopping:
            connection.send(pb.CoordinatorMessage(stop=pb.Stop(reason="the gang is over already")))
            return False
        self.members[hello.node] = Member(connection, hello.address, hello.pid, hello.host)
        return len(self.members) == self._size

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
            member.connection.send(message)

    def tell_all(self, message: pb.CoordinatorMessage) -> None:
        """Say something to everyone."""
        for member in self.members.values():
            member.connection.send(message)

    def stop(self, reason: str) -> None:
        """Ask every node to return by itself."""
        if not self.stopping:
            self.stopping = True
            self.tell_all(pb.CoordinatorMessage(stop=pb.Stop(reason=reason)))

    def failed(self, node: int, failed: pb.Failed) -> None:
        """A node reported why it fails. The first cause that is not just the loss of a peer is the one that counts."""
        lost_peer = failed.error_type == "RetryableError"
        if self.cause is None or (self.cause.text.startswith("lost") and not lost_peer):
            text = f"node {node}: {failed.error_type}: {failed.message}"
            self.cause = Cause(
                f"lost a peer: {text}" if lost_peer else text,
                failed.error_type in PERMANENT,
                failed.traceback,
                STORAGE.get(failed.error_type),
            )

    def lost(self, reason: str) -> None:
        """A node is gone without a word."""
        if self.cause is None:
            self.cause = Cause(f"lost: {reason}")

    def report(self, node: int, progress: dict[str, Any]) -> None:
        """A node's metrics."""
        if node in self.members:
            self.members[node].report = progress

    def node_of(self, connection: NodeConnection) -> int | None:
        """Which node this stream belongs to."""
        return next((node for node, member in self.members.items() if member.connection is connection), None)


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
