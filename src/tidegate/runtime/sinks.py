"""The driver's half of the sinks: publish, hide and sweep what the nodes staged. Blocking; one caller at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, cast

import pyarrow as pa

from tidegate.core.budget import PublishBudget
from tidegate.core.manifest import CommittableEntry
from tidegate.errors import InvalidUseError
from tidegate.operators.sink import Write
from tidegate.plan.connector import Committable, Gathered, GatheringSink, Sink
from tidegate.plan.physical import PhysicalPlan

log = logging.getLogger("tidegate")


class Publisher:
    """Every sink of a job by its operator's name."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._job = plan.job
        specs = [spec for stage in plan.stages for spec in stage.operators if isinstance(spec, Write)]
        self.sinks: Mapping[str, Sink] = {spec.name: spec.sink for spec in specs}
        self.outputs = [(spec.name, spec.sink, spec.schema) for spec in specs]
        self.schemas: Mapping[str, pa.Schema] = {spec.name: spec.schema for spec in specs}

    @property
    def can_hide(self) -> bool:
        """Every sink can take published rows out of sight again."""
        return self._all_have("hide")

    @property
    def hiding(self) -> dict[str, bool]:
        """What the sinks can hide: what a manifest names; what none names any more, by the checkpoint that staged it."""
        return {"can_hide": self.can_hide, "can_hide_unnamed": self._all_have("hide_unnamed")}

    def _all_have(self, method: str) -> bool:
        return all(hasattr(sink, method) for sink in self.sinks.values())

    def check(self) -> None:
        """Refuse a sink that can't be written, before anything starts."""
        for sink in self.sinks.values():
            check = getattr(sink, "check_writable", None)
            if check is not None:
                check()

    def prepare_fresh_start(self, overwrite: bool, *, moved: bool = False) -> None:
        """A start without state onto sinks that show rows would double them: refuse, or clear them when told so.

        ``moved``: it starts from a savepoint. Rows that a sink keeps beside the job's checkpoints did not come with it.
        """
        if moved:
            self._refuse_left_behind()
        for name, sink in self.sinks.items():
            is_empty = getattr(sink, "is_empty", None)
            if is_empty is None or is_empty():
                continue
            if not overwrite:
                raise InvalidUseError(
                    f"the sink {name!r} already has rows and the job has no checkpoint of its own to go on from: choose an empty "
                    "place, start with overwrite=True to delete them or, from a savepoint whose job has written nothing since, "
                    f"with append=True to add to them sink={sink!r}"
                )
            sink.clear()  # type: ignore[attr-defined]
        self.claim(take=overwrite)

    def _refuse_left_behind(self) -> None:
        for name, sink in self.sinks.items():
            if getattr(sink, "kept_with_job", False):
                raise InvalidUseError(
                    f"the rows that the sink {name!r} had collected by the savepoint are in the store of its job, not in the "
                    "savepoint, and the table would be short of them: use write_parquet for what is to move, or start with "
                    f"append=True to collect only what comes after the savepoint sink={sink!r}"
                )

    def adopt(self) -> None:
        """The rows that sinks show now are not this job's: it adds to them and never takes them back."""
        self.claim(take=True)
        for sink in self.sinks.values():
            adopt = getattr(sink, "adopt", None)
            if adopt is not None:
                adopt()

    def claim(self, *, take: bool = False) -> None:
        """Refuse a place that belongs to another job or sink, unless it is to be taken from it: one would sweep away what the
        other has staged."""
        for name, sink in self.sinks.items():
            claim = getattr(sink, "claim", None)
            if claim is not None:
                claim(f"sink {name!r} of job {self._job!r}", take)

    def publish(self, committables: Iterable[CommittableEntry]) -> None:
        """Make these visible, epoch by epoch, all sinks of one before any of the next. Idempotent.

        Sinks that gather get all of their epochs at once and show them last, one right after the other: what takes long is
        done before and after that.
        """
        gathering: dict[str, list[Committable]] = {}
        for epoch, operator, mine in _by_epoch_and_sink(committables):
            sink = self._sink(operator)
            if isinstance(sink, GatheringSink):
                gathering.setdefault(operator, []).extend(mine)
            else:
                sink.commit(epoch, mine)
        sinks: Any = self.sinks
        gathered: list[Gathered] = [sinks[operator].gather(mine) for operator, mine in gathering.items()]
        for each in gathered:
            each.show()
        for each in gathered:
            each.release()

    def budgets(self) -> dict[str, PublishBudget]:
        """How often sinks show what is committed, of those that do not at every epoch."""
        found = {name: s.publish_budget for name, s in self.sinks.items() if isinstance(s, GatheringSink)}
        return {name: budget for name, budget in found.items() if budget is not None}

    def hide(self, committables: Iterable[CommittableEntry]) -> None:
        """Take these out of sight wherever they are. Idempotent."""
        by_sink: dict[str, list[Committable]] = {}
        for _, operator, mine in _by_epoch_and_sink(committables):
            by_sink.setdefault(operator, []).extend(mine)  # at once: a merged file is cut once
        for operator, all_of_it in by_sink.items():
            self._sink(operator).hide(all_of_it)  # type: ignore[attr-defined]  # the resolver asked ``can_hide`` first

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Iterable[CommittableEntry]) -> None:
        """Take out of sight whatever gangs before this one staged at later checkpoints, except ``keep``. Idempotent."""
        kept = list(keep)
        for name, sink in self.sinks.items():
            mine = [entry.committable for entry in kept if entry.operator == name]
            sink.hide_unnamed(gang, checkpoint_id, mine)  # type: ignore[attr-defined]  # the resolver asked first

    def sweep(self, gang: int, keep: Iterable[CommittableEntry]) -> None:
        """Delete what gangs before this one staged and no manifest names. What can't be deleted waits for the next start."""
        kept = list(keep)
        for name, sink in self.sinks.items():
            sweep = getattr(sink, "sweep", None)
            if sweep is None:
                continue
            try:
                sweep(gang, [entry.committable for entry in kept if entry.operator == name])
            except Exception as error:
                log.warning("what earlier gangs staged is left: %r sink=%s", error, name)

    def collected(self, name: str | None) -> pa.Table:
        """The committed rows of a collect sink, by its own or its operator's name."""
        sinks: dict[str, Any] = {n: sink for n, sink in self.sinks.items() if hasattr(sink, "table")}
        if name is None and len(sinks) == 1:
            return next(iter(sinks.values())).table()
        found = sinks.get(name or "") or next((s for s in sinks.values() if getattr(s, "name", None) == name), None)
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


def _by_epoch_and_sink(
    committables: Iterable[CommittableEntry],
) -> Iterable[tuple[int, str, list[Committable]]]:
    ordered = sorted(committables, key=lambda entry: (entry.epoch, entry.operator, entry.checkpoint_id, entry.subtask))
    for (epoch, operator), entries in groupby(ordered, key=lambda entry: (entry.epoch, entry.operator)):
        yield epoch, operator, [cast(Committable, dict(entry.committable)) for entry in entries]
