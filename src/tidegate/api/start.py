"""Starts a pipeline on a Spark session."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.api.job import Job
from tidegate.core.checkpoint.config import CheckpointConfig
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.log.resolve import RestoreChoice
from tidegate.errors import InvalidUseError
from tidegate.operators.source import Read
from tidegate.plan.capabilities import Fed
from tidegate.runtime.address import LOOPBACK
from tidegate.runtime.contend import Contend
from tidegate.runtime.election import elected_at
from tidegate.runtime.jobs import starting
from tidegate.runtime.security import Tls, needs_seal
from tidegate.runtime.start import JobOptions, launch_job

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline


def start_job(
    pipeline: Pipeline,
    spark: Any,
    *,
    parallelism: int | None,
    store: str | os.PathLike[str] | None,
    checkpoint: CheckpointConfig | None,
    restore: str | int | os.PathLike[str],
    overwrite: bool,
    append: bool = False,
    bind: str = LOOPBACK,
    tls: Tls | None = None,
    allow_plaintext: bool = False,
    spool: str | os.PathLike[str] | None = None,
    stall_timeout: Duration = "10s",
    join_timeout: Duration = "60s",
    standby: bool = False,
    takeover: bool = False,
    leader_timeout: Duration = "3s",
    coordinator_grace: Duration = "30s",
    token_file: str | os.PathLike[str] | None = None,
    election: str | None = None,
) -> Job:
    """Check the session and the settings, then start the gang. Raises before anything is started."""
    from tidegate.spark.cluster import driver_host, shared_url, slots
    from tidegate.spark.gang import SparkGang, check_session, register_format, warm_up
    from tidegate.spark.ship import check_sendable, ship_code

    _check_switches(overwrite=overwrite, append=append, allow_plaintext=allow_plaintext, standby=standby, takeover=takeover)
    _check_network(bind, tls, allow_plaintext)
    chosen = None if store is None else _path("store", store)
    width = check_session(spark, parallelism)
    _check_room(pipeline, width, slots(spark))
    plan = pipeline.physical(width)
    check_sendable(plan)
    settings = checkpoint or CheckpointConfig()
    url = settings.store_url(chosen) or chosen
    options = JobOptions(
        parallelism=width,
        checkpoint=replace(settings, data_dir=None),
        store=None if url is None else shared_url(spark, url),
        restore=_choice(restore),
        savepoint=_savepoint(restore),
        overwrite=overwrite,
        append=append,
        bind=bind,
        advertise=driver_host(spark, bind),
        tls=tls,
        allow_plaintext=allow_plaintext,
        spool=None if spool is None else _path("spool", spool),
        stall_timeout_ms=parse_duration_ms(stall_timeout, name="stall_timeout", minimum_ms=100),
        join_timeout_ms=parse_duration_ms(join_timeout, name="join_timeout", minimum_ms=1_000),
        contend=_contend(standby, takeover, settings),
        leader_timeout_ms=parse_duration_ms(leader_timeout, name="leader_timeout", minimum_ms=300),
        coordinator_grace_ms=parse_duration_ms(coordinator_grace, name="coordinator_grace", minimum_ms=1_000),
        election=None if election is None else _election(election),
        token_file=None if token_file is None else _path("token_file", token_file),
    )
    with starting(plan.job, options.store) as started:
        register_format(spark)
        ship_code(spark)
        if standby:
            warm_up(spark, width)
        leader = launch_job(plan, SparkGang(spark, width), options)
        started(leader)
    return Job(leader)


def _contend(standby: bool, takeover: bool, checkpoint: CheckpointConfig) -> Contend:
    if standby and takeover:
        raise InvalidUseError("a start waits (standby=True) or replaces (takeover=True), not both")
    if (standby or takeover) and not checkpoint.enabled:
        raise InvalidUseError(
            "standby and takeover need checkpoints to go on from: give checkpoint=tg.CheckpointConfig(interval='1s')"
        )
    return "standby" if standby else "takeover" if takeover else "refuse"


def _election(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidUseError(f"election is 'store' or etcd's address election={type(value).__name__}")
    elected_at(value, None, "")  # refused before Spark has work with it
    return value


def _path(name: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise InvalidUseError(f"{name} is a path or a URL {name}={value!r}")
    return str(os.fspath(value))


def _check_switches(**switches: object) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InvalidUseError(f"{name} is True or False {name}={value!r}")


def _check_network(bind: object, tls: object, allow_plaintext: bool) -> None:
    if not isinstance(bind, str) or not bind:
        raise InvalidUseError(f"bind is an address of this machine, or '0.0.0.0' for all of them bind={bind!r}")
    if tls is not None and not isinstance(tls, Tls):
        raise InvalidUseError(f"tls takes a tg.Tls tls={type(tls).__name__}")
    if tls is not None:
        tls.contexts()
    needs_seal(bind, tls, allow_plaintext)


def _check_room(pipeline: Pipeline, width: int, slots: int) -> None:
    """A streaming query runs beside the gang: with every slot taken by nodes it would wait for ever."""
    specs = [spec for stage in pipeline.physical(width).stages for spec in stage.operators]
    fed = [spec.name for spec in specs if isinstance(spec, Read) and isinstance(spec.source, Fed)]
    if fed and width >= slots:
        raise InvalidUseError(
            f"the streaming DataFrame of source {fed[0]!r} needs a free slot beside the job's: lower parallelism, or give the "
            f"session more cores parallelism={width} slots={slots}"
        )


def _choice(restore: str | int | os.PathLike[str]) -> RestoreChoice:
    """What to take from the job's own log. A savepoint counts only until the job has a checkpoint of its own."""
    if isinstance(restore, int):
        return restore
    text = os.fspath(restore)
    if text.isdecimal():
        return int(text)
    return "none" if text == "none" else "latest"


def _savepoint(restore: str | int | os.PathLike[str]) -> str | None:
    """The URL of a savepoint, if that is what ``restore`` names."""
    if isinstance(restore, int):
        return None
    text = os.fspath(restore)
    return None if text in ("latest", "none") or text.isdecimal() else text
