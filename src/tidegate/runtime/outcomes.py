"""How checkpoints of this run ended: told to whoever asked for them, counted, and kept for people."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, assert_never

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint.adapt import UnalignedStreak
from tidegate.core.failure.patience import Patience
from tidegate.errors import InvalidUseError
from tidegate.runtime.gangs import Gangs
from tidegate.runtime.report import aborted, committed
from tidegate.runtime.requests import Requests
from tidegate.runtime.signals import Signals

log = logging.getLogger("tidegate")

HISTORY_MAX = 1_000


class Outcomes:
    """Leader thread only; ``history`` and ``committed`` may be read by any."""

    def __init__(
        self, job: str, gangs: Gangs, patience: Patience, requests: Requests, signals: Signals, streak: UnalignedStreak
    ) -> None:
        self._job = job
        self._gangs = gangs
        self._patience = patience
        self._requests = requests
        self._signals = signals
        self._streak = streak
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)
        self.committed = 0

    def note(self, effect: do.CheckpointCompleted | do.CheckpointAborted | do.RequestRefused) -> None:
        """A checkpoint has ended, or a request for one was refused."""
        match effect:
            case do.CheckpointCompleted():
                self._completed(effect)
            case do.CheckpointAborted():
                log.info("checkpoint aborted: %s checkpoint_id=%s job=%s", effect.reason, effect.checkpoint_id, self._job)
                self.history.append(aborted(effect))
                self._signals.aborted(effect.checkpoint_id)
                self._requests.answer(effect.requests, effect.error)
            case do.RequestRefused():
                self._requests.answer((effect.request_id,), InvalidUseError(effect.reason))
            case _:
                assert_never(effect)

    def _completed(self, effect: do.CheckpointCompleted) -> None:
        self.committed += 1
        self._gangs.restarts.progressed()
        self._gangs.totals.committed(effect.checkpoint_id, effect.epoch)
        self._patience.passed()
        if warning := self._streak.committed(effect.manifest.is_unaligned):
            # Not raised as a warning: the leader's thread must outlive whoever turns warnings into errors.
            log.warning("ThresholdTooLow: %s job=%s", warning, self._job)
        self.history.append(committed(effect))
        self._signals.completed(effect.manifest)
        self._requests.committed(effect.requests, effect.epoch, wait=effect.manifest.is_savepoint)
