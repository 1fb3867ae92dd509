"""State as data: what a checkpoint holds comes back as rows that make sense."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate.api.job import Job
from tidegate.errors import CheckpointNotFound, CorruptDataError, InvalidUseError, NoCheckpoint
from tidegate.runtime import inspect
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job

ROWS = 300
SMALL = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("value", pa.float64())])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three keys, one row a second; all of it in one hour."""
    folder = tmp_path / "in"
    folder.mkdir()
    numbers = range(ROWS)
    table = pa.table(
        {
            "ts": pa.array([n * 1000 for n in numbers], pa.timestamp("ms")),
            "key": [f"k{n % 3}" for n in numbers],
            "value": [float(n) for n in numbers],
        }
    )
    pq.write_table(table, folder / "a.parquet")
    return folder


def stopped(stream: tg.Stream, tmp_path: Path, name: str = "job", rows: int = ROWS, emitted: int = 0) -> Path:
    """Run until everything was read, take a checkpoint, stop: windows are still open then."""
    store = tmp_path / "store"
    pipeline = tg.Pipeline(name, stream.write_parquet(tmp_path / f"out-{name}"))
    options = JobOptions(parallelism=2, store=str(store), checkpoint=tg.CheckpointConfig(interval="1h"))
    job = Job(launch_job(pipeline.physical(2), ThreadGang(2), options))
    while job.metrics()["rows_in"] < rows or job.metrics()["rows_out"] < emitted:
        assert job.error is None, job.error
    job.checkpoint()
    job.stop()
    return store


def watched(data: Path) -> tg.Stream:
    return tg.read_parquet(data, event_time="ts", continuous=True)


def test_aggregates_in_progress_are_one_row_per_key_and_window(data: Path, tmp_path: Path) -> None:
    windows = watched(data).key_by("key").window(tg.tumbling("1h"))
    sums = windows.aggregate(n=tg.count(), total=tg.sum("value"), avg=tg.mean("value"), peak=tg.max("value"))
    store = stopped(sums.named("per_key"), tmp_path)
    table = tg.read_state(store, "per_key").sort_by("key")
    assert table.column_names == ["window_start", "key", "n", "total", "avg", "peak"]
    assert table.schema.field("window_start").type == pa.timestamp("ms")
    assert table.column("key").to_pylist() == ["k0", "k1", "k2"]
    assert table.column("n").to_pylist() == [100, 100, 100]
    assert table.column("total").to_pylist() == [sum(range(k, ROWS, 3)) for k in range(3)]
    assert table.column("avg").to_pylist() == [sum(range(k, ROWS, 3)) / 100 for k in range(3)]
    assert table.column("peak").to_pylist() == [297.0, 298.0, 299.0]
    found = inspect.find(store)
    parts = [inspect.read_state(found, "per_key", [subtask]) for subtask in range(2)]
    assert pa.concat_tables(parts).sort_by("key").equals(table)
    assert inspect.state_schema(found, "per_key").equals(table.schema)


def test_a_sliding_windows_state_goes_by_pane(data: Path, tmp_path: Path) -> None:
    windows = watched(data).key_by("key").window(tg.sliding("2h", "1h"))
    store = stopped(windows.aggregate(n=tg.count()).named("per_key"), tmp_path)
    assert tg.read_state(store, "per_key").column_names == ["pane_start", "key", "n"]


def test_the_rows_of_a_join_say_which_side_they_are_of(data: Path, tmp_path: Path) -> None:
    left = watched(data)
    right = watched(data).select("ts", "key", other=tg.col("value"))
    store = stopped(left.join(right, on="key", window=tg.tumbling("1h")).named("pairs"), tmp_path, rows=2 * ROWS)
    table = tg.read_state(store, "pairs")
    assert set(table.column("side").to_pylist()) == {"left", "right"}
    assert {"window_start", "key", "value", "other"} <= set(table.column_names)
    assert table.num_rows == 2 * ROWS


def test_an_operator_without_rows_has_its_columns(data: Path, tmp_path: Path) -> None:
    nothing = watched(data).filter(tg.col("value") < 0)
    sums = nothing.key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count(), peak=tg.max("value"))
    table = tg.read_state(stopped(sums.named("per_key"), tmp_path), "per_key")
    assert table.num_rows == 0
    assert [str(field.type) for field in table.schema] == ["timestamp[ms]", "string", "int64", "double"]


def test_wrong_questions_are_answered_with_what_there_is(data: Path, tmp_path: Path) -> None:
    sums = watched(data).key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count()).named("per_key")
    store = stopped(sums, tmp_path)
    with pytest.raises(InvalidUseError, match="there are: per_key"):
        tg.read_state(store, "nope")
    with pytest.raises(CheckpointNotFound, match="epoch=99"):
        tg.read_state(store, "per_key", epoch=99)
    with pytest.raises(InvalidUseError, match="no such directory"):
        tg.read_state(tmp_path / "elsewhere", "per_key")
    with pytest.raises(InvalidUseError, match="epoch is a number"):
        tg.read_state(store, "per_key", epoch="1")  # type: ignore[arg-type]
    stopped(sums, tmp_path, "other")
    with pytest.raises(InvalidUseError, match=r"name the job.*job, other"):
        tg.read_state(store, "per_key")
    assert tg.read_state(store, "per_key", job="other").num_rows == 3
    (tmp_path / "empty" / "job" / "log").mkdir(parents=True)
    with pytest.raises(NoCheckpoint):
        tg.read_state(tmp_path / "empty", "per_key", job="job")


