"""How many files a job leaves: the coordinator and a real sink in a real directory, with a clock that runs forward by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from driving import EVERYONE, Driver, make_ack

import tidegate as tg
from tidegate.connectors.parquet import ParquetSink
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.plan.connector import WriterContext
from tidegate.runtime.sinks import SinkPublisher
from tidegate.testing.connectors import SINK_SCHEMA, rows_of

INTERVAL_MS = 200


class Job:
    """Checkpoints every 200 ms of a job with one Parquet sink, of which every subtask writes a row per epoch."""

    def __init__(self, sink: ParquetSink) -> None:
        stream = tg.generate(rows=1)
        plan = tg.Pipeline("job", stream.write(sink).named("out")).physical(1)
        self.sink, self.publisher = sink, SinkPublisher(plan)
        self.driver = Driver(checkpoint_interval_ms=INTERVAL_MS, publish_budgets=self.publisher.budgets()).start()
        self.writers = [sink.writer(WriterContext("out", node, 0, SINK_SCHEMA)) for node in sorted(EVERYONE)]
        self.committed = self.largest = self.published_at_ms = self.longest_wait_ms = 0

    def commit(self) -> None:
        """The next checkpoint, from its trigger to whatever its commit lets be published."""
        driver = self.driver
        self._perform(driver.tick(driver.now_ms + INTERVAL_MS))
        for node, writer in enumerate(self.writers):
            writer.write(rows_of(self.committed * len(self.writers) + node))
            staged = CommittableEntry("out", node, 0, driver.live, writer.prepare(driver.live) or {})
            driver.tell(events.NodePrepared(make_ack(node, driver.live, committables=(staged,))))
        if self.committed % 7 == 0:
            self.largest = max(self.largest, len(driver.last(do.PutEntry).data))
        self.committed += 1
        self._perform(driver.answer())

    def stop(self) -> None:
        self._perform(self.driver.tell(events.StopRequested()))

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, do.PutEntry) and self.driver.machine.attempt is None:  # the log is summed up
                self._perform(self.driver.answer())
            if isinstance(effect, do.Publish):
                self.publisher.publish(effect.committables)
                waited_ms = self.driver.now_ms - self.published_at_ms
                self.longest_wait_ms = max(self.longest_wait_ms, waited_ms)
                self.published_at_ms = self.driver.now_ms
                self._perform(self.driver.tell(events.Published(effect.epoch)))

    def keys(self) -> list[int]:
        names = sorted(name for name in os.listdir(self.sink.path) if name.endswith(".parquet"))
        found = []
        for name in names:
            with pq.ParquetFile(os.path.join(self.sink.path, name)) as file:
                found += file.read(["key"])["key"].to_pylist()
        return found


def files(job: Job) -> int:
    return len([name for name in os.listdir(job.sink.path) if name.endswith(".parquet")])


@pytest.mark.slow
def test_six_minutes_at_200_ms_leave_fewer_than_a_hundred_files(tmp_path: Path) -> None:
    job = Job(ParquetSink(tmp_path / "out", durable=False))
    for number in range(1_800):
        job.commit()
        if number == 7:
            assert files(job) == 8, "the first epochs appear at once"
    job.stop()
    assert files(job) == 44
    assert job.keys() == list(range(3_600)), "every row once, in the order of epochs"
    assert job.longest_wait_ms <= 10_000
    assert job.largest < 64_000, "what waits is in every manifest, and that is bounded"
    assert os.listdir(tmp_path / "out" / "_pending") == []


def test_publish_every_is_a_time_between_two_appearances(tmp_path: Path) -> None:
    job = Job(ParquetSink(tmp_path / "out", durable=False, publish_every="2s"))
    for _ in range(100):
        job.commit()
    assert files(job) == 10
    assert job.longest_wait_ms == 2_000


def test_every_epoch_at_once_leaves_a_file_per_commit_and_subtask(tmp_path: Path) -> None:
    job = Job(ParquetSink(tmp_path / "out", durable=False, publish_every="0s"))
    for _ in range(10):
        job.commit()
        assert len(job.keys()) == 2 * job.committed
    assert files(job) == 20
