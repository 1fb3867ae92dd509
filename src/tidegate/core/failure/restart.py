"""Whether to start the gang again after it was lost, and when; and which of a dying gang's many reasons is the one.

Knows nothing of how gangs are started. Reasons are distinguished by their kind alone: it crosses processes as a number, and no
decision reads a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias, assert_never

from tidegate.errors import InvalidUseError
from tidegate.ids import NodeId


class FailureKind(IntEnum):
    """Why a gang is over. Numbers are those of ``CauseKind`` in control.proto."""

    USER_FUNCTION = 1
    """A function of the user raised, or returned what does not fit."""
    DEFECT = 2
    """Code raised what does not pass by itself: ours, a library's, or a connector's."""
    TRANSIENT = 3
    """The world failed for now: a store, a disk, memory."""
    PEER_LOST = 4
    """The loss of a channel or of the control line: what follows from another node's end."""
    LOST = 5
    """A process is gone without a word."""
    STALLED = 6
    """A process stands still: it is stopped, or a function holds its interpreter."""
    NOT_JOINED = 7
    """Nodes did not reach the driver in time."""
    SETUP = 8
    """Where nodes run something is missing or wrong, or Spark is gone."""
    STORAGE_UNAVAILABLE = 9
    """A store or a sink can't be read or written for now."""
    STORAGE_REFUSED = 10
    """A store or a sink refuses us: somebody has to fix it."""


COMES_AGAIN = frozenset({FailureKind.USER_FUNCTION, FailureKind.DEFECT, FailureKind.SETUP, FailureKind.STORAGE_REFUSED})


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason, for people and for the verdict. ``where`` is the innermost line of code that raised, if one did."""

    kind: FailureKind
    text: str
    node: NodeId | None = None
    error_type: str = ""
    where: str = ""
    traceback: str = ""

    @property
    def comes_again(self) -> bool:
        """The same work will most likely fail the same way."""
        return self.kind in COMES_AGAIN

    def waits(self, *, has_run: bool) -> bool:
        """Not worth a restart that counts: somebody has to make room first. A job that never ran there is set up wrongly."""
        refused = self.kind is FailureKind.STORAGE_REFUSED and has_run
        return refused or self.kind is FailureKind.STORAGE_UNAVAILABLE

    @property
    def identity(self) -> tuple[object, ...]:
        """Two failures that share it are the same. Messages may differ by addresses and numbers of rows, lines of code do not."""
        return (self.kind, self.error_type, self.where or self.text)


def first_cause(known: Failure | None, new: Failure) -> Failure:
    """The one that counts: the first, but a cause counts more than what follows from it."""
    if known is None or _rank(new.kind) < _rank(known.kind):
        return new
    return known


def _rank(kind: FailureKind) -> int:
    """Causes first. A process that is gone explains a lost channel; what a node said explains that it went."""
    match kind:
        case FailureKind.USER_FUNCTION | FailureKind.DEFECT | FailureKind.TRANSIENT | FailureKind.SETUP:
            return 0
        case FailureKind.STORAGE_UNAVAILABLE | FailureKind.STORAGE_REFUSED:
            return 0
        case FailureKind.STALLED | FailureKind.LOST | FailureKind.NOT_JOINED:
            return 1
        case FailureKind.PEER_LOST:
            return 2
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits grow from ``first_wait_ms`` by doubling. The counts start anew with every committed checkpoint."""

    first_wait_ms: int = 100
    longest_wait_ms: int = 10_000
    limit: int = 10
    user_error_limit: int = 1
    """What comes again (a user's function that raised, a defect) gets fewer chances, whether it is the same or another."""
    same_error_limit: int = 1
    """The same such error in a row is final even when checkpoints were committed in between: they stand right before it."""
    same_error_commits: int = 10
    """A job that has committed more checkpoints than this since an error has passed the rows that raised it. A restored gang
    reads at most about one checkpoint's rows again, in a few commits however slowly it begins."""

    def __post_init__(self) -> None:
        if self.first_wait_ms < 0 or self.longest_wait_ms < self.first_wait_ms:
            raise InvalidUseError(
                f"restart waits must grow first_wait_ms={self.first_wait_ms} longest_wait_ms={self.longest_wait_ms}"
            )
        limits = (self.limit, self.user_error_limit, self.same_error_limit, self.same_error_commits)
        if min(limits) < 0:
            raise InvalidUseError(
                f"restart limits are not negative limit,user_error_limit,same_error_limit,same_error_commits={limits}"
            )


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start again in ``wait_ms``."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class StopRestarting:
    """It failed ``failures`` times without progress: the job has failed."""

    failures: int


