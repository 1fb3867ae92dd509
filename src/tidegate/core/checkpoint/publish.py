"""Which committables still have to become visible, and in which order. It talks to no sink.

One step at a time: hide what a restore left behind, then publish epoch by epoch. A step that failed is tried
again. What is not confirmed is carried by the next manifest, so that no crash can lose it.

A sink with a budget does not show every epoch: its committables wait until there is a token, too many wait, or
somebody wants to see them (``flush``), and are then published together. Sinks with equal budgets share one
bucket, so they always show the same epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, assert_never

from tidegate.core.checkpoint.budget import PublishBudget, TokenBucket
from tidegate.core.checkpoint.effects import Hide, Publish, Unpublishable
from tidegate.core.checkpoint.events import Hidden, HideFailed, Published, PublishFailed
from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry, CommittableKey
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.ids import NO_EPOCH, Epoch, GangNumber

BACKOFF_DOUBLINGS_MAX = 5
STEPS_MAX = 8
"""More steps than these that nobody has confirmed: no further checkpoint is begun."""
WAITING_MAX = 256
"""This many committables of sinks with equal budgets do not wait for a token. One takes about 350 bytes of every
manifest."""


@dataclass(frozen=True, slots=True)
class _Show:
    epoch: Epoch
    keys: tuple[CommittableKey, ...]


_Step: TypeAlias = Hide | _Show
SinkEvent: TypeAlias = Published | PublishFailed | Hidden | HideFailed


class SinkAnswer(Enum):
    """What a sink's answer means: the step is done, it is tried again, or nobody had asked."""

    DONE = "done"
    FAILED = "failed"
    STALE = "stale"


