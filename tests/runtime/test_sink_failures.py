"""A sink that fails on a node never costs a row: what it did not take is read again."""

from __future__ import annotations

import pytest
from runtime_jobs import (
    GatedSource,
    Jobs,
    MemorySink,
    counts,
    events,
    expected_counts,
    found_counts,
    once,
    until,
)

import tidegate as tg
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import JobFailedError, RetryableError


def pipeline(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    return tg.Pipeline("w", counts(tg.from_source(source)).write(sink))


@pytest.mark.parametrize("interval", [None, "20ms"])
@pytest.mark.parametrize("error", [RetryableError("disk full"), OSError("disk full")])
def test_rows_of_a_failed_write_are_written_again(jobs: Jobs, interval: str | None, error: Exception) -> None:
    source, sink = GatedSource(events()), MemorySink()
    sink.on_write = once(error)
    job = jobs.finish(pipeline(source, sink), 2, interval=interval)
    assert found_counts(sink) == expected_counts(source.table)
    assert job.metrics()["restarts"] == 1


def test_a_checkpoint_after_a_failed_write_is_never_committed(jobs: Jobs) -> None:
    """The write fails while the barrier has already passed it: the cut must not count rows that are nowhere."""
    source, sink = GatedSource(events(), allowed=1_000), MemorySink()
    job = jobs.start(pipeline(source, sink), 1)
    until(lambda: source.emitted == 1_000)
    sink.on_write = once(RetryableError("disk full"))
    source.allow()
    job.await_termination(20)
    assert found_counts(sink) == expected_counts(source.table)


@pytest.mark.parametrize("interval", [None, "20ms"])
def test_a_failed_prepare_starts_the_gang_again(jobs: Jobs, interval: str | None) -> None:
    source, sink = GatedSource(events()), MemorySink()
    sink.on_prepare = once(RetryableError("disk full"))
    job = jobs.finish(pipeline(source, sink), 2, interval=interval)
    assert found_counts(sink) == expected_counts(source.table)
    assert job.metrics()["restarts"] == 1


@pytest.mark.parametrize("hook", ["on_write", "on_prepare"])
def test_a_sink_that_always_fails_ends_the_job_with_its_reason(jobs: Jobs, hook: str) -> None:
    sink = MemorySink()

    def broken(value: object) -> None:
        raise RetryableError("the disk is full")

    setattr(sink, hook, broken)
    restarts = RestartPolicy(first_wait_ms=1, longest_wait_ms=2, limit=2)
    job = jobs.start(pipeline(GatedSource(events(200)), sink), 1, interval=None, restarts=restarts)
    with pytest.raises(JobFailedError, match="the disk is full"):
        job.await_termination(20)


def test_writers_are_closed_with_their_node(jobs: Jobs) -> None:
    source, sink = GatedSource(events(400)), MemorySink()
    jobs.finish(pipeline(source, sink), 3, interval=None)
    until(lambda: sink.closed == sink.opened == 3)
