"""A job that loses a worker, is stopped or is moved goes on where it was, with all its sinks at the same epoch."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from workloads import BIDS, TUMBLING, TWO_COPIES, TWO_SINKS, Data, read, sql

import tidegate as tg
from conftest import Start
from tidegate import col
from tidegate.api.job import Job
from tidegate.errors import TidegateError
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.soundness import verify
from tidegate.store.open import open_store
from tidegate.testing.crash import (
    assert_same_rows,
    kill_at_random,
    kill_node,
    read_output,
    wait_for_checkpoints,
    wait_until,
)

BY_HAND = tg.CheckpointConfig(interval="600s")


def test_a_killed_worker_is_replaced_in_seconds(start: Start, data: Data, tmp_path: Path) -> None:
    pipeline = TUMBLING.pipeline(data, tmp_path / "out", seconds=4, parallelism=2)
    job = start(pipeline)
    wait_for_checkpoints(job, 3)
    started = time.monotonic()
    read = job.metrics()["rows_read"]
    kill = kill_node(job, 0)
    assert kill is not None
    wait_until("rows after the kill", lambda: job.metrics()["rows_read"] > read)
    seconds = time.monotonic() - started
    print(f"kill -9 to processing again: {seconds:.2f} s, nodes there after {kill.recovered_s:.2f} s")
    assert seconds < 15
    assert job.await_termination(60)
    counted = job.metrics()
    assert counted["rows_in"] == BIDS and read < counted["rows_read"] < 2 * BIDS
    TUMBLING.check(data, tmp_path / "out")


def test_a_stopped_job_reads_on_from_its_checkpoint(start: Start, data: Data, tmp_path: Path) -> None:
    pipeline = TWO_SINKS.pipeline(data, tmp_path / "out", seconds=3, parallelism=2)
    first = start(pipeline)
    wait_for_checkpoints(first, 5)
    first.stop()
    assert first.status == "STOPPED"
    second = start(TWO_SINKS.pipeline(data, tmp_path / "out"))
    assert second.await_termination(60)
    assert second.restored_from is not None
    assert 0 < second.metrics()["rows_read"] < BIDS == second.metrics()["rows_in"]
    TWO_SINKS.check(data, tmp_path / "out")


def test_a_savepoint_is_resumed_at_another_parallelism(start: Start, data: Data, tmp_path: Path) -> None:
    read: list[int] = []
    for parallelism in (2, 4, 1):
        pipeline = TUMBLING.pipeline(data, tmp_path / "out", seconds=4, parallelism=parallelism)
        job = start(pipeline, parallelism=parallelism)
        wait_for_checkpoints(job, 3)
        if parallelism == 1:
            assert job.await_termination(60)
        else:
            job.stop(savepoint=f"{tmp_path}/before-{parallelism}")
            assert f"{tmp_path}/before-{parallelism}" in [each.get("savepoint") for each in job.checkpoints()]
        read.append(job.metrics()["rows_read"])
    assert job.status == "FINISHED"
    assert job.metrics()["rows_in"] == BIDS
    assert max(read) < BIDS
    TUMBLING.check(data, tmp_path / "out")


def test_a_flipped_bit_in_the_newest_commit_costs_an_epoch_and_no_row(start: Start, data: Data, tmp_path: Path) -> None:
    first = start(TWO_SINKS.pipeline(data, tmp_path / "out", seconds=4, parallelism=2))
    wait_for_checkpoints(first, 4)
    first.stop()
    log = LogStore(open_store(tmp_path / "store"), TWO_SINKS.name)
    head, older, *_ = log.view().lineage()
    file = tmp_path / "store" / log.paths.log_entry(head)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    second = start(TWO_SINKS.pipeline(data, tmp_path / "out"))
    assert second.await_termination(60)
    assert second.restored_from == older
    assert [epoch for epoch, _ in second.skipped] == [head]
    assert file.name in second.skipped[0][1]
    TWO_SINKS.check(data, tmp_path / "out")
    assert [each.path for each in verify(log.store, TWO_SINKS.name).damage] == [log.paths.log_entry(head)]


def test_rows_for_the_driver_come_once_whoever_is_killed(start: Start, data: Data, tmp_path: Path) -> None:
    seen: list[tuple[int, pa.RecordBatch]] = []
    bids = read(data.bids, 2.5, 2)
    called = bids.filter(col("kind") == 1).for_each_batch(lambda batch, epoch: seen.append((epoch, batch)))
    job = start(tg.Pipeline("driver", called, bids.select("ts", "key", cents=col("value") * 100).collect()))
    wait_for_checkpoints(job)
    assert len(kill_at_random(job, 2, seed=7)) == 2
    assert job.await_termination(60)
    epochs = [epoch for epoch, _ in seen]
    assert epochs == sorted(epochs)
    assert_same_rows(pa.Table.from_batches([batch for _, batch in seen]), sql(data, "FROM bids WHERE kind = 1"))
    assert_same_rows(job.collect(), sql(data, "SELECT ts, key, value * 100 AS cents FROM bids"))


def test_rows_for_the_driver_come_once_at_any_parallelism(start: Start, data: Data, tmp_path: Path) -> None:
    """One node, two, one again, and a worker killed at each. A start may call again with what it publishes once more."""
    called: dict[int, dict[int, list[pa.RecordBatch]]] = {}
    shown = 0
    for run, parallelism in enumerate((1, 2, 1)):
        bids = read(data.bids, 5, parallelism)

        def call(batch: pa.RecordBatch, epoch: int, run: int = run) -> None:
            called.setdefault(epoch, {}).setdefault(run, []).append(batch)

        some = bids.filter(col("kind") == 1).for_each_batch(call).named("called")
        job = start(tg.Pipeline("driver", some, bids.select("ts", "key", "value").collect()), parallelism=parallelism)
        wait_for_checkpoints(job, 2)
        assert kill_node(job, parallelism - 1) is not None
        if run == 2:
            assert job.await_termination(60)
        else:
            wait_for_checkpoints(job, job.metrics()["checkpoints_committed"] + 3)
            job.stop()
        assert (job.restored_from is not None, job.metrics()["restarts"]) == (run > 0, 1)
        assert shown < job.collect().num_rows < (BIDS if run < 2 else BIDS + 1), "every run emitted some of the rows"
        shown = job.collect().num_rows
    assert_same_rows(job.collect(), sql(data, "SELECT ts, key, value FROM bids"))
    _check_calls(called, sql(data, "FROM bids WHERE kind = 1"))


def _check_calls(called: dict[int, dict[int, list[pa.RecordBatch]]], expected: pa.Table) -> None:
    """An epoch that more than one run was called with had the same rows in each; together they are what is expected."""
    epochs = []
    for runs in called.values():
        first, *again = (pa.Table.from_batches(batches) for _, batches in sorted(runs.items()))
        for other in again:
            assert_same_rows(other, first)
        epochs.append(first)
    assert {run for runs in called.values() for run in runs} == {0, 1, 2}, "every run called"
    assert_same_rows(pa.concat_tables(epochs), expected)


def test_a_finished_job_started_again_is_finished(start: Start, data: Data, tmp_path: Path) -> None:
    for again in (False, True):
        job = start(TUMBLING.pipeline(data, tmp_path / "out"))
        assert job.await_termination(60)
        assert (job.status, job.restored_from is not None) == ("FINISHED", again)
        TUMBLING.check(data, tmp_path / "out")
    assert job.metrics()["rows_read"] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_sinks_show_the_same_epochs_after_recovery(start: Start, data: Data, tmp_path: Path, seed: int) -> None:
    """Workers are killed while a checkpoint is on its way. Afterwards both sinks have it, or none has."""
    dice = random.Random(seed)
    pipeline = TWO_COPIES.pipeline(data, tmp_path / "out", seconds=20, parallelism=2)
    job = start(pipeline, checkpoint=BY_HAND)
    wait_until("rows", lambda: job.metrics()["rows_in"] > 2_000)
    job.checkpoint()
    for _ in range(2):
        before = job.metrics()["rows_in"]
        wait_until("more rows", lambda before=before: job.metrics()["rows_in"] > before)
        asked = _checkpoint_in_background(job)
        time.sleep(dice.uniform(0, 0.1))
        assert kill_node(job, dice.randrange(2)) is not None
        asked.join(60)
        _check_same_epochs(tmp_path / "out", f"seed={seed}")
    job.stop()
    _check_same_epochs(tmp_path / "out", f"seed={seed}, stopped")
    start(TWO_COPIES.pipeline(data, tmp_path / "out")).await_termination(60)
    TWO_COPIES.check(data, tmp_path / "out")


def _checkpoint_in_background(job: Job) -> threading.Thread:
    def ask() -> None:
        with suppress(TidegateError):  # the kill may come first
            job.checkpoint()

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def _check_same_epochs(out: Path, when: str) -> None:
    """The second sink has the rows of kind 1 of the first, so its rows and checkpoints follow from the first's."""
    shown = [{file.name.split("-")[1] for file in (out / name).glob("part-*.parquet")} for name in ("0", "1")]
    assert shown[0] == shown[1] != set(), when
    every, some = read_output(out / "0"), read_output(out / "1")
    wanted = every.filter(pc.equal(every["kind"], 1))
    assert_same_rows(some, wanted)