RestartVerdict: TypeAlias = RestartAfter | StopRestarting


class Restarts:
    """Counts losses since the last progress."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._user_errors = 0
        self._error: tuple[object, ...] | None = None
        self._repeats = 0
        self._commits = 0
        self.total = 0

    def progressed(self) -> None:
        """A checkpoint was committed."""
        self._failures = 0
        self._user_errors = 0
        self._commits += 1

    def lost(self, failure: Failure) -> RestartVerdict:
        """The gang was lost, for this reason."""
        self._failures += 1
        self._user_errors += failure.comes_again
        self._count_repeats(failure)
        policy = self._policy
        if (
            self._failures > policy.limit
            or self._user_errors > policy.user_error_limit
            or self._repeats > policy.same_error_limit
        ):
            return StopRestarting(max(self._failures, self._repeats))
        self.total += 1
        wait = policy.first_wait_ms << min(self._failures - 1, 30)
        return RestartAfter(min(wait, policy.longest_wait_ms))

    def _count_repeats(self, failure: Failure) -> None:
        """A node that is lost in between does not make another error of the same one."""
        if not failure.comes_again:
            return
        again = failure.identity == self._error and self._commits <= self._policy.same_error_commits
        self._repeats = self._repeats + 1 if again else 1
        self._error = failure.identity
        self._commits = 0


# -- how long to wait for nodes to join ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """Look again at ``until_ms``."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class NotJoined:
    """They will not come: the gang is stopped, for this reason."""

    reason: str


JOIN_PATIENCE = 5
"""While their processes run, nodes may take this many times the limit: a starved machine is slow, not broken."""
JOIN_SLOWER = 3
"""A gang may take this many times as long as the slowest before it."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How far a gang has come up. ``running``: how many of its processes are known to run; ``None``: nobody knows.

    The limit is between two arrivals: as long as nodes keep coming, they are waited for.
    """

    size: int
    limit_ms: int
    started_ms: int
    joined: frozenset[int] = frozenset()
    last_ms: int | None = None
    slowest_ms: int = 0

    def arrived(self, node: NodeId, now_ms: int) -> Joining:
        """A node has joined."""
        return replace(self, joined=self.joined | {node}, last_ms=now_ms)

    @property
    def took_ms(self) -> int:
        """From the start to the last arrival: what the next gang may be measured by."""
        return 0 if self.last_ms is None else self.last_ms - self.started_ms

    def look(self, now_ms: int, running: int | None) -> KeepWaiting | NotJoined:
        """What to do about nodes that are missing now."""
        patient_ms = max(self.limit_ms, JOIN_SLOWER * self.slowest_ms)
        since_ms = self.started_ms if self.last_ms is None else self.last_ms
        if running is not None and running >= self.size:
            patient_ms = max(patient_ms, JOIN_PATIENCE * self.limit_ms)
        if now_ms < since_ms + patient_ms:
            return KeepWaiting(min(since_ms + patient_ms, now_ms + self.limit_ms))
        return NotJoined(self._reason(now_ms - self.started_ms, running))

    def _reason(self, waited_ms: int, running: int | None) -> str:
        missing = [str(node) for node in range(self.size) if node not in self.joined]
        tasks = "" if running is None else f", Spark runs {running} of {self.size} tasks"
        return (
            f"{len(missing)} of {self.size} nodes did not reach the driver within {waited_ms / 1000:.0f} s "
            f"(missing: {', '.join(missing)}{tasks}): check that executors can connect to the driver's address and that nothing "
            f"else holds the slots, or give start a longer join_timeout join_timeout={self.limit_ms / 1000:g}s"
        )
