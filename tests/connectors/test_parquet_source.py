from __future__ import annotations

import os
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_samples import events

from tidegate.connectors.parquet import ParquetSource
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Polled, Source, Split
from tidegate.testing.connectors import check_source

WriteFile = Callable[..., Path]

KIND_IS_1 = pc.field("kind") == 1


def check(source: ParquetSource, poll_rows: int = 257) -> None:
    check_source(source, poll_rows=poll_rows, to_node=lambda source: pickle.loads(pickle.dumps(source)))


def read(source: ParquetSource, split: Split, poll_rows: int, offset: int | None = None) -> list[Polled]:
    reader = source.open(split, offset)
    polls = []
    while not polls or not polls[-1].finished:
        polls.append(reader.poll(poll_rows))
    assert reader.offset == split.rows
    reader.close()
    return polls


def read_all(source: ParquetSource, poll_rows: int = 1000) -> pa.Table:
    polls = [polled for split in source.splits() for polled in read(source, split, poll_rows)]
    return pa.Table.from_batches([polled.batch for polled in polls], source.schema)


@pytest.fixture
def source(write_file: WriteFile, tmp_path: Path) -> ParquetSource:
    write_file("b.parquet", events(1000, 500), row_group_size=200)
    write_file("a.parquet", events(0, 300), row_group_size=100)
    return ParquetSource(tmp_path / "data", event_time="ts", out_of_orderness="2s")


def test_it_keeps_the_contract(source: ParquetSource) -> None:
    check(source)
    check(source.with_columns(["value", "key"]))
    check(source.with_filter(KIND_IS_1), poll_rows=37)
    check(source.with_filter(pc.field("key") > 100), poll_rows=37)


def test_it_is_a_source(source: ParquetSource) -> None:
    assert isinstance(source, Source)
    assert source.event_time == "ts"
    assert source.out_of_orderness == 2000
    assert source.bounded
    assert source.schema.names == ["ts", "key", "value", "kind", "name"]


def test_splits_are_row_groups_in_the_order_of_event_time(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("z.parquet", events(0, 20), row_group_size=10)
    write_file("deep/a.parquet", events(10, 10), row_group_size=10)
    splits = ParquetSource(tmp_path / "data", event_time="ts").splits()
    assert [split.id.partition("@")[0] for split in splits] == [
        "z.parquet#0",
        "deep/a.parquet#0",
        "z.parquet#1",
    ]
    assert [split.lowest for split in splits] == [-37, 63, 63]
    assert [split.rows for split in splits] == [10, 10, 10]


def test_without_an_event_time_splits_come_by_name_and_row_group(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("b.parquet", events(0, 12), row_group_size=1)
    write_file("a.parquet", events(50, 1))
    source = ParquetSource(tmp_path / "data")
    names = [split.id.partition("@")[0] for split in source.splits()]
    assert names == ["a.parquet#0", *(f"b.parquet#{number}" for number in range(12))]
    assert read(source, source.splits()[0], 5)[0].highest is None
    check(source)


def test_without_statistics_the_lowest_event_time_is_unknown(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", events(0, 10))
    write_file("b.parquet", events(0, 10), write_statistics=False)
    source = ParquetSource(tmp_path / "data", event_time="ts")
    assert [(split.id[0], split.lowest) for split in source.splits()] == [("b", None), ("a", -37)]
    check(source.with_filter(pc.field("key") > 100))


def test_all_rows_come_once(source: ParquetSource) -> None:
    expected = pa.concat_tables([events(0, 300), events(1000, 500)])
    assert read_all(source, 77).drop_columns("value").equals(expected.drop_columns("value"))


def test_a_poll_may_ask_for_more_or_fewer_rows_than_the_one_before(source: ParquetSource) -> None:
    split = source.splits()[-3]
    reader = source.open(split, None)
    polls = [reader.poll(rows) for rows in (50, 7, 100, 1, 64, 500, 500, 500)]
    assert all(p.rows <= rows for p, rows in zip(polls, (50, 7, 100, 1, 64, 500, 500, 500), strict=True))
    times = [t for p in polls if p.batch for t in p.batch.column("ts").to_pylist()]
    assert times == events(1000, 200)["ts"].to_pylist()
    assert polls[-1] == Polled(None, finished=True)
    with pytest.raises(InvalidUseError, match="max_rows=0"):
        source.open(split, None).poll(0)


@settings(max_examples=60, deadline=None)
@given(offset=st.integers(0, 200), first=st.integers(1, 250), other=st.integers(1, 250), filtered=st.booleans())
def test_resuming_at_any_offset_returns_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, offset: int, first: int, other: int, filtered: bool
) -> None:
    source = shared_source(tmp_path_factory)
    source = source.with_filter(KIND_IS_1) if filtered else source
    split = source.splits()[0]
    whole = pa.Table.from_batches([p.batch for p in read(source, split, first)], source.schema)
    polls = read(source, split, other, offset)
    rest = pa.Table.from_batches([p.batch for p in polls if p.batch], source.schema)
    expected = whole.filter(pc.field("row") >= offset)
    assert rest.equals(expected)
    assert sum(p.rows for p in polls) == 200 - offset


_shared: list[ParquetSource] = []


def shared_source(tmp_path_factory: pytest.TempPathFactory) -> ParquetSource:
    if not _shared:
        path = tmp_path_factory.mktemp("shared") / "a.parquet"
        table = events(0, 200).drop_columns("value").append_column("row", pa.array(range(200)))
        pa.parquet.write_table(table, path)
        _shared.append(ParquetSource(path, event_time="ts"))
    return _shared[0]


# -- push-down -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        KIND_IS_1,
        pc.field("key") > 100,
        pc.field("ts") >= 10_000,
        pc.field("ts") < 1_500,
        pc.field("value") != 3.0,
        pc.field("name").is_null(),
        pc.scalar(False),
    ],
)
def test_a_filter_changes_neither_offsets_nor_event_times(source: ParquetSource, expression: pc.Expression) -> None:
    filtered = source.with_filter(expression)
    assert filtered.splits() == source.splits()
    for split in source.splits():
        plain, pushed = read(source, split, 64), read(filtered, split, 64)
        assert [p.rows for p in pushed] == [p.rows for p in plain]
        assert [p.finished for p in pushed] == [p.finished for p in plain]
        assert max(p.highest for p in pushed if p.highest is not None) == max(p.highest for p in plain if p.highest is not None)
        expected = pa.Table.from_batches([p.batch for p in plain]).filter(expression)
        got = pa.Table.from_batches([p.batch for p in pushed])
        assert repr(got.to_pydict()) == repr(expected.to_pydict())


