"""The outermost layer of a node: the real clock, real threads and real sockets around it. Runs inside a Spark task."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from tidegate.clock import Clock, SystemClock
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.node import Node
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.threads import ThreadPools
from tidegate.store.open import open_store
from tidegate.wire.tcp import TcpTransport


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a node's process is told at its start. The secret travels with the code, never in a log."""

    setup: NodeSetup
    coordinator: str
    secret: bytes
    store_url: str | None
    restore_url: str | None = None
    """Where the state to start from is, when it is not in the job's own store: a savepoint."""
    bind: str = "127.0.0.1"

    def __repr__(self) -> str:
        return f"Launch(job={self.setup.plan.job!r}, gang={self.setup.gang}, coordinator={self.coordinator!r})"


def run_node(launch: Launch, index: int, clock: Clock | None = None) -> str:
    """Run node ``index`` of the gang to its end; gives why it ended. Blocks."""
    # grpc is imported here and not above: a daemon that forks workers must not have grpc's threads.
    from tidegate.wire.control import ControlClient

    pa.set_cpu_count(1)
    mailbox: Mailbox[Callable[[], None]] = Mailbox()
    store = open_store(launch.store_url) if launch.store_url else None
    setup = replace(launch.setup, node=index)
    node = Node(
        setup,
        clock=clock or SystemClock(),
        mailbox=mailbox,
        store=store,
        threads=ThreadPools(f"node{index}"),
        origin=open_store(launch.restore_url) if launch.restore_url else None,
    )
    transport = TcpTransport(node, secret=launch.secret, gang=setup.gang, bind=launch.bind)
    control = ControlClient(
        launch.coordinator,
        launch.secret,
        on_message=node.control_message,
        on_lost=node.control_lost,
    )
    try:
        return node.run(transport, control, pid=os.getpid(), host=socket.gethostname())
    finally:
        control.close()
