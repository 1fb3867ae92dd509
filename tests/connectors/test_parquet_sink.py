from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import writer as writer_module
from tidegate.connectors.parquet import ParquetSink
from tidegate.connectors.staging import files_of
from tidegate.errors import CorruptDataError, InvalidUseError, RetryableError
from tidegate.plan.connector import Committable, Sink, WriterContext
from tidegate.testing.connectors import SINK_SCHEMA, check_sink, rows_of


def seen(path: str | Path) -> list[int]:
    """The keys that pyarrow's dataset reader finds, with nothing set."""
    if not Path(path).exists():
        return []
    found = ds.dataset(path, schema=SINK_SCHEMA, format="parquet").to_table()
    return sorted(found["key"].to_pylist())


def visible(sink: Sink) -> pa.Table:
    assert isinstance(sink, ParquetSink)
    return pa.table({"key": seen(sink.path)})


def pickled(sink: Sink) -> Sink:
    copy: Sink = pickle.loads(pickle.dumps(sink))
    return copy


def context(subtask: int = 0, gang: int = 0, schema: pa.Schema = SINK_SCHEMA) -> WriterContext:
    return WriterContext("per_key", subtask, gang, schema)


def stage(sink: ParquetSink, *keys: int, subtask: int = 0, gang: int = 0, checkpoint: int = 1) -> Committable:
    writer = sink.writer(context(subtask, gang))
    writer.write(rows_of(*keys))
    committable = writer.prepare(checkpoint)
    writer.close()
    assert committable is not None
    return committable


def names(sink: ParquetSink, folder: str) -> list[str]:
    return sorted(os.listdir(os.path.join(sink.path, folder)))


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(tmp_path / "out")


def test_it_keeps_the_contract(fresh_directory: Callable[[], Path]) -> None:
    check_sink(lambda: ParquetSink(fresh_directory()), visible, to_node=pickled)


def test_it_keeps_the_contract_without_syncs(fresh_directory: Callable[[], Path]) -> None:
    check_sink(lambda: ParquetSink(fresh_directory(), durable=False, compression="zstd"), visible)


def test_nothing_is_visible_before_the_commit_to_any_reader(sink: ParquetSink, tmp_path: Path) -> None:
    writer = sink.writer(context())
    writer.write(rows_of(1, 2))
    writer.prepare(1)
    writer.write(rows_of(3))
    assert seen(sink.path) == []
    assert list((tmp_path / "out").rglob("*.parquet")) == []
    writer.close()


def test_committed_rows_are_seen_by_other_readers_too(sink: ParquetSink) -> None:
    stage(sink, 9)
    sink.commit(1, [stage(sink, 1, 2)])
    sink.hide([stage(sink, 8)])
    found = duckdb.sql(f"select key from read_parquet('{sink.path}/**/*.parquet') order by key").fetchall()
    assert found == [(1,), (2,)]


def test_the_committable_says_what_was_written(sink: ParquetSink) -> None:
    committable = json.loads(json.dumps(stage(sink, 1, 2, 3, subtask=5, gang=12, checkpoint=(7 << 32) + 3)))
    (file,) = committable["files"]
    assert (committable["subtask"], committable["gang"], file["rows"]) == (5, 12, 3)
    assert file["pending"].startswith("per_key-0005-g12-")
    assert file["final"].startswith("part-0000000700000003-0005-g12-")
    assert file["bytes"] == os.path.getsize(os.path.join(sink.path, "_pending", file["pending"]))