def test_a_batch_of_which_nothing_passes_is_empty_and_not_missing(source: ParquetSource) -> None:
    polled = source.with_filter(pc.field("name") == "nobody").open(source.splits()[0], None).poll(10)
    assert polled.batch is not None
    assert (polled.batch.num_rows, polled.rows, polled.batch.schema) == (0, 10, source.schema)


def test_a_row_group_that_statistics_rule_out_is_not_read(source: ParquetSource, tmp_path: Path) -> None:
    filtered = source.with_filter(pc.field("key") > 100)
    split = filtered.splits()[0]
    damage(tmp_path / "data" / "a.parquet")
    polls = read(filtered, split, 30)
    assert [p.rows for p in polls] == [30, 30, 30, 10]
    assert [p.highest for p in polls] == [None, None, None, 990]
    assert read(filtered, split, 1000, 95)[0] == Polled(polls[0].batch, 5, 990, True)
    with pytest.raises(CorruptDataError):
        read(source, split, 30)


def test_a_row_group_is_read_for_its_event_times_where_statistics_lack_them(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", events(0, 100), write_statistics=["key"])
    source = ParquetSource(tmp_path / "data", event_time="ts").with_filter(pc.field("key") > 100)
    polls = read(source, source.splits()[0], 50)
    assert [(p.rows, p.highest) for p in polls] == [(50, 490), (50, 990)]


def test_rows_that_are_not_a_number_pass_a_filter_although_statistics_leave_them_out(
    write_file: WriteFile, tmp_path: Path
) -> None:
    write_file("a.parquet", pa.table({"v": [5.0, float("nan"), 5.0]}))
    assert read_all(ParquetSource(tmp_path / "data").with_filter(pc.field("v") != 5.0)).num_rows == 1


def test_filters_add_up_and_may_use_columns_that_are_not_emitted(source: ParquetSource) -> None:
    pushed = source.with_columns(["key"]).with_filter(KIND_IS_1).with_filter(pc.field("ts") > 500)
    assert pushed.schema.names == ["key"]
    assert pushed.event_time == "ts"
    assert read_all(pushed).equals(read_all(source).filter(KIND_IS_1 & (pc.field("ts") > 500)).select(["key"]))
    highest = [p.highest for p in read(pushed, pushed.splits()[0], 1000)]
    assert highest == [990]


def test_columns_come_in_the_order_asked_for(source: ParquetSource) -> None:
    pushed = source.with_columns(["kind", "ts"])
    assert read_all(pushed).schema.names == ["kind", "ts"]


def test_one_column_stays_when_none_is_asked_for(source: ParquetSource, tmp_path: Path) -> None:
    assert read_all(source.with_columns([])).equals(read_all(source).select(["ts"]))
    assert ParquetSource(tmp_path / "data").with_columns([]).schema.names == ["ts"]


def test_wrong_push_down_is_refused(source: ParquetSource) -> None:
    with pytest.raises(InvalidUseError, match="no column 'valu', did you mean 'value'"):
        source.with_columns(["valu"])
    with pytest.raises(InvalidUseError, match="different columns"):
        source.with_columns(["key", "key"])
    with pytest.raises(InvalidUseError, match="true or false"):
        source.with_filter(pc.field("key") + 1)
    with pytest.raises(InvalidUseError, match="no column 'nope'"):
        source.with_filter(pc.field("nope") > 1)


# -- event times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "per_second"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_are_in_the_columns_unit(
    write_file: WriteFile, tmp_path: Path, unit: str, per_second: int, zone: str | None
) -> None:
    times = pa.array([5 * per_second + 1, 3 * per_second, 4 * per_second], pa.timestamp(unit, zone))
    write_file("a.parquet", pa.table({"ts": times}))
    source = ParquetSource(tmp_path / "data", event_time="ts", out_of_orderness="200ms")
    assert source.out_of_orderness == per_second // 5
    assert source.splits()[0].lowest == 3 * per_second
    assert source.open(source.splits()[0], None).poll(10).highest == 5 * per_second + 1
    check(source)


