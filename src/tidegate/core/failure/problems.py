"""What is wrong with a running job's store and sinks now, and which of it is worth a line in the log.

It is shown the facts that the coordinator is told and the effects that it emits, and draws its own conclusions; it changes
nothing. A problem is there from its first failure until the same thing has worked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from tidegate.core.checkpoint.effects import (
    CheckpointAborted,
    CheckpointCompleted,
    CoordinatorEffect,
    Hide,
    JobFinished,
    JobStopped,
    Publish,
    PutEntry,
    StartGang,
)
from tidegate.core.checkpoint.events import (
    CoordinatorEvent,
    Hidden,
    HideFailed,
    Published,
    PublishFailed,
    PutAnswered,
    Unknown,
)

REPEAT_MS = 10_000
"""The same problem is told at most this often."""


class ProblemKind(StrEnum):
    """What does not work."""

    LOG = "log"
    SINKS = "sinks"
    RESTORE = "restore"
    NODES = "nodes"
    CHECKPOINTS = "checkpoints"


_WHAT = {
    ProblemKind.LOG: "the job's log can't be written, no checkpoint is committed",
    ProblemKind.SINKS: "committed rows can't be made visible",
    ProblemKind.RESTORE: "the checkpoint to go on from can't be read",
    ProblemKind.NODES: "a node can't write or read, the nodes are started again from the last checkpoint",
    ProblemKind.CHECKPOINTS: "checkpoints fail",
}
_ADVICE = {
    ProblemKind.LOG: "check the store's room, permissions, credentials and network; the job goes on by itself once it can write",
    ProblemKind.SINKS: "check the sink's room, permissions and network; the job publishes by itself once it can",
    ProblemKind.RESTORE: "check the store's permissions, credentials and network; the job goes on by itself once it can read",
    ProblemKind.NODES: "check room and permissions where the nodes run; no row is lost, the job goes on by itself once they can",
    ProblemKind.CHECKPOINTS: "fix the cause: until a checkpoint is committed, a restart repeats all rows since the last one",
}
_SLOW_MS = {ProblemKind.LOG: 10_000, ProblemKind.SINKS: 60_000}
"""An effect that has no answer for so long is a problem. A sink's commit may be a user's function, which may take its time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not work now. ``since_ms`` is wall time; ``times`` is how often it has failed since."""

    kind: ProblemKind
    what: str
    because: str
    advice: str
    since_ms: int
    times: int

    def __str__(self) -> str:
        return f"{self.what}: {self.because}"


@dataclass(frozen=True, slots=True)
class StillWrong:
    """Tell people, and what to do about it."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Passed:
    """Tell people that it works again."""

    problem: Problem


Notice: TypeAlias = StillWrong | Passed


class Problems:
    """Those that there are now. Every method returns what is worth telling."""

    __slots__ = ("_asked", "_open", "_told_ms", "last_cause")

    def __init__(self) -> None:
        self._open: dict[ProblemKind, Problem] = {}
        self._told_ms: dict[ProblemKind, int] = {}
        self._asked: dict[ProblemKind, tuple[int, int]] = {}
        self.last_cause: str | None = None

    @property
    def current(self) -> tuple[Problem, ...]:
        """All of them, the oldest first."""
        return tuple(sorted(self._open.values(), key=lambda problem: problem.since_ms))

    @property
    def look_ms(self) -> int | None:
        """When ``look`` has something to find, unless answers come before."""
        return min((since + _SLOW_MS[kind] for kind, (since, _) in self._asked.items()), default=None)

    def noted(self, fact: CoordinatorEvent | CoordinatorEffect, now_ms: int, wall_ms: int) -> tuple[Notice, ...]:
        """Something happened, or was ordered."""
        match fact:
            case PutEntry():
                return self._ask(ProblemKind.LOG, now_ms, wall_ms)
            case Publish() | Hide():
                return self._ask(ProblemKind.SINKS, now_ms, wall_ms)
            case PutAnswered(answer=Unknown(reason)):
                return self.failed(ProblemKind.LOG, reason, now_ms, wall_ms)
            case PutAnswered():
                return self.passed(ProblemKind.LOG)
            case PublishFailed(reason=reason) | HideFailed(reason=reason):
                return self.failed(ProblemKind.SINKS, reason, now_ms, wall_ms)
            case Published() | Hidden():
                return self.passed(ProblemKind.SINKS)
            case CheckpointAborted(reason=reason, failure=True):
                return self.failed(ProblemKind.CHECKPOINTS, reason, now_ms, wall_ms)
            case CheckpointCompleted():
                return self.passed(ProblemKind.CHECKPOINTS, ProblemKind.NODES)
            case StartGang():
                return self.passed(ProblemKind.RESTORE)
            case JobFinished() | JobStopped():
                return self.passed(*ProblemKind)
            case _:
                return ()

    def failed(self, kind: ProblemKind, because: str, now_ms: int, wall_ms: int, times: int = 1) -> tuple[Notice, ...]:
        """It did not work. Told at once the first time, then now and again."""
        self._asked.pop(kind, None)
        self.last_cause = because
        known = self._open.get(kind) or Problem(kind, _WHAT[kind], because, _ADVICE[kind], wall_ms, 0)
        problem = self._open[kind] = replace(known, because=because, times=known.times + times)
        told_ms = self._told_ms.get(kind)
        if told_ms is not None and now_ms - told_ms < REPEAT_MS:
            return ()
        self._told_ms[kind] = now_ms
        return (StillWrong(problem),)

    def passed(self, *kinds: ProblemKind) -> tuple[Notice, ...]:
        """It worked."""
        over = []
        for kind in kinds:
            self._asked.pop(kind, None)
            self._told_ms.pop(kind, None)
            if (problem := self._open.pop(kind, None)) is not None:
                over.append(Passed(problem))
        return tuple(over)

    def look(self, now_ms: int, wall_ms: int) -> tuple[Notice, ...]:
        """Is anything without an answer for too long? It stays asked for, and is looked at again after the same time."""
        told: list[Notice] = []
        for kind, (since, asked_wall_ms) in list(self._asked.items()):
            if now_ms - since >= _SLOW_MS[kind]:
                waited_s = (wall_ms - asked_wall_ms) // 1_000
                told += self.failed(kind, f"no answer for {waited_s} s", now_ms, asked_wall_ms, times=0)
                self._asked[kind] = now_ms, asked_wall_ms
        return tuple(told)

    def _ask(self, kind: ProblemKind, now_ms: int, wall_ms: int) -> tuple[Notice, ...]:
        self._asked[kind] = now_ms, wall_ms
        return ()