def test_files_sort_in_the_order_of_their_checkpoints(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", publish_every="0s")
    staged = [stage(sink, key, checkpoint=checkpoint) for key, checkpoint in ((1, 9), (2, 10), (3, 1 << 32))]
    sink.commit(1, list(reversed(staged)))
    found = [name for name in names(sink, "") if name.endswith(".parquet")]
    assert [pq.read_table(os.path.join(sink.path, name))["key"][0].as_py() for name in found] == [1, 2, 3]


def test_two_writers_never_share_a_name(sink: ParquetSink) -> None:
    both = [stage(sink, 1), stage(sink, 2)]
    sink.commit(1, both)
    assert seen(sink.path) == [1, 2]


def test_an_operator_of_any_name_can_write(sink: ParquetSink) -> None:
    writer = sink.writer(WriterContext("../ä b/" + "x" * 300, 0, 0, SINK_SCHEMA))
    writer.write(rows_of(1))
    committable = writer.prepare(1)
    assert committable is not None
    sink.commit(1, [committable])
    assert seen(sink.path) == [1]


# -- kills at every point --------------------------------------------------------------------------


def test_a_commit_that_broke_off_between_two_files_is_finished_by_the_next(sink: ParquetSink) -> None:
    first, second = stage(sink, 1), stage(sink, 2, subtask=1)
    sink.commit(1, [first])
    sink.commit(1, [first, second])
    sink.commit(1, [first, second])
    assert seen(sink.path) == [1, 2]


def test_a_staged_file_that_is_gone_is_named(sink: ParquetSink) -> None:
    committable = stage(sink, 1)
    sink.abort([committable])
    with pytest.raises(CorruptDataError, match="neither waiting nor published nor hidden pending=per_key-0000"):
        sink.commit(1, [committable])


def test_an_abort_never_touches_published_rows(sink: ParquetSink) -> None:
    committable = stage(sink, 1)
    sink.commit(1, [committable])
    sink.abort([committable])
    assert seen(sink.path) == [1]


def test_hidden_rows_are_kept_and_a_late_commit_finds_nothing_to_show(sink: ParquetSink) -> None:
    shown, waiting = stage(sink, 1), stage(sink, 2)
    sink.commit(1, [shown])
    sink.hide([shown, waiting])
    deposed = ParquetSink(sink.path)
    deposed.commit(1, [shown])
    deposed.commit(2, [shown, waiting])
    assert seen(sink.path) == []
    assert names(sink, "_pending") == []
    kept = [pq.read_table(os.path.join(sink.path, "_hidden", name)) for name in names(sink, "_hidden")]
    assert sorted(key for table in kept for key in table["key"].to_pylist()) == [1, 2]


def test_hiding_what_is_gone_changes_nothing(sink: ParquetSink) -> None:
    committable = stage(sink, 1)
    sink.abort([committable])
    sink.hide([committable])
    assert names(sink, "_hidden") == []


def test_a_writer_that_dies_leaves_only_what_it_had_prepared(sink: ParquetSink) -> None:
    writer = sink.writer(context())
    writer.write(rows_of(1))
    committable = writer.prepare(1)
    writer.write(rows_of(2))
    writer.close()
    assert committable is not None
    assert len(names(sink, "_pending")) == 1
    sink.commit(1, [committable])
    assert seen(sink.path) == [1]


def test_a_sweep_removes_what_older_gangs_left_and_no_manifest_names(sink: ParquetSink) -> None:
    named = stage(sink, 1, gang=3)
    stage(sink, 2, gang=3)
    stage(sink, 3, gang=10)
    current = stage(sink, 4, gang=12)
    (Path(sink.path) / "_pending" / "someone-elses").touch()
    assert len(sink.sweep(12, [named])) == 2
    assert sink.sweep(12, [named]) == []
    sink.commit(1, [named, current])
    assert seen(sink.path) == [1, 4]
    assert names(sink, "_pending") == ["someone-elses"]


def test_what_another_job_has_published_is_never_hidden(sink: ParquetSink) -> None:
    """Its numbers may be the same as ours, and no manifest of ours names it."""
    sink.commit(1, [stage(sink, 1, checkpoint=7), stage(sink, 2, checkpoint=8)])
    sink.adopt()
    sink.commit(2, [stage(sink, 3, checkpoint=7), stage(sink, 4, checkpoint=6)])
    sink.hide_unnamed(5, 6, [])
    assert seen(sink.path) == [1, 2, 4]
    sink.clear()
    assert seen(sink.path) == [] == names(sink, "_adopted")


def test_nothing_is_swept_before_anything_was_written(sink: ParquetSink) -> None:
    assert sink.sweep(5, []) == []


# -- size and shape of files -----------------------------------------------------------------------


def test_files_roll_by_size_within_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_ROWS", 10)
    sink = ParquetSink(tmp_path / "out", file_bytes=1)
    writer = sink.writer(context())
    for first in range(0, 40, 5):
        writer.write(rows_of(*range(first, first + 5)))
    committable = writer.prepare(1)
    assert committable is not None
    assert [file.rows for file in files_of([committable])] == [10, 10, 10, 10]
    sink.commit(1, [committable])
    assert seen(sink.path) == list(range(40))


def test_files_finished_in_an_epoch_that_was_not_prepared_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_ROWS", 10)
    sink = ParquetSink(tmp_path / "out", file_bytes=1)
    writer = sink.writer(context())
    writer.write(rows_of(*range(25)))
    writer.write(rows_of(1))
    assert len(names(sink, "_pending")) == 1
    writer.close()
    assert names(sink, "_pending") == []


def test_small_batches_become_one_row_group(sink: ParquetSink) -> None:
    writer = sink.writer(context())
    for key in range(100):
        writer.write(rows_of(key))
    committable = writer.prepare(1)
    assert committable is not None
    sink.commit(1, [committable])
    (path,) = Path(sink.path).glob("*.parquet")
    file = pq.ParquetFile(path)
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 100)
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"


def test_a_batch_may_have_forgotten_that_a_column_is_never_null(sink: ParquetSink) -> None:
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False)])
    writer = sink.writer(context(schema=schema))
    writer.write(pa.record_batch({"key": pa.array([1], pa.int64())}))
    assert writer.prepare(1) is not None


