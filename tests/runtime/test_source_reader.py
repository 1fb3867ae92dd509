"""A subtask's share of a source: nothing is read twice or never, wherever it is cut and however it is cut anew."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_jobs import GatedSource, events, rows_of

from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Split
from tidegate.runtime.operator import Frozen, Restored
from tidegate.runtime.source import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    SourceReader,
    compress,
    digest,
    expand,
    floors,
)

TABLE = events(120)


def readers(source: GatedSource, parallelism: int, frozen: Sequence[Frozen] = ()) -> list[SourceReader]:
    made = [SourceReader("s", source, source.splits(), n, parallelism) for n in range(parallelism)]
    pieces = [Restored(n, json.loads(json.dumps(one.meta))) for n, one in enumerate(frozen)]
    for reader in made:
        if pieces:
            reader.restore(pieces)
    return made


def read(reader: SourceReader, polls: int = 10_000, rows: int = 7) -> list[tuple[int, ...]]:
    found = []
    for _ in range(polls):
        polled = reader.poll(rows)
        if polled.batch is not None:
            found += rows_of(pa.Table.from_batches([polled.batch]))
        if polled.finished:
            break
    return found


@pytest.mark.parametrize("polls", range(0, 40, 3))
def test_resumes_at_every_point(polls: int) -> None:
    source = GatedSource(TABLE, splits=5)
    (first,) = readers(source, 1)
    before = read(first, polls)
    (second,) = readers(source, 1, [first.freeze()])
    assert sorted(before + read(second)) == rows_of(TABLE)


@settings(max_examples=150, deadline=None)
@given(
    splits=st.integers(1, 9),
    widths=st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=5, max_size=5)), max_size=5),
)
def test_any_row_of_checkpoints_at_any_parallelism_reads_every_row_once(
    splits: int, widths: list[tuple[int, list[int]]]
) -> None:
    source = GatedSource(TABLE, splits=splits)
    frozen: list[Frozen] = []
    found = []
    for parallelism, polls in [*widths, (2, [10_000] * 5)]:
        gang = readers(source, parallelism, frozen)
        for reader, count in zip(gang, polls, strict=False):
            found += read(reader, count)
        frozen = [reader.freeze() for reader in gang]
        assert sum(reader.rows for reader in gang) == len(found)
    assert sorted(found) == rows_of(TABLE)


def test_a_split_that_was_under_way_elsewhere_keeps_its_offset_through_the_next_checkpoint() -> None:
    source = GatedSource(TABLE, splits=2)
    two = readers(source, 2)
    found = read(two[0], 2) + read(two[1], 2)
    (one,) = readers(source, 1, [reader.freeze() for reader in two])
    found += read(one, 1)
    (again,) = readers(source, 1, [one.freeze()])
    assert sorted(found + read(again)) == rows_of(TABLE)


def test_the_watermark_is_the_minimum_over_unfinished_splits() -> None:
    table = pa.table({"ts": pa.array([0, 10, 50, 60, 20, 30], pa.int64())})
    source = GatedSource(table, splits=3, rows_per_poll=1)
    (reader,) = readers(source, 1)
    assert reader.watermark == 0
    seen = []
    while not reader.poll(1).finished:
        seen.append(reader.watermark)
    # Split 2 begins at 20: while it is unread, nothing beyond 20 may be promised.
    assert seen == [0, 20, 20, 20, 20]
    assert reader.watermark == END_OF_TIME


def test_the_watermark_never_promises_a_row_away() -> None:
    source = GatedSource(TABLE, splits=5, rows_per_poll=7)
    for reader in readers(source, 3):
        while True:
            promised = reader.watermark
            polled = reader.poll(7)
            if polled.batch is not None:
                assert min(polled.batch.column("ts").to_pylist()) >= promised
            if polled.finished:
                break


def test_the_watermark_goes_on_after_a_restore_where_it_was() -> None:
    source = GatedSource(TABLE, splits=2)
    (reader,) = readers(source, 1)
    read(reader, 3)
    (again,) = readers(source, 1, [reader.freeze()])
    assert again.watermark == reader.watermark > 0


def test_a_split_without_a_known_beginning_holds_the_watermark_back() -> None:
    assert floors([5, None, 9]) == [BEGINNING_OF_TIME, BEGINNING_OF_TIME, 9, END_OF_TIME]


@pytest.mark.parametrize("other", [GatedSource(TABLE, splits=4), GatedSource(events(121), splits=5)])
def test_changed_input_is_refused(other: GatedSource) -> None:
    (reader,) = readers(GatedSource(TABLE, splits=5), 1)
    with pytest.raises(InvalidUseError, match="put them back, or start with restore='none'"):
        readers(other, 1, [reader.freeze()])


def test_a_drained_source_is_finished_and_its_cut_is_exact() -> None:
    source = GatedSource(TABLE, splits=3)
    (reader,) = readers(source, 1)
    before = read(reader, 4)
    reader.drain()
    assert reader.poll(10).finished and reader.watermark == END_OF_TIME
    (again,) = readers(source, 1, [reader.freeze()])
    assert sorted(before + read(again)) == rows_of(TABLE)


def test_more_subtasks_than_splits() -> None:
    gang = readers(GatedSource(TABLE, splits=2), 5)
    assert [reader.finished for reader in gang] == [False, False, True, True, True]
    assert sorted(row for reader in gang for row in read(reader)) == rows_of(TABLE)


def test_the_digest_depends_on_order_and_names() -> None:
    a, b = Split("a"), Split("b")
    assert len({digest([a, b]), digest([b, a]), digest([a]), digest([])}) == 4


@given(st.sets(st.integers(0, 200)))
def test_compressed_numbers_come_back(numbers: set[int]) -> None:
    ordered = sorted(numbers)
    assert expand(compress(ordered), 201) == ordered


def test_a_share_of_many_splits_is_one_triple() -> None:
    assert len(compress(range(3, 10_000, 7))) == 1
