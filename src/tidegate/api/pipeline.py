"""A pipeline: a name and its outputs, checked together and ready to start."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.api.sources import checked_call
from tidegate.api.stream import Output, Stream
from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.errors import InvalidUseError
from tidegate.operators.sink import Write
from tidegate.operators.source import Read
from tidegate.plan.capabilities import name_of, path_of
from tidegate.plan.logical import LogicalPlan
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.physical import PhysicalPlan
from tidegate.planner.description import describe_state, fingerprint
from tidegate.planner.explain import explain
from tidegate.planner.names import check_name
from tidegate.planner.stages import build, check_parallelism
from tidegate.values import Json

if TYPE_CHECKING:
    from tidegate.api.job import Job


class Pipeline:
    """Everything that one job runs. Its sinks show the same epochs, always.

    The name is the job's name in the store: starting a pipeline of the same name goes on where the last one
    stopped.
    """

    def __init__(self, name: str, *outputs: Output) -> None:
        self.name = check_name("a pipeline", name)
        _check_outputs(outputs)
        self.plan = LogicalPlan(name, tuple(output.node for output in outputs))
        self._physical = build(self.plan, parallelism=1)
        _check_sinks([spec for spec in self._specs() if isinstance(spec, Write)])

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self.plan.sinks)} outputs)"

    @property
    def bounded(self) -> bool:
        """True when every source ends by itself."""
        return all(spec.source.bounded for spec in self._specs() if isinstance(spec, Read))

    @property
    def fingerprint(self) -> str:
        """A hash of what checkpoints hold; pipelines with the same one fit each other's state."""
        return fingerprint(self._physical)

    def physical(self, parallelism: int) -> PhysicalPlan:
        """What the nodes run."""
        check_parallelism(parallelism)
        return replace(self._physical, parallelism=parallelism)

    def describe_state(self) -> dict[str, Json]:
        """Every operator that leaves something in a checkpoint, by name, with what its state is made of."""
        return describe_state(self._physical)

    def explain(self, parallelism: int = 2, checkpoint: CheckpointConfig | None = None, format: str = "text") -> str:
        """The physical plan as ``text``, ``json`` or ``mermaid``.

        Without ``checkpoint`` edges show the default modes.
        """
        return explain(self.physical(parallelism), checkpoint, format)

    def start(
        self,
        spark: Any,
        *,
        parallelism: int | None = None,
        store: str | os.PathLike[str] | None = None,
        checkpoint: CheckpointConfig | None = None,
        restore: str | int | os.PathLike[str] = "latest",
        overwrite: bool = False,
        **options: Any,
    ) -> Job:
        """Run it on Spark, from the latest committed checkpoint in ``store`` if there is one.

        ``restore`` is ``"latest"``, ``"none"``, an epoch or the path of a savepoint. ``overwrite=True`` lets
        ``restore="none"`` clear sinks that already have rows. Everything that can be checked is checked
        first.

        Options: ``bind``, the address where the driver listens for nodes, or ``"0.0.0.0"`` on a cluster;
        ``tls``, a ``Tls`` that encrypts all channels; ``allow_plaintext=True``, to do without where the driver
        does not listen on loopback; ``spool``, a directory for rows that go to the driver;
        ``append=True``, from a savepoint, adds to sinks that hold what the savepoint's job had written;
        ``stall_timeout``, how long a node may say nothing before it counts as lost; ``join_timeout``, how
        long the driver waits for the next node while a gang comes up.

        A job that somebody runs already is refused; ``standby=True`` waits beside it and takes over when its leader
        has said nothing for ``leader_timeout`` (``"3s"``), ``takeover=True`` replaces it at once. ``coordinator_grace``
        is how long nodes work without a leader; ``token_file`` where the job's key is, for whoever operates it
        from outside; ``election`` where leaders say that they are there: ``"store"``, beside the job's log, or
        ``"etcd://host:2379,host:2379/prefix"``. Without it the job stays with what it had.
        """
        self._check_start(parallelism, checkpoint, restore)
        from tidegate.api.start import start_job

        return checked_call(
            Pipeline.start,
            start_job,
            self,
            spark,
            parallelism=parallelism,
            store=store,
            checkpoint=checkpoint,
            restore=restore,
            overwrite=overwrite,
            **options,
        )

    def _specs(self) -> list[OperatorSpec]:
        return [spec for stage in self._physical.stages for spec in stage.operators]

    def _check_start(self, parallelism: int | None, checkpoint: object, restore: object) -> None:
        if parallelism is not None:
            check_parallelism(parallelism)
        if checkpoint is not None and not isinstance(checkpoint, CheckpointConfig):
            raise InvalidUseError(f"checkpoint takes a CheckpointConfig checkpoint={checkpoint!r}")
        if checkpoint is not None and checkpoint.wal_mode is not None:
            raise InvalidUseError(
                "wal_mode is for rows that an application pushes; a pipeline reads its sources again after a failure and needs "
                f"no write-ahead log: leave it out wal_mode={str(checkpoint.wal_mode)!r}"
            )
        _check_restore(restore)
        if not self.bounded and (checkpoint is None or not checkpoint.enabled):
            raise InvalidUseError(
                "a pipeline without end shows no rows unless it takes checkpoints: "
                f"give checkpoint=CheckpointConfig(interval='1s') pipeline={self.name}"
            )


def _check_outputs(outputs: tuple[object, ...]) -> None:
    if not outputs:
        raise InvalidUseError("a pipeline needs at least one output, for example stream.write_parquet('out')")
    for output in outputs:
        if isinstance(output, Stream):
            raise InvalidUseError(f"a stream needs a sink, for example write_parquet('out') stream={output!r}")
        if not isinstance(output, Output):
            raise InvalidUseError(f"a pipeline is made of outputs such as stream.write_parquet('out') given={output!r}")
    if len({output.node for output in outputs if isinstance(output, Output)}) < len(outputs):
        raise InvalidUseError("an output was given twice, give each once")


def _check_sinks(specs: list[Write]) -> None:
    """Two sinks with one path or name would overwrite or hide each other's rows."""
    targets = Counter(target for spec in specs if (target := _target(spec)) is not None)
    for (kind, where), times in targets.items():
        if times > 1:
            raise InvalidUseError(f"two outputs write to the same {kind}, give each its own {kind}={where}")


def _target(spec: Write) -> tuple[str, str] | None:
    path = path_of(spec.sink)
    if path is not None:
        return "path", os.path.abspath(path) if "://" not in str(path) else str(path)
    name = name_of(spec.sink)
    return None if name is None else ("name", str(name))


def _check_restore(restore: object) -> None:
    if isinstance(restore, bool) or not isinstance(restore, str | int | os.PathLike):
        raise InvalidUseError(f'restore is "latest", "none", an epoch or a path restore={restore!r}')
    if restore == "" or (isinstance(restore, int) and restore < 0):
        raise InvalidUseError(f'restore is "latest", "none", an epoch or a path restore={restore!r}')
