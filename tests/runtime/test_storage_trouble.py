"""A store or a sink that cannot be written for a while: the job says so, waits, and goes on without losing or doubling a row."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_jobs import (
    GatedSource,
    Jobs,
    MemorySink,
    counts,
    events,
    expected_counts,
    failure,
    found_counts,
    once,
    until,
)

import tidegate as tg
from tidegate.api.job import Job
from tidegate.core.failure.restart import RestartPolicy
from tidegate.errors import InvalidUseError, RetryableError, StorageRefused, StorageUnavailable
from tidegate.store.durable import TEMPORARY_PREFIX

NO_RESTARTS = RestartPolicy(limit=0, user_error_limit=0)
SLOW_S = 40.0


class Outage:
    """The file system refuses calls of ``os`` on some paths while this is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.on = False
        self.refused = 0

    def of(self, call: str, part: str, number: int) -> Outage:
        real: Callable[..., None] = getattr(os, call)

        def refuse(source: object, target: object, **how: object) -> None:
            if self.on and part in str(target):
                self.refused += 1
                raise OSError(number, os.strerror(number))
            real(source, target, **how)

        self._patch.setattr(os, call, refuse)
        return self


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def pipeline(source: GatedSource, out: Path | MemorySink, every: str | None = None) -> tg.Pipeline:
    stream = counts(tg.from_source(source))
    if isinstance(out, MemorySink):
        return tg.Pipeline("w", stream.write(out))
    return tg.Pipeline("w", stream.write_parquet(str(out), publish_every=every))


def started(jobs: Jobs, source: GatedSource, out: Path | MemorySink, every: str | None = None, **options: object) -> Job:
    """A job that has committed."""
    job = jobs.start(pipeline(source, out, every), 1, interval="30ms", restarts=NO_RESTARTS, **options)  # type: ignore[arg-type]
    source.allow(500)
    until(lambda: job.metrics()["checkpoints_committed"] >= 2)
    return job


def finished(job: Job, source: GatedSource, out: Path | MemorySink) -> None:
    source.allow()
    assert job.await_termination(SLOW_S), (job.status, job.metrics())
    assert found_counts(out) == expected_counts(source.table)
    assert job.problems == () and job.metrics()["checkpoints_failing_since"] is None


