"""The name of every object of a job, formatted and parsed in one module. It knows names only, never what they
hold.

Numbers are zero-padded to 20 digits, so that a listing comes in numeric order. ``parse`` accepts exactly what
the formatting methods return: a name that was written any other way is foreign, and foreign objects are left
alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never
from urllib.parse import quote, unquote

from tidegate.errors import InvalidUseError
from tidegate.ids import U64_LIMIT, NodeId, Slot, Term

Direction: TypeAlias = Literal["in", "out"]

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBER = r"(\d{20})"
_SMALL = r"(\d{1,10})"
_LOG = re.compile(rf"log/{_NUMBER}\.json")
_STATE = re.compile(rf"checkpoints/{_NUMBER}/{_SMALL}\.arrow")
_FLIGHT = re.compile(rf"checkpoints/{_NUMBER}/operators/([^/]+)/{_SMALL}/(in|out)flight_([^/]+)\.buf")
_SHARED = re.compile(rf"shared/{_NUMBER}-([^/]+)\.arrow")
_LEADER = re.compile(rf"leader/{_NUMBER}\.json")
_DESCRIPTION = re.compile(rf"leader/{_NUMBER}-job\.json")


@dataclass(frozen=True, slots=True)
class LogObject:
    """One slot of the log."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class StateObject:
    """The state that one node uploaded for one checkpoint."""

    checkpoint_id: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class InFlightObject:
    """What was under way on one channel of one subtask, at the receiver (in) or the sender (out)."""

    checkpoint_id: int
    operator: str
    subtask: int
    direction: Direction
    channel: str


@dataclass(frozen=True, slots=True)
class SharedRun:
    """An immutable run that later checkpoints may name too.

    The id is that of the checkpoint it was uploaded for.
    """

    checkpoint_id: int
    run: str


@dataclass(frozen=True, slots=True)
class LatestHint:
    """The hint at the newest commit. Never the truth."""


@dataclass(frozen=True, slots=True)
class LeaderObject:
    """The heartbeat of one term's leader. A hint."""

    term: Term


@dataclass(frozen=True, slots=True)
class DescriptionObject:
    """What another process needs to know to lead the job, as the driver of this term wrote it."""

    term: Term


CheckpointObject: TypeAlias = StateObject | InFlightObject | SharedRun
JobObject: TypeAlias = LogObject | CheckpointObject | LatestHint | LeaderObject | DescriptionObject


class JobPaths:
    """Formats and parses the object names of one job."""

    __slots__ = ("job",)

    def __init__(self, job: str) -> None:
        if not _JOB.fullmatch(job):
            raise InvalidUseError(
                "a job name has 1 to 128 letters, digits, dots, dashes and underscores and begins with a"
                " letter or digit"
                f" job={job!r}"
            )
        self.job = job

    @property
    def latest(self) -> str:
        """The hint at the newest commit."""
        return f"{self.job}/_latest"

    @property
    def log_prefix(self) -> str:
        """What to list for the log."""
        return f"{self.job}/log"

    @property
    def object_prefixes(self) -> tuple[str, str]:
        """What to list for everything that checkpoints upload."""
        return f"{self.job}/checkpoints", f"{self.job}/shared"

    def log_entry(self, slot: Slot) -> str:
        """One slot of the log."""
        return f"{self.job}/log/{_padded(slot)}.json"

    @property
    def leader_prefix(self) -> str:
        """What to list for who leads."""
        return f"{self.job}/leader"

    def leader(self, term: Term) -> str:
        """The heartbeat of one term."""
        return f"{self.job}/leader/{_padded(term)}.json"

    def description(self, term: Term) -> str:
        """What the driver of one term says of the job."""
        return f"{self.job}/leader/{_padded(term)}-job.json"

    def state(self, checkpoint_id: int, node: NodeId) -> str:
        """One node's state object."""
        return f"{self.job}/checkpoints/{_padded(checkpoint_id)}/{node:d}.arrow"

    def inflight(self, checkpoint_id: int, operator: str, subtask: int, channel: str | int) -> str:
        """Recorded input of one channel."""
        return self._flight(checkpoint_id, operator, subtask, "in", channel)

    def outflight(self, checkpoint_id: int, operator: str, subtask: int, channel: str | int) -> str:
        """Overtaken output of one channel."""
        return self._flight(checkpoint_id, operator, subtask, "out", channel)

    def shared(self, checkpoint_id: int, run: str | int) -> str:
        """A run that later checkpoints may share."""
        return f"{self.job}/shared/{_padded(checkpoint_id)}-{_quoted(str(run))}.arrow"

    def _flight(self, checkpoint_id: int, operator: str, subtask: int, direction: Direction, channel: str | int) -> str:
        folder = f"{self.job}/checkpoints/{_padded(checkpoint_id)}/operators/{_quoted(operator)}/{subtask:d}"
        return f"{folder}/{direction}flight_{_quoted(str(channel))}.buf"

    def format(self, name: JobObject) -> str:
        """The path of a parsed name."""
        match name:
            case LogObject(slot):
                return self.log_entry(slot)
            case StateObject(checkpoint_id, node):
                return self.state(checkpoint_id, node)
            case InFlightObject(checkpoint_id, operator, subtask, direction, channel):
                return self._flight(checkpoint_id, operator, subtask, direction, channel)
            case SharedRun(checkpoint_id, run):
                return self.shared(checkpoint_id, run)
            case LatestHint():
                return self.latest
            case LeaderObject(term):
                return self.leader(term)
            case DescriptionObject(term):
                return self.description(term)
            case _:
                assert_never(name)

    def parse(self, path: str) -> JobObject | None:
        """What this path names; ``None`` for anything that this class would not have written."""
        head, _, rest = path.partition("/")
        if head != self.job:
            return None
        try:
            name = _parsed(rest)
            return name if name is not None and self.format(name) == path else None
        except InvalidUseError:
            return None


def checkpoint_of(name: JobObject | None) -> int | None:
    """The checkpoint an object was uploaded for; ``None`` for what no checkpoint uploads."""
    return name.checkpoint_id if isinstance(name, CheckpointObject) else None


def _parsed(rest: str) -> JobObject | None:
    if rest == "_latest":
        return LatestHint()
    if found := _LOG.fullmatch(rest):
        return LogObject(int(found[1]))
    if found := _STATE.fullmatch(rest):
        return StateObject(int(found[1]), NodeId(int(found[2])))
    if found := _LEADER.fullmatch(rest):
        return LeaderObject(Term(int(found[1])))
    if found := _DESCRIPTION.fullmatch(rest):
        return DescriptionObject(Term(int(found[1])))
    if found := _SHARED.fullmatch(rest):
        return SharedRun(int(found[1]), unquote(found[2]))
    if found := _FLIGHT.fullmatch(rest):
        direction: Direction = "in" if found[4] == "in" else "out"
        return InFlightObject(int(found[1]), unquote(found[2]), int(found[3]), direction, unquote(found[5]))
    return None


def _padded(number: int) -> str:
    if not 0 <= number < U64_LIMIT:
        raise InvalidUseError(f"a slot or checkpoint id has 64 bits number={number}")
    return f"{number:020d}"


def _quoted(part: str) -> str:
    """One safe path part: the unusual is percent-encoded, so that no name can climb out of its folder."""
    if part in ("", ".", ".."):
        raise InvalidUseError(f"not usable as part of a path part={part!r}")
    try:
        return quote(part, safe="")
    except UnicodeEncodeError as error:
        raise InvalidUseError("a path part is not valid text") from error
