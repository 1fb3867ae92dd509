from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.connectors.collect import CollectSink
from tidegate.connectors.foreach import NOTED_EPOCHS, ForEachBatchSink
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.connector import Committable, Sink, WriterContext
from tidegate.testing.connectors import SINK_SCHEMA, check_sink, rows_of

Calls = list[tuple[list[int], int]]


def pickled(sink: Sink) -> Sink:
    copy: Sink = pickle.loads(pickle.dumps(sink))
    return copy


def stage(sink: Sink, *keys: int, subtask: int = 0, gang: int = 0, checkpoint: int = 1) -> Committable:
    writer = pickled(sink).writer(WriterContext("sink", subtask, gang, SINK_SCHEMA))
    writer.write(rows_of(*keys))
    committable = writer.prepare(checkpoint)
    writer.close()
    assert committable is not None
    return committable


# -- collect ---------------------------------------------------------------------------------------


@pytest.fixture
def collected(tmp_path: Path) -> CollectSink:
    return CollectSink("result").with_spool(str(tmp_path / "spool"), SINK_SCHEMA)


def test_collect_keeps_the_contract(fresh_directory: Callable[[], Path]) -> None:
    check_sink(lambda: CollectSink("result").with_spool(str(fresh_directory())), table_of, to_node=pickled)


def table_of(sink: Sink) -> pa.Table:
    assert isinstance(sink, CollectSink)
    return sink.table()


def test_a_table_has_the_committed_rows_in_the_order_of_their_checkpoints(collected: CollectSink) -> None:
    second, first = stage(collected, 3, 4, checkpoint=20), stage(collected, 1, 2, checkpoint=3)
    assert collected.table().equals(SINK_SCHEMA.empty_table())
    collected.commit(1, [first])
    collected.commit(2, [second])
    assert collected.table()["key"].to_pylist() == [1, 2, 3, 4]
    assert collected.table().schema == SINK_SCHEMA


def test_a_table_without_rows_or_schema_is_empty(tmp_path: Path) -> None:
    assert CollectSink("result", str(tmp_path)).table().num_columns == 0


def test_collected_rows_outlive_the_driver(collected: CollectSink, tmp_path: Path) -> None:
    collected.commit(1, [stage(collected, 1)])
    head = stage(collected, 2, checkpoint=2)
    another = CollectSink("result").with_spool(str(tmp_path / "spool"))
    another.commit(2, [head])
    another.commit(2, [head])
    assert another.table()["key"].to_pylist() == [1, 2]


def test_a_collect_sink_can_be_emptied(collected: CollectSink) -> None:
    assert collected.is_empty()
    collected.commit(1, [stage(collected, 1)])
    assert not collected.is_empty()
    collected.clear()
    assert collected.is_empty()


def test_collect_sweeps_what_older_gangs_left(collected: CollectSink) -> None:
    stage(collected, 1, gang=1)
    kept = stage(collected, 2, gang=1)
    assert len(collected.sweep(2, [kept])) == 1
    collected.commit(1, [kept])
    assert collected.table()["key"].to_pylist() == [2]


def test_a_damaged_spool_file_is_reported(collected: CollectSink, tmp_path: Path) -> None:
    collected.commit(1, [stage(collected, 1, 2, 3)])
    (path,) = (tmp_path / "spool").glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptDataError, match=path.name):
        collected.table()


def test_a_sink_without_a_spool_says_what_to_do() -> None:
    context = WriterContext("sink", 0, 0, SINK_SCHEMA)
    for sink in (CollectSink("result"), ForEachBatchSink(print)):
        with pytest.raises(InvalidUseError, match="with_spool"):
            sink.writer(context)
        with pytest.raises(InvalidUseError, match="with_spool"):
            sink.check_writable()
    with pytest.raises(InvalidUseError, match="spool=s3://"):
        CollectSink("result").with_spool("s3://bucket/spool")


# -- for each batch --------------------------------------------------------------------------------


