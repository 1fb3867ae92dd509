"""Directories such as ``day=1`` are columns: read, typed, filtered by, and never dropped in silence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from parquet_samples import events

from tidegate.connectors.parquet import ParquetDirectorySource, ParquetSource
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.testing.connectors import check_source

WriteFile = Callable[..., Path]


def read_all(source: ParquetSource) -> pa.Table:
    batches = []
    for split in source.splits():
        reader = source.open(split, None)
        while not (polled := reader.poll(7)).finished:
            batches.append(polled.batch)
        batches.append(polled.batch)
        reader.close()
    return pa.Table.from_batches(batches, source.schema)


def check(source: ParquetSource) -> None:
    check_source(source, poll_rows=7, to_node=lambda source: pickle.loads(pickle.dumps(source)))


@pytest.fixture
def source(write_file: WriteFile, tmp_path: Path) -> ParquetSource:
    for number, (day, kind) in enumerate([("2024-01-01", "1"), ("2024-01-02", "2"), ("2024-01-02", "30")]):
        write_file(f"day={day}/shop={kind}/part.parquet", events(number * 100, 20), row_group_size=10)
    return ParquetSource(tmp_path / "data", event_time="ts", out_of_orderness="1s")


def test_directories_are_columns_after_those_of_the_files(source: ParquetSource, tmp_path: Path) -> None:
    assert source.schema.names == [*events(0, 1).column_names, "day", "shop"]
    assert (source.schema.field("day").type, source.schema.field("shop").type) == (pa.string(), pa.int64())
    columns = ["ts", "key", "day", "shop"]
    expected = ds.dataset(tmp_path / "data", partitioning="hive").to_table(columns)
    found = read_all(source.with_columns(columns))
    assert found.sort_by("ts").equals(expected.cast(found.schema).sort_by("ts"))
    check(source)


@pytest.mark.parametrize("columns", [["day"], ["shop", "value"], ["day", "shop"], ["key"]])
def test_any_of_the_columns_may_be_asked_for(source: ParquetSource, columns: list[str]) -> None:
    narrow = source.with_columns(columns)
    assert narrow.schema.names == columns
    assert repr(read_all(narrow).to_pydict()) == repr(read_all(source).select(columns).to_pydict())
    check(narrow)


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        (pc.field("day") == "2024-01-02", 40),
        (pc.field("shop") > 1, 40),
        ((pc.field("shop") == 30) & (pc.field("ts") < 2_050), 6),
        ((pc.field("shop") == 1) | (pc.field("kind") == 1), 30),
        (pc.field("day").is_null(), 0),
        (pc.field("shop") + pc.field("key") > 30, 17),
    ],
)
def test_filters_use_them_alone_and_with_other_columns(source: ParquetSource, expression: pc.Expression, rows: int) -> None:
    filtered = source.with_filter(expression)
    assert filtered.splits() == source.splits()
    found = read_all(filtered)
    assert found.num_rows == rows
    assert repr(found.to_pydict()) == repr(read_all(source).filter(expression).to_pydict())
    check(filtered)
    check(filtered.with_columns(["key"]))


def test_files_that_a_directory_rules_out_are_not_read(source: ParquetSource, tmp_path: Path) -> None:
    filtered = source.with_filter(pc.field("day") == "2024-01-02")
    ruled_out = tmp_path / "data" / "day=2024-01-01" / "shop=1" / "part.parquet"
    data = bytearray(ruled_out.read_bytes())
    data[4:200] = bytes(196)
    ruled_out.write_bytes(data)
    assert read_all(filtered).num_rows == 40
    with pytest.raises(CorruptDataError):
        read_all(source)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "02", "-3"], [1, 2, -3]),
        (["1", "x"], ["1", "x"]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], [1, None]),
        (["__HIVE_DEFAULT_PARTITION__"], [None]),
        (["a%2Fb", "a=b", "ü"], ["a/b", "a=b", "ü"]),
        (["9" * 30], ["9" * 30]),
        ([""], [""]),
    ],
)
def test_values_are_numbers_where_all_are_and_text_else(
    write_file: WriteFile, tmp_path: Path, values: list[str], expected: list[object]
) -> None:
    for number, value in enumerate(values):
        write_file(f"p={value}/a.parquet", pa.table({"n": [number]}))
    source = ParquetSource(tmp_path / "data")
    found = sorted(read_all(source).to_pylist(), key=lambda row: row["n"])
    assert [row["p"] for row in found] == expected
    check(source)


def test_a_column_that_the_files_have_themselves_is_theirs(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("day=7/a.parquet", pa.table({"day": ["seven"]}))
    assert read_all(ParquetSource(tmp_path / "data")).to_pydict() == {"day": ["seven"]}


def test_only_directories_below_what_was_asked_for_count(write_file: WriteFile, tmp_path: Path) -> None:
    for day in (1, 2):
        write_file(f"day={day}/a.parquet", pa.table({"n": [day]}))
    data = tmp_path / "data"
    assert ParquetSource(data / "day=1").schema.names == ["n"]
    both = ParquetSource([data / "day=1", data / "day=2"])
    assert read_all(both).to_pydict() == {"n": [1, 2], "day": [1, 2]}


def test_a_file_beside_the_directories_is_named(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("day=1/a.parquet", pa.table({"n": [1]}))
    write_file("z.parquet", pa.table({"n": [1]}))
    with pytest.raises(InvalidUseError, match=r"day is 'missing', expected 'day: int64' path=.*z\.parquet"):
        ParquetSource(tmp_path / "data")


def test_a_column_may_come_from_one_directory_only(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a=1/a=2/a.parquet", pa.table({"n": [1]}))
    with pytest.raises(InvalidUseError, match="two directories above this file name the same column column=a"):
        ParquetSource(tmp_path / "data")


def test_an_event_time_comes_from_the_rows(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("hour=1/a.parquet", pa.table({"n": [1]}))
    with pytest.raises(InvalidUseError, match="an event time comes from the rows, not from a directory column=hour"):
        ParquetSource(tmp_path / "data", event_time="hour")


# -- a directory that is watched -----------------------------------------------------------------------------------


def rows_of(source: ParquetDirectorySource) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for split in source.discover(lambda _: True):
        reader = pickle.loads(pickle.dumps(source)).open(split, None)
        found += reader.poll(100).batch.to_pylist()
        reader.close()
    return found


def test_a_watched_directory_has_them_too_and_refuses_a_value_of_another_type(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("day=1/a.parquet", pa.table({"n": [1]}))
    source = ParquetDirectorySource(tmp_path / "data")
    write_file("day=2/b.parquet", pa.table({"n": [2]}))
    assert rows_of(source) == [{"n": 1, "day": 1}, {"n": 2, "day": 2}]
    assert rows_of(source.with_filter(pc.field("day") > 1)) == [{"n": 2, "day": 2}]
    write_file("day=x/c.parquet", pa.table({"n": [3]}))
    with pytest.raises(InvalidUseError, match=r"the value of this directory is no int64.*column=day value='x' path=day=x/c"):
        source.discover(lambda _: True)


def test_a_schema_argument_sets_their_types(write_file: WriteFile, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    schema = pa.schema([("day", pa.date32()), ("n", pa.int64())])
    source = ParquetDirectorySource(tmp_path / "data", schema=schema)
    write_file("day=2024-01-31/a.parquet", pa.table({"n": [1]}))
    ((row),) = rows_of(source)
    assert (str(row["day"]), list(row)) == ("2024-01-31", ["day", "n"])
    without = ParquetDirectorySource(tmp_path / "data", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(InvalidUseError, match="day is 'day: string', expected 'nothing'"):
        without.discover(lambda _: True)


# -- which files count ---------------------------------------------------------------------------------------------


def test_every_file_counts_whatever_its_suffix_but_hidden_ones(write_file: WriteFile, tmp_path: Path) -> None:
    for name in ("plain", "a.parq", "b.snappy.parquet", "_k=1/c.parquet"):
        write_file(name, pa.table({"n": [1], **({"_k": [1]} if "=" not in name else {})}))
    for name in ("_SUCCESS", ".a.parquet.crc", "_temporary/x.parquet", ".x/y.parquet", "d._COPYING_", "e.parquet.tmp"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no rows")
    assert read_all(ParquetSource(tmp_path / "data")).num_rows == 4


def test_a_file_of_another_kind_is_named_with_what_to_do(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", pa.table({"n": [1]}))
    watched = ParquetDirectorySource(tmp_path / "data")
    stranger = tmp_path / "data" / "notes.txt"
    stranger.write_text("hello")
    for make in (lambda: ParquetSource(tmp_path / "data"), lambda: watched.discover(lambda _: True)):
        with pytest.raises(CorruptDataError, match=r"no Parquet file: move it elsewhere, or let its name begin with _") as caught:
            make()
        assert caught.value.path == str(stranger)
