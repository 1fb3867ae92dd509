"""Who leads a job, as far as a heartbeat tells, and whether somebody else may try.

A heartbeat is a hint. It says when to try and whom to ask; that nobody leads beside another is the log's business alone. Time
comes in, and sequences are compared by the watcher's own clock: nothing here trusts the clock of another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.log.entries import Role
from tidegate.errors import InvalidUseError
from tidegate.ids import GangNumber, Term

FORMAT_VERSION = 1
LEADER_TIMEOUT_MS = 3_000
BEATS = 3
"""Heartbeats in the time that may pass without one."""

RESIGNED = "RESIGNED"
ENDED = ("FINISHED", "STOPPED", "FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderBeat:
    """What a leader says of itself. ``sequence`` grows with every beat of a term.

    ``has_driver``: somebody is there who can start the job's gangs. ``process`` names the process beyond its number, which a
    machine uses again.
    """

    term: Term
    sequence: int
    leader: str
    role: Role
    host: str
    pid: int
    process: str
    since_ms: int
    address: str
    gang: GangNumber
    status: str
    has_driver: bool
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise InvalidUseError(f"written by another version of tidegate format_version={self.format_version}")

    @property
    def order(self) -> tuple[int, int]:
        """Which of two beats of one process is the later."""
        return self.term, self.sequence

    @property
    def is_over(self) -> bool:
        """This leader leads no more, and says so."""
        return self.status in (*ENDED, RESIGNED)

    @property
    def whereabouts(self) -> str:
        """For people: who leads and where."""
        return f"{self.role} process {self.pid} on {self.host} term={self.term} address={self.address}"


@dataclass(frozen=True, slots=True)
class Vacant:
    """Nobody leads: there is no heartbeat, or its leader has ended. ``absent_ms``: how long nothing has been there."""

    last: LeaderBeat | None
    absent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Alive:
    """Somebody leads."""

    beat: LeaderBeat


@dataclass(frozen=True, slots=True)
class Silent:
    """Whoever led says nothing more."""

    beat: LeaderBeat


@dataclass(frozen=True, slots=True)
class Unsure:
    """Not seen for long enough to tell."""

    beat: LeaderBeat


LEASE_SLACK_MS = 1_000
"""An expired lease is noticed and removed by a majority of its keepers: that takes a while."""

Sighting: TypeAlias = Vacant | Alive | Silent | Unsure


class LeaderWatch:
    """One watcher of one job. What counts is a new sequence, or a new term, between two looks.

    With ``lease_ms`` heartbeats vanish by themselves when nobody renews them, and a renewal is not seen: one that is there for
    longer than that is of a leader that lives, one that has gone is of a leader that is gone. A watcher that is more patient than
    the lease (``timeout_ms``) waits for the difference.
    """

    def __init__(self, timeout_ms: int, *, lease_ms: int | None = None) -> None:
        self._timeout_ms = timeout_ms
        self._lease_ms = lease_ms
        self._seen: LeaderBeat | None = None
        self._changed_ms = 0
        self._moves = False
        self._absent_since_ms: int | None = None
        self._blind = False

    def missed(self) -> None:
        """Nobody could look. The leader could not say anything either, perhaps: its silence is measured anew."""
        self._blind = True

    def look(self, beat: LeaderBeat | None, now_ms: int, *, dead: bool = False) -> Sighting:
        """What the newest heartbeat means now. ``dead``: its process is known to have ended."""
        if self._blind:
            self._blind, self._changed_ms, self._absent_since_ms = False, now_ms, None
        if beat is None:
            return self._absent(now_ms)
        self._absent_since_ms = None
        if self._seen is None or beat.order != self._seen.order:
            self._moves = self._seen is not None
            self._seen, self._changed_ms = beat, now_ms
        if beat.is_over:
            return Vacant(beat)
        return Silent(beat) if dead else self._present(beat, now_ms - self._changed_ms)

    def _present(self, beat: LeaderBeat, unchanged_ms: int) -> Sighting:
        if self._lease_ms is not None:
            renewed = unchanged_ms >= self._lease_ms + LEASE_SLACK_MS
            return Alive(beat) if self._moves or renewed else Unsure(beat)
        if unchanged_ms >= self._timeout_ms:
            return Silent(beat)
        return Alive(beat) if self._moves else Unsure(beat)

    def _absent(self, now_ms: int) -> Sighting:
        if self._absent_since_ms is None:
            self._absent_since_ms = now_ms
        absent_ms = now_ms - self._absent_since_ms
        if self._lease_ms is None or self._seen is None or self._seen.is_over:
            return Vacant(None, absent_ms)
        return Silent(self._seen) if absent_ms >= self._timeout_ms - self._lease_ms else Unsure(self._seen)


@dataclass(frozen=True, slots=True)
class Stay:
    """The leader that this node or driver has is the newest."""


@dataclass(frozen=True, slots=True)
class Move:
    """Another one leads now: go there."""

    beat: LeaderBeat


@dataclass(frozen=True, slots=True)
class GoHome:
    """The gang is over: nobody will come for its nodes."""

    reason: str


def whom_to_follow(beat: LeaderBeat | None, term: int, gang: int) -> Stay | Move | GoHome:
    """What a node of this gang does about the newest heartbeat, if ``term`` is the highest that it has obeyed."""
    if beat is None or beat.term <= term or not beat.address or beat.status == RESIGNED:
        return Stay()
    if beat.gang > gang:
        return GoHome(f"another gang runs now gang={beat.gang} ours={gang}")
    if beat.status in ENDED:
        return GoHome(f"the job has ended status={beat.status}")
    return Move(beat)
