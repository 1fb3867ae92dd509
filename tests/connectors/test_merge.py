"""Small staged files are merged before they appear: at every moment each row at most once, whoever dies or wakes up."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import merge as merge_module
from tidegate.connectors.merge import MERGED_AT_ONCE_MAX, MERGED_BYTES_MAX, groups_of
from tidegate.connectors.parquet import ParquetSink
from tidegate.connectors.staging import StagedFile
from tidegate.core.checkpoint.budget import DEFAULT_BUDGET, PublishBudget
from tidegate.errors import CorruptDataError, InvalidUseError, RetryableError
from tidegate.plan.capabilities import GatheringSink
from tidegate.plan.connector import Committable, WriterContext
from tidegate.testing.connectors import SINK_SCHEMA, rows_of

Epochs = list[list[Committable]]


def staged(sink: ParquetSink, epochs: int, subtasks: int = 2, *, gang: int = 0, first: int = 1) -> Epochs:
    """So many epochs; the row of subtask s in epoch e has the key 10 * e + s."""
    writers = [sink.writer(WriterContext("out", subtask, gang, SINK_SCHEMA)) for subtask in range(subtasks)]
    found: Epochs = []
    for epoch in range(first, first + epochs):
        mine = []
        for subtask, writer in enumerate(writers):
            writer.write(rows_of(10 * epoch + subtask))
            committable = writer.prepare(epoch)
            assert committable is not None
            mine.append(committable)
        found.append(mine)
    for writer in writers:
        writer.close()
    return found


def flat(epochs: Sequence[Sequence[Committable]]) -> list[Committable]:
    return [committable for epoch in epochs for committable in epoch]


def keys(*epochs: int, subtasks: int = 2) -> list[int]:
    return [10 * epoch + subtask for epoch in epochs for subtask in range(subtasks)]


def files(path: str | Path) -> list[str]:
    """What any reader finds that looks for Parquet files, at any depth."""
    return sorted(str(p) for p in Path(path).rglob("*.parquet"))


def seen(path: str | Path) -> list[int]:
    """The keys in the order of files and rows."""
    return [key for file in files(path) for key in keys_in(file)]


@cache
def keys_in(file: str) -> list[int]:
    """No file changes under its name."""
    with pq.ParquetFile(file) as opened:
        return list(opened.read(["key"])["key"].to_pylist())


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(tmp_path / "out", durable=False)


# -- what appears ----------------------------------------------------------------------------------


def test_many_epochs_and_subtasks_appear_as_one_file_in_order(sink: ParquetSink) -> None:
    sink.commit(9, flat(staged(sink, 9, 3)))
    (path,) = files(sink.path)
    assert seen(sink.path) == keys(*range(1, 10), subtasks=3)
    assert pq.ParquetFile(path).num_row_groups == 1
    assert os.listdir(os.path.join(sink.path, "_pending")) == []
    assert os.listdir(os.path.join(sink.path, "_merging")) == []


def test_files_sort_in_the_order_of_their_last_checkpoints(sink: ParquetSink) -> None:
    first, second, third = staged(sink, 3)
    sink.commit(3, third)
    sink.commit(2, [*first, *second])
    assert seen(sink.path) == keys(1, 2, 3)


def test_readers_of_all_kinds_see_merged_rows_and_nothing_else(sink: ParquetSink) -> None:
    """While one merge is ready to be shown and another was left in the middle."""
    shown, ready, left = staged(sink, 3)
    sink.commit(1, shown)
    sink.gather(left)
    waiting = sink.gather(ready)
    names = [name for _, _, found in os.walk(os.path.join(sink.path, "_merging")) for name in found]
    assert len(names) == 6, "two drafts and four members"
    for pattern in ("*.parquet", "**/*.parquet"):
        query = f"select key from read_parquet('{sink.path}/{pattern}') order by key"
        assert [key for (key,) in duckdb.sql(query).fetchall()] == keys(1)
    assert sorted(ds.dataset(sink.path, format="parquet").to_table()["key"].to_pylist()) == keys(1)
    assert pq.read_table(sink.path)["key"].to_pylist() == keys(1)
    waiting.show()
    waiting.release()
    assert seen(sink.path) == keys(1, 2)


def test_a_merged_file_has_the_columns_and_the_compression_of_the_others(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("t", pa.timestamp("us", "UTC"), nullable=False),
            ("d", pa.dictionary(pa.int32(), pa.string())),
            ("l", pa.list_(pa.int64())),
        ],
        metadata={"mine": "yes"},
    )
    sink = ParquetSink(tmp_path / "out", compression="zstd", durable=False)
    committables = []
    for subtask in range(2):
        writer = sink.writer(WriterContext("out", subtask, 0, schema))
        batch = {"t": [subtask, 2], "d": ["a", None], "l": [[1], None]}
        writer.write(pa.RecordBatch.from_pydict(batch, schema=schema))
        committables.append(writer.prepare(1) or {})
    sink.commit(1, committables)
    (path,) = files(sink.path)
    found = pq.read_table(path)
    assert found.schema.equals(schema)
    assert (found.schema.metadata or {}).get(b"mine") == b"yes"
    assert found["d"].to_pylist() == ["a", None, "a", None]
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_files_with_other_columns_are_shown_as_they_are(sink: ParquetSink) -> None:
    (old,) = staged(sink, 1, 1)
    writer = sink.writer(WriterContext("out", 1, 0, pa.schema([("key", pa.int64())])))
    writer.write(pa.record_batch({"key": [99]}))
    sink.commit(1, [*old, writer.prepare(1) or {}])
    assert sorted(seen(sink.path)) == [10, 99]
    assert len(files(sink.path)) == 2


def test_every_epoch_at_once_is_shown_as_it_was_staged(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", durable=False, publish_every="0s")
    sink.commit(1, flat(staged(sink, 2)))
    assert len(files(sink.path)) == 4


def file_of(size: int) -> StagedFile:
    return StagedFile("p", "f", 1, size)


def test_only_small_neighbours_are_merged() -> None:
    big = MERGED_BYTES_MAX // 4
    sizes = [[f.bytes for f in group] for group in groups_of([file_of(n) for n in (5, 6, big, 7, 8)], 1 << 40)]
    assert sizes == [[5, 6], [big], [7, 8]]
    assert len(groups_of([file_of(big - 1)] * 9, 1 << 40)) == 3, "no merged file is bigger than a limit"
    many = groups_of([file_of(big - 1)] * 100, 1 << 40)
    assert [len(group) for group in many] == [4] * 4 + [1] * 84, "the driver merges only so much at once"
    assert len(groups_of([file_of(10)] * 6, 50)) == 2, "nor bigger than the user wants"
    assert groups_of([], 1) == []
    assert MERGED_AT_ONCE_MAX > MERGED_BYTES_MAX


def test_publish_every_says_how_often(tmp_path: Path) -> None:
    def budget(publish_every: Any) -> PublishBudget | None:
        return ParquetSink(tmp_path, publish_every=publish_every).publish_budget

    assert isinstance(ParquetSink(tmp_path), GatheringSink)
    assert (budget(None), budget("0s"), budget("1m")) == (DEFAULT_BUDGET, None, PublishBudget(1, 60_000))
    with pytest.raises(InvalidUseError, match="publish_every"):
        budget("soon")


# -- what is lost or damaged is named --------------------------------------------------------------


def test_a_lost_member_is_named_and_the_others_are_found_again(sink: ParquetSink) -> None:
    first, second = staged(sink, 2, 1)
    lost = Path(sink.path, "_pending", str(second[0]["files"][0]["pending"]))  # type: ignore[index, call-overload]
    saved = lost.read_bytes()
    lost.unlink()
    with pytest.raises(CorruptDataError, match="neither waiting nor published nor hidden"):
        sink.commit(2, first + second)
    lost.write_bytes(saved)
    sink.commit(2, first + second)
    assert seen(sink.path) == [10, 20]


def test_a_member_with_other_rows_than_were_staged_is_named(sink: ParquetSink) -> None:
    ((one, other),) = staged(sink, 1)
    one["files"][0]["rows"] = 7  # type: ignore[index, call-overload]
    with pytest.raises(CorruptDataError, match=r"other rows than were staged .*rows=1 staged=7"):
        sink.commit(1, [one, other])
    assert seen(sink.path) == []


def test_a_merged_file_that_does_not_say_what_it_is_made_of_is_named(sink: ParquetSink) -> None:
    (epoch,) = staged(sink, 1)
    sink.commit(1, epoch)
    (path,) = files(sink.path)
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    with pytest.raises(CorruptDataError, match="does not say what it is made of"):
        sink.hide(epoch)


# -- going back ------------------------------------------------------------------------------------


def test_a_restore_cuts_a_merged_file_exactly(sink: ParquetSink) -> None:
    first, second, third = staged(sink, 3)
    sink.commit(3, first + second + third)
    sink.hide(third)
    assert seen(sink.path) == keys(1, 2)
    sink.commit(3, first + second + third)
    assert seen(sink.path) == keys(1, 2), "what was hidden stays hidden"
    sink.hide(second)
    sink.hide(third)
    assert seen(sink.path) == keys(1)
    sink.hide(first)
    assert seen(sink.path) == [] and sink.is_empty()
    assert len(os.listdir(os.path.join(sink.path, "_hidden"))) == 3, "the data is kept"


def test_rows_of_one_subtask_in_the_middle_can_be_cut_out(sink: ParquetSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.connectors.parquet_merge.BATCH_ROWS", 4)
    monkeypatch.setattr("tidegate.connectors.parquet_merge.CHUNK_ROWS", 6)
    writers = [sink.writer(WriterContext("out", subtask, 0, SINK_SCHEMA)) for subtask in range(5)]
    committables = []
    for subtask, writer in enumerate(writers):
        writer.write(rows_of(*range(100 * subtask, 100 * subtask + 2 * subtask + 1)))
        committables.append(writer.prepare(1) or {})
    sink.commit(1, committables)
    sink.hide([committables[1], committables[3]])
    assert seen(sink.path) == [0, 200, 201, 202, 203, 204, *range(400, 409)]


def test_a_restore_over_a_damaged_commit_cuts_by_checkpoints(sink: ParquetSink) -> None:
    first, second, third = staged(sink, 3, gang=4)
    sink.commit(3, first + second + third)
    sink.hide_unnamed(4, 1, [])
    assert seen(sink.path) == keys(1, 2, 3), "of this gang and later ones nothing"
    sink.hide_unnamed(5, 1, first)
    assert seen(sink.path) == keys(1)


def test_what_another_job_has_merged_is_never_cut(sink: ParquetSink) -> None:
    sink.commit(3, flat(staged(sink, 3)))
    sink.adopt()
    sink.hide_unnamed(5, 1, [])
    assert seen(sink.path) == keys(1, 2, 3)


def test_what_is_shown_and_hidden_within_merged_files_can_be_asked(sink: ParquetSink) -> None:
    merged = sink._merged
    first, second, third = staged(sink, 3)
    assert (merged.newest_id(), merged.hides([]), merged.hides(first)) == (0, False, False)
    sink.commit(3, first + second + third)
    assert (merged.newest_id(), merged.hides(first + third)) == (3, False)
    sink.hide(third)
    assert (merged.newest_id(), merged.hides(first), merged.hides(first + third)) == (2, False, True)
    sink.adopt()
    assert merged.newest_id() == 0


def test_clear_removes_what_is_being_merged(sink: ParquetSink) -> None:
    first, second = staged(sink, 2)
    sink.commit(1, first)
    sink.gather(second)
    sink.clear()
    assert files(sink.path) == [] == os.listdir(os.path.join(sink.path, "_merging"))


# -- kills at every step ---------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Steps:
    """Counts what one thread changes in the file system; ``at(number)`` is called before each change."""

    def __init__(self, patch: pytest.MonkeyPatch, at: Callable[[int], None]) -> None:
        self.count, self._at = 0, at
        self.thread: int | None = threading.get_ident()
        for name in ("rename", "unlink", "rmdir", "makedirs"):
            patch.setattr(os, name, self._counted(getattr(os, name)))
        writer = merge_module.MergedFiles
        patch.setattr(writer, "_work", self._counted(writer._work))
        from tidegate.connectors.parquet_merge import ParquetMerge

        patch.setattr(ParquetMerge, "_write", self._torn(ParquetMerge._write))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self._step()
            return function(*arguments, **named)

        return step

    def _torn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(this: Any, target: str, *arguments: Any) -> Any:
            if threading.get_ident() == self.thread:
                Path(target).write_bytes(b"half a file")
            self._step()
            return function(this, target, *arguments)

        return step

    def _step(self) -> None:
        if threading.get_ident() == self.thread:
            self.count += 1
            self._at(self.count)


class Story:
    """A directory with three epochs, something that happens to it, and what must be there after all."""

    def __init__(self, path: Path) -> None:
        self.sink = ParquetSink(path, durable=False)
        self.first, self.second, self.third = staged(self.sink, 3, 1)

    def tell(self, call: str) -> None:
        if call:
            getattr(self, call)()

    def publish_all(self) -> None:
        self.sink.commit(3, self.first + self.second + self.third)

    def publish_all_as_staged(self) -> None:
        ParquetSink(self.sink.path, durable=False, publish_every="0s").commit(3, self.first + self.second + self.third)

    def publish_two(self) -> None:
        self.sink.commit(2, self.first + self.second)

    def go_back(self) -> None:
        """What a restore of the second epoch does."""
        self.sink.hide(self.third)
        self.publish_two()
        self.sink.sweep(5, self.first + self.second)

    def go_back_over_damage(self) -> None:
        self.sink.hide_unnamed(5, 2, self.first + self.second)
        self.publish_two()

    def go_back_further(self) -> None:
        self.sink.hide(self.second + self.third)
        self.sink.commit(1, self.first)

    def start_again(self) -> None:
        self.publish_all()
        self.sink.sweep(5, self.first + self.second + self.third)


STORIES: list[tuple[str, str, str, tuple[int, ...]]] = [
    # what was there before, what is killed, what comes after it, the epochs that are shown then
    ("", "publish_all", "start_again", (1, 2, 3)),
    ("publish_two", "publish_all", "start_again", (1, 2, 3)),
    ("", "publish_all", "publish_all_as_staged", (1, 2, 3)),
    ("", "publish_all", "go_back", (1, 2)),
    ("", "publish_all", "go_back_over_damage", (1, 2)),
    ("publish_all", "go_back", "go_back", (1, 2)),
    ("publish_all", "go_back_over_damage", "go_back_over_damage", (1, 2)),
    ("publish_all", "go_back", "go_back_further", (1,)),
    ("publish_all_as_staged", "go_back", "go_back", (1, 2)),
    ("", "go_back", "go_back_further", (1,)),
]


def check_readers(story: Story, before: list[int], after: set[int], killed: str) -> list[int]:
    """No row is seen twice; a row that was seen stays, unless the call takes rows back."""
    now = seen(story.sink.path)
    assert max(Counter(now).values(), default=0) <= 1, now
    if killed.startswith("publish") or killed == "start_again":
        assert set(before) <= set(now)
    return now


def killed_at(story: Story, call: str, number: int, epochs: set[int]) -> bool:
    """Kill a call before its step ``number``; False when it has no such step. Readers look at every step."""
    state = [check_readers(story, [], epochs, call)]

    def at(count: int) -> None:
        state[0] = check_readers(story, state[0], epochs, call)
        if count == number:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, at)
        try:
            story.tell(call)
        except Killed:
            return True
    check_readers(story, state[0], epochs, call)
    return False


@pytest.mark.parametrize(("before", "killed", "after", "epochs"), STORIES)
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_row(
    before: str, killed: str, after: str, epochs: tuple[int, ...], tmp_path: Path
) -> None:
    number = 0
    alive = False
    while not alive:
        number += 1
        story = Story(tmp_path / str(number))
        story.tell(before)
        alive = not killed_at(story, killed, number, set(epochs))
        # Killed again, at the same step of what comes after it.
        killed_at(story, after, number, set(epochs))
        story.tell(after)
        assert sorted(seen(story.sink.path)) == keys(*epochs, subtasks=1), number
        story.publish_two() if epochs != (1,) else story.sink.commit(1, story.first)
        story.sink.sweep(5, [])
        assert sorted(seen(story.sink.path)) == keys(*epochs, subtasks=1), number
        assert list(Path(story.sink.path).glob("_merging/*")) == [], number
    assert number > 4


# -- drivers that were replaced and wake up --------------------------------------------------------


class Sleeper:
    """Another thread that begins a call and stops before one of its steps until it is woken up. ``slept``: it has such a step."""

    def __init__(self, patch: pytest.MonkeyPatch, call: Callable[[], None], number: int) -> None:
        self.failures: list[Exception] = []
        self._call, self._stopped, self._go_on = call, threading.Event(), threading.Event()
        self._steps = Steps(patch, lambda count: self._sleep() if count == number else None)
        self._steps.thread = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._stopped.wait(30)
        self.slept = self._steps.count >= number

    def _run(self) -> None:
        self._steps.thread = threading.get_ident()
        try:
            self._call()
        except Exception as error:
            self.failures.append(error)
        finally:
            self._stopped.set()

    def _sleep(self) -> None:
        self._stopped.set()
        assert self._go_on.wait(30)

    def wake(self) -> None:
        """Go on to the end of the call."""
        self._go_on.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(("before", "late", "meanwhile", "epochs"), STORIES)
def test_a_driver_that_wakes_up_at_any_step_changes_nothing(
    before: str, late: str, meanwhile: str, epochs: tuple[int, ...], tmp_path: Path
) -> None:
    number, slept = 0, True
    while slept:
        number += 1
        story = Story(tmp_path / str(number))
        story.tell(before)
        with pytest.MonkeyPatch.context() as patch:
            sleeper = Sleeper(patch, partial(story.tell, late), number)
            story.tell(meanwhile)
            assert sorted(seen(story.sink.path)) == keys(*epochs, subtasks=1), number
            sleeper.wake()
        assert sorted(seen(story.sink.path)) == keys(*epochs, subtasks=1), number
        # What nobody can name any more is deleted on the way back over damage; only a driver that was replaced misses it.
        expected = (RetryableError, CorruptDataError) if "damage" in meanwhile else RetryableError
        assert all(isinstance(error, expected) for error in sleeper.failures), sleeper.failures
        slept = sleeper.slept
    assert number > 4


@pytest.mark.parametrize(
    ("before", "late", "meanwhile", "epochs"),
    [
        ("", "publish_all", "start_again", (1, 2, 3)),
        ("", "publish_all", "go_back", (1, 2)),
        ("publish_all", "go_back", "go_back", (1, 2)),
    ],
)
def test_a_driver_that_wakes_up_in_the_middle_of_anothers_work_changes_nothing(
    before: str, late: str, meanwhile: str, epochs: tuple[int, ...], tmp_path: Path
) -> None:
    number, slept = 1, True
    while slept:
        for at in range(1, 20, 1 + number % 2):
            story = Story(tmp_path / f"{number}-{at}")
            story.tell(before)
            with pytest.MonkeyPatch.context() as patch:
                sleeper = Sleeper(patch, partial(story.tell, late), number)
                slept = sleeper.slept
                Steps(patch, lambda count, at=at, sleeper=sleeper: sleeper.wake() if count == at else None)  # type: ignore[misc]
                for _ in range(5):  # as often as it is told that another driver is at work
                    with suppress(RetryableError):
                        story.tell(meanwhile)
                        break
                sleeper.wake()
            assert sorted(seen(story.sink.path)) == keys(*epochs, subtasks=1), (number, at)
        number += 1
    assert number > 4


def test_drivers_that_never_let_go_of_a_directory_are_reported(sink: ParquetSink, monkeypatch: pytest.MonkeyPatch) -> None:
    (epoch,) = staged(sink, 1)
    reclaim = merge_module.MergedFiles.reclaim

    def busy(self: merge_module.MergedFiles, own: Sequence[str] = ()) -> None:
        reclaim(self, own)
        self._work(f"part-{threading.get_ident()}.parquet")

    monkeypatch.setattr(merge_module.MergedFiles, "reclaim", busy)
    with pytest.raises(RetryableError, match="another driver is at work"):
        sink.hide(epoch)
