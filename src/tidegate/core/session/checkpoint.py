"""Checkpoints of a job in one process: what is in one, which one to restore, and which request gets which
answer.

``CheckpointManager`` decides; it writes and reads nothing. Its shell calls it under one lock, snapshots and
writes in the background, and tells it the outcome. Ids, time and the bytes of files come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.session.snapshot import (
    Checkpoint,
    Inline,
    OperatorSnapshot,
    OperatorStateType,
    SnapshotData,
    SstFile,
    checkpoint_name,
    parse_checkpoint_name,
)
from tidegate.errors import (
    CheckpointAbortedError,
    CheckpointDisabled,
    CheckpointTimeout,
    CorruptDataError,
    EpochMismatch,
    InvalidUseError,
    NoCheckpoint,
    ProtocolError,
)

__all__ = [
    "Checkpoint", "CheckpointManager", "Completion", "Inline", "Opened", "OperatorSnapshot",
    "OperatorStateType", "Skipped", "SnapshotData", "SstFile", "checkpoint_name", "parse_checkpoint_name",
    "scan",
]  # fmt: skip

SNAPSHOT_PREFIX = "checkpoint-"


class Completion:
    """The answer to a request for a checkpoint: pending, then a result or an error, once and for good.

    All requests that joined one checkpoint share one completion.
    """

    def __init__(self, checkpoint_id: int, deadline_ms: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.deadline_ms = deadline_ms
        self.error: CheckpointAbortedError | None = None
        self._completed = False
        self._watchers: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """True when there is a result or an error."""
        return self._completed or self.error is not None

    def result(self) -> int:
        """The id of the completed checkpoint; raises its error if it failed. To be asked when ``done``."""
        if self.error is not None:
            raise self.error
        if not self._completed:
            raise InvalidUseError(f"the checkpoint is still under way checkpoint_id={self.checkpoint_id}")
        return self.checkpoint_id

    def when_done(self, watcher: Callable[[], None]) -> None:
        """Call this once when the answer is there, at once if it is. It must be quick and must not raise."""
        if self.done:
            watcher()
        else:
            self._watchers.append(watcher)

    def _settle(self, error: CheckpointAbortedError | None) -> None:
        self.error = error
        self._completed = error is None
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that is there and cannot be used."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """What a directory holds: the latest valid checkpoint (``None``: start fresh) and the newer, invalid
    ones.
    """

    latest: Checkpoint | None
    skipped: tuple[Skipped, ...] = ()

    @property
    def highest(self) -> int:
        """The highest id that is there, valid or not, 0 when there is none: it must not be used again."""
        skipped = (parse_checkpoint_name(each.name) or 0 for each in self.skipped)
        return max(skipped, default=0) if self.latest is None else max(self.latest.id, *skipped, 0)


def scan(names: Iterable[str], read: Callable[[str], bytes]) -> Opened:
    """Find the latest valid checkpoint among these names. ``read`` is asked newest first, until one is
    valid.

    Names that are no checkpoint's are none of our business. A store that fails raises; it makes nothing
    invalid.
    """
    candidates: list[tuple[int, str]] = []
    skipped: list[Skipped] = []
    for name in sorted(names):
        if not name.startswith(SNAPSHOT_PREFIX):
            continue
        checkpoint_id = parse_checkpoint_name(name)
        if checkpoint_id is None:
            skipped.append(Skipped(name, "no checkpoint has such a name"))
        else:
            candidates.append((checkpoint_id, name))
    for checkpoint_id, name in sorted(candidates, reverse=True):
        found = _load(checkpoint_id, name, read)
        if isinstance(found, Checkpoint):
            return Opened(found, tuple(skipped))
        skipped.append(found)
    return Opened(None, tuple(skipped))


def _load(checkpoint_id: int, name: str, read: Callable[[str], bytes]) -> Checkpoint | Skipped:
    try:
        checkpoint = Checkpoint.from_json(read(name), path=name)
    except FileNotFoundError:
        return Skipped(name, "it is gone")
    except CorruptDataError as error:
        return Skipped(name, str(error))
    if checkpoint.id != checkpoint_id:
        return Skipped(name, f"it holds another checkpoint id={checkpoint.id}")
    return checkpoint


class CheckpointManager:
    """Decides about checkpoints. With checkpointing off every question has the answer ``None``.

    ``allocate`` returns ids that grow and are never used twice, not even after a restart; ``opened`` is what
    the directory holds. One checkpoint is under way at a time; a request meanwhile joins it.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        allocate: Callable[[], int],
        store: str | None = None,
        opened: Opened = Opened(None),
    ) -> None:
        self.store_url = config.store_url(store)
        self._config = config
        self._allocate = allocate
        self._last = opened.latest if config.enabled else None
        self._highest = opened.highest
        self._in_progress: Completion | None = None

    @property
    def is_enabled(self) -> bool:
        """True when checkpoints are taken at all."""
        return self._config.enabled

    @property
    def last_checkpoint_id(self) -> int:
        """The newest completed checkpoint, 0 when there is none. Only grows."""
        return 0 if self._last is None else self._last.id

    @property
    def in_progress(self) -> int | None:
        """The checkpoint under way."""
        return None if self._in_progress is None else self._in_progress.checkpoint_id

    def trigger(self, now_ms: int) -> Completion | None:
        """Reserve a checkpoint, or join the one under way. ``None``: checkpointing is off. Never waits.

        Whoever gets a completion with an id it has not seen before starts the snapshot.
        """
        if not self.is_enabled:
            return None
        if self._in_progress is None:
            self._in_progress = self._reserve(now_ms)
        return self._in_progress

    def complete(self, checkpoint: Checkpoint) -> bool:
        """The checkpoint is durable. False: it is over already (timed out, failed), and nothing changes."""
        completion = self._under_way(checkpoint.id)
        if completion is None:
            return False
        self._last = checkpoint
        self._in_progress = None
        completion._settle(None)
        return True

    def fail(self, checkpoint_id: int, reason: str) -> bool:
        """The checkpoint could not be taken. False: it is over already, and nothing changes."""
        return self._end(checkpoint_id, CheckpointAbortedError(
            f"the checkpoint failed: {reason} checkpoint_id={checkpoint_id}", checkpoint_id=checkpoint_id
        ))  # fmt: skip

    def tick(self, now_ms: int) -> bool:
        """Time has passed. True when that ended the checkpoint under way with ``CheckpointTimeout``."""
        completion = self._in_progress
        if completion is None or now_ms < completion.deadline_ms:
            return False
        return self._end(completion.checkpoint_id, CheckpointTimeout(
            f"the checkpoint took longer than {self._config.timeout_ms} ms: raise timeout or lower the load "
            f"checkpoint_id={completion.checkpoint_id}",
            checkpoint_id=completion.checkpoint_id,
        ))  # fmt: skip

    def restore(self) -> Checkpoint:
        """The newest completed checkpoint. ``NoCheckpoint``: start fresh. ``CheckpointDisabled``: it is
        off.
        """
        if not self.is_enabled:
            raise CheckpointDisabled("checkpointing is off: set interval to restore")
        if self._last is None:
            raise NoCheckpoint(f"there is no checkpoint to restore: start fresh store={self.store_url}")
        return self._last

    def _reserve(self, now_ms: int) -> Completion:
        checkpoint_id = self._allocate()
        if checkpoint_id <= self._highest:
            raise EpochMismatch(f"a checkpoint id is never used twice checkpoint_id={checkpoint_id} highest={self._highest}")
        checkpoint_name(checkpoint_id)  # refuses what is no id
        self._highest = checkpoint_id
        return Completion(checkpoint_id, now_ms + self._config.timeout_ms)

    def _under_way(self, checkpoint_id: int) -> Completion | None:
        if checkpoint_id > self._highest:
            raise ProtocolError(f"nobody asked for this checkpoint checkpoint_id={checkpoint_id}")
        completion = self._in_progress
        return completion if completion is not None and completion.checkpoint_id == checkpoint_id else None

    def _end(self, checkpoint_id: int, error: CheckpointAbortedError) -> bool:
        completion = self._under_way(checkpoint_id)
        if completion is None:
            return False
        self._in_progress = None
        completion._settle(error)
        return True
