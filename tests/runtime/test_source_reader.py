"""A subtask's share of a source: nothing is read twice or never, wherever it is cut and however it is cut anew."""

from __future__ import annotations

import json
import pickle
import pickletools
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_jobs import GatedSource, events, rows_of

from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.runtime.source import SourceReader, compress, expand, floors
from tidegate.runtime.splits import SplitList
from tidegate.state.run import Frozen, Restored
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME

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
def test_any_row_of_checkpoints_at_any_parallelism_reads_every_row_once(splits: int, widths: list[tuple[int, list[int]]]) -> None:
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


def test_a_split_that_was_resumed_and_read_to_its_end_is_not_begun_any_more() -> None:
    source = GatedSource(TABLE, splits=5, rows_per_poll=7)
    (first,) = readers(source, 1)
    read(first, polls=1)
    (second,) = readers(source, 1, [first.freeze()])
    begun: Any = second.freeze().meta["begun"]
    assert [index for index, _, _ in begun] == [0]
    read(second)
    assert second.freeze().meta["begun"] == []


def test_more_subtasks_than_splits() -> None:
    gang = readers(GatedSource(TABLE, splits=2), 5)
    assert [reader.finished for reader in gang] == [False, False, True, True, True]
    assert sorted(row for reader in gang for row in read(reader)) == rows_of(TABLE)


def test_the_digest_depends_on_order_and_names() -> None:
    a, b = Split("a"), Split("b")
    assert len({SplitList.of(each).digest for each in ([a, b], [b, a], [a], [])}) == 4


# -- very many splits --------------------------------------------------------------------------------------------------

MANY = [Split(f"{number}*a/file-{number}.parquet#1", number * 10, 7) for number in range(50_000)]


def test_a_list_in_columns_is_the_list() -> None:
    few = [Split("a", None, 3), Split("b", -(1 << 63), None), Split("ü", (1 << 63) - 1, 0)]
    found = SplitList.of(few)
    assert list(found) == few and [found[0], found[-1], *found[1:2]] == [few[0], few[-1], few[1]] and len(found) == 3
    assert found.lowest([2, 0]) == [(1 << 63) - 1, None]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == few and again.digest == found.digest and SplitList.of(again) is again
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize("wrong", [("a", 1 << 63), ("a", None, "7"), (7,)])
def test_a_split_of_the_wrong_types_is_refused_before_it_is_shipped(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidUseError, match="64 bits"):
        SplitList.of([Split(*wrong)])


def test_very_many_splits_are_shipped_as_columns_and_not_as_objects() -> None:
    steps = pickletools.genops(pickle.dumps(SplitList.of(MANY), protocol=5))
    assert sum(1 for _ in steps) < 1_000


def test_freezing_takes_neither_longer_nor_more_memory_when_there_are_very_many_splits() -> None:
    few, many = (_cost_of_freezing(MANY[:count]) for count in (500, 50_000))
    assert many[0] == few[0], "as many lines run"
    assert many[1] < 10_000 and few[1] < 10_000, "and nothing is copied"


def _cost_of_freezing(splits: Sequence[Split]) -> tuple[int, int]:
    """Lines run and bytes allocated at most by a checkpoint of a subtask that goes on where others were."""
    source = GatedSource(TABLE, splits=1)
    before = [SourceReader("s", source, splits, n, 2) for n in range(2)]
    before[0]._next, before[1]._next = 40, 90
    frozen = [Restored(n, dict(each.freeze().meta)) for n, each in enumerate(before)]
    frozen[1].meta["begun"] = [[181, 3, 5], [182, 1, 2]]
    reader = SourceReader("s", source, splits, 0, 3)
    reader.restore(frozen)
    return _lines_of(reader.freeze), _peak_of(reader.freeze)


def _lines_of(action: Callable[[], object]) -> int:
    lines = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(former)
    return lines


def _peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.sets(st.integers(0, 200)))
def test_compressed_numbers_come_back(numbers: set[int]) -> None:
    ordered = sorted(numbers)
    assert expand(compress(ordered), 201) == ordered


def test_a_share_of_many_splits_is_one_triple() -> None:
    assert len(compress(range(3, 10_000, 7))) == 1


class Overlapping(GatedSource):
    """Splits that are all about the same time: every third row of the table is in the same one."""

    def splits(self) -> list[Split]:
        return [Split(str(number), number, self.table.num_rows // 3) for number in range(3)]

    def open(self, split: Split, offset: Offset) -> Strided:  # type: ignore[override]
        return Strided(self.table.column("ts").to_pylist()[int(split.id) :: 3], int(str(offset or 0)))


class Strided:
    def __init__(self, times: list[int], at: int) -> None:
        self._times, self.offset = times, at

    def poll(self, max_rows: int) -> Polled:
        times = self._times[self.offset : self.offset + max_rows]
        self.offset += len(times)
        batch = pa.RecordBatch.from_pydict({"ts": times})
        return Polled(batch, len(times), max(times), self.offset >= len(self._times))

    def close(self) -> None:
        return None


def test_splits_of_the_same_time_are_read_by_turns_where_rows_wait_for_the_watermark() -> None:
    table = pa.table({"ts": list(range(30))})
    source = Overlapping(table)
    reader = SourceReader("s", source, source.splits(), 0, 1, open_max=2)
    seen: list[list[int]] = []
    told = []
    while not reader.finished:
        seen.append(reader.poll(2).batch.column("ts").to_pylist())
        told.append(reader.watermark)
        again = SourceReader("s", source, source.splits(), 0, 1, open_max=2)
        again.restore([Restored(0, dict(reader.freeze().meta))])
        reader.close()
        reader = again
    assert sorted(time for times in seen for time in times) == list(range(30)), "each row once, wherever it was cut"
    assert seen[:4] == [[0, 3], [1, 4], [6, 9], [7, 10]], "two by turns, the third when one is done"
    assert told == sorted(told)
