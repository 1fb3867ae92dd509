"""A watched directory in whole jobs: rows arrive once, idle subtasks hold nobody back, resumes read on."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from threads import start, until

import tidegate as tg
from tidegate.core.checkpoint.manifest import CheckpointManifest
from tidegate.core.log.codec import encode
from tidegate.runtime.logstore import LogStore
from tidegate.store.open import open_store


def put(folder: Path, name: str, first: int, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    numbers = range(first, first + rows)
    table = pa.table({"ts": [n * 10 for n in numbers], "key": [n % 5 for n in numbers], "n": list(numbers)})
    pq.write_table(table, folder / f"_{name}")
    os.rename(folder / f"_{name}", folder / name)


def numbers(out: Path) -> list[int]:
    return sorted(pq.read_table(out).column("n").to_pylist()) if any(out.glob("*.parquet")) else []


def copied(source: Path, out: Path) -> tg.Pipeline:
    stream = tg.read_parquet(source, event_time="ts", continuous=True)
    return tg.Pipeline("copy", stream.filter(tg.col("n") >= 0).write_parquet(out, publish_every="0s"))


def test_rows_of_files_that_appear_are_there_once_after_resumes_at_other_parallelisms(tmp_path: Path) -> None:
    source, out, store = tmp_path / "in", tmp_path / "out", tmp_path / "store"
    expected = 0
    for run, parallelism in enumerate((2, 3, 1)):
        put(source, f"{run}-a.parquet", expected, 500)
        job = start(copied(source, out), store, parallelism)
        put(source, f"{run}-b.parquet", expected + 500, 300)
        expected += 800
        until(lambda: len(numbers(out)) >= expected, job)  # noqa: B023
        job.stop()
        assert job.status == "STOPPED"
        assert numbers(out) == list(range(expected))


def test_a_directory_of_many_files_does_not_make_manifests_long_and_a_late_file_is_read_once(tmp_path: Path) -> None:
    source, out, store = tmp_path / "in", tmp_path / "out", tmp_path / "store"
    for number in range(1_200):
        put(source, f"{number:05d}.parquet", number, 1)
    job = start(copied(source, out), store, 2)
    until(lambda: job.metrics()["rows_in"] == 1_200, job)
    first, second = (manifest(store, job.checkpoint()) for _ in range(2))
    runs = [run for each in first.sources for run in each.runs]
    assert runs and sum(run.rows for run in runs) > 600
    assert [each.runs for each in second.sources] == [each.runs for each in first.sources], "stored once and named again"
    assert len(encode(second)) < 1_200 * 16, "the hashes alone would be as long"
    job.stop()
    put(source, "0.parquet", 1_200, 1)
    os.utime(source / "0.parquet", (1, 1))
    job = start(copied(source, out), store, 3)
    until(lambda: job.metrics()["rows_in"] == 1_201, job)
    job.checkpoint()
    job.stop()
    assert numbers(out) == list(range(1_201))


def manifest(store: Path, epoch: int) -> CheckpointManifest:
    return LogStore(open_store(store), "copy").view().restorable(epoch)


def test_windows_close_although_a_subtask_has_no_file_and_through_a_second_exchange(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    put(source, "a.parquet", 0, 400)
    stream = tg.read_parquet(source, event_time="ts", continuous=True, idle_timeout="100ms")
    per_key = stream.key_by("key").window(tg.tumbling("1s")).aggregate(rows=tg.count())
    total = per_key.with_columns(one=1).key_by("one").window(tg.tumbling("1s")).aggregate(n=tg.sum("rows"))
    job = start(tg.Pipeline("windows", total.write_parquet(out, publish_every="0s")), tmp_path / "store", 3)
    # The last row is at 3990 ms, so the window that ends at 3000 closes, and with it the one after it.
    until(lambda: numbers(out)[:2] == [100, 100], job)
    job.stop()


def test_draining_a_watched_directory_emits_everything_that_was_read(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    put(source, "a.parquet", 0, 100)
    stream = tg.read_parquet(source, event_time="ts", continuous=True)
    counts = stream.key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count())
    job = start(tg.Pipeline("drained", counts.write_parquet(out, publish_every="0s")), tmp_path / "store", 2)
    until(lambda: job.metrics()["rows_in"] == 100, job)
    job.stop(drain=True)
    assert job.status == "FINISHED"
    assert numbers(out) == [20] * 5
