"""A savepoint is a copy from which any job with the same plan may start, in another store and at another parallelism."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.api.stream import Stream
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.savepoint import read_savepoint
from tidegate.runtime.shape import plan_shape
from tidegate.runtime.start import JobOptions, launch_job
from tidegate.store.open import open_store
from tidegate.testing.crash import wait_for_checkpoints

ROWS = 60_000


def counted(out: Path, size: str = "100ms") -> tg.Pipeline:
    source: Stream = tg.generate(rows=ROWS, rows_per_second=30_000, keys=50, splits=4)
    counts = source.key_by("key").window(tg.tumbling(size)).aggregate(n=tg.count(), total=tg.sum("value"))
    return tg.Pipeline("counts", counts.named("counts").write_parquet(str(out)).named("out"))


def start(pipeline: tg.Pipeline, store: Path, parallelism: int, savepoint: Path | None = None, append: bool = False) -> Job:
    options = JobOptions(
        parallelism=parallelism,
        store=str(store),
        checkpoint=tg.CheckpointConfig(interval="100ms"),
        savepoint=None if savepoint is None else str(savepoint),
        append=append,
    )
    return Job(launch_job(pipeline.physical(parallelism), ThreadGang(parallelism), options))


def rows(out: Path) -> list[tuple[int, int, int]]:
    table = pq.read_table(out)
    columns = [table[name].to_pylist() for name in ("window_start", "key", "n")]
    return sorted(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A job stopped with a savepoint on the way: its output and the savepoint."""
    root = tmp_path_factory.mktemp("saved")
    job = start(counted(root / "out"), root / "store", 2)
    while len(list((root / "out").glob("*.parquet"))) < 8:
        job.checkpoint()
    job.stop(savepoint=str(root / "savepoint"))
    assert job.status == "STOPPED"
    read = job.metrics()["rows_in"]
    assert 0 < read < ROWS
    return root / "out", root / "savepoint", read


def test_a_job_goes_on_from_a_savepoint_in_a_new_store_at_another_parallelism(
    saved: tuple[Path, Path, int], tmp_path: Path
) -> None:
    first_part, savepoint, _ = saved
    job = start(counted(tmp_path / "out"), tmp_path / "store", 3, savepoint)
    assert job.await_termination(60)
    assert job.metrics()["rows_read"] < ROWS
    whole = start(counted(tmp_path / "whole"), tmp_path / "other", 1)
    assert whole.await_termination(60)
    assert sorted(rows(first_part) + rows(tmp_path / "out")) == rows(tmp_path / "whole")


def test_what_collect_had_is_not_in_a_savepoint_and_a_start_in_another_store_says_so(tmp_path: Path) -> None:
    pipeline = tg.Pipeline("rows", tg.generate(rows=ROWS, rows_per_second=30_000, keys=50).collect())
    first = start(pipeline, tmp_path / "store", 2)
    wait_for_checkpoints(first, 2)
    first.stop(savepoint=str(tmp_path / "savepoint"))
    with pytest.raises(InvalidUseError, match=r"write_parquet.*append=True"):
        start(pipeline, tmp_path / "other", 2, tmp_path / "savepoint")
    rest = start(pipeline, tmp_path / "other", 2, tmp_path / "savepoint", append=True)
    assert rest.await_termination(60)
    assert first.collect().num_rows + rest.collect().num_rows == ROWS


def test_a_savepoint_that_does_not_fit_the_plan_is_refused(saved: tuple[Path, Path, int], tmp_path: Path) -> None:
    with pytest.raises(InvalidUseError, match="counts"):
        start(counted(tmp_path / "out", size="2s"), tmp_path / "store", 1, saved[1])


def test_a_path_without_a_savepoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUseError, match="no savepoint"):
        start(counted(tmp_path / "out"), tmp_path / "store", 1, tmp_path / "nothing")


def test_a_damaged_savepoint_is_refused(saved: tuple[Path, Path, int], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved[1], copy)
    manifest = copy / "savepoint.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(CorruptDataError):
        start(counted(tmp_path / "out"), tmp_path / "store", 1, copy)


def test_one_flipped_bit_anywhere_in_a_savepoints_manifest_is_noticed(saved: tuple[Path, Path, int], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved[1], copy)
    manifest = copy / "savepoint.json"
    data = bytearray(manifest.read_bytes())
    shape = plan_shape(counted(tmp_path / "out").physical(1), 1)
    for index in range(0, len(data), 1 + len(data) // 400):
        data[index] ^= 1 << index % 8
        manifest.write_bytes(data)
        with pytest.raises(CorruptDataError, match=r"savepoint\.json"):
            read_savepoint(str(copy), shape)
        data[index] ^= 1 << index % 8
    manifest.write_bytes(data)
    assert read_savepoint(str(copy), shape).manifest.is_savepoint


def test_a_path_is_used_for_one_savepoint_only(saved: tuple[Path, Path, int], tmp_path: Path) -> None:
    job = start(counted(tmp_path / "out"), tmp_path / "store", 1)
    job.checkpoint()
    with pytest.raises(InvalidUseError, match="already"):
        job.savepoint(str(saved[1]))
    job.stop()


def test_sinks_that_have_rows_are_added_to_only_when_told_so(saved: tuple[Path, Path, int], tmp_path: Path) -> None:
    shutil.copytree(saved[0], tmp_path / "out")
    with pytest.raises(InvalidUseError, match="append=True"):
        start(counted(tmp_path / "out"), tmp_path / "store", 2, saved[1])
    job = start(counted(tmp_path / "out"), tmp_path / "store", 2, saved[1], append=True)
    wait_for_checkpoints(job, 2)
    job.stop()
    log = LogStore(open_store(tmp_path / "store"), "counts")
    head, older, *_ = log.view().lineage()
    file = tmp_path / "store" / log.paths.log_entry(head)
    known = max(int(part.name.split("-")[1], 16) for part in saved[0].glob("*.parquet"))
    assert log.view().restorable(older).checkpoint_id < known, "the other job's numbers go further"
    file.write_bytes(file.read_bytes()[:-1])  # the fall back hides what this job published, not what was there before
    job = start(counted(tmp_path / "out"), tmp_path / "store", 2)
    assert job.await_termination(60)
    assert job.restored_from == older
    whole = start(counted(tmp_path / "whole"), tmp_path / "other", 1)
    assert whole.await_termination(60)
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")
