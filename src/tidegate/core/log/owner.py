"""Who may publish into a sink, and whether the sinks have seen more than the log knows. Pure: it reads no sink and no log.

A sink belongs to one run of one log. The log's identity is the write id of its first entry, so two stores, or two runs without
one, never have the same. Within a log terms fence; between logs nothing does but the life of the run that has the sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.log.view import LogView
from tidegate.ids import NO_EPOCH, Epoch, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One run, for people too. ``log`` is empty where it is not known; ``store`` is ``None`` when the log ends with the run."""

    sink: str
    job: str
    log: str
    term: Term
    run: str
    host: str
    pid: int
    since: str
    store: str | None

    @property
    def name(self) -> str:
        """Whose sink it is."""
        return f"sink {self.sink!r} of job {self.job!r}"

    @property
    def whereabouts(self) -> str:
        """Where it runs, for the end of a message."""
        return f"host={self.host} pid={self.pid} since={self.since}"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a sink, whether it still runs, and the newest epoch and checkpoint id that it was about to publish."""

    owner: Owner
    alive: bool
    epoch: Epoch = NO_EPOCH
    checkpoint_id: int = 0


@dataclass(frozen=True, slots=True)
class Take:
    """It may be taken. ``set_aside``: what another log's run has staged goes out of the way first."""

    set_aside: bool


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not: the user has to do something."""

    why: str


@dataclass(frozen=True, slots=True)
class Outrun:
    """It may not: a newer leader of the same log has it."""

    why: str


OwnershipVerdict: TypeAlias = Take | Denied | Outrun


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A start that wants a sink. ``take``: even from another job, as ``overwrite`` and ``append`` say.

    ``seen`` is the run that had it when the log was read: whoever took it since may be newer than what was read.
    """

    mine: Owner
    take: bool = False
    seen: str | None = None


def judge(claim: Claim, holder: Holder | None, *, idle: bool) -> OwnershipVerdict:
    """May it be taken? ``idle``: the sink shows no rows and none wait."""
    if holder is None:
        return Take(set_aside=False)
    mine, owner = claim.mine, holder.owner
    if not owner.log or not mine.log or owner.log == mine.log:
        return _within_log(claim, holder)
    if holder.alive:
        return Denied(_runs(owner))
    over = owner.name == mine.name and (idle or owner.store is None)
    return Take(set_aside=True) if claim.take or over else Denied(_belongs(owner))


def _within_log(claim: Claim, holder: Holder) -> OwnershipVerdict:
    mine, owner = claim.mine, holder.owner
    if owner.term > mine.term and owner.run != claim.seen:
        return Outrun(replaced(owner))
    if holder.alive and owner.term >= mine.term:  # the log was rolled back beneath it
        return Denied(_runs(owner))
    if owner.name != mine.name and not claim.take:
        return Denied(_belongs(owner))
    return Take(set_aside=False)


def replaced(owner: Owner) -> str:
    """What a run says that finds another in its stead."""
    return (
        f"another run has taken this sink over, this one publishes nothing more: it belongs to the {owner.name} now "
        f"term={owner.term} {owner.whereabouts}"
    )


def _runs(owner: Owner) -> str:
    return f"the {owner.name} is running and writes here: wait for its end or stop it, or choose another path {owner.whereabouts}"


def _belongs(owner: Owner) -> str:
    return (
        f"this directory belongs to the {owner.name}, which may have rows on their way into it: choose another one, or, if "
        f"that job is over, start with restore='none' and overwrite=True, or from a savepoint of it with append=True "
        f"store={owner.store} {owner.whereabouts}"
    )


# -- sinks and log -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What sinks and hints tell of the log, looked at BEFORE it is read: then a log that lacks it has lost it.

    ``epoch`` is the newest slot that anybody has seen taken; ``checkpoint_id`` the newest that a sink shows or was about to.
    """

    epoch: Epoch = NO_EPOCH
    checkpoint_id: int = 0


def sinks_newer(view: LogView, seen: Seen) -> str | None:
    """Why the log must be older than the sinks: a copy was put back, or its newest entries are lost. ``None``: it is not."""
    if seen.epoch >= max(view.next_slot, 1):
        return f"epoch {seen.epoch} was committed and the log ends before it"
    held = view.held()
    damaged = view.lost_after(held[-1].epoch if held else None)
    if seen.checkpoint_id > view.last_id and damaged is None:  # a damaged commit explains it
        return f"checkpoint {seen.checkpoint_id:016x} was published and the log does not have it"
    return None
