"""What a process that has not the pipeline needs to know to lead its job, as data in the store. The driver writes it.

One object per term of a driver; the newest counts. It has no secrets: the job's key comes from a file (``token``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import ChannelShape, PlanShape
from tidegate.core.failure.restart import RestartPolicy
from tidegate.core.log.codec import parse, seal, unsealed
from tidegate.core.log.paths import DescriptionObject, JobPaths
from tidegate.errors import CorruptDataError, TidegateError
from tidegate.ids import Term
from tidegate.store.interface import Store

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """Plan shape and settings. ``hiding`` is what the sinks can hide; ``savepoint`` where the job started from; ``election``
    where its leaders are to be found, if not in its store.
    """

    shape: PlanShape
    config: DistributedCheckpointConfig
    hiding: Mapping[str, bool]
    savepoint: str | None
    storage_timeout_ms: int
    stall_timeout_ms: int
    join_timeout_ms: int
    leader_timeout_ms: int
    wants_unaligned: bool
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    election: str | None = None

    def to_json(self) -> bytes:
        """The stored form, sealed."""
        shape: dict[str, Any] = asdict(self.shape)
        for name in ("tasks", "operators", "sources", "sinks"):
            shape[name] = sorted(shape[name])
        shape["channels"] = [asdict(each) for each in sorted(self.shape.channels, key=str)]
        shape["edges"] = {str(edge): text for edge, text in self.shape.edges.items()}
        plain = asdict(replace(self, shape=PlanShape(job="", parallelism=1))) | {"shape": shape, "format_version": FORMAT_VERSION}
        return seal(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode())

    @classmethod
    def from_json(cls, data: bytes, path: str) -> JobDescription:
        """The description in these bytes; anything else is ``CorruptDataError``."""
        body = unsealed(data)
        if body is None:
            raise CorruptDataError(f"the job's description is damaged: its checksum differs path={path}", path=path)
        plain = cast("dict[str, Any]", parse(body, path))
        try:
            if plain.pop("format_version") != FORMAT_VERSION:
                raise CorruptDataError(f"the job's description is of another version of tidegate path={path}", path=path)
            return cls(
                **{
                    **plain,
                    "shape": _shape(plain["shape"]),
                    "config": _config(plain["config"]),
                    "restarts": RestartPolicy(**plain["restarts"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, TidegateError):
                raise
            raise CorruptDataError(f"not a job's description: {error!r} path={path}", path=path) from error


def _shape(plain: dict[str, Any]) -> PlanShape:
    sets = {name: frozenset(plain[name]) for name in ("tasks", "operators", "sources", "sinks")}
    channels = frozenset(ChannelShape(**each) for each in plain["channels"])
    edges = {int(edge): text for edge, text in plain["edges"].items()}
    return PlanShape(**{**plain, **sets, "channels": channels, "edges": edges})


def _config(plain: dict[str, Any]) -> DistributedCheckpointConfig:
    budgets = {name: PublishBudget(**budget) for name, budget in plain["publish_budgets"].items()}
    return DistributedCheckpointConfig(**{**plain, "publish_budgets": budgets})


def write_description(store: Store, job: str, term: Term, description: JobDescription) -> None:
    """Put it beside the log, and delete those of lower terms. Blocks."""
    paths = JobPaths(job)
    store.put(paths.description(term), description.to_json())
    store.delete([paths.description(old) for old in _terms(store, paths) if old < term])


def read_description(store: Store, job: str) -> JobDescription | None:
    """The newest; ``None``: no driver has written one. Blocks."""
    paths = JobPaths(job)
    for term in sorted(_terms(store, paths), reverse=True):
        path = paths.description(term)
        try:
            return JobDescription.from_json(store.get(path), path)
        except FileNotFoundError:
            continue  # a newer one has replaced it
    return None


def _terms(store: Store, paths: JobPaths) -> list[Term]:
    names = (paths.parse(info.path) for info in store.list(paths.leader_prefix))
    return [name.term for name in names if isinstance(name, DescriptionObject)]
