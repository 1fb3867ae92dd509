"""The facts that the coordinator is told, in the past tense. The effects it emits are in ``effects``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.core.control.ask import ControlChanged as ControlChanged
from tidegate.core.log.view import LogRecord, LogView, Takeover
from tidegate.ids import Epoch, GangNumber, NodeId, Slot, Term

# -- events: the log -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogRead:
    """The log was read: its newest base, what that needs, and all after it.

    A log that cannot be read is no event: without it there is no leader.
    """

    entries: tuple[LogRecord, ...] = field(repr=False)  # all manifests there are, and the story wants one line

    def view(self) -> LogView:
        """What it adds up to."""
        return LogView(self.entries)


@dataclass(frozen=True, slots=True)
class Written:
    """The put created its slot."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The slot was taken; ``entry`` is what is in it, where it could be read."""

    entry: LogRecord | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """No definite answer: the put may have landed, may land later, or never."""

    reason: str = ""


PutAnswer: TypeAlias = Written | Conflict | Unknown


@dataclass(frozen=True, slots=True)
class PutAnswered:
    """The answer to a ``PutEntry``."""

    slot: Slot
    write_id: str
    answer: PutAnswer


@dataclass(frozen=True, slots=True)
class Last:
    """No slot after ours is taken."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Somebody else has written after us; ``by`` is the takeover in force, where it could be read."""

    by: Takeover | None = None


LogAnswer: TypeAlias = Last | Followed | Unknown


@dataclass(frozen=True, slots=True)
class LogChecked:
    """The answer to a ``CheckLog``. ``Followed`` may also be told unasked, by whoever finds it out."""

    slot: Slot
    answer: LogAnswer


# -- events: people and time ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerRequested:
    """Somebody asks for a checkpoint, or with a path for a savepoint."""

    request_id: str
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants this checkpoint aborted."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """The answer to ``ResolveRestore``: start from this epoch, ``None`` for a start without state.

    ``sinks_newer``: sinks show rows of checkpoints that the log does not have.
    """

    epoch: Epoch | None
    sinks_newer: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Stop the gang for good; the job may be started again later."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the answer to ``SetTimer``. Harmless at any time."""


# -- events: the gang ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GangRunning:
    """All nodes of a gang are up. Again for the same gang: its members have changed."""

    gang: GangNumber
    nodes: frozenset[NodeId]
    source_nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class GangLost:
    """A node was lost, the gang failed to start, or it has stopped: no process of it does anything for us any
    more. ``node`` went first, where that is known."""

    gang: GangNumber
    reason: str
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class InjectionAcked:
    """A node has taken the barrier command, for so many sources."""

    node: NodeId
    gang: GangNumber
    term: Term
    checkpoint_id: int
    source_count: int


@dataclass(frozen=True, slots=True)
class NodePrepared:
    """A node's snapshot is complete and durable."""

    ack: PrepareAck


@dataclass(frozen=True, slots=True)
class NodeDeclined:
    """A node cannot take part in this checkpoint."""

    node: NodeId
    gang: GangNumber
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CommitAcked:
    """A node knows that this checkpoint is committed."""

    node: NodeId
    gang: GangNumber
    term: Term
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Every sink of this node has seen the end of its input."""

    node: NodeId
    gang: GangNumber


# -- events: sinks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """All committables of this ``Publish`` are visible."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """They are not, or not all."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """All committables of this ``Hide`` are out of sight."""

    gang: GangNumber


@dataclass(frozen=True, slots=True)
class HideFailed:
    """They are not, or not all."""

    gang: GangNumber
    reason: str


CoordinatorEvent: TypeAlias = (
    LogRead
    | PutAnswered
    | LogChecked
    | TriggerRequested
    | CancelRequested
    | RestoreRequested
    | StopRequested
    | Tick
    | GangRunning
    | GangLost
    | InjectionAcked
    | NodePrepared
    | NodeDeclined
    | CommitAcked
    | NodeDrained
    | ControlChanged
    | Published
    | PublishFailed
    | Hidden
    | HideFailed
)
