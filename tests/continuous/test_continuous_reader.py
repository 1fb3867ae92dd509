"""Sources without end: turns, new splits, idleness, and going on from a checkpoint at another parallelism."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.generate import GenerateSource
from tidegate.connectors.parquet import ParquetDirectorySource
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Source
from tidegate.runtime.continuous import SEAL_MARKS, ContinuousReader, mark, marks, sealed_marks
from tidegate.state.run import Restored, Run
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME, Json

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def put(folder: Path, name: str, *times: int, group: int = 100) -> None:
    """A file that appears whole."""
    table = pa.table({"ts": list(times), "n": list(times)}, schema=SCHEMA)
    pq.write_table(table, folder / f"_{name}", row_group_size=group)
    os.rename(folder / f"_{name}", folder / name)


def watched(folder: Path, **options: object) -> ParquetDirectorySource:
    return ParquetDirectorySource(folder, event_time="ts", schema=SCHEMA, **options)  # type: ignore[arg-type]


def reader(source: Source, clock: Callable[[], int], subtask: int = 0, parallelism: int = 1) -> ContinuousReader:
    return ContinuousReader("in", source, source.splits(), subtask, parallelism, clock)


def read(reader: ContinuousReader, polls: int = 20, max_rows: int = 1000) -> list[int]:
    values: list[int] = []
    for _ in range(polls):
        batch = reader.poll(max_rows).batch
        if batch is not None:
            values += batch.column("n" if "n" in batch.schema.names else "ts").to_pylist()
    return values


def states(*readers: ContinuousReader) -> list[Restored]:
    frozen = [each.freeze() for each in readers]
    return [Restored(number, dict(each.meta), each.runs) for number, each in enumerate(frozen)]


def test_files_are_read_in_the_order_of_their_names_and_new_ones_later(folder: Path, clock: Clock) -> None:
    put(folder, "b.parquet", 3, 4)
    put(folder, "a.parquet", 1, 2)
    source = reader(watched(folder), clock)
    assert read(source) == [1, 2, 3, 4]
    put(folder, "c.parquet", 5)
    assert read(source) == [], "listings are no more frequent than they should be"
    clock.now += 1_000
    assert read(source) == [5]
    assert source.rows == 5 and not source.finished


def test_names_that_are_pending_are_left_alone(folder: Path, clock: Clock) -> None:
    put(folder, "a.parquet", 1)
    (folder / "_b.parquet").write_bytes(b"half a file")
    (folder / ".c.parquet").write_bytes(b"half a file")
    assert read(reader(watched(folder), clock)) == [1]


@pytest.mark.parametrize("rows", range(1, 12))
def test_reading_goes_on_at_every_point(folder: Path, clock: Clock, rows: int) -> None:
    put(folder, "a.parquet", *range(5), group=2)
    put(folder, "b.parquet", *range(5, 12), group=3)
    first = reader(watched(folder), clock)
    before: list[int] = []
    while len(before) < rows:
        before += read(first, polls=1, max_rows=1)
    second = reader(watched(folder), clock)
    second.restore(states(first))
    first.close()
    assert before + read(second) == list(range(12))
    assert second.rows == 12


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (2, 5)])
def test_another_parallelism_reads_what_is_left_once(folder: Path, clock: Clock, old: int, new: int) -> None:
    for number in range(12):
        put(folder, f"{number:02d}.parquet", *range(number * 10, number * 10 + 10), group=4)
    before = [reader(watched(folder), clock, subtask, old) for subtask in range(old)]
    seen = [value for each in before for value in read(each, polls=9, max_rows=3)]
    assert 0 < len(seen) < 120
    after = [reader(watched(folder), clock, subtask, new) for subtask in range(new)]
    for each in after:
        each.restore(states(*before))
    seen += [value for each in after for value in read(each, polls=100)]
    assert sorted(seen) == list(range(120))
    assert sum(each.rows for each in after) == 120


def test_a_checkpoint_right_after_a_restore_loses_nothing(folder: Path, clock: Clock) -> None:
    put(folder, "a.parquet", 1, 2, 3)
    put(folder, "b.parquet", 4)
    first = reader(watched(folder), clock)
    assert read(first, polls=1, max_rows=2) == [1, 2]
    second = reader(watched(folder), clock)
    second.restore(states(first))
    third = reader(watched(folder), clock)
    third.restore(states(second))
    assert read(third) == [3, 4]


def test_a_file_that_changed_or_went_in_the_middle_is_refused(folder: Path, clock: Clock) -> None:
    put(folder, "a.parquet", 1, 2, 3)
    first = reader(watched(folder), clock)
    read(first, polls=1, max_rows=1)
    second = reader(watched(folder), clock)
    second.restore(states(first))
    put(folder, "a.parquet", 7, 8, 9, 10)
    with pytest.raises(InvalidUseError, match="changed while it was being read"):
        second.poll(10)
    (folder / "a.parquet").unlink()
    third = reader(watched(folder), clock)
    third.restore(states(first))
    with pytest.raises(InvalidUseError, match=r"no longer there.*a\.parquet"):
        third.poll(10)


def test_the_watermark_waits_for_files_that_are_known_and_then_stays(folder: Path, clock: Clock) -> None:
    put(folder, "a.parquet", 100, 200)
    put(folder, "b.parquet", 150, 300)
    source = reader(watched(folder, out_of_orderness="10ms"), clock)
    assert source.watermark == BEGINNING_OF_TIME
    read(source, polls=1)
    assert source.watermark == 150
    read(source)
    assert source.watermark == 290
    put(folder, "c.parquet", 50)
    clock.now += 1_000
    assert read(source) == [50]
    assert source.watermark == 290


def test_a_subtask_is_idle_when_nothing_came_for_a_while(folder: Path, clock: Clock) -> None:
    source = reader(watched(folder, idle_timeout="2s"), clock)
    source.poll(10)
    assert not source.idle
    clock.now += 2_000
    assert source.idle
    put(folder, "a.parquet", 1)
    assert read(source) == [1]
    assert not source.idle


def test_all_lanes_of_an_endless_source_are_read_and_count_for_the_watermark(clock: Clock) -> None:
    source = GenerateSource(splits=3, out_of_orderness="0s")
    reading = reader(source, clock)
    rows = [reading.poll(5).batch for _ in range(6)]
    assert all(batch is not None for batch in rows)
    assert len({batch.column("ts")[0].as_py() for batch in rows[:3] if batch is not None}) >= 1
    opened = reading.freeze().meta["open"]
    assert isinstance(opened, dict) and len(opened) == 3
    lows = [place[1] for place in opened.values()]  # type: ignore[index]
    assert reading.watermark == min(lows)  # type: ignore[type-var]


def test_lanes_that_had_no_turn_because_there_was_no_room_hold_the_watermark_back(clock: Clock) -> None:
    reading = reader(GenerateSource(splits=3, out_of_orderness="0s"), clock)
    for _ in range(6):
        reading.poll(5)
    clock.now += 60_000
    reading.poll(500)
    lows = [place[1] for place in open_splits(reading).values()]  # type: ignore[index]
    assert reading.watermark == min(lows) < max(lows)  # type: ignore[type-var]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (3, 2)])
def test_lanes_are_dealt_out_evenly_and_move_to_another_parallelism(clock: Clock, old: int, new: int) -> None:
    source = GenerateSource(splits=6)
    before = [reader(source, clock, subtask, old) for subtask in range(old)]
    for each in before:
        read(each, polls=6, max_rows=7)
    expected = {key: place for each in before for key, place in open_splits(each).items()}
    after = [reader(source, clock, subtask, new) for subtask in range(new)]
    for each in after:
        each.restore(states(*before))
        each._take_new()
    assert [len(open_splits(each)) for each in after] == [6 // new] * new
    assert {key: place for each in after for key, place in open_splits(each).items()} == expected


def open_splits(reader: ContinuousReader) -> dict[str, Json]:
    opened = reader.freeze().meta["open"]
    assert isinstance(opened, dict)
    return opened


def test_an_endless_source_that_changed_is_refused(clock: Clock) -> None:
    first = reader(GenerateSource(splits=2), clock)
    read(first, polls=2, max_rows=2)
    second = reader(GenerateSource(splits=3), clock)
    with pytest.raises(InvalidUseError, match="is not what the checkpoint was reading"):
        second.restore(states(first))


def test_draining_ends_a_source_without_end(clock: Clock) -> None:
    source = reader(GenerateSource(splits=2), clock)
    source.drain()
    assert source.poll(10).finished and source.watermark == END_OF_TIME


# -- what was read to its end ------------------------------------------------------------------------------------------


def remembering(clock: Clock, count: int) -> ContinuousReader:
    source = reader(GenerateSource(splits=1), clock)
    for number in range(count):
        source._remember(mark(str(number)))
    return source


def done(meta: Mapping[str, Json]) -> int:
    return len(marks(meta["done"]))


def test_what_a_checkpoint_says_of_finished_splits_stays_small_however_many_there_are(clock: Clock) -> None:
    for count in (255, 256, 10_000, 100_000):
        frozen = remembering(clock, count).freeze()
        rows = [run.batch.num_rows for run in frozen.runs]
        assert done(frozen.meta) == count % SEAL_MARKS and sum(rows) == count - count % SEAL_MARKS
        assert rows == sorted(rows, reverse=True) and len(rows) <= count.bit_length() - 8
        sealed = {bytes(each) for each in sealed_marks(frozen.runs)}
        assert sealed | set(marks(frozen.meta["done"])) == {mark(str(number)) for number in range(count)}


def test_a_hash_is_stored_again_only_when_runs_grow_into_one(clock: Clock) -> None:
    source = remembering(clock, 0)
    stored: dict[int, int] = {}
    for number in range(64 * SEAL_MARKS):
        source._remember(mark(str(number)))
        if number % 100 == 0:  # a checkpoint
            stored |= {run.uid: run.batch.num_rows for run in source.freeze().runs}
    assert sum(stored.values()) <= 64 * SEAL_MARKS * 7


def test_freezing_does_not_change_what_was_frozen(clock: Clock) -> None:
    source = remembering(clock, SEAL_MARKS)
    (run,) = source.freeze().runs
    for number in range(SEAL_MARKS):
        source._remember(mark(f"more {number}"))
    assert run.batch.num_rows == SEAL_MARKS
    assert [each.batch.num_rows for each in source.freeze().runs] == [2 * SEAL_MARKS]


@pytest.mark.parametrize(("old", "new"), [(2, 2), (1, 3), (3, 1)])
def test_a_late_file_is_read_once_whatever_its_name_and_times(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    """Older than all that was read, and before it by name; and nothing that was read is read again."""
    monkeypatch.setattr("tidegate.runtime.continuous.SEAL_MARKS", 4)
    for number in range(30):
        put(folder, f"{number:02d}.parquet", number)
    before = [reader(watched(folder), clock, subtask, old) for subtask in range(old)]
    assert sorted(value for each in before for value in read(each, polls=40)) == list(range(30))
    assert sum(len(each.freeze().runs) for each in before) > 0
    late(folder, "00-late.parquet", 100)
    clock.now += 1_000
    assert [value for each in before for value in read(each)] == [100]
    after = [reader(watched(folder), clock, subtask, new) for subtask in range(new)]
    for each in after:
        each.restore(states(*before))
    late(folder, "0.parquet", 101)
    os.utime(folder / "07.parquet")  # touched, or its mode changed: still the file that was read
    assert [value for each in after for value in read(each, polls=40)] == [101]


def late(folder: Path, name: str, time: int) -> None:
    put(folder, f"{name}.away", time)
    os.utime(folder / f"{name}.away", (1, 1))
    os.rename(folder / f"{name}.away", folder / name)


@pytest.mark.parametrize("column", [pa.array([b"x"]), pa.array([None], pa.binary(12)), pa.array([b"y" * 11], pa.binary(11))])
def test_a_damaged_run_of_what_was_read_is_corrupt(clock: Clock, column: pa.Array) -> None:
    state = Restored(0, dict(remembering(clock, 1).freeze().meta), (Run(pa.RecordBatch.from_arrays([column], ["mark"])),))
    with pytest.raises(CorruptDataError, match="other columns"):
        reader(GenerateSource(splits=1), clock).restore([state])


@pytest.mark.parametrize("text", ["?", "AAAA", None, 7])
def test_a_damaged_list_of_what_was_read_is_corrupt(text: Json) -> None:
    with pytest.raises(CorruptDataError):
        marks(text)


def test_a_directory_without_files_needs_a_schema(folder: Path) -> None:
    with pytest.raises(InvalidUseError, match="give schema="):
        ParquetDirectorySource(folder)
    with pytest.raises(InvalidUseError, match="no such directory"):
        ParquetDirectorySource(folder / "nothing")
    with pytest.raises(InvalidUseError, match="one path"):
        ParquetDirectorySource([str(folder)])  # type: ignore[arg-type]
