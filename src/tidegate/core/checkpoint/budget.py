"""How often a sink shows what is committed: a token bucket. Time is a parameter.

Every file that a sink shows stays for ever, so a job that commits five times a second must not show five files
a second. The first epochs appear at once, for people who look; later ones wait for the next token and appear
together. What waits is named by every manifest meanwhile, so no crash can lose it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import InvalidUseError


@dataclass(frozen=True, slots=True)
class PublishBudget:
    """Show at most ``capacity`` times in a row, then once per ``refill_ms``."""

    capacity: int
    refill_ms: int

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.refill_ms < 1:
            raise InvalidUseError(
                f"a budget has a token and a time to get it back capacity={self.capacity} refill_ms={self.refill_ms}"
            )


DEFAULT_BUDGET = PublishBudget(capacity=8, refill_ms=10_000)
"""An interval of ten seconds or more shows every epoch at once; six minutes at 200 ms show 44 times."""


class TokenBucket:
    """The tokens of one budget. ``now_ms`` never goes back."""

    __slots__ = ("_budget", "_since_ms", "_tokens")

    def __init__(self, budget: PublishBudget) -> None:
        self._budget = budget
        self._tokens = budget.capacity
        self._since_ms = 0

    def ready_ms(self, now_ms: int) -> int:
        """When there is a token: now, or later."""
        self._refill(now_ms)
        return now_ms if self._tokens else self._since_ms + self._budget.refill_ms

    def take(self, now_ms: int) -> None:
        """Use a token, if there is one."""
        self._refill(now_ms)
        self._tokens = max(0, self._tokens - 1)

    def _refill(self, now_ms: int) -> None:
        gained = (now_ms - self._since_ms) // self._budget.refill_ms
        self._tokens += gained
        self._since_ms += gained * self._budget.refill_ms
        if self._tokens >= self._budget.capacity:
            self._tokens, self._since_ms = self._budget.capacity, now_ms
