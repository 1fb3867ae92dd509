"""The outermost layer of a node: the real clock, real threads and real sockets around it. Runs inside a Spark task."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.clock import Clock, SystemClock
from tidegate.core.failure.election import LeaderBeat
from tidegate.errors import FencedError, NodeUnreachable
from tidegate.ids import NodeId
from tidegate.runtime.activity import Activity
from tidegate.runtime.address import LOOPBACK, node_listening
from tidegate.runtime.election import open_election
from tidegate.runtime.failure import last_words
from tidegate.runtime.leaderline import GRACE_S, LeaderLine, OnLost, OnMessage
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.node import Node
from tidegate.runtime.security import Tls
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.threads import ThreadPools
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.tcp import TcpTransport

if TYPE_CHECKING:
    from tidegate.wire.control import ControlClient


STALL_TIMEOUT_S = 10.0
"""Either end of a control line that hears nothing for so long closes it."""
HEARTBEATS = 10
HEARTBEAT_MOST_S = 1.0


def heartbeat_s(stall_timeout_s: float) -> float:
    """Many in the time that may pass without one, but no more than is needed."""
    return min(HEARTBEAT_MOST_S, stall_timeout_s / HEARTBEATS)


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a node's process is told at its start. The secret travels with the code, never in a log."""

    setup: NodeSetup
    coordinator: str
    secret: bytes
    store_url: str | None
    restore_url: str | None = None
    """Where the state to start from is, when it is not in the job's own store: a savepoint."""
    bind: str = LOOPBACK
    tls: Tls | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    election_url: str | None = None
    """Where leaders say that they are there; ``None``: a node that loses its leader gives up."""
    term: int = -1
    """The term of the leader that launches it."""
    coordinator_grace_s: float = GRACE_S
    """How long a node works without a leader."""
    sealed: bool = False
    """Data channels are in the clear and leave the machine: every byte is tagged."""

    def __repr__(self) -> str:
        return f"Launch(job={self.setup.plan.job!r}, gang={self.setup.gang}, coordinator={self.coordinator!r})"


class FirstContact:
    """Passes the line's words on to the node, and knows whether there ever were any."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._heard = False
        self._unreachable: Exception | None = None

    def control_message(self, message: pb.CoordinatorMessage) -> None:
        self._heard = True
        self._node.control_message(message)

    def leader_lost(self, reason: Exception) -> None:
        self._node.leader_lost(reason)

    def leader_found(self, beat: LeaderBeat) -> None:
        self._node.leader_found(beat)

    def control_lost(self, reason: Exception) -> None:
        if not self._heard and not isinstance(reason, FencedError):
            self._unreachable = reason
        self._node.control_lost(reason)

    def check(self, index: int, host: str) -> None:
        """A node that never reached the driver can tell it nothing: raised here, its reason gets there through Spark."""
        if self._unreachable is not None:
            raise NodeUnreachable(f"node {index} on {host} never heard from the driver: {self._unreachable}")


def run_node(launch: Launch, index: int, clock: Clock | None = None, host: str | None = None) -> str:
    """Run node ``index`` of the gang to its end; returns why it ended. ``host`` is how peers call this machine. Blocks.

    A node that can't even be built says why over the control line. ``NodeUnreachable`` when the driver never answered.
    """
    pa.set_cpu_count(1)
    keep_freed_memory()
    activity = Activity()
    try:
        node = _node(launch, index, clock, activity)
    except Exception as error:
        return _unable(launch, index, error)
    contact = FirstContact(node)
    with ExitStack() as undo:
        undo.callback(node.abandon)
        control = _leader_line(launch, contact, activity)
        undo.callback(control.close)
        transport = _transport(launch, node, host)
        undo.pop_all()  # from here on the node lets go of everything by itself
    name = socket.gethostname()
    try:
        outcome = node.run(transport, control, pid=os.getpid(), host=name)
    finally:
        control.close()
    contact.check(index, host or name)
    return outcome


def _node(launch: Launch, index: int, clock: Clock | None, activity: Activity) -> Node:
    mailbox: Mailbox[Callable[[], None]] = Mailbox()
    return Node(
        replace(launch.setup, node=NodeId(index)),
        clock=clock or SystemClock(),
        mailbox=mailbox,
        store=open_store(launch.store_url) if launch.store_url else None,
        threads=ThreadPools(f"node{index}", activity=activity),
        origin=open_store(launch.restore_url) if launch.restore_url else None,
        activity=activity,
    )


def _leader_line(launch: Launch, contact: FirstContact, activity: Activity) -> LeaderLine:
    def connect(address: str, on_message: OnMessage, on_lost: OnLost) -> ControlClient:
        client = _control(replace(launch, coordinator=address), on_message, on_lost, activity.heartbeat)
        activity.on_first = client.beat
        return client

    election = None if launch.election_url is None else open_election(launch.election_url, launch.setup.plan.job)
    gang = launch.setup.gang
    return LeaderLine(
        contact,
        connect,
        launch.coordinator,
        election=election,
        gang=lambda: gang,
        grace_s=launch.coordinator_grace_s,
        term=launch.term,
    )


def _control(launch: Launch, on_message: OnMessage, on_lost: OnLost, heartbeat: Callable[[], pb.Heartbeat]) -> ControlClient:
    stall_ms = int(1000 * launch.stall_timeout_s)
    return control_client(launch.coordinator, launch.secret, on_message, on_lost, launch.tls, stall_ms, heartbeat)


def control_client(
    address: str,
    secret: bytes,
    on_message: OnMessage,
    on_lost: OnLost,
    tls: Tls | None,
    stall_timeout_ms: int,
    heartbeat: Callable[[], pb.Heartbeat] = pb.Heartbeat,
) -> ControlClient:
    """A line to a leader."""
    # grpc is imported here and not above: a daemon that forks workers must not have grpc's threads.
    from tidegate.wire.control import ControlClient
    from tidegate.wire.line import ControlSettings

    silence_s = stall_timeout_ms / 1000
    return ControlClient(
        address,
        secret,
        on_message=on_message,
        on_lost=on_lost,
        settings=ControlSettings(heartbeat_s=heartbeat_s(silence_s), silence_s=silence_s),
        credentials=None if tls is None else tls.channel_credentials(),
        server_name=None if tls is None else tls.name,
        heartbeat=heartbeat,
    )


def _unable(launch: Launch, index: int, error: Exception) -> str:
    """Say why this node can't be built, after a hello that says so. Where nobody listens, the error goes through Spark."""
    lost: list[Exception] = []
    told = threading.Event()

    def on_lost(reason: Exception) -> None:
        lost.append(reason)
        told.set()

    control = _control(launch, lambda message: told.set(), on_lost, pb.Heartbeat)
    hello = pb.Hello(node=index, gang=launch.setup.gang, pid=os.getpid(), host=socket.gethostname(), unable=True)
    gang = launch.setup.gang
    control.send(pb.NodeMessage(gang=gang, hello=hello))
    control.send(pb.NodeMessage(gang=gang, failed=last_words(gang, error)))
    told.wait(launch.stall_timeout_s)  # for the driver's command to stop: then it has heard
    control.close()
    if lost:
        raise error
    return f"failed: {error!r}"


def _transport(launch: Launch, node: Node, host: str | None) -> TcpTransport:
    listening = node_listening(launch.bind, host)
    return TcpTransport(
        node,
        secret=launch.secret,
        gang=launch.setup.gang,
        bind=listening.bind,
        advertise=listening.advertise,
        tls=None if launch.tls is None else launch.tls.contexts(),
        sealed=launch.sealed,
    )
