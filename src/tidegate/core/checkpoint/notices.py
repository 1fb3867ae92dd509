"""Who knows that a checkpoint is committed. A notice that nobody acknowledges is sent again, a bounded number of times.

Nothing depends on it: every later command says what was committed last. It lets nodes drop what they keep for the attempt.
"""

from __future__ import annotations

from tidegate.core.checkpoint.effects import SendCommitted, Stamp
from tidegate.ids import NO_EPOCH, Epoch, NodeId

NOTICE_RETRY_MS = 1_000
NOTICE_TRIES_MAX = 5


class CommitNotices:
    """The notices of the last commit. A later commit or the end of the gang takes their place."""

    __slots__ = ("_checkpoint_id", "_due_ms", "_epoch", "_nodes", "_tries", "committed_nodes")

    def __init__(self) -> None:
        self.committed_nodes: frozenset[NodeId] = frozenset()
        """The nodes that have acknowledged the last commit."""
        self._nodes: frozenset[NodeId] = frozenset()
        self._checkpoint_id = self._tries = 0
        self._epoch = NO_EPOCH
        self._due_ms: int | None = None

    def send(self, checkpoint_id: int, epoch: Epoch, nodes: frozenset[NodeId], stamp: Stamp, now_ms: int) -> list[SendCommitted]:
        """Tell these nodes. Without nodes there is nobody to tell."""
        self._checkpoint_id, self._epoch, self._nodes, self._tries = checkpoint_id, epoch, nodes, 0
        self.committed_nodes = frozenset()
        return self._again(stamp, now_ms)

    def acked(self, node: NodeId, checkpoint_id: int) -> bool:
        """This node knows. False: it is about an earlier commit, or nobody had told it."""
        if checkpoint_id != self._checkpoint_id or node not in self._nodes:
            return False
        self.committed_nodes |= {node}
        if self.committed_nodes == self._nodes:
            self._due_ms = None
        return True

    def retry(self, stamp: Stamp, now_ms: int) -> list[SendCommitted]:
        """The notices that are due again."""
        return [] if self._due_ms is None or now_ms < self._due_ms else self._again(stamp, now_ms)

    def drop(self) -> None:
        """The gang is over: whoever comes next reads the log."""
        self._nodes, self._due_ms = frozenset(), None

    def deadline_ms(self) -> int | None:
        """When ``retry`` has something to send."""
        return self._due_ms

    def _again(self, stamp: Stamp, now_ms: int) -> list[SendCommitted]:
        self._tries += 1
        waiting = sorted(self._nodes - self.committed_nodes)
        is_last = not waiting or self._tries >= NOTICE_TRIES_MAX
        self._due_ms = None if is_last else now_ms + (NOTICE_RETRY_MS << (self._tries - 1))
        return [SendCommitted(node, stamp, self._epoch, self._checkpoint_id) for node in waiting]