def test_a_batch_with_other_columns_is_refused(sink: ParquetSink) -> None:
    writer = sink.writer(context())
    with pytest.raises(InvalidUseError, match=r"sink's columns .*is=other int64 expected=key int64, name string"):
        writer.write(pa.record_batch({"other": pa.array([1], pa.int64())}))
    writer.close()


def test_a_type_that_parquet_lacks_is_refused(sink: ParquetSink) -> None:
    schema = pa.schema([("i", pa.month_day_nano_interval())])
    writer = sink.writer(context(schema=schema))
    writer.write(pa.record_batch([pa.array([(1, 2, 3)], pa.month_day_nano_interval())], schema=schema))
    with pytest.raises(InvalidUseError, match="can't hold the data"):
        writer.prepare(1)
    writer.close()
    assert names(sink, "_pending") == []


# -- the directory -------------------------------------------------------------------------------------


def test_empty_means_that_a_reader_sees_nothing(sink: ParquetSink) -> None:
    assert sink.is_empty()
    committable = stage(sink, 1)
    assert sink.is_empty()
    sink.commit(1, [committable])
    assert not sink.is_empty()
    sink.hide([committable])
    assert sink.is_empty()


def test_clear_removes_rows_but_no_foreign_files(sink: ParquetSink) -> None:
    stage(sink, 1)
    sink.commit(1, [stage(sink, 2)])
    sink.hide([stage(sink, 3)])
    (Path(sink.path) / "NOTES.txt").write_text("keep me")
    sink.clear()
    assert sink.is_empty()
    assert names(sink, "") == ["NOTES.txt", "_hidden", "_pending"]
    assert names(sink, "_hidden") == names(sink, "_pending") == []
    sink.clear()


def test_making_a_sink_makes_no_directory(tmp_path: Path) -> None:
    assert ParquetSink(tmp_path / "a" / "b").is_empty()
    assert not (tmp_path / "a").exists()


def test_looking_whether_a_sink_can_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "a" / "b")
    sink.check_writable()
    assert os.listdir(tmp_path) == []
    sink.commit(1, [stage(sink, 1)])
    before = sorted(tmp_path.rglob("*"))
    sink.check_writable()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_instead_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InvalidUseError, match="give a directory"):
        ParquetSink(tmp_path / "out")
    with pytest.raises(InvalidUseError, match="not a directory"):
        ParquetSink(tmp_path / "out" / "deeper").check_writable()


def test_a_read_only_file_system_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="path=/proc/tidegate"):
        ParquetSink("/proc/tidegate").check_writable()


@pytest.mark.parametrize("options", [{"path": "s3://bucket/out"}, {"compression": "best"}, {"file_bytes": 0}, {"path": ""}])
def test_wrong_parameters_are_named(tmp_path: Path, options: dict[str, object]) -> None:
    given = {"path": tmp_path / "out", **options}
    with pytest.raises(InvalidUseError, match=next(iter(options))):
        ParquetSink(**given)  # type: ignore[arg-type]


def test_a_full_disk_fails_all_of_the_epoch(sink: ParquetSink, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = sink.writer(context())
    # The next pending name is a link to the device that is always full.
    monkeypatch.setattr(writer_module, "pending_name", lambda *_: link_to_full(sink))
    writer.write(rows_of(1))
    with pytest.raises(RetryableError, match="the disk is full"):
        writer.prepare(1)
    monkeypatch.undo()
    with pytest.raises(RetryableError, match="close the writer"):
        writer.prepare(1)
    with pytest.raises(RetryableError, match="close the writer"):
        writer.write(rows_of(1))
    writer.close()
    assert names(sink, "_pending") == []


def link_to_full(sink: ParquetSink) -> str:
    name = "per_key-0000-g0-00000000-0.pending"
    os.symlink("/dev/full", os.path.join(sink.path, "_pending", name))
    return name


@pytest.mark.parametrize(
    "committable",
    [
        {},
        {"files": "x"},
        {"files": [{}]},
        {"files": [{"pending": "../x", "final": "part-1", "rows": 1, "bytes": 1}]},
        {"files": [{"pending": "a-0000-g0-00000000-0.pending", "final": "../x", "rows": 1, "bytes": 1}]},
        {"files": [{"pending": "a-0000-g0-00000000-0.pending", "final": "_x", "rows": 1, "bytes": 1}]},
        {"files": [{"pending": "a-0000-g0-00000000-0.pending", "final": "part-1", "rows": "1", "bytes": 1}]},
        7,
    ],
)
def test_a_damaged_committable_is_refused(sink: ParquetSink, committable: Committable) -> None:
    for call in (sink.abort, sink.hide, lambda c: sink.commit(1, c), lambda c: sink.sweep(1, c)):
        with pytest.raises(CorruptDataError, match="committable"):
            call([committable])
