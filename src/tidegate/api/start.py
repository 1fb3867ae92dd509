"""Starts a pipeline on a Spark session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate.api.job import Job
from tidegate.core.config import CheckpointConfig
from tidegate.core.resolve import RestoreChoice
from tidegate.errors import InvalidUseError
from tidegate.plan.physical import SourceSpec
from tidegate.runtime.begin import JobOptions, begin

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
    bind: str = "127.0.0.1",
    spool: str | os.PathLike[str] | None = None,
) -> Job:
    """Check the session and the settings, then start the gang. Raises before anything is started."""
    from tidegate.spark.gang import SparkGang, check_session, slots

    width = check_session(spark, parallelism)
    _check_room(pipeline, width, slots(spark))
    options = JobOptions(
        parallelism=width,
        checkpoint=checkpoint or CheckpointConfig(),
        store=None if store is None else os.fspath(store),
        restore=_choice(restore),
        savepoint=_savepoint(restore),
        overwrite=overwrite,
        bind=bind,
        spool=None if spool is None else os.fspath(spool),
    )
    return Job(begin(pipeline.physical(width), SparkGang(spark, width), options))


def _check_room(pipeline: Pipeline, width: int, slots: int) -> None:
    """A streaming query runs beside the gang: with every slot taken by nodes it would wait for ever."""
    specs = [spec for stage in pipeline.physical(width).stages for spec in stage.operators]
    fed = [spec.name for spec in specs if isinstance(spec, SourceSpec) and hasattr(spec.source, "feed")]
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
    """The place of a savepoint, if that is what ``restore`` names."""
    if isinstance(restore, int):
        return None
    text = os.fspath(restore)
    return None if text in ("latest", "none") or text.isdecimal() else text
