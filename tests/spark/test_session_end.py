"""A user stops the Spark session under a running job: the job fails with that reason, and goes on with a new session."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate as tg
from conftest import OFTEN, start_session
from tidegate.errors import JobFailedError
from tidegate.testing.crash import wait_for_checkpoints


def test_a_job_whose_session_is_stopped_fails_and_can_go_on_later(jvm: Path, tmp_path: Path) -> None:
    """It stops sessions, so it has its own."""
    rows = tg.generate(rows_per_second=1_000)
    pipeline = tg.Pipeline("endless", rows.write_parquet(tmp_path / "out"))
    session = start_session(jvm)
    try:
        job = pipeline.start(session, parallelism=2, store=tmp_path / "store", checkpoint=OFTEN)
        wait_for_checkpoints(job, 2)
    finally:
        session.stop()
    with pytest.raises(JobFailedError, match="session was stopped"):
        job.await_termination(60)
    session = start_session(jvm)
    try:
        again = pipeline.start(session, parallelism=2, store=tmp_path / "store", checkpoint=OFTEN)
        assert again.restored_from is not None
        wait_for_checkpoints(again, 2)
        again.stop()
    finally:
        session.stop()