def test_damaged_state_is_named_and_not_returned(data: Path, tmp_path: Path) -> None:
    rows = 30_000  # too much to be inline
    times, keys = pa.array([0] * rows, pa.timestamp("ms")), [f"k{n}" for n in range(rows)]
    many = pa.table({"ts": times, "key": keys, "value": [1.0] * rows})
    pq.write_table(many, data / "a.parquet")
    sums = watched(data).key_by("key").window(tg.tumbling("1h")).aggregate(n=tg.count(), s=tg.sum("value"))
    store = stopped(sums.named("per_key"), tmp_path, rows=rows)
    runs = [run for entry in inspect.find(store).entries("per_key") for run in entry.runs]
    path = store / next(str(run.path) for run in runs if run.path)
    data_ = bytearray(path.read_bytes())
    data_[len(data_) // 2] ^= 4
    path.write_bytes(data_)
    with pytest.raises(CorruptDataError, match="checksum"):
        tg.read_state(store, "per_key")


def test_checkpoints_are_rows(data: Path, tmp_path: Path) -> None:
    store = stopped(watched(data).filter(tg.col("value") >= 0), tmp_path)
    table = inspect.read_checkpoints(store)
    assert table.schema.equals(inspect.CHECKPOINTS)
    assert table.column("kind").to_pylist() == ["checkpoint"] and table.column("restorable").to_pylist() == [True]
    assert inspect.list_inflight(inspect.find(store)).num_rows == 0


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.date32()),
        *(pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.decimal128(10, 2)),
    ],
    ids=str,
)
def test_types_are_found_again_by_how_they_print(kind: pa.DataType) -> None:
    assert inspect.type_of(str(kind)) == kind


def test_running_aggregates_have_one_row_per_key_though_runs_replace_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    running = tg.read_parquet(folder, event_time="ts", continuous=True, schema=SMALL).key_by("key")
    stream = running.aggregate(n=tg.count(), total=tg.sum("value")).named("running")
    pipeline = tg.Pipeline("job", stream.write_parquet(tmp_path / "out"))
    options = JobOptions(parallelism=2, store=str(tmp_path / "store"), checkpoint=tg.CheckpointConfig(interval="1h"))
    job = Job(launch_job(pipeline.physical(2), ThreadGang(2), options))
    for part in range(3):  # every key changes in every epoch, so older runs have rows that no longer count
        rows = {"ts": [part * 10 + n for n in range(4)], "key": ["a", "b", "a", "c"], "value": [1.0, 2.0, 3.0, 4.0]}
        pq.write_table(pa.table(rows, SMALL), folder / f".{part}.parquet")
        (folder / f".{part}.parquet").rename(folder / f"{part}.parquet")
        while job.metrics()["rows_in"] < 4 * (part + 1):
            assert job.error is None, job.error
        job.checkpoint()
    job.stop()
    table = tg.read_state(tmp_path / "store", "running").sort_by("key")
    assert table.select(["key", "n", "total"]).to_pydict() == {
        "key": ["a", "b", "c"],
        "n": [6, 3, 3],
        "total": [12.0, 6.0, 12.0],
    }


def test_keys_that_process_has_deleted_are_not_shown(data: Path, tmp_path: Path) -> None:
    def keep_two(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        kept = state.filter(pc.not_equal(state["key"], "k1"))
        seen = kept.set_column(1, kept.schema.field(1), pc.fill_null(pc.add(kept["seen"], 1), 1))
        return batch.select(["key"]), seen

    state, output = pa.schema([("seen", pa.int64())]), pa.schema([("key", pa.string())])
    kept = watched(data).key_by("key").process(keep_two, state=state, output=output).named("kept")
    store = stopped(kept, tmp_path, emitted=ROWS)
    assert sorted(tg.read_state(store, "kept")["key"].to_pylist()) == ["k0", "k2"]


def test_open_sessions_are_rows_with_their_bounds(data: Path, tmp_path: Path) -> None:
    sessions = watched(data).key_by("key").window(tg.session("1h")).aggregate(n=tg.count())
    store = stopped(sessions.named("sessions"), tmp_path)
    table = tg.read_state(store, "sessions")
    assert sorted(set(table["key"].to_pylist())) == ["k0", "k1", "k2"]
    assert sum(table["n"].to_pylist()) == ROWS


def test_the_only_job_that_has_such_an_operator_need_not_be_named(data: Path, tmp_path: Path) -> None:
    counts = watched(data).key_by("key").aggregate(n=tg.count())
    for job, name in (("one", "counts"), ("two", "totals"), ("three", "totals")):
        store = stopped(counts.named(name), tmp_path, job)
    assert sorted(tg.read_state(store, "counts")["n"].to_pylist()) == [100, 100, 100]
    for name in ("totals", "nobodys"):
        with pytest.raises(InvalidUseError, match=r"name the job; in this store there are: .*three, two"):
            tg.read_state(store, name)
    assert tg.read_state(f"file:{store}", "totals", job="two").num_rows == 3