# -- the store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC])
def test_a_store_that_cannot_be_written_for_a_while_is_waited_for(
    jobs: Jobs, tmp_path: Path, outage: Outage, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    source, out = GatedSource(events(), allowed=0), tmp_path / "out"
    outage.of("link", "/log/", number)
    job = started(jobs, source, out)
    assert job.problems == () and job.metrics()["last_store_error"] is None
    with caplog.at_level(logging.WARNING, "tidegate"):
        outage.on = True
        until(lambda: outage.refused >= 3)
        (problem,) = until(lambda: job.problems)
        metrics = job.metrics()
        assert job.status == "RUNNING"
        outage.on = False
        finished(job, source, out)
    assert problem.kind == "log" and problem.times >= 1 and "w/log/" in problem.because and problem.advice
    assert metrics["put_retries"] >= 1 and metrics["checkpoints_failing_since"].endswith("Z")
    assert "log can't be written" in metrics["checkpoints_failing_because"]
    assert job.metrics()["last_store_error"] == problem.because
    told = [record.getMessage() for record in caplog.records if "problem=log" in record.getMessage()]
    assert len(told) == 2 and problem.because in told[0] and "over after" in told[1]


def test_a_store_that_is_given_up_says_so_with_the_last_cause_the_count_and_the_time(
    jobs: Jobs, tmp_path: Path, outage: Outage
) -> None:
    source = GatedSource(events(), allowed=0)
    outage.of("link", "/log/", errno.EROFS)
    job = started(jobs, source, tmp_path / "out", storage_timeout="700ms")
    outage.on = True
    said = failure(job)
    assert "another driver" not in said
    assert "gave up, the job's log can't be written" in said and "read-only" in said
    assert " times since 20" in said
    outage.on = False
    again = jobs.start(pipeline(source, tmp_path / "out"), 1, interval="30ms")
    finished(again, source, tmp_path / "out")


def test_what_killed_writers_left_is_deleted_when_a_job_starts(jobs: Jobs, tmp_path: Path) -> None:
    left = Path(jobs.store, "w", "checkpoints", "1", f"{TEMPORARY_PREFIX}dead")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    job = jobs.start(pipeline(GatedSource(events(), allowed=0), tmp_path / "out"), 1)
    until(lambda: not left.exists())
    job.stop()


def large_state() -> GatedSource:
    """All rows fall into one window, which is more than a manifest holds inline."""
    return GatedSource(events(12_000, keys=12_000, step_ms=0), rows_per_poll=1_000, allowed=0)


def test_uploads_that_nodes_cannot_make_are_reported_by_the_driver_with_their_reason(
    jobs: Jobs, tmp_path: Path, outage: Outage
) -> None:
    source, out = large_state(), tmp_path / "out"
    outage.of("replace", "/checkpoints/", errno.EDQUOT)
    job = started(jobs, source, out)
    outage.on = True
    source.allow(10_000)
    (problem,) = until(lambda: [p for p in job.problems if p.times >= 2], "two failures", SLOW_S)
    assert problem.kind == "checkpoints" and "node 0" in problem.because and "quota" in problem.because
    until(lambda: job.metrics()["upload_retries"] >= 3, "three tries in the metrics")
    assert job.status == "RUNNING" and job.metrics()["restarts"] == 0
    outage.on = False
    finished(job, source, out)


def test_a_checkpoint_that_cannot_be_read_for_a_while_is_waited_for(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink, broken = large_state(), MemorySink(), [True]
    job = jobs.start(pipeline(source, sink), 1)
    source.allow(10_000)
    until(lambda: source.emitted == 10_000)
    job.checkpoint()
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if broken and "/checkpoints/" in str(path):
            raise OSError(errno.EIO, "input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    lose = once(RetryableError("lost"))
    source.on_poll = lose
    (problem,) = until(lambda: [p for p in job.problems if p.kind == "restore"])
    assert "input/output" in problem.because and job.skipped == ()
    broken.clear()
    finished(job, source, sink)


# -- sinks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", ["0s", "50ms"], ids=["each file by itself", "merged"])
def test_a_sink_that_cannot_publish_for_a_while_publishes_later(jobs: Jobs, tmp_path: Path, outage: Outage, every: str) -> None:
    source, out = GatedSource(events(), allowed=0), tmp_path / "out"
    outage.of("rename", "/out/part-", errno.EROFS)
    job = started(jobs, source, out, every)
    outage.on = True
    source.allow(500)
    (problem,) = until(lambda: [p for p in job.problems if p.kind == "sinks"])
    assert "read-only" in problem.because and job.status == "RUNNING"
    assert until(lambda: job.metrics()["publish_retries"]) >= 1
    outage.on = False
    finished(job, source, out)


def test_a_sink_that_never_publishes_ends_the_job_with_its_own_reason(jobs: Jobs, tmp_path: Path, outage: Outage) -> None:
    source = GatedSource(events(), allowed=0)
    outage.of("rename", "/out/part-", errno.EACCES)
    job = started(jobs, source, tmp_path / "out", "0s", storage_timeout="600ms")
    outage.on = True
    source.allow(500)
    said = failure(job)
    assert "gave up, committed rows can't be made visible" in said and "change its permissions" in said


@pytest.mark.parametrize("error", [StorageUnavailable("the disk is full path=x"), StorageRefused("read-only path=x")])
@pytest.mark.parametrize("hook", ["on_write", "on_prepare"])
def test_rows_that_a_node_cannot_stage_are_staged_later_and_no_restart_counts(jobs: Jobs, error: Exception, hook: str) -> None:
    source, sink, failures = GatedSource(events(), allowed=0), MemorySink(), []
    job = started(jobs, source, sink)

    def broken(value: object) -> None:
        failures.append(value)
        if len(failures) <= 2:
            raise error

    setattr(sink, hook, broken)
    source.allow(500)
    (problem,) = until(lambda: [p for p in job.problems if p.kind == "nodes"])
    assert str(error) in problem.because
    finished(job, source, sink)
    assert job.metrics()["restarts"] >= 1


def test_a_sink_that_a_node_can_never_write_ends_the_job_after_its_time(jobs: Jobs) -> None:
    source, sink = GatedSource(events(), allowed=0), MemorySink()
    job = started(jobs, source, sink, storage_timeout="600ms")

    def broken(value: object) -> None:
        raise StorageUnavailable("the disk is full, make room path=x")

    sink.on_prepare = broken
    source.allow(500)
    said = failure(job)
    assert "StorageUnavailable: the disk is full" in said and "(failed 3 times without progress)" in said
    assert "times since 20" in said


def test_a_sink_that_refuses_nodes_from_the_start_is_the_users_to_fix_and_not_waited_for(jobs: Jobs) -> None:
    sink = MemorySink()

    def broken(value: object) -> None:
        raise StorageRefused("this must not be written by this user path=x")

    sink.on_write = broken
    job = jobs.start(pipeline(GatedSource(events()), sink), 1, restarts=NO_RESTARTS)
    assert "this must not be written by this user" in failure(job)


# -- on a real file system: root only ------------------------------------------------------------------------------


class SmallDisk:
    """A file system of 4 MiB that can be filled, emptied, and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ball = path / "ball"

    def fill(self) -> None:
        with self._ball.open("wb", buffering=0) as ball, pytest.raises(OSError, match="No space"):
            while True:
                ball.write(b"x" * 4096)

    def empty(self) -> None:
        self._ball.unlink()

    def make(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(path)], check=False, capture_output=True
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("only root can mount a small file system to fill it")
    yield SmallDisk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("what", ["full", "read-only"])
@pytest.mark.parametrize("where", ["store", "sink"])
def test_a_job_goes_on_when_a_real_disk_can_be_written_again(
    jobs: Jobs, tmp_path: Path, disk: SmallDisk, where: str, what: str
) -> None:
    if where == "store":
        jobs.store = str(disk.path / "store")
    source, out = GatedSource(events(keys=400), allowed=0), disk.path / "out" if where == "sink" else tmp_path / "out"
    job = started(jobs, source, out)
    disk.fill() if what == "full" else disk.make("ro")
    source.allow(500)
    problem = until(lambda: next(iter(job.problems), None), "a problem", SLOW_S)
    assert ("disk is full" if what == "full" else "read-only") in problem.because
    assert job.metrics()["checkpoints_failing_since"] is not None
    disk.empty() if what == "full" else disk.make("rw")
    finished(job, source, out)


def test_a_full_disk_is_refused_at_the_start(jobs: Jobs, tmp_path: Path, disk: SmallDisk) -> None:
    disk.fill()
    jobs.store = str(disk.path / "store")
    with pytest.raises(InvalidUseError, match=r"the store cannot be used: .*the disk is full"):
        jobs.start(pipeline(GatedSource(events()), tmp_path / "out"), 1)
