"""Starts a pipeline on a Spark session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate.api.job import Job
from tidegate.core.config import CheckpointConfig
from tidegate.core.resolve import RestoreChoice
from tidegate.errors import InvalidUseError
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
    from tidegate.spark.gang import SparkGang, check_session

    width = check_session(spark, parallelism)
    options = JobOptions(
        parallelism=width,
        checkpoint=checkpoint or CheckpointConfig(),
        store=None if store is None else os.fspath(store),
        restore=_choice(restore),
        overwrite=overwrite,
        bind=bind,
        spool=None if spool is None else os.fspath(spool),
    )
    return Job(begin(pipeline.physical(width), SparkGang(spark, width), options))


def _choice(restore: str | int | os.PathLike[str]) -> RestoreChoice:
    if isinstance(restore, int):
        return restore
    text = os.fspath(restore)
    if text == "latest":
        return "latest"
    if text == "none":
        return "none"
    if text.isdecimal():
        return int(text)
    raise InvalidUseError(f'restore is "latest", "none" or an epoch restore={text!r}')
