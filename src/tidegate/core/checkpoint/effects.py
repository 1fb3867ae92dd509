"""The coordinator's effects, as data. The facts that answer them are in ``events``.

The shell performs effects in the order in which they are returned. ``PutEntry``, ``ReadLog``, ``CheckLog``, ``Hide``,
``Publish``, ``ResolveRestore``, ``StartGang``, ``StopGang`` and ``SendCommitted`` have an answer each, named in their
docstrings; the rest has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.checkpoint.manifest import CheckpointManifest, CommittableEntry
from tidegate.core.log.view import LogEntry, Takeover, encode_entry
from tidegate.errors import CheckpointAbortedError
from tidegate.ids import Epoch, GangNumber, NodeId, Slot, Term

# -- the log -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Create this slot, create-only. Answered by ``PutAnswered``, exactly once."""

    slot: Slot
    write_id: str
    entry: LogEntry

    @property
    def data(self) -> bytes:
        """The bytes to put; the same for every try."""
        return encode_entry(self.entry)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the log anew. Answered by ``LogRead``."""


@dataclass(frozen=True, slots=True)
class CheckLog:
    """List the log, in ascending order: is any slot after this one taken? Answered by ``LogChecked``, exactly once."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class WriteLatestHint:
    """Put the hint. AFTER the manifest is in the log; may fail."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Delete the slots below this one, except ``keep`` and takeovers. AFTER the base that allows it is in the log; may fail,
    may be abandoned halfway, and nobody waits for it."""

    below: int
    keep: frozenset[int]


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """List the job's objects and delete what ``retain.garbage`` says.

    Bound and kept objects are of BEFORE the listing. Sources may let go of what lies before all of
    ``resumable``; of nothing when that is empty.
    """

    bound: int
    keep: frozenset[str]
    resumable: tuple[CheckpointManifest, ...] = ()


# -- commands to a node. All carry gang and term, and the last committed epoch and id ------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every command carries."""

    gang: GangNumber
    term: Term
    committed_epoch: int | None
    committed_id: int


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    """A checkpoint begins. A node's deadlines are receipt + timeout - age. ``aligned``: barriers never
    overtake. ``compacts``: write all state, whatever objects of earlier checkpoints hold of it."""

    term: Term
    checkpoint_id: int
    epoch: Epoch
    parent: Epoch | None
    age_ms: int
    timeout_ms: int
    alignment_timeout_ms: int | None
    aligned: bool
    compacts: bool = False


@dataclass(frozen=True, slots=True)
class SendStarted:
    """To every node, BEFORE any ``SendInject`` of the same checkpoint."""

    node: NodeId
    stamp: Stamp
    started: CheckpointStarted


@dataclass(frozen=True, slots=True)
class SendInject:
    """To a node with sources: put the barrier into the stream.

    Answered by ``InjectionAcked`` or ``NodeDeclined``.
    """

    node: NodeId
    stamp: Stamp
    checkpoint_id: int
    epoch: Epoch
    unaligned: bool


@dataclass(frozen=True, slots=True)
class SendFinalize:
    """To every node of a drained gang: report the last state, without a barrier.

    Answered by ``NodePrepared``.
    """

    node: NodeId
    stamp: Stamp
    checkpoint_id: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SendPromote:
    """The barrier may overtake data from now on."""

    node: NodeId
    stamp: Stamp
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SendAbort:
    """This id and everything below it is dead."""

    node: NodeId
    stamp: Stamp
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendCommitted:
    """The manifest is in the log. Answered by ``CommitAcked``; sent again a few times, and every later command says it too."""

    node: NodeId
    stamp: Stamp
    epoch: Epoch
    checkpoint_id: int


