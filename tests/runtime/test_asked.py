"""What a user asks of a job, and what the job answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until

import tidegate as tg
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import InvalidUseError, JobFailedError


def pipeline(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    return tg.Pipeline("w", counts(tg.from_source(source)).write(sink))


def test_a_finished_job_is_finished_as_soon_as_it_is_started_again(jobs: Jobs) -> None:
    source, sink = GatedSource(events()), MemorySink()
    jobs.finish(pipeline(source, sink), 2)
    assert jobs.start(pipeline(source, sink), 1).status == "FINISHED"


def test_a_job_without_checkpoints_goes_on_from_those_in_its_store_and_ends_there(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=1_000), MemorySink()
    first = jobs.start(pipeline(source, sink), 2)
    until(lambda: source.emitted == 1_000)
    first.checkpoint()
    first.stop()
    source.allow()
    second = jobs.finish(pipeline(source, sink), 1, interval=None)
    assert second.restored_from == 1
    assert second.metrics()["rows_read"] == 1_000
    assert found_counts(sink) == expected_counts(source.table)
    assert jobs.start(pipeline(source, sink), 1, interval=None).status == "FINISHED"


def test_a_store_that_is_none_is_refused_without_checkpoints_too(jobs: Jobs) -> None:
    jobs.store = "ftp://nowhere"
    with pytest.raises(InvalidUseError, match="no store of this kind"):
        jobs.start(pipeline(GatedSource(events()), MemorySink()), 1, interval=None)


def test_metrics_tell_how_often_and_how_much_went_unaligned(jobs: Jobs) -> None:
    source = GatedSource(events(), allowed=1_000)
    job = jobs.start(pipeline(source, MemorySink()), 2, unaligned="always")
    for _ in range(2):
        job.checkpoint()
    until(lambda: job.metrics()["unaligned_count"] >= 4)  # two fan-ins, twice; nodes report a little later
    metrics = job.metrics()
    assert (metrics["threshold_switches"], metrics["is_in_unaligned_mode"]) == (0, False)
    assert metrics["total_inflight_bytes"] >= 0


def test_a_function_for_each_batch_that_raises_is_shown_with_its_traceback(jobs: Jobs) -> None:
    def refuse(batch: pa.RecordBatch, epoch: int) -> None:
        raise RuntimeError("not today")

    stream = tg.from_source(GatedSource(events(100)))
    job = jobs.start(tg.Pipeline("w", stream.for_each_batch(refuse)), 1)
    with pytest.raises(JobFailedError, match=r"(?s)not today.*in refuse.*RuntimeError: not today"):
        job.await_termination(20)


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError("no kernel"), pa.ArrowInvalid("bad"), KeyError("x")])
def test_an_error_that_will_come_again_is_not_tried_ten_times(jobs: Jobs, error: Exception) -> None:
    def fail(number: int) -> None:
        raise error

    source = GatedSource(events(100), on_poll=fail)
    job = jobs.start(pipeline(source, MemorySink()), 1, restarts=RestartPolicy(first_wait_ms=1, longest_wait_ms=1))
    with pytest.raises(JobFailedError, match="failed 2 times"):
        job.await_termination(20)


def test_a_savepoint_takes_every_kind_of_path(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.start(pipeline(GatedSource(events(), allowed=100), MemorySink()), 1)
    places: list[str | Path] = [tmp_path / "a", str(tmp_path / "b"), f"file://{tmp_path}/c", f"file:{tmp_path}/d"]
    for number, place in enumerate(places):
        assert job.savepoint(place) == number + 1
    assert [(tmp_path / name / "savepoint.json").exists() for name in "abcd"] == [True] * 4


@pytest.mark.parametrize("path", [5, "", "/proc/nowhere", "ftp://host/x"])
def test_a_savepoint_that_can_not_be_written_is_refused_before_a_checkpoint_is_taken(jobs: Jobs, path: object) -> None:
    job = jobs.start(pipeline(GatedSource(events(), allowed=100), MemorySink()), 1)
    with pytest.raises(InvalidUseError):
        job.savepoint(path)  # type: ignore[arg-type]
    with pytest.raises(InvalidUseError):
        job.stop(savepoint=path)  # type: ignore[arg-type]
    assert (job.checkpoints(), job.status in ("STARTING", "RUNNING")) == ([], True)


@pytest.mark.parametrize("timeout", ["5", -1, float("nan")])
def test_a_time_to_wait_is_a_number_of_seconds(jobs: Jobs, timeout: object) -> None:
    job = jobs.start(pipeline(GatedSource(events(), allowed=1), MemorySink()), 1)
    with pytest.raises(InvalidUseError, match="number of seconds"):
        job.await_termination(timeout)  # type: ignore[arg-type]
