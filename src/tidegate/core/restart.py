"""Whether to start the gang again after it was lost, and when. Knows nothing of how gangs are started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.errors import InvalidUseError


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits grow from ``first_wait_ms`` by doubling. The counts start anew with every committed checkpoint."""

    first_wait_ms: int = 100
    longest_wait_ms: int = 10_000
    limit: int = 10
    user_error_limit: int = 1
    """A user's function that raised will most likely raise again: it gets fewer chances."""
    same_error_limit: int = 5
    """The same user error in a row is final even when checkpoints were committed in between: they stand right before it."""

    def __post_init__(self) -> None:
        if self.first_wait_ms < 0 or self.longest_wait_ms < self.first_wait_ms:
            raise InvalidUseError(
                f"restart waits must grow first_wait_ms={self.first_wait_ms} longest_wait_ms={self.longest_wait_ms}"
            )
        limits = (self.limit, self.user_error_limit, self.same_error_limit)
        if min(limits) < 0:
            raise InvalidUseError(
                f"restart limits are not negative limit,user_error_limit,same_error_limit={limits}"
            )


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start again in ``wait_ms``."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It failed ``failures`` times without progress: the job has failed."""

    failures: int


Verdict: TypeAlias = RestartAfter | GiveUp


class Restarts:
    """Counts losses since the last progress."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._user_errors = 0
        self._error = ""
        self._repeats = 0
        self.total = 0

    def progressed(self) -> None:
        """A checkpoint was committed."""
        self._failures = 0
        self._user_errors = 0

    def lost(self, *, user_error: bool, error: str = "") -> Verdict:
        """The gang was lost. ``error`` tells one user error from another."""
        self._failures += 1
        self._user_errors += user_error
        self._count_repeats(error if user_error else "")
        policy = self._policy
        if (
            self._failures > policy.limit
            or self._user_errors > policy.user_error_limit
            or self._repeats > policy.same_error_limit
        ):
            return GiveUp(max(self._failures, self._repeats))
        self.total += 1
        wait = policy.first_wait_ms << min(self._failures - 1, 30)
        return RestartAfter(min(wait, policy.longest_wait_ms))

    def _count_repeats(self, error: str) -> None:
        self._repeats = self._repeats + 1 if error and error == self._error else int(bool(error))
        self._error = error
