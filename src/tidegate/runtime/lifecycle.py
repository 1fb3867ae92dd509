"""Sources that need more than a node: some keep what they read in the job's store, some are fed by the driver.

One that ``NeedsStore`` is given the store before its splits are asked for. One that is ``Fed`` is fed from the start of the job
to its end; it says itself when that fails. One that ``Trims`` is told what no checkpoint can need any more.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.errors import InvalidUseError
from tidegate.operators.source import Read
from tidegate.plan.capabilities import ChecksStore, Fed, NeedsStore, Trims
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.continuous import resume_offsets


def check_stored_sources(plan: PhysicalPlan, url: str | None, *, fresh: bool) -> None:
    """Refuse what ``with_stored_sources`` would, as far as that can be seen without changing anything."""
    for spec in _stored_sources(plan):
        if (url or "").startswith("memory:"):
            raise InvalidUseError(
                f"the source {spec.name!r} is spooled by other processes, which can't reach this one's memory: give store= a "
                "directory or an s3:// URL"
            )
        if isinstance(spec.source, ChecksStore) and url is not None and not fresh:
            spec.source.check_store(url, _prefix(plan, spec))


def with_stored_sources(
    plan: PhysicalPlan, url: str | None, *, fresh: bool, manifest: CheckpointManifest | None = None
) -> PhysicalPlan:
    """The plan with every such source over its part of the store. May run Spark jobs. Blocks.

    ``manifest`` is what the job starts from: the source then reads what that checkpoint was reading.
    """

    def changed(spec: OperatorSpec) -> OperatorSpec:
        if not isinstance(spec, Read) or not isinstance(spec.source, NeedsStore):
            return spec
        where = url if url is not None else temporary_directory("source")
        entries = () if manifest is None else manifest.sources
        states = [entry.state for entry in entries if entry.operator == spec.name]
        return replace(spec, source=spec.source.with_store(where, _prefix(plan, spec), fresh=fresh, states=states))

    stages = (replace(stage, operators=tuple(map(changed, stage.operators))) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def _stored_sources(plan: PhysicalPlan) -> list[Read]:
    specs = (spec for stage in plan.stages for spec in stage.operators)
    return [spec for spec in specs if isinstance(spec, Read) and isinstance(spec.source, NeedsStore)]


def _prefix(plan: PhysicalPlan, spec: Read) -> str:
    return f"{plan.job}/spool/{quote(spec.name, safe='')}"


class Feeds:
    """What feeds the sources of one job, from its start to its end."""

    def __init__(self, plan: PhysicalPlan) -> None:
        specs = [spec for stage in plan.stages for spec in stage.operators if isinstance(spec, Read)]
        self._sources = [spec.source for spec in specs if isinstance(spec.source, Fed)]
        self._stops: list[Callable[[], None]] = []

    def start(self, on_failure: Callable[[str], None]) -> None:
        """Begin to feed; if one source can't be fed, none is."""
        try:
            for source in self._sources:
                self._stops.append(source.feed(on_failure))
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """End all. Blocks a while; idempotent."""
        while self._stops:
            self._stops.pop()()

    def then(self, after: Callable[[], None]) -> Callable[[], None]:
        """Stop feeding, then do this, whatever happens."""

        def both() -> None:
            try:
                self.stop()
            finally:
                after()

        return both


@dataclass(frozen=True, slots=True)
class Spools:
    """The sources, by name, that keep rows in the job's store until no checkpoint needs them.

    ``pinned`` is the savepoint that the job was told to start from: the log may not know it.
    """

    sources: tuple[tuple[str, Trims], ...] = ()
    pinned: CheckpointManifest | None = None

    @classmethod
    def of(cls, plan: PhysicalPlan, pinned: CheckpointManifest | None) -> Spools:
        """Those of a plan."""
        specs = (spec for stage in plan.stages for spec in stage.operators if isinstance(spec, Read))
        return cls(tuple((spec.name, spec.source) for spec in specs if isinstance(spec.source, Trims)), pinned)

    def trim(self, resumable: Sequence[CheckpointManifest]) -> None:
        """Let go of what lies before all of these; of nothing when there are none. Blocks; idempotent.

        They must be of the log as it was, with all of them committed: then a later leader needs nothing older either.
        """
        kept = (*resumable, self.pinned) if self.pinned is not None else resumable
        for name, source in self.sources if resumable else ():
            source.trim([resume_offsets(e.state for e in each.sources if e.operator == name) for each in kept])


def temporary_directory(what: str) -> str:
    """A directory that goes when this process ends."""
    path = tempfile.mkdtemp(prefix=f"tidegate-{what}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
