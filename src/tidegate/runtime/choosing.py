"""What the next gang starts from: asked of the log on an executor, and again while the store gives no answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, assert_never

from tidegate.clock import Clock
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.failure.patience import Patience
from tidegate.core.failure.problems import ProblemKind
from tidegate.core.failure.restart import Failure, FailureKind, RestartAfter, StopRestarting
from tidegate.core.log.resolve import FallBack, Refuse
from tidegate.errors import WAITED_FOR
from tidegate.runtime.blocking import BlockingWork
from tidegate.runtime.opening import Opening
from tidegate.runtime.timers import Timers
from tidegate.runtime.watch import ProblemWatch


class Chooser(Protocol):
    """The leader, as this sees it."""

    @property
    def machine(self) -> DistributedCheckpointCoordinator:
        """The coordinator of now."""

    def post(self, action: Callable[[], None]) -> None:
        """Have this done in the leader's thread. Any thread."""

    def later(self, name: str, work: Callable[[Any], ev.CoordinatorEvent | None], argument: Any) -> None:
        """Have this done on an executor; what it returns comes back as an event."""

    def give_up(self, cause: Failure, failures: int = 1) -> None:
        """The job has failed."""


class RestoreChoosing:
    """Leader thread only, but for ``_decide``."""

    def __init__(
        self,
        leader: Chooser,
        opening: Opening,
        blocking: BlockingWork,
        watch: ProblemWatch,
        limit_ms: int,
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._leader = leader
        self._opening = opening
        self._blocking = blocking
        self._watch = watch
        self._clock = clock
        self._timers = timers
        self._patience = Patience(limit_ms)

    def choose(self) -> None:
        """Ask; the answer goes to the coordinator."""
        self._leader.later("log", self._decide, None)

    def _choose_as(self, machine: DistributedCheckpointCoordinator) -> None:
        """Ask again, if the same coordinator still wants to know: another leader may have led since."""
        if machine is self._leader.machine:
            self.choose()

    def passed(self) -> None:
        """A gang starts: there was an answer."""
        self._patience.passed()

    def _again(self, why: str) -> None:
        self._watch.failed(ProblemKind.RESTORE, why)
        verdict = self._patience.failed()
        match verdict:
            case StopRestarting(failures):
                unread = f"the checkpoint to go on from can't be read: {why}"
                self._leader.give_up(Failure(FailureKind.STORAGE_UNAVAILABLE, unread), failures)
            case RestartAfter(wait_ms):
                self._timers.at(self._clock.now_ms() + wait_ms, partial(self._choose_as, self._leader.machine))
            case _:
                assert_never(verdict)

    def _decide(self, _: None) -> ev.CoordinatorEvent | None:
        # The coordinator has looked into the log before it asked, and changes nothing until this is answered.
        view = self._leader.machine.log
        try:
            decision = self._opening.resolve(view)
            # Another leader may have collected what seems to be damaged.
            if isinstance(decision, FallBack | Refuse) and (replaced := self._blocking.replaced(view.next_slot - 1)):
                return replaced
        except WAITED_FOR as error:
            self._leader.post(partial(self._again, str(error)))
            return None
        return self._opening.request(decision, view)
