"""What a source or a sink can do besides the contract in ``plan.connector``: one protocol per capability, all of them here.

A connector declares one by having its members; who uses it asks with ``isinstance``. Nothing has to be derived from, and a
connector without any of them works: the line that says what happens then is the last of each description.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.log.owner import Claim, Holder
from tidegate.plan.connector import Committable, Offset, Sink, Source, Split

OnFailure: TypeAlias = Callable[[str], None]

# -- sources ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class PrunesColumns(Protocol):
    """A source that can leave out columns. Without: all are read and dropped after."""

    def with_columns(self, names: Sequence[str]) -> Source:
        """The same source with these columns only, in its own order. It may keep more, such as its event time."""


@runtime_checkable
class FiltersRows(Protocol):
    """A source that can leave out rows. Without: the filter is an operator of its own."""

    def with_filter(self, expression: pc.Expression) -> Source:
        """The same source with only rows for which this is true. Asked for at most once."""


@runtime_checkable
class Discovering(Protocol):
    """A source whose splits appear while it is read. Its splits have an end. Without: ``splits`` are all there will be."""

    def discover(self, is_new: Callable[[str], bool]) -> Sequence[Split]:
        """The splits for whose id ``is_new`` says yes, in reading order. Called on a node, now and then; blocks on a listing."""


@runtime_checkable
class Batched(Protocol):
    """A source whose splits move through numbered batches together. Its splits have no end of their own.

    Without: splits are read by turns, each at its own speed.
    """

    @property
    def batched(self) -> bool:
        """True."""


@runtime_checkable
class TimesOutIdle(Protocol):
    """An unbounded source that says when a split without rows no longer holds back the watermark. Without: after one second."""

    @property
    def idle_timeout_ms(self) -> int:
        """So many milliseconds after its last row."""


@runtime_checkable
class ReadsDirectories(Protocol):
    """A source of files. Without: nobody can see that an output lies inside what the job reads."""

    @property
    def directories(self) -> Sequence[str | os.PathLike[str]]:
        """All that it reads, files in directories below them included."""


@runtime_checkable
class NeedsStore(Source, Protocol):
    """A source that keeps what it reads in the job's store. Without: it is read where it is."""

    def with_store(self, url: str, prefix: str, *, fresh: bool, states: Sequence[object] = ()) -> Source:
        """The same source over this part of the store, called on the driver before ``splits``. Blocks.

        ``fresh``: what is there is not to be used. ``states`` is what a checkpoint has of this source, to go on from.
        """


@runtime_checkable
class ChecksStore(Protocol):
    """A source that can refuse what is in the store before anything starts. Without: ``with_store`` does, after the takeover."""

    def check_store(self, url: str, prefix: str) -> None:
        """Raise ``InvalidUseError`` if what is stored there can't be gone on with. Only reads."""


@runtime_checkable
class Fed(Protocol):
    """A source that the driver writes to while the job runs. Without: nodes read it by themselves."""

    def feed(self, on_failure: OnFailure) -> Callable[[], None]:
        """Start; returns what stops it. ``on_failure`` is called with a sentence if it ends by itself, on any thread."""


@runtime_checkable
class Trims(Protocol):
    """A source that keeps rows until no checkpoint needs them. Without: nothing is deleted."""

    def trim(self, resumes: Sequence[Mapping[str, Offset]]) -> None:
        """Delete what lies before all of these: offsets by split id, one mapping per checkpoint. Blocks; idempotent."""


# -- sinks -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class ChecksSchema(Protocol):
    """A sink that can't take every column. A stream asks it before anything starts. Without: it takes all."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``InvalidUseError`` with the column, its type and what to cast it to, if these can't be written."""


@runtime_checkable
class ChecksWritable(Protocol):
    """A sink that can say beforehand that nothing can be written to it. Without: the first writer finds out."""

    def check_writable(self) -> None:
        """Raise ``InvalidUseError`` if nothing can be written there, and leave nothing behind."""


@runtime_checkable
class ChecksEmpty(Protocol):
    """A sink that can be asked whether it shows rows. Without: a start without state is not refused over rows that it has."""

    def is_empty(self) -> bool:
        """Nobody who reads it sees a row."""


@runtime_checkable
class Clears(Protocol):
    """A sink that ``overwrite=True`` empties. Without: it keeps what it has."""

    def clear(self) -> None:
        """Delete what it shows. Idempotent."""


@runtime_checkable
class Adopts(Protocol):
    """A sink that can keep rows of other jobs apart from this one's. Without: ``append=True`` is taken for granted."""

    def adopt(self) -> None:
        """What it shows now is another job's: this one adds to it and never takes it back."""


@runtime_checkable
class Hides(Protocol):
    """A sink that can go back to an older epoch. Without: a job starts from its newest checkpoint or is refused."""

    def hide(self, committables: Sequence[Committable]) -> None:
        """Take these out of sight for good, published or not; a late commit of them changes nothing. Idempotent."""