# -- gang and sinks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResolveRestore:
    """No gang runs: decide from the log what to start from. Answered by ``RestoreRequested``, whenever it
    suits, or, if a gang with the current number turns out to be alive, by ``GangRunning``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What lower gangs staged or published at cuts after ``checkpoint_id``, except ``keep``.

    A damaged commit may have named it. Cuts up to that one are the restored epoch's own. ``every_gang``: a lost part of the log
    named it, and its gangs may have had any number; none of this history has begun to stage yet.
    """

    checkpoint_id: int
    keep: tuple[CommittableEntry, ...]
    every_gang: bool = False


@dataclass(frozen=True, slots=True)
class Hide:
    """Take these out of sight wherever they are, so that a late publish of them finds nothing.

    ``unnamed`` goes too. ``everything``: the gang starts without state, so whatever lower gangs have staged or published goes,
    named here or not, and lower gangs are refused from now on. BEFORE publishing and starting. Answered by
    ``Hidden`` or ``HideFailed``; may be repeated.
    """

    gang: GangNumber
    committables: tuple[CommittableEntry, ...]
    everything: bool = False
    unnamed: Unnamed | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """Make these visible, in the order of their own epochs. AFTER the manifest of ``epoch`` is in the log.

    Answered by ``Published`` or ``PublishFailed``; at most one is under way; may be repeated.
    """

    epoch: Epoch
    gang: GangNumber
    committables: tuple[CommittableEntry, ...]


@dataclass(frozen=True, slots=True)
class StartGang:
    """Start the processes of this gang from this manifest. Answered by ``GangRunning`` or ``GangLost``."""

    gang: GangNumber
    manifest: CheckpointManifest | None


@dataclass(frozen=True, slots=True)
class StopGang:
    """End the processes of this gang. Answered by ``GangLost``."""

    gang: GangNumber
    reason: str


# -- outcomes for people -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """Committed."""

    checkpoint_id: int
    epoch: Epoch
    duration_ms: int
    manifest: CheckpointManifest
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """Over without a commit; the job goes on. ``error`` carries the story. Not a ``failure``: somebody wanted it,
    or the gang ended."""

    checkpoint_id: int
    reason: str
    requests: tuple[str, ...]
    error: CheckpointAbortedError
    failure: bool = True

    @property
    def failed_nodes(self) -> Mapping[int, str]:
        """The nodes that it failed on, and why; empty when it was nobody's fault."""
        return self.error.failed_nodes


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """No checkpoint will be made for this request."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Post ``Tick`` at this time. Replaces the timer before it."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """Somebody else writes the log now: ``by``, where that could be read. ``slot`` is what we had wanted next."""

    by: Takeover | None
    slot: Slot
    why: str = ""

    def __str__(self) -> str:
        return f"another driver has taken over slot={self.slot}{self.why and f': {self.why}'}"


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """The store did not answer definitely for so long. Nobody knows what it holds."""

    waited_ms: int
    why: str

    def __str__(self) -> str:
        return f"the store did not answer for {self.waited_ms} ms: {self.why}"


@dataclass(frozen=True, slots=True)
class Unpublishable:
    """What is committed cannot be made visible; ``why`` is what the sink said last."""

    tries: int
    why: str

    def __str__(self) -> str:
        return f"committables cannot be published: {self.why}"


StepDownReason: TypeAlias = Replaced | StoreSilent | Unpublishable


@dataclass(frozen=True, slots=True)
class StepDown:
    """This leader is over: it emits no more effects. What it has begun is completed by whoever leads next."""

    reason: StepDownReason


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The final checkpoint is committed and published."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The gang has ended on request and nothing is under way."""


CoordinatorEffect: TypeAlias = (
    PutEntry
    | ReadLog
    | CheckLog
    | WriteLatestHint
    | TrimLog
    | CollectGarbage
    | SendStarted
    | SendInject
    | SendFinalize
    | SendPromote
    | SendAbort
    | SendCommitted
    | ResolveRestore
    | Hide
    | Publish
    | StartGang
    | StopGang
    | CheckpointCompleted
    | CheckpointAborted
    | RequestRefused
    | SetTimer
    | StepDown
    | JobFinished
    | JobStopped
)