class Recorder:
    """A function for ``for_each_batch`` that fails when it is told to, and can't be pickled."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.fail_at: int | None = None

    def __call__(self, batch: pa.RecordBatch, epoch: int) -> None:
        keys = batch.column("key").to_pylist()
        if self.fail_at in keys:
            raise LookupError("the user's function failed")
        self.calls.append((keys, epoch))

    def __reduce__(self) -> str:
        raise TypeError("stays on the driver")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def each(recorder: Recorder, tmp_path: Path) -> ForEachBatchSink:
    return ForEachBatchSink(recorder).with_spool(str(tmp_path / "spool"))


def left_over(tmp_path: Path) -> list[str]:
    """All but the notes of what was delivered."""
    found = (name for _, _, names in os.walk(tmp_path / "spool") for name in names)
    return sorted(name for name in found if not name.endswith(".delivered"))


def test_for_each_batch_keeps_the_contract(fresh_directory: Callable[[], Path]) -> None:
    recorders: dict[int, Recorder] = {}

    def new_sink() -> Sink:
        recorder = Recorder()
        sink = ForEachBatchSink(recorder, str(fresh_directory()))
        recorders[id(sink)] = recorder
        return sink

    def visible(sink: Sink) -> pa.Table:
        return pa.table({"key": [key for keys, _ in recorders[id(sink)].calls for key in keys]})

    check_sink(new_sink, visible, to_node=pickled)


def test_the_function_gets_batches_with_their_epoch(each: ForEachBatchSink, recorder: Recorder, tmp_path: Path) -> None:
    each.commit(5, [stage(each, 3, subtask=1), stage(each, 1, 2, subtask=0)])
    each.commit(6, [stage(each, 4)])
    assert recorder.calls == [([1, 2], 5), ([3], 5), ([4], 6)]
    assert left_over(tmp_path) == []


def test_a_failed_call_is_made_again_with_the_same_epoch(each: ForEachBatchSink, recorder: Recorder, tmp_path: Path) -> None:
    first, failing = stage(each, 1, subtask=0), stage(each, 2, subtask=1)
    recorder.fail_at = 2
    with pytest.raises(LookupError):
        each.commit(5, [first, failing])
    recorder.fail_at = None
    later = stage(each, 3, checkpoint=2)
    # The manifest of epoch 6 still names what was not confirmed; another driver does it.
    another = ForEachBatchSink(recorder).with_spool(str(tmp_path / "spool"))
    another.commit(6, [later, first, failing])
    assert recorder.calls == [([1], 5), ([2], 5), ([3], 6)]
    assert left_over(tmp_path) == []


def test_a_call_that_broke_off_half_way_begins_again(each: ForEachBatchSink, recorder: Recorder) -> None:
    writer = each.writer(WriterContext("sink", 0, 0, SINK_SCHEMA))
    writer.write(rows_of(1))
    writer.write(rows_of(2))
    committable = writer.prepare(1)
    assert committable is not None
    recorder.fail_at = 2
    with pytest.raises(LookupError):
        each.commit(1, [committable])
    recorder.fail_at = None
    each.commit(1, [committable])
    assert recorder.calls == [([1], 1), ([1], 1), ([2], 1)]


def test_a_lost_file_is_never_taken_for_one_that_was_delivered(
    each: ForEachBatchSink, recorder: Recorder, tmp_path: Path
) -> None:
    seen, lost = stage(each, 1), stage(each, 2, checkpoint=2)
    each.commit(5, [seen])
    (path,) = (tmp_path / "spool" / "_pending").glob("*.pending")
    path.unlink()
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=f"committed rows are lost.*{path.name}"):
            each.commit(6, [seen, lost])
    assert recorder.calls == [([1], 5)]
    each.commit(5, [seen])
    assert recorder.calls == [([1], 5)], "what was delivered is not delivered again"


def test_the_very_first_file_can_be_lost_too(each: ForEachBatchSink, tmp_path: Path) -> None:
    lost = stage(each, 1)
    each.abort([lost])
    with pytest.raises(CorruptDataError, match="committed rows are lost"):
        each.commit(1, [lost])


def test_a_file_that_is_lost_after_its_claim_is_named(each: ForEachBatchSink, recorder: Recorder, tmp_path: Path) -> None:
    first, second = stage(each, 1, subtask=0), stage(each, 2, subtask=1)
    each._function = lambda batch, epoch: [path.unlink() for path in (tmp_path / "spool" / "_claimed").glob("*-0001-*")]
    with pytest.raises(CorruptDataError, match=r"committed rows are lost.*-0001-"):
        each.commit(1, [first, second])


def test_a_crash_before_a_delivered_file_was_deleted_delivers_it_only_once(
    each: ForEachBatchSink, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committable = stage(each, 1)
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.connectors.foreach.remove_file", lambda path: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception, match="killed"):
            each.commit(1, [committable])
    ForEachBatchSink(recorder).with_spool(str(tmp_path / "spool")).commit(2, [committable])
    assert recorder.calls == [([1], 1)]
    assert left_over(tmp_path) == []


def test_notes_of_delivered_files_do_not_pile_up(each: ForEachBatchSink, tmp_path: Path) -> None:
    for epoch in range(1, 80):
        each.commit(epoch, [stage(each, epoch, checkpoint=epoch)])
    assert len(list((tmp_path / "spool" / "_delivered").iterdir())) == NOTED_EPOCHS


def test_what_an_earlier_version_delivered_without_a_note_is_not_called_lost(each: ForEachBatchSink, tmp_path: Path) -> None:
    delivered = stage(each, 1)
    each.abort([delivered])
    (tmp_path / "spool" / "_claimed").mkdir()
    for _ in range(2):
        each.commit(1, [delivered])
    lost = stage(each, 2)
    each.abort([lost])
    with pytest.raises(CorruptDataError, match="committed rows are lost"):
        each.commit(2, [delivered, lost])


def test_it_can_not_hide_what_the_function_has_seen(each: ForEachBatchSink) -> None:
    assert not hasattr(each, "hide")


def test_the_function_stays_on_the_driver(each: ForEachBatchSink) -> None:
    committable = stage(each, 1)
    with pytest.raises(InvalidUseError, match="stayed on the driver"):
        pickle.loads(pickle.dumps(each)).commit(1, [committable])


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="function of"):
        ForEachBatchSink("print")  # type: ignore[arg-type]


def test_aborted_and_swept_batches_are_never_seen(each: ForEachBatchSink, recorder: Recorder, tmp_path: Path) -> None:
    each.abort([stage(each, 1)])
    stage(each, 2, gang=1)
    assert len(each.sweep(3, [])) == 1
    each.commit(1, [stage(each, 3, gang=3)])
    assert recorder.calls == [([3], 1)]
    assert left_over(tmp_path) == []