def test_a_null_event_time_is_refused_from_the_statistics(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", pa.table({"ts": pa.array([1, None], pa.int64())}))
    with pytest.raises(InvalidUseError, match=r"must not be null.*a\.parquet"):
        ParquetSource(tmp_path / "data", event_time="ts")


def test_a_null_event_time_is_refused_when_it_is_read(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", pa.table({"ts": pa.array([1, None], pa.int64())}), write_statistics=False)
    source = ParquetSource(tmp_path / "data", event_time="ts")
    with pytest.raises(InvalidUseError, match=r"must not be null.*column=ts.*a\.parquet"):
        source.open(source.splits()[0], None).poll(10)


def test_a_wrong_event_time_column_is_refused(source: ParquetSource, tmp_path: Path) -> None:
    with pytest.raises(InvalidUseError, match="no column 'tss', did you mean 'ts'"):
        ParquetSource(tmp_path / "data", event_time="tss")
    with pytest.raises(InvalidUseError, match=r"must be int64 .* column=value type=double"):
        ParquetSource(tmp_path / "data", event_time="value")
    with pytest.raises(InvalidUseError, match="needs an event_time"):
        ParquetSource(tmp_path / "data", out_of_orderness="2s")
    with pytest.raises(InvalidUseError, match="out_of_orderness"):
        ParquetSource(tmp_path / "data", event_time="ts", out_of_orderness="two")


# -- files -----------------------------------------------------------------------------------------


def test_hidden_names_are_left_out(write_file: WriteFile, tmp_path: Path) -> None:
    for name in (
        "a.parquet",
        "_b.parquet",
        ".c.parquet",
        "_pending/d.parquet",
        ".x/e.parquet",
        "deep/f.parquet",
    ):
        write_file(name, events(0, 3))
    names = [split.id.partition("#")[0] for split in ParquetSource(tmp_path / "data").splits()]
    assert names == ["a.parquet", "deep/f.parquet"]


def test_a_file_a_list_and_a_url_are_paths_too(write_file: WriteFile, tmp_path: Path) -> None:
    a, b = write_file("a#1@x.parquet", events(0, 3)), write_file("b.parquet", events(5, 3))
    one = ParquetSource(a)
    assert [split.id.rpartition("@")[0] for split in one.splits()] == ["a#1@x.parquet#0"]
    assert read_all(ParquetSource([a, str(b)])).num_rows == 6
    assert read_all(ParquetSource(f"file://{b}")).num_rows == 3
    check(one)


def test_a_url_of_sparks_own_kind_is_no_relative_path(write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file("a.parquet", events(0, 3))
    assert ParquetSource(f"file:{path}").path == ParquetSource(path).path


def test_relative_paths_work_from_another_directory(
    write_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file("a.parquet", events(0, 3))
    monkeypatch.chdir(tmp_path)
    source = ParquetSource("data")
    monkeypatch.chdir("/")
    assert read_all(pickle.loads(pickle.dumps(source))).num_rows == 3


def test_files_with_other_columns_are_named(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", pa.table({"k": [1], "v": [2.0]}))
    write_file("b.parquet", pa.table({"k": [1], "v": [2]}))
    with pytest.raises(InvalidUseError, match=r"v: int64.*expected.*v: double.*b\.parquet"):
        ParquetSource(tmp_path / "data")


def test_dictionary_columns_come_as_plain_values(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", pa.table({"s": pa.array(["x", "y", "x"]).dictionary_encode(), "k": [1, 2, 3]}))
    source = ParquetSource(tmp_path / "data").with_filter(pc.field("s") == "x")
    assert source.schema.field("s").type == pa.string()
    assert read_all(source).to_pydict() == {"s": ["x", "x"], "k": [1, 3]}
    check(source)


def test_views_come_as_plain_values(write_file: WriteFile, tmp_path: Path) -> None:
    views = pa.table({"s": pa.array(["x", None, "z"], pa.string_view()), "b": pa.array([b"x", b"", None], pa.binary_view())})
    write_file("a.parquet", views)
    source = ParquetSource(tmp_path / "data")
    assert source.schema.types == [pa.string(), pa.binary()]
    assert read_all(source).to_pydict() == views.to_pydict()


def test_files_may_differ_in_the_order_of_columns_and_in_whether_they_may_be_null(write_file: WriteFile, tmp_path: Path) -> None:
    never_null = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    write_file("a.parquet", pa.table({"k": [1], "v": [2]}, schema=never_null))
    write_file("b.parquet", pa.table({"v": [20, 30], "k": pa.array([10, None], pa.int64())}))
    source = ParquetSource(tmp_path / "data")
    assert source.schema == pa.schema([("k", pa.int64()), ("v", pa.int64())])
    assert read_all(source).to_pydict() == {"k": [1, 10, None], "v": [2, 20, 30]}
    check(source)


def test_a_source_of_many_row_groups_is_shipped_as_columns(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", events(0, 2_000), row_group_size=1)
    source = ParquetSource(tmp_path / "data", event_time="ts")
    data = pickle.dumps(source)
    assert len(source.splits()) == 2_000 and sum(1 for _ in pickletools.genops(data)) < 1_000
    assert list(pickle.loads(data).splits()) == list(source.splits())


def test_row_groups_without_rows_are_no_splits(write_file: WriteFile, tmp_path: Path) -> None:
    write_file("a.parquet", events(0, 0))
    source = ParquetSource(tmp_path / "data", event_time="ts")
    assert list(source.splits()) == []
    assert source.schema.names == events(0, 0).schema.names


@pytest.mark.parametrize("bad", ["s3://bucket/x", "file://other-host/x", "", 7, []])
def test_a_path_that_is_not_local_is_refused(bad: object) -> None:
    with pytest.raises(InvalidUseError, match="path"):
        ParquetSource(bad)  # type: ignore[arg-type]


def test_nothing_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidUseError, match="no Parquet file here"):
        ParquetSource(tmp_path / "empty")
    with pytest.raises(InvalidUseError, match="no such file or directory"):
        ParquetSource(tmp_path / "nowhere")


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"these bytes are no Parquet file")
    with pytest.raises(CorruptDataError, match=r"a\.parquet") as caught:
        ParquetSource(tmp_path)
    assert caught.value.path == str(tmp_path / "a.parquet")


def test_a_changed_file_is_refused_on_resume(write_file: WriteFile, tmp_path: Path) -> None:
    options = {"compression": "none", "use_dictionary": False}
    path = write_file("a.parquet", events(100, 100).select(["ts"]), **options)
    source = ParquetSource(tmp_path / "data", event_time="ts")
    split = source.splits()[0]
    size = path.stat().st_size
    write_file("a.parquet", events(101, 100).select(["ts"]), **options)
    assert path.stat().st_size == size
    with pytest.raises(InvalidUseError, match=r"was changed .*a\.parquet"):
        source.open(split, 50)
    assert ParquetSource(tmp_path / "data", event_time="ts").splits()[0].id != split.id


def test_a_damaged_page_is_reported_with_the_file(write_file: WriteFile, tmp_path: Path) -> None:
    path = write_file("a.parquet", events(0, 5000))
    source = ParquetSource(tmp_path / "data", event_time="ts")
    damage(path)
    with pytest.raises(CorruptDataError) as caught:
        read_all(source)
    assert caught.value.path == str(path)


def test_a_file_that_is_gone_is_reported(source: ParquetSource, tmp_path: Path) -> None:
    os.unlink(tmp_path / "data" / "a.parquet")
    with pytest.raises(InvalidUseError, match=r"no such file.*a\.parquet"):
        source.open(source.splits()[0], None)


@pytest.mark.parametrize("offset", [-1, 101, True, "5", 1.5])
def test_an_offset_outside_the_split_is_refused(source: ParquetSource, offset: object) -> None:
    with pytest.raises(InvalidUseError, match="offset is not within the split"):
        source.open(source.splits()[0], offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("split_id", ["x", "../up.parquet#0@1", "/a.parquet#0@1", "a.parquet#x@1"])
def test_a_foreign_split_is_refused(source: ParquetSource, split_id: str) -> None:
    with pytest.raises(InvalidUseError, match="no split of a Parquet source"):
        source.open(Split(split_id), None)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for index in range(4, 400):
        data[index] ^= 0x5A
    path.write_bytes(data)
