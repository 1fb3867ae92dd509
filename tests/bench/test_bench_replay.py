"""Reading files several times over: a source like any other, with event times that go on and on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.bench.data import DataSpec, ensure
from tidegate.bench.replay import ReplaySource
from tidegate.connectors.parquet_source import ParquetSource
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Split
from tidegate.testing.connectors import check_source

SPEC = DataSpec("s", 3_000, 10, rows_per_second=1_000, rows_per_file=2_000, rows_per_group=700)
SPAN = 10_000


@pytest.fixture
def source(tmp_path: Path) -> ReplaySource:
    files = ParquetSource(ensure(SPEC, tmp_path), event_time="ts", out_of_orderness="2s")
    return ReplaySource(files, 3, SPAN)


def read(source: ReplaySource, split: Split) -> pa.Table:
    reader = source.open(split, None)
    batches = []
    while not (polled := reader.poll(500)).finished or polled.batch is not None:
        batches += [polled.batch] if polled.batch is not None else []
        if polled.finished:
            break
    reader.close()
    return pa.Table.from_batches(batches, source.schema)


def test_it_keeps_the_contract_of_sources(source: ReplaySource) -> None:
    check_source(source)


def test_every_reading_has_all_rows_at_its_own_time(source: ReplaySource) -> None:
    splits = source.splits()
    once = len(source.inner.splits())
    readings = [pa.concat_tables(read(source, split) for split in splits[n * once : (n + 1) * once]) for n in range(3)]
    assert [table.num_rows for table in readings] == [3_000] * 3
    for number, table in enumerate(readings):
        assert pc.subtract(table["ts"], number * SPAN).combine_chunks().equals(readings[0]["ts"].combine_chunks())
        assert table.drop_columns("ts").equals(readings[0].drop_columns("ts"))


def test_splits_come_in_the_order_of_event_time_with_different_names(source: ReplaySource) -> None:
    splits = source.splits()
    lowest = [split.lowest for split in splits]
    assert lowest == sorted(lowest, key=lambda value: value or 0)
    assert len({split.id for split in splits}) == len(splits)


def test_the_highest_event_time_moves_along(source: ReplaySource) -> None:
    last = source.splits()[-1]
    polled = source.open(last, None).poll(10_000)
    assert polled.highest == pc.max(polled.batch["ts"]).as_py()
    assert polled.highest > 2 * SPAN


def test_push_down_reaches_the_files(source: ReplaySource) -> None:
    narrow = source.with_columns(["ts", "key"]).with_filter(pc.field("kind") != 0)
    assert narrow.schema.names == ["ts", "key"]
    last = narrow.splits()[-1]
    polled = narrow.open(last, None).poll(10_000)
    assert polled.rows == last.rows
    assert 0 < polled.batch.num_rows < polled.rows
    assert pc.min(polled.batch["ts"]).as_py() >= 2 * SPAN


def test_a_foreign_split_and_senseless_numbers_are_refused(source: ReplaySource) -> None:
    with pytest.raises(InvalidUseError, match="no split of a replayed source"):
        source.open(Split("part-00000.parquet#0@x"), None)
    with pytest.raises(InvalidUseError, match="positive"):
        ReplaySource(source.inner, 0, SPAN)
