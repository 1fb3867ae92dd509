"""The driver's half of the sinks: publish, hide and sweep what the nodes staged. Blocking; one caller at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any, Protocol, cast

import pyarrow as pa

from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.log.owner import Claim, Holder
from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch, GangNumber
from tidegate.operators.sink import Write
from tidegate.plan.capabilities import (
    Adopts,
    ChecksEmpty,
    ChecksWritable,
    Clears,
    Collects,
    Gathered,
    GatheringSink,
    Hides,
    HidesUnnamed,
    KeptWithJob,
    KnowsHidden,
    Owned,
    SinkLease,
    Sweeps,
    name_of,
)
from tidegate.plan.connector import Committable, Sink
from tidegate.plan.physical import PhysicalPlan

log = logging.getLogger("tidegate")


class Sinks(Protocol):
    """A job's sinks, as a leader needs them: its driver's own, or those of a driver elsewhere. Calls block."""

    clear_wanted: bool

    @property
    def hiding(self) -> dict[str, bool]:
        """What the sinks can hide."""

    def publish(self, committables: Iterable[CommittableEntry]) -> None:
        """Make these visible. Idempotent."""

    def hide(self, committables: Iterable[CommittableEntry]) -> None:
        """Take these out of sight. Idempotent."""

    def hide_unnamed(self, gang: GangNumber, checkpoint_id: int, keep: Iterable[CommittableEntry]) -> None:
        """Take out of sight what gangs before this one staged at later checkpoints, except ``keep``. Idempotent."""

    def clear(self) -> None:
        """Delete what sinks show. Idempotent."""

    def sweep(self, gang: GangNumber, keep: Iterable[CommittableEntry]) -> None:
        """Delete what gangs before this one staged and no manifest names."""

    def release(self) -> None:
        """Others may take the sinks."""


class SinkPublisher:
    """Every sink of a job by its operator's name."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._job = plan.job
        specs = [spec for stage in plan.stages for spec in stage.operators if isinstance(spec, Write)]
        self.sinks: Mapping[str, Sink] = {spec.name: spec.sink for spec in specs}
        self.outputs = [(spec.name, spec.sink, spec.schema) for spec in specs]
        self._leases: dict[str, SinkLease] = {}
        self.clear_wanted = False
        """Sinks are to be emptied as soon as the log says that the job starts without state."""
        self.schemas: Mapping[str, pa.Schema] = {spec.name: spec.schema for spec in specs}

    @property
    def can_hide(self) -> bool:
        """Every sink can take published rows out of sight again."""
        return all(isinstance(sink, Hides) for sink in self.sinks.values())

    @property
    def hiding(self) -> dict[str, bool]:
        """What the sinks can hide: what a manifest names; what none names any more, by the checkpoint that staged it."""
        unnamed = all(isinstance(sink, HidesUnnamed) for sink in self.sinks.values())
        return {"can_hide": self.can_hide, "can_hide_unnamed": unnamed}

    def check(self) -> None:
        """Refuse a sink that can't be written, before anything starts."""
        for sink in self.sinks.values():
            if isinstance(sink, ChecksWritable):
                sink.check_writable()

    def check_empty(self) -> None:
        """A start without state onto sinks that show rows would double them: refuse. Only reads."""
        for name, sink in self.sinks.items():
            if isinstance(sink, ChecksEmpty) and not sink.is_empty():
                raise InvalidUseError(
                    f"the sink {name!r} already has rows and the job has no checkpoint of its own to go on from: choose an empty "
                    "path, start with overwrite=True to delete them or, from a savepoint whose job has written nothing since, "
                    f"with append=True to add to them sink={sink!r}"
                )

    def clear(self) -> None:
        """Delete what sinks show. Idempotent."""
        self.clear_wanted = False
        for name, sink in self.sinks.items():
            if isinstance(sink, Clears):
                self._check_owner(name)
                sink.clear()

    def refuse_left_behind(self) -> None:
        """Rows that a sink keeps beside its job's checkpoints do not come with a savepoint: refuse to start from one."""
        for name, sink in self.sinks.items():
            if isinstance(sink, KeptWithJob) and sink.kept_with_job:
                raise InvalidUseError(
                    f"the rows that the sink {name!r} had collected by the savepoint are in the store of its job, not in the "
                    "savepoint, and the table would be short of them: use write_parquet for what is to move, or start with "
                    f"append=True to collect only what comes after the savepoint sink={sink!r}"
                )

    def adopt(self) -> None:
        """The rows that sinks show now are not this job's: it adds to them and never takes them back."""
        for sink in self.sinks.values():
            if isinstance(sink, Adopts):
                sink.adopt()

    # -- whose they are

    def holders(self) -> dict[str, Holder]:
        """Who has the sinks that somebody can have. Only reads."""
        found = {name: sink.holder() for name, sink in self._owned()}
        return {name: holder for name, holder in found.items() if holder is not None}

    def newest_ids(self) -> dict[str, int]:
        """The newest checkpoint that each sink shows, where that can be seen. Only reads."""
        return {name: sink.newest_id() for name, sink in self._owned()}

    def hides(self, committables: Iterable[CommittableEntry]) -> bool:
        """True when a sink has taken any of these out of sight, as far as that can be seen. Only reads."""
        groups = ((self.sinks.get(operator), entries) for _, operator, entries in _by_epoch_and_sink(committables))
        return any(isinstance(sink, KnowsHidden) and sink.hides(_committables(entries)) for sink, entries in groups)

    def check_claims(self, claims: Mapping[str, Claim]) -> None:
        """Refuse sinks that are somebody else's. Only reads."""
        for name, sink in self._owned():
            sink.check_claim(claims[name])

    def claim(self, claims: Mapping[str, Claim]) -> None:
        """Take the sinks: all of them, or none. One run would sweep away what another has staged."""
        try:
            for name, sink in self._owned():
                self._leases[name] = sink.claim(claims[name])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Others may take the sinks. May be called twice."""
        while self._leases:
            self._leases.popitem()[1].release()

    def note(self, epoch: Epoch, checkpoint_id: int) -> None:
        """This epoch is in the log and may be published."""
        for lease in self._leases.values():
            lease.about_to_publish(epoch, checkpoint_id)

    def _owned(self) -> list[tuple[str, Owned]]:
        return [(name, sink) for name, sink in self.sinks.items() if isinstance(sink, Owned)]

    def _check_owner(self, name: str) -> None:
        lease = self._leases.get(name)
        if lease is not None:
            lease.check()

    def publish(self, committables: Iterable[CommittableEntry]) -> None:
        """Make these visible, epoch by epoch, all sinks of one before any of the next. Idempotent.

        Sinks that gather get all of their epochs at once and show them last, one right after the other: what takes long is
        done before and after that.
        """
        gathering: dict[str, list[Committable]] = {}
        for epoch, operator, entries in _by_epoch_and_sink(committables):
            sink, lease = self._sink(operator), self._leases.get(operator)
            if lease is not None:
                lease.about_to_publish(epoch, max(entry.checkpoint_id for entry in entries))
            if isinstance(sink, GatheringSink):
                gathering.setdefault(operator, []).extend(_committables(entries))
            else:
                with self._owning(operator):
                    sink.commit(epoch, _committables(entries))
        self._gather(gathering)

    def _gather(self, gathering: Mapping[str, list[Committable]]) -> None:
        sinks: Any = self.sinks
        with ExitStack() as owning:
            for operator in gathering:
                owning.enter_context(self._owning(operator))
            gathered: list[Gathered] = [sinks[operator].gather(mine) for operator, mine in gathering.items()]
            for operator in gathering:
                self._check_owner(operator)  # merging may have taken long
            for each in gathered:
                each.show()
            for each in gathered:
                each.release()

    @contextmanager
    def _owning(self, operator: str) -> Iterator[None]:
        """Whoever has taken the sink meanwhile may have moved the files away: that is the reason then, whatever else is said."""
        try:
            yield
        finally:
            self._check_owner(operator)

    def budgets(self) -> dict[str, PublishBudget]:
        """How often sinks show what is committed, of those that do not at every epoch."""
        found = {name: s.publish_budget for name, s in self.sinks.items() if isinstance(s, GatheringSink)}
        return {name: budget for name, budget in found.items() if budget is not None}

    def hide(self, committables: Iterable[CommittableEntry]) -> None:
        """Take these out of sight wherever they are. Idempotent."""
        by_sink: dict[str, list[Committable]] = {}
        for _, operator, entries in _by_epoch_and_sink(committables):
            by_sink.setdefault(operator, []).extend(_committables(entries))  # at once: a merged file is cut once
        for operator, all_of_it in by_sink.items():
            self._check_owner(operator)
            sink = self._sink(operator)
            if not isinstance(sink, Hides):
                raise _cannot_hide(operator)
            sink.hide(all_of_it)

    def hide_unnamed(self, gang: GangNumber, checkpoint_id: int, keep: Iterable[CommittableEntry]) -> None:
        """Take out of sight whatever gangs before this one staged at later checkpoints, except ``keep``. Idempotent."""
        kept = list(keep)
        for name, sink in self.sinks.items():
            if not isinstance(sink, HidesUnnamed):
                raise _cannot_hide(name)
            self._check_owner(name)
            sink.hide_unnamed(gang, checkpoint_id, _committables(entry for entry in kept if entry.operator == name))

    def sweep(self, gang: GangNumber, keep: Iterable[CommittableEntry]) -> None:
        """Delete what gangs before this one staged and no manifest names. What can't be deleted waits for the next start."""
        kept = list(keep)
        for name, sink in self.sinks.items():
            if not isinstance(sink, Sweeps):
                continue
            self._check_owner(name)
            try:
                sink.sweep(gang, _committables(entry for entry in kept if entry.operator == name))
            except Exception as error:
                log.warning("what earlier gangs staged is left: %r sink=%s", error, name)

    def collected(self, name: str | None) -> pa.Table:
        """The committed rows of a collect sink, by its own or its operator's name."""
        sinks = {n: sink for n, sink in self.sinks.items() if isinstance(sink, Collects)}
        if name is None and len(sinks) == 1:
            return next(iter(sinks.values())).table()
        found = sinks.get(name or "") or next((s for s in sinks.values() if name_of(s) == name), None)
        if found is None:
            raise InvalidUseError(f"the pipeline has the collect sinks {sorted(sinks)}: name one of them name={name}")
        return found.table()

    def _sink(self, operator: str) -> Sink:
        sink = self.sinks.get(operator)
        if sink is None:
            raise InvalidUseError(
                f"the checkpoint has rows for the sink {operator!r} and the pipeline has no such sink: put it back, or start "
                f"with restore='none' sink={operator}"
            )
        return sink


def _cannot_hide(operator: str) -> InvalidUseError:
    """The resolver asks ``hiding`` first, so that no job gets here."""
    return InvalidUseError(f"this sink can't take rows back, start with restore='none' and an empty sink sink={operator}")


def _by_epoch_and_sink(
    committables: Iterable[CommittableEntry],
) -> Iterable[tuple[int, str, list[CommittableEntry]]]:
    ordered = sorted(committables, key=lambda entry: (entry.epoch, entry.operator, entry.checkpoint_id, entry.subtask))
    for (epoch, operator), entries in groupby(ordered, key=lambda entry: (entry.epoch, entry.operator)):
        yield epoch, operator, list(entries)


def _committables(entries: Iterable[CommittableEntry]) -> list[Committable]:
    return [cast(Committable, dict(entry.committable)) for entry in entries]
