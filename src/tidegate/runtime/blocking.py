"""What blocks in the leader's work: the log, sinks, garbage. Runs on executors; returns events for the coordinator."""

from __future__ import annotations

import logging
import threading
from typing import assert_never

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.failure.election import LeaderBeat
from tidegate.core.log.retain import garbage
from tidegate.errors import WAITED_FOR, CorruptDataError, RetryableError, TidegateError
from tidegate.ids import U64_LIMIT, Epoch, GangNumber, Slot
from tidegate.runtime.election import Election
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.sinks import Sinks
from tidegate.store.interface import Sweepable
from tidegate.store.open import PROBE_FOLDER

log = logging.getLogger("tidegate")

SWEEP_EVERY = 64
"""Rounds of garbage collection between two looks for what killed writers left: each walks through all of the job's files."""


class BlockingWork:
    """Performs effects that wait for the world. Each method blocks; no two of one executor run at once."""

    def __init__(self, log_store: LogStore, publisher: Sinks, spools: Spools) -> None:
        self._log = log_store
        self._publisher = publisher
        self.spools = spools
        self._lock = threading.Lock()
        self._wanted: dict[type, do.CollectGarbage | do.TrimLog] = {}
        self._collecting = False
        self._rounds = 0
        self._unheard = False

    def put(self, effect: do.PutEntry) -> ev.CoordinatorEvent:
        answer: ev.PutAnswer
        try:
            found = self._log.create(effect.entry)
            answer = ev.Written() if found is None else ev.Conflict(found)
        except WAITED_FOR as error:
            answer = ev.Unknown(str(error))
        return ev.PutAnswered(effect.slot, effect.write_id, answer)

    def read(self, _: None) -> ev.CoordinatorEvent:
        return self._log.recent()

    def check(self, slot: Slot) -> ev.CoordinatorEvent:
        return ev.LogChecked(slot, self._log.check(slot))

    def replaced(self, slot: Slot) -> ev.CoordinatorEvent | None:
        """That somebody has written after this slot; ``None``: nobody has."""
        found = self._log.check(slot)
        match found:
            case ev.Last():
                return None
            case ev.Unknown(why):
                raise RetryableError(why)
            case ev.Followed():
                return ev.LogChecked(slot, found)
            case _:
                assert_never(found)

    def beat(self, asked: tuple[Election, LeaderBeat, int]) -> ev.CoordinatorEvent | None:
        """Say that this leader is there; that another has taken over, if one has."""
        election, beat, slot = asked
        try:
            election.announce(beat)
            if beat.sequence == 1:
                election.forget(beat.term)
            newest = election.newest()
            by = self._log.in_force() if newest is not None and newest.term > beat.term else None
        except (*WAITED_FOR, CorruptDataError) as error:
            if not self._unheard:
                told = "the heartbeat can't be written, the job goes on; a standby may take it over: %s job=%s"
                log.warning(told, error, self._log.paths.job)
            self._unheard = True
            return None
        if self._unheard:
            log.warning("heartbeats are written again job=%s", self._log.paths.job)
        self._unheard = False
        return ev.LogChecked(slot, ev.Followed(by)) if by is not None and by.term > beat.term else None

    def write_hint(self, epoch: Epoch) -> None:
        try:
            self._log.store.put(self._log.paths.latest, str(epoch).encode())
        except (TidegateError, OSError) as error:
            log.warning("the hint at the latest checkpoint could not be written: %s job=%s", error, self._log.paths.job)

    def want_collected(self, effect: do.CollectGarbage | do.TrimLog) -> bool:
        """Note the newest order of its kind, which says all that those before it said. True: ``collect_wanted`` has to be called.

        A store that is slower to list than the job commits would pile up rounds otherwise.
        """
        with self._lock:
            idle, self._collecting = not self._collecting, True
            self._wanted[type(effect)] = effect
            return idle

    def collect_wanted(self, _: None) -> None:
        """Collect until nothing new is wanted."""
        while (effect := self._next_wanted()) is not None:
            try:
                self._collect(effect)
            except (TidegateError, OSError) as error:
                log.warning("garbage was left for the next time: %s job=%s", error, self._log.paths.job)

    def _next_wanted(self) -> do.CollectGarbage | do.TrimLog | None:
        with self._lock:
            effect = self._wanted.pop(next(iter(self._wanted))) if self._wanted else None
            self._collecting = effect is not None
            return effect

    def _collect(self, effect: do.CollectGarbage | do.TrimLog) -> None:
        paths, store = self._log.paths, self._log.store
        if isinstance(effect, do.TrimLog):
            self._log.trim(effect.below, effect.keep)
            return
        listed = [info.path for prefix in paths.object_prefixes for info in store.list(prefix)]
        store.delete(garbage(paths, listed, effect.keep, effect.bound))
        self.spools.trim(effect.resumable)
        self._rounds += 1
        if self._rounds % SWEEP_EVERY == 0:
            self.sweep(None)

    @property
    def sweeps(self) -> bool:
        """Killed writers leave something in this store."""
        return isinstance(self._log.store, Sweepable)

    def sweep(self, _: None) -> None:
        """Delete what writers that were killed have left in the store."""
        store, job = self._log.store, self._log.paths.job
        if not isinstance(store, Sweepable):
            return
        try:
            swept = sum(store.sweep(prefix) for prefix in (job, PROBE_FOLDER))
        except (TidegateError, OSError) as error:
            log.warning("what killed writers left stays for the next time: %s job=%s", error, job)
            return
        if swept:
            log.info("deleted what killed writers had left files=%s job=%s", swept, job)

    def publish(self, effect: do.Publish) -> ev.CoordinatorEvent:
        try:
            self._publisher.publish(effect.committables)
        except WAITED_FOR as error:
            return ev.PublishFailed(effect.epoch, str(error))
        return ev.Published(effect.epoch)

    def hide(self, effect: do.Hide) -> ev.CoordinatorEvent:
        # A start without state (``everything``) empties sinks if that was asked for, else they were seen to show nothing. What
        # lower gangs staged is swept at every start.
        try:
            if effect.everything and self._publisher.clear_wanted:
                self._publisher.clear()
            self._publisher.hide(effect.committables)
            if (unnamed := effect.unnamed) is not None:
                below = GangNumber(U64_LIMIT) if unnamed.every_gang else effect.gang
                self._publisher.hide_unnamed(below, unnamed.checkpoint_id, unnamed.keep)
        except WAITED_FOR as error:
            return ev.HideFailed(effect.gang, str(error))
        return ev.Hidden(effect.gang)
