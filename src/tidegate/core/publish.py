"""Which committables still have to become visible, and in which order. It talks to no sink.

One step at a time: hide what a restore left behind, then publish epoch by epoch. A step that failed is tried
again. What is not confirmed is carried by the next manifest, so that no crash can lose it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.manifest import CheckpointManifest, CommittableEntry, CommittableKey
from tidegate.core.orders import Hide, Publish

BACKOFF_DOUBLINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class _Show:
    epoch: int
    keys: tuple[CommittableKey, ...]


_Step: TypeAlias = Hide | _Show


class Publisher:
    """The steps still to do. ``outstanding`` is the order that waits for its answer."""

    __slots__ = ("_failures", "_retry_at", "_retry_ms", "_steps", "_tries_max", "_unpublished", "outstanding", "why")

    def __init__(self, retry_ms: int, tries_max: int) -> None:
        self._retry_ms, self._tries_max = retry_ms, tries_max
        self._steps: deque[_Step] = deque()
        self._unpublished: dict[CommittableKey, CommittableEntry] = {}
        self._failures = 0
        self._retry_at: int | None = None
        self.why = ""
        self.outstanding: Hide | Publish | None = None

    @property
    def backlog(self) -> int:
        """Steps not yet confirmed, the outstanding one included."""
        return len(self._steps)

    @property
    def exhausted(self) -> bool:
        """The same step failed too often."""
        return self._failures >= self._tries_max

    @property
    def deadline_ms(self) -> int | None:
        """When ``next`` has something to try again."""
        return self._retry_at

    def carried(self) -> tuple[CommittableEntry, ...]:
        """Named by a manifest and not confirmed: the next manifest names them too."""
        return tuple(self._unpublished.values())

    def committed(self, manifest: CheckpointManifest) -> None:
        """This manifest is in the log: publish what it names, after everything before it."""
        for entry in manifest.committables:
            self._unpublished.setdefault(entry.key, entry)
        self._steps.append(_Show(manifest.epoch, tuple(entry.key for entry in manifest.committables)))

    def recover(self, hide: Hide | None, head: CheckpointManifest | None) -> None:
        """Begin anew from the log: hide what its lineage lacks, then publish what the head names once more."""
        assert self.outstanding is None, "a step is under way"
        self._steps.clear()
        self._unpublished.clear()
        self._failures, self._retry_at = 0, None
        if hide is not None:
            self._steps.append(hide)
        if head is not None:
            self.committed(head)

    def next(self, gang: int, now_ms: int) -> Hide | Publish | None:
        """The next order, if none is under way and it is time."""
        if self.outstanding is not None or (self._retry_at is not None and now_ms < self._retry_at):
            return None
        self._retry_at = None
        while self._steps:
            order = self._order(self._steps[0], gang)
            if order is not None:
                self.outstanding = order
                return order
            self._steps.popleft()
        return None

    def succeeded(self, epoch: int | None = None, gang: int | None = None) -> bool:
        """The outstanding step is done: a publish by its epoch, a hide by its gang. False: not what was asked
        for."""
        if not self._is_outstanding(epoch, gang):
            return False
        if isinstance(self.outstanding, Publish):
            for entry in self.outstanding.committables:
                del self._unpublished[entry.key]
        self._steps.popleft()
        self._failures, self.outstanding = 0, None
        return True

    def failed(self, now_ms: int, why: str, epoch: int | None = None, gang: int | None = None) -> bool:
        """The outstanding step is not done and will be tried again. False: not what was asked for."""
        if not self._is_outstanding(epoch, gang):
            return False
        self._retry_at = now_ms + (self._retry_ms << min(self._failures, BACKOFF_DOUBLINGS_MAX))
        self._failures += 1
        self.outstanding, self.why = None, why
        return True

    def _order(self, step: _Step, gang: int) -> Hide | Publish | None:
        if isinstance(step, Hide):
            return step
        waiting = tuple(self._unpublished[key] for key in step.keys if key in self._unpublished)
        return Publish(step.epoch, gang, waiting) if waiting else None

    def _is_outstanding(self, epoch: int | None, gang: int | None) -> bool:
        match self.outstanding:
            case Publish():
                return self.outstanding.epoch == epoch
            case Hide():
                return self.outstanding.gang == gang
            case _:
                return False
