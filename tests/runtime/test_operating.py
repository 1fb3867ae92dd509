"""A running job from a second terminal: who runs it, and what may be asked of it. Real lines, real tokens."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until

import tidegate as tg
from tidegate.api.job import Job
from tidegate.cli.main import main
from tidegate.errors import InvalidUseError
from tidegate.runtime.contend import JobOver
from tidegate.runtime.token import job_secret, read_secret, token_path
from tidegate.store.open import absolute_url

TABLE = events(4_000)


def running(jobs: Jobs, interval: str = "1h") -> tuple[Job, GatedSource, MemorySink]:
    source, sink = GatedSource(TABLE, allowed=500), MemorySink()
    job = jobs.start(tg.Pipeline("bids", counts(tg.from_source(source)).write(sink)), interval=interval)
    until(lambda: source.emitted == 500)
    return job, source, sink


def told(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_job_is_steered_from_outside(jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, _, sink = running(jobs)
    until(lambda: told(capsys, "jobs", jobs.store)["jobs"][0]["status"] == "RUNNING")
    [listed] = told(capsys, "jobs", jobs.store)["jobs"]
    assert listed["job"] == "bids" and "driver process" in listed["leader"]
    [status] = told(capsys, "status", jobs.store, "bids")["jobs"]
    assert status["status"] == "RUNNING" and status["term"] == 0 and status["rows_in"] == 500 and status["problems"] == []
    epoch = told(capsys, "checkpoint", jobs.store, "bids")["epoch"]
    assert [m.epoch for m in jobs.manifests("bids")] == [epoch]
    path = tmp_path / "kept"
    assert told(capsys, "savepoint", jobs.store, "bids", str(path))["epoch"] > epoch
    assert (path / "savepoint.json").exists()
    answer = told(capsys, "signal", jobs.store, "bids", "SyncTest")
    assert answer["kind"] == "SyncTest" and set(answer["latency_ms"]) == {"0", "1"}
    assert main(["cancel", jobs.store, "bids", "99"]) == 2
    assert "not in flight" in capsys.readouterr().err
    told(capsys, "drain", jobs.store, "bids")
    assert job.await_termination(30) and job.status == "FINISHED"
    assert sum(n for _, _, n, _ in found_counts(sink)) == 500, "what was read is there, open windows included"
    assert told(capsys, "status", jobs.store, code=1)["jobs"] == [{"job": "bids", "status": "NOT RUNNING"}]
    assert main(["stop", jobs.store, "bids"]) == 2
    assert "nobody runs this job now" in capsys.readouterr().err


def test_stop_from_outside_lets_the_next_start_go_on(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    job, _, sink = running(jobs)
    job.checkpoint()
    told(capsys, "stop", jobs.store, "bids")
    assert job.await_termination(30) and job.status == "STOPPED"
    again = jobs.finish(tg.Pipeline("bids", counts(tg.from_source(GatedSource(TABLE))).write(sink)))
    assert again.restored_from is not None and found_counts(sink) == expected_counts(TABLE)


def test_who_has_not_the_token_is_refused(jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running(jobs)
    wrong = tmp_path / "wrong"
    job_secret(wrong)
    assert main(["status", jobs.store, "bids", "--token-file", str(wrong)]) == 2
    assert "does not know the job's secret" in capsys.readouterr().err
    assert main(["status", jobs.store, "bids", "--token-file", str(tmp_path / "none")]) == 2
    assert "the job's token can't be read" in capsys.readouterr().err


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret = job_secret(path)
    assert job_secret(path) == read_secret(path) == secret and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(InvalidUseError, match="chmod 600"):
        read_secret(path)
    path.chmod(0o600)
    path.write_text("xyz")
    with pytest.raises(InvalidUseError, match="64 hexadecimal digits"):
        read_secret(path)


def test_a_second_start_is_refused_and_says_who_runs_the_job(jobs: Jobs) -> None:
    job, _, sink = running(jobs)
    second = tg.Pipeline("bids", counts(tg.from_source(GatedSource(TABLE))).write(sink))
    with pytest.raises(
        InvalidUseError, match=r"this job runs already, since 20.* driver process \d+ on .*--standby.*|runs already"
    ):
        jobs.start(second)
    assert job.status == "RUNNING"


def test_a_standby_waits_and_ends_with_a_job_that_was_stopped(jobs: Jobs) -> None:
    job, _, sink = running(jobs)
    started: list[BaseException] = []

    def stand_by() -> None:
        try:
            jobs.start(tg.Pipeline("bids", counts(tg.from_source(GatedSource(TABLE))).write(sink)), contend="standby")
        except JobOver as over:
            started.append(over)

    thread = threading.Thread(target=stand_by)
    thread.start()
    thread.join(1.5)
    assert thread.is_alive() and job.status == "RUNNING"
    job.stop()
    thread.join(30)
    assert "the job has ended" in str(started[0])


def test_a_token_is_found_by_store_and_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path))
    url = absolute_url(str(tmp_path / "store"))
    assert token_path(url, "a") == token_path(url + "/", "a") != token_path(url, "b")
    assert token_path(url, "a").is_relative_to(tmp_path)