@runtime_checkable
class HidesUnnamed(Protocol):
    """A sink that can do so past a damaged entry of the log. Without: such a log is refused."""

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        """Take out of sight all that lower gangs staged after that checkpoint, except ``keep`` and what was adopted.

        A gang above all others means: of whatever gang. Idempotent.
        """


@runtime_checkable
class KnowsHidden(Protocol):
    """A sink that remembers what it has hidden. Without: nothing is taken for hidden."""

    def hides(self, committables: Sequence[Committable]) -> bool:
        """True if any of these is out of sight. Only reads."""


@runtime_checkable
class Sweeps(Protocol):
    """A sink that deletes what dead gangs staged. Without: that is left."""

    def sweep(self, gang: int, keep: Sequence[Committable]) -> object:
        """Delete what gangs before this one staged, except ``keep``. Idempotent."""


class SinkLease(Protocol):
    """What a sink with an owner returns to the run that takes it. Asked before every publish."""

    def check(self) -> None:
        """Raise if the sink is somebody else's by now."""

    def about_to_publish(self, epoch: int, checkpoint_id: int) -> None:
        """Note that this is in the log and may become visible."""

    def release(self) -> None:
        """Others may take it. May be called twice."""


@runtime_checkable
class Owned(Protocol):
    """A sink that belongs to one run of one log (``core.log.ownership``). Without: nothing keeps two jobs apart."""

    def check_claim(self, claim: Claim) -> None:
        """Raise if this claim would be denied. Only reads."""

    def claim(self, claim: Claim) -> SinkLease:
        """Take the sink, or raise."""

    def holder(self) -> Holder | None:
        """Who has it. Only reads."""

    def newest_id(self) -> int:
        """The newest checkpoint that it shows, 0 if none. Only reads."""


class Gathered(Protocol):
    """Committables that are ready to be shown. Not shown, because of a crash: a later ``gather`` finds them again."""

    def show(self) -> None:
        """Make them visible, quickly: other sinks wait to show theirs."""

    def release(self) -> None:
        """After ``show``: make that durable and let go of what they were made of."""


@runtime_checkable
class GatheringSink(Sink, Protocol):
    """A sink that takes the committables of several epochs at once, so that fewer and bigger files come of them.

    Without: ``commit`` is called for every epoch.
    """

    @property
    def publish_budget(self) -> PublishBudget | None:
        """How often it is asked to; ``None``: at every epoch."""

    def gather(self, committables: Sequence[Committable]) -> Gathered:
        """Make these ready, in this order, invisibly. Called after the manifest; may be called again after a crash."""


@runtime_checkable
class NeedsSpool(Sink, Protocol):
    """A sink that hands rows to the driver and stages them in a directory until then. Without: it stages by itself."""

    def with_spool(self, path: str, schema: pa.Schema | None = None) -> Sink:
        """The same sink over this directory of the driver."""


@runtime_checkable
class KeptWithJob(Protocol):
    """A sink whose rows are in the job's store, so that a savepoint has none of them. Without: they are elsewhere."""

    @property
    def kept_with_job(self) -> bool:
        """True."""


@runtime_checkable
class Collects(Protocol):
    """A sink whose committed rows ``job.collect()`` returns. Without: it has nothing to return."""

    def table(self) -> pa.Table:
        """The rows of all committed epochs. Any time, any thread."""


# -- both ------------------------------------------------------------------------------------------------------------


@runtime_checkable
class HasPath(Protocol):
    """A connector of one path: shown in names, and two sinks may not have the same. Without: its class distinguishes it."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """A directory, a file or a URL."""


@runtime_checkable
class HasName(Protocol):
    """A connector with a name: shown in names, and ``job.collect(name)`` finds it. Without: its class distinguishes it."""

    @property
    def name(self) -> str:
        """Its own name, not its operator's."""


CAPABILITIES: tuple[type, ...] = (
    PrunesColumns, FiltersRows, Discovering, Batched, TimesOutIdle, ReadsDirectories, NeedsStore, ChecksStore, Fed, Trims,
    ChecksSchema, ChecksWritable, ChecksEmpty, Clears, Adopts, Hides, HidesUnnamed, KnowsHidden, Sweeps, Owned, GatheringSink,
    NeedsSpool, KeptWithJob, Collects, HasPath, HasName,
)  # fmt: skip
"""The closed list: ``docs/connectors.md`` says the same."""


def path_of(connector: object) -> str | os.PathLike[str] | None:
    """The path of a connector, if it has one."""
    return connector.path if isinstance(connector, HasPath) else None


def name_of(connector: object) -> str | None:
    """The name of a connector, if it has one."""
    return connector.name if isinstance(connector, HasName) else None
