"""A leader that dies, pauses or is replaced: the data goes on, nothing is lost and nothing is shown twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, found_counts, until

import tidegate as tg
from tidegate.core.log.view import Takeover
from tidegate.runtime.coordinator import Coordinator
from tidegate.runtime.token import read_secret, token_path
from tidegate.store.open import absolute_url


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))


class Leading:
    """A coordinator on a thread of this process. ``die`` ends it as a kill would: nobody is told anything."""

    def __init__(self, store: str, job: str) -> None:
        url = absolute_url(store)
        self.coordinator = Coordinator(url, job, read_secret(token_path(url, job)))
        self.outcome: list[str] = []
        self.said: list[str] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.outcome.append(self.coordinator.run(takeover=True, say=self.said.append))

    @property
    def leader(self) -> Any:
        return until(lambda: self.coordinator.leader, "a leader")

    def close(self) -> None:
        self.coordinator.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def leading(jobs: Jobs) -> Iterator[list[Leading]]:
    started: list[Leading] = []
    yield started
    for each in started:
        each.close()


def test_a_coordinator_takes_over_and_the_data_goes_on(jobs: Jobs, leading: list[Leading]) -> None:
    table = events(40_000)
    source, sink = GatedSource(table, rows_per_poll=50, allowed=2_000), MemorySink()
    job = jobs.start(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), interval="100ms")
    until(lambda: job.metrics()["checkpoints_committed"] >= 2)
    leading.append(Leading(jobs.store, "w"))
    leader = leading[0].leader
    until(lambda: leader.metrics()["checkpoints_committed"] >= 3, "checkpoints of the new leader")
    assert job.metrics()["gang"] == 0 and job.status == "RUNNING"
    source.allow()
    assert job.await_termination(30)
    assert job.status == "FINISHED"
    assert found_counts(sink) == expected_counts(table)
    roles = [entry.role for entry in jobs.log("w") if isinstance(entry, Takeover)]
    assert roles == ["driver", "coordinator"]


def test_a_coordinator_that_resigns_leaves_the_job_to_its_driver(jobs: Jobs, leading: list[Leading]) -> None:
    table = events(40_000)
    source, sink = GatedSource(table, rows_per_poll=50, allowed=2_000), MemorySink()
    job = jobs.start(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), interval="100ms")
    until(lambda: job.metrics()["checkpoints_committed"] >= 2)
    first = Leading(jobs.store, "w")
    until(lambda: first.leader.metrics()["checkpoints_committed"] >= 2, "checkpoints of the coordinator")
    first.close()
    began = time.monotonic()
    source.allow(1_000)
    before = len(jobs.manifests("w"))
    until(lambda: len(jobs.manifests("w")) > before, "a checkpoint of the driver")
    assert time.monotonic() - began < 5
    source.allow()
    assert job.await_termination(30)
    assert found_counts(sink) == expected_counts(table)
    assert job.metrics()["restarts"] == 0
