"""The leader and the driver of a real Spark job are killed: who stood by goes on within seconds, and every row arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.generate import GenerateSource
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.view import Commit, Takeover
from tidegate.runtime.election import open_election
from tidegate.runtime.logstore import LogStore
from tidegate.store.open import open_store

pytestmark = pytest.mark.spark

WAIT_S = 90.0
ROWS = 30_000
FILE = f"""
import tidegate as tg
rows = tg.generate(rows={ROWS}, rows_per_second=1_000)
pipeline = tg.Pipeline("rows", rows.write_parquet("OUT"))
"""


class World:
    """One job in one store, and the processes that run it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = str(path / "store")
        self.out = path / "out"
        self.file = path / "rows.py"
        self.file.write_text(FILE.replace("OUT", str(self.out)))
        self.processes: list[subprocess.Popen[bytes]] = []

    def tidegate(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tidegate.cli.main", *arguments]
        with (self.path / f"said{len(self.processes)}").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"})
        self.processes.append(process)
        return process

    def run(self, *options: str) -> subprocess.Popen[bytes]:
        fixed = ("--store", self.store, "--interval", "200ms", "--master", "local[3]", "--parallelism", "2")
        return self.tidegate("run", str(self.file), *fixed, *options)

    def said(self, number: int) -> str:
        return (self.path / f"said{number}").read_text()

    def manifests(self) -> list[CheckpointManifest]:
        entries = LogStore(open_store(self.store), "rows").read()
        return [entry.manifest for entry in entries if isinstance(entry, Commit)]

    def committed(self, term: int) -> bool:
        return any(manifest.term > term for manifest in self.manifests())

    def until(self, condition: Callable[[], Any], what: str) -> float:
        """Wait; gives for how many seconds."""
        began = time.monotonic()
        while not condition():
            told = [self.said(number) for number in range(len(self.processes))]
            assert time.monotonic() - began < WAIT_S, (what, told)
            time.sleep(0.02)
        return time.monotonic() - began

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                for child in psutil.wait_procs(family, timeout=1)[1]:
                    child.kill()
            process.wait(WAIT_S)

    def exact(self) -> bool:
        """Every row that the source has, each once."""
        found = pq.read_table(self.out)
        return counted(found.to_batches()) == counted(made())


def made() -> Iterator[pa.RecordBatch]:
    source = GenerateSource(rows=ROWS, event_rate=1_000)
    for split in source.splits():
        reader = source.open(split, None)
        while (polled := reader.poll(10_000)).rows:
            assert polled.batch is not None
            yield polled.batch


def counted(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    return Counter(row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_coordinator_killed_on_spark_is_replaced_while_the_data_flows(world: World) -> None:
    driver = world.run()
    world.until(lambda: world.committed(-1), "the driver's first commit")
    refused = world.run()
    coordinator = world.tidegate("coordinator", world.store, "--job", "rows", "--takeover")
    world.until(lambda: world.committed(0), "a commit of the coordinator")
    term = world.manifests()[-1].term
    coordinator.send_signal(signal.SIGKILL)
    took_s = world.until(lambda: world.committed(term), "a commit of the next leader")
    print(f"next commit {took_s:.2f} s after the coordinator's end")
    assert took_s < 5
    assert refused.wait(WAIT_S) == 2 and "this job runs already" in world.said(1)
    assert driver.wait(WAIT_S) == 0
    assert {manifest.gang for manifest in world.manifests()} == {0}, "the gang went on"
    assert world.exact()


def test_a_standby_driver_goes_on_when_the_first_is_killed(world: World) -> None:
    first = world.run()
    world.until(lambda: world.committed(-1), "the first driver's commit")
    second = world.run("--standby")
    world.until(lambda: "standing by" in world.said(1), "the standby")
    first.send_signal(signal.SIGKILL)
    election = open_election(world.store, "rows")

    def runs() -> bool:
        beat = election.newest()
        return beat is not None and beat.term > 0 and beat.status == "RUNNING"

    took_s = world.until(runs, "the second driver at work")
    print(f"processing again {took_s:.2f} s after the first driver's end")
    assert took_s < 5
    assert second.wait(WAIT_S) == 0
    assert world.exact()
    takeovers = [entry for entry in LogStore(open_store(world.store), "rows").read() if isinstance(entry, Takeover)]
    assert [entry.role for entry in takeovers] == ["driver", "driver"]