class PublishQueue:
    """The steps still to do. ``outstanding`` is the order that waits for its answer."""

    __slots__ = (
        "_buckets",
        "_budgets",
        "_failed_ms",
        "_failing_ms",
        "_failures",
        "_flushing",
        "_hurried",
        "_newest",
        "_retry_at",
        "_retry_ms",
        "_steps",
        "_storage_timeout_ms",
        "_tries_max",
        "_unpublished",
        "_waiting",
        "_why",
        "outstanding",
    )

    def __init__(
        self,
        retry_ms: int,
        tries_max: int,
        storage_timeout_ms: int = 0,
        budgets: Mapping[str, PublishBudget] | None = None,
    ) -> None:
        self._retry_ms, self._tries_max, self._storage_timeout_ms = retry_ms, tries_max, storage_timeout_ms
        self._failed_ms = self._failing_ms = 0
        self._budgets = dict(budgets or {})
        self._buckets = {budget: TokenBucket(budget) for budget in self._budgets.values()}
        self._steps: deque[_Step] = deque()
        self._unpublished: dict[CommittableKey, CommittableEntry] = {}
        self._waiting: dict[PublishBudget, list[CommittableKey]] = {}
        self._newest = NO_EPOCH
        self._flushing = self._hurried = False
        self._failures = 0
        self._retry_at: int | None = None
        self._why = ""
        self.outstanding: Hide | Publish | None = None

    @classmethod
    def of(cls, config: DistributedCheckpointConfig) -> PublishQueue:
        """With these settings."""
        return cls(config.publish_retry_ms, config.publish_tries_max, config.storage_timeout_ms, config.publish_budgets)

    @property
    def backlog(self) -> int:
        """Steps not yet confirmed, the outstanding one included. What waits for a token does not count."""
        return len(self._steps) + (self._wanted and bool(self._waiting))

    @property
    def crowded(self) -> bool:
        """So much is not confirmed that every further manifest would only carry more."""
        waiting = max(map(len, self._waiting.values()), default=0)
        return len(self._steps) > STEPS_MAX or waiting > 2 * WAITING_MAX

    @property
    def stuck(self) -> Unpublishable | None:
        """Set when the same step failed too often, and for too long."""
        exhausted = self._failures >= self._tries_max and self._failing_ms >= self._storage_timeout_ms
        return Unpublishable(self._tries_max, self._why) if exhausted else None

    def is_public(self, epoch: int) -> bool:
        """True when sinks have confirmed all that manifests up to this epoch named."""
        return all(entry.epoch > epoch for entry in self.carried())

    @property
    def _wanted(self) -> bool:
        return self._flushing or self._hurried

    def deadline_ms(self, now_ms: int) -> int | None:
        """When ``next`` has something to try again, or to show."""
        if self._retry_at is not None or self.outstanding is not None:
            return self._retry_at
        return min((self._due_ms(budget, now_ms) for budget in self._waiting), default=None)

    def carried(self) -> tuple[CommittableEntry, ...]:
        """Named by a manifest and not confirmed: the next manifest names them too."""
        return tuple(self._unpublished.values())

    def committed(self, manifest: CheckpointManifest) -> None:
        """This manifest is in the log: publish what it names, after everything before it."""
        at_once: list[CommittableKey] = []
        for entry in manifest.committables:
            budget = self._budgets.get(entry.operator)
            if budget is None:
                at_once.append(entry.key)
            elif entry.key not in self._unpublished:
                self._waiting.setdefault(budget, []).append(entry.key)
            self._unpublished.setdefault(entry.key, entry)
        self._newest = manifest.epoch
        if at_once or not manifest.committables:
            self._steps.append(_Show(manifest.epoch, tuple(at_once)))

    def flush(self) -> None:
        """Somebody wants to see all that is committed now: nothing of it waits for a token."""
        self._flushing = bool(self._waiting)

    def hurry(self) -> None:
        """The job is about to end: nothing waits any more."""
        self._hurried = True

    def recover(self, hide: Hide | None, head: CheckpointManifest | None) -> None:
        """Begin anew from the log: hide what its lineage lacks, then publish what the head names once more."""
        assert self.outstanding is None, "a step is under way"
        self._steps.clear()
        self._unpublished.clear()
        self._waiting.clear()
        self._failures, self._retry_at = 0, None
        if hide is not None:
            self._steps.append(hide)
        if head is not None:
            self.committed(head)
        self.flush()

    def next(self, gang: GangNumber, now_ms: int) -> Hide | Publish | None:
        """The next order, if none is under way and it is time."""
        if self.outstanding is not None or (self._retry_at is not None and now_ms < self._retry_at):
            return None
        self._retry_at = None
        self._release(now_ms)
        while self._steps:
            order = self._order(self._steps[0], gang)
            if order is not None:
                self.outstanding = order
                return order
            self._steps.popleft()
        return None

    def answered(self, event: SinkEvent, now_ms: int) -> SinkAnswer:
        """A sink has answered a publish or a hide."""
        match event:
            case Published(epoch):
                known = self.succeeded(epoch=epoch)
            case Hidden(gang):
                known = self.succeeded(gang=gang)
            case PublishFailed(epoch, why):
                known = self.failed(now_ms, why, epoch=epoch)
            case HideFailed(gang, why):
                known = self.failed(now_ms, why, gang=gang)
            case _:
                assert_never(event)
        if not known:
            return SinkAnswer.STALE
        return SinkAnswer.FAILED if isinstance(event, PublishFailed | HideFailed) else SinkAnswer.DONE

    def succeeded(self, epoch: Epoch | None = None, gang: GangNumber | None = None) -> bool:
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

    def failed(self, now_ms: int, why: str, epoch: Epoch | None = None, gang: GangNumber | None = None) -> bool:
        """The outstanding step is not done and will be tried again. False: not what was asked for."""
        if not self._is_outstanding(epoch, gang):
            return False
        self._retry_at = now_ms + (self._retry_ms << min(self._failures, BACKOFF_DOUBLINGS_MAX))
        if not self._failures:
            self._failed_ms = now_ms
        self._failing_ms = now_ms - self._failed_ms
        self._failures += 1
        self.outstanding, self._why = None, why
        return True

    def _release(self, now_ms: int) -> None:
        """What need not wait any longer becomes a step, with that of the newest epoch if it has one."""
        due = [budget for budget in self._waiting if self._due_ms(budget, now_ms) <= now_ms]
        for budget in due:
            if not self._wanted:
                self._buckets[budget].take(now_ms)
            keys = tuple(self._waiting.pop(budget))
            last = self._steps[-1] if self._steps else None
            if isinstance(last, _Show) and last.epoch == self._newest:
                self._steps[-1] = _Show(self._newest, last.keys + keys)
            else:
                self._steps.append(_Show(self._newest, keys))
        self._flushing = False

    def _due_ms(self, budget: PublishBudget, now_ms: int) -> int:
        if self._wanted or len(self._waiting[budget]) >= WAITING_MAX:
            return now_ms
        return self._buckets[budget].ready_ms(now_ms)

    def _order(self, step: _Step, gang: GangNumber) -> Hide | Publish | None:
        if isinstance(step, Hide):
            return step
        waiting = tuple(self._unpublished[key] for key in step.keys if key in self._unpublished)
        return Publish(step.epoch, gang, waiting) if waiting else None

    def _is_outstanding(self, epoch: Epoch | None, gang: GangNumber | None) -> bool:
        match self.outstanding:
            case Publish():
                return self.outstanding.epoch == epoch
            case Hide():
                return self.outstanding.gang == gang
            case None:
                return False
            case _:  # pragma: no cover  (mypy proves it)
                assert_never(self.outstanding)
