"""The gang: which nodes it has, whether its processes are there, and why the last one ended.

Its number is the log's. It knows nothing of checkpoints and sinks.
"""

from __future__ import annotations

from tidegate.core.checkpoint.effects import StartGang, StopGang
from tidegate.core.checkpoint.events import GangRunning, NodeDrained
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.errors import ProtocolError
from tidegate.ids import GangNumber, NodeId


class Gang:
    """The processes of one leader, one gang after the other. ``has_started_one``: this leader has had a gang already."""

    __slots__ = ("_drained", "_stop_sent", "has_started_one", "is_alive", "nodes", "sources", "why")

    def __init__(self) -> None:
        self.nodes: frozenset[NodeId] = frozenset()
        self.sources: frozenset[NodeId] = frozenset()
        self.is_alive = self.has_started_one = False
        self.why = "leader elected"
        self._stop_sent = False
        self._drained: set[NodeId] = set()

    @property
    def is_drained(self) -> bool:
        """Every sink of every node has seen the end of its input."""
        return self.nodes <= self._drained

    def start(self, number: GangNumber, head: CheckpointManifest | None) -> StartGang:
        """Start a new one from this manifest."""
        self.adopt()
        return StartGang(number, head)

    def adopt(self) -> None:
        """There are processes now, whoever has started them."""
        self.is_alive = self.has_started_one = True
        self._stop_sent = False

    def up(self) -> None:
        """All nodes are there, and none has come to its end yet."""
        self._drained.clear()

    @staticmethod
    def check(event: GangRunning) -> None:
        """Refuse what is no gang."""
        if not event.nodes or not event.source_nodes <= event.nodes:
            raise ProtocolError(f"a gang has nodes, and its sources are on them gang={event.gang}")

    def joined(self, event: GangRunning) -> frozenset[NodeId]:
        """These are the nodes now; answers which have left."""
        left = self.nodes - event.nodes
        self.nodes, self.sources = event.nodes, event.source_nodes
        return left

    def node_drained(self, event: NodeDrained) -> None:
        """Every sink of this node has seen the end of its input."""
        if event.node not in self.nodes:
            raise ProtocolError(f"not a node of the gang node={event.node} nodes={sorted(self.nodes)}")
        self._drained.add(event.node)

    def stop(self, number: GangNumber) -> StopGang | None:
        """End its processes. Said once."""
        if self._stop_sent:
            return None
        self._stop_sent = True
        return StopGang(number, self.why)
