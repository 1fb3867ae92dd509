"""What a new leader does about the gang of the one before it: go on with it, wait for it, or start another.

The gang's processes belong to its driver. Without a driver no other gang can be started, and none is announced in the log: a gang
whose driver is dead is dying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

ADOPT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Adopt:
    """All nodes and their driver are there: go on with this gang."""


@dataclass(frozen=True, slots=True)
class WaitForGang:
    """Some are missing: look again at ``until_ms``; ``None``: when somebody comes."""

    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Replace:
    """Those who are missing will not come: stop the rest and start a gang anew."""

    reason: str


AdoptionOutcome: TypeAlias = Adopt | WaitForGang | Replace


@dataclass(frozen=True, slots=True)
class Adoption:
    """How far the gang of an earlier leader has come over to this one."""

    size: int
    started_ms: int
    timeout_ms: int = ADOPT_TIMEOUT_MS
    joined: frozenset[int] = frozenset()
    has_driver: bool = False

    def arrived(self, node: int) -> Adoption:
        """A node of the gang says hello."""
        return replace(self, joined=self.joined | {node})

    def driver(self, *, there: bool) -> Adoption:
        """The gang's driver has come, or gone."""
        return replace(self, has_driver=there)

    def look(self, now_ms: int) -> AdoptionOutcome:
        """What to do now."""
        complete = len(self.joined) == self.size
        until_ms = self.started_ms + self.timeout_ms
        if complete and self.has_driver:
            return Adopt()
        if now_ms < until_ms:
            return WaitForGang(until_ms)
        if not self.has_driver:
            return WaitForGang(None)
        missing = [str(node) for node in range(self.size) if node not in self.joined]
        return Replace(f"nodes {', '.join(missing)} did not come over to the new leader within {self.timeout_ms / 1000:g} s")
