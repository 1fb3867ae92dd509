"""The contract suites must find what is broken: each connector here breaks one promise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.connectors.collect import CollectSink
from tidegate.errors import CorruptDataError
from tidegate.plan.connector import (
    Committable,
    Offset,
    Polled,
    Sink,
    SinkWriter,
    Split,
    SplitReader,
    WriterContext,
)
from tidegate.testing.connectors import SINK_SCHEMA, check_sink, check_source, rows_of

SCHEMA = pa.schema([("ts", pa.int64())])
ROWS = 50


@dataclass
class ListReader:
    position: int
    breaks: str

    @property
    def offset(self) -> Offset:
        return max(0, self.position - 1) if self.breaks == "offset" else self.position

    def poll(self, max_rows: int) -> Polled:
        if self.breaks == "silent":
            return Polled(None)
        count = min(max_rows, ROWS - self.position)
        if self.breaks == "max_rows":
            count = ROWS - self.position
        if not count:
            return Polled(pa.record_batch({"ts": [0]}), 1) if self.breaks == "finished" else Polled(None, finished=True)
        times = list(range(self.position, self.position + count))
        self.position += count
        polled = Polled(self.batch(times), count, times[-1], self.position >= ROWS)
        return self.broken(polled)

    def batch(self, times: list[int]) -> pa.RecordBatch:
        kind = pa.int32() if self.breaks == "schema" else pa.int64()
        shift = len(times) if self.breaks == "replay" else 0
        return pa.record_batch({"ts": pa.array([time + shift for time in times], kind)})

    def broken(self, polled: Polled) -> Polled:
        match self.breaks:
            case "low highest":
                return replace(polled, highest=(polled.highest or 0) - 1)
            case "high highest":
                return replace(polled, highest=(polled.highest or 0) + 1)
            case "no highest":
                return replace(polled, highest=None)
            case "replay":
                return replace(polled, highest=(polled.highest or 0) + polled.rows)
            case "rows":
                return replace(polled, rows=polled.rows - 1)
            case _:
                return polled

    def close(self) -> None:
        pass


@dataclass
class ListSource:
    breaks: str = ""
    schema = SCHEMA
    event_time = "ts"
    out_of_orderness = 0
    calls: int = 0

    @property
    def bounded(self) -> bool:
        return self.breaks != "unbounded"

    def splits(self) -> Sequence[Split]:
        self.calls += 1
        match self.breaks:
            case "same id":
                return [Split("a"), Split("a")]
            case "other splits":
                return [Split(str(self.calls))]
            case "split rows":
                return [Split("a", 0, ROWS + 1)]
            case "lowest":
                return [Split("a", 1, ROWS)]
            case _:
                return [Split("a", 0, ROWS)]

    def open(self, split: Split, offset: Offset) -> SplitReader:
        return ListReader(offset if isinstance(offset, int) else 0, self.breaks)


def test_a_source_that_keeps_all_promises_passes() -> None:
    check_source(ListSource(), poll_rows=7)


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        ("offset", "reading again from an offset returned other rows"),
        ("replay", "reading again from an offset returned other rows"),
        ("max_rows", "more rows than were asked for"),
        ("rows", "more rows than it counted"),
        ("schema", "another schema"),
        ("low highest", "highest is below"),
        ("no highest", "highest is below"),
        ("high highest", "highest is above"),
        ("lowest", "below the split's lowest"),
        ("same id", "the same id"),
        ("other splits", "other splits"),
        ("split rows", "other rows than it says"),
        ("unbounded", "of an unbounded source ended"),
        ("silent", "returned nothing for 2000 polls"),
        ("finished", "a finished split returned more rows"),
    ],
)
def test_a_broken_source_is_found(breaks: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.testing.connectors._QUIET_SECONDS", 0)
    with pytest.raises(AssertionError, match=sentence):
        check_source(ListSource(breaks), poll_rows=7)


def test_what_is_no_connector_is_found() -> None:
    with pytest.raises(AssertionError, match="Source protocol"):
        check_source(object())  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Sink protocol"):
        check_sink(object, lambda _: pa.table({}))  # type: ignore[arg-type, return-value]


class BrokenSink(CollectSink):
    """A collecting sink that breaks one promise."""

    breaks = ""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        if self.breaks == "commits nothing":
            return
        if self.breaks == "commits the first" and committables:
            committables = committables[:1]
        if self.breaks == "commits again":
            committables = [self._copied(committable) for committable in committables]
        super().commit(epoch, committables)

    def _copied(self, committable: Committable) -> Committable:
        writer = self.writer(WriterContext("copy", 0, 0, SINK_SCHEMA))
        writer.write(rows_of(1, 2, 3))
        return writer.prepare(99) or committable

    def abort(self, committables: Sequence[Committable]) -> None:
        if self.breaks == "abort shows":
            super().commit(0, committables)

    def hide(self, committables: Sequence[Committable]) -> None:
        if self.breaks != "hides nothing":
            super().hide(committables)

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        match self.breaks:
            case "hides none without names":
                pass
            case "hides every gang's":
                super().hide_unnamed(1 << 30, checkpoint_id, keep)
            case "hides older ones":
                super().hide_unnamed(gang, 0, keep)
            case "keeps nothing":
                super().hide_unnamed(gang, checkpoint_id, [])
            case _:
                super().hide_unnamed(gang, checkpoint_id, keep)

    def writer(self, context: WriterContext) -> SinkWriter:  # type: ignore[override]
        writer = super().writer(context)
        return EagerWriter(self, writer) if self.breaks == "shows early" else writer


@dataclass
class EagerWriter:
    sink: BrokenSink
    inner: SinkWriter

    def write(self, batch: pa.RecordBatch) -> None:
        self.inner.write(batch)

    def prepare(self, checkpoint_id: int) -> Committable | None:
        committable = self.inner.prepare(checkpoint_id)
        self.sink.commit(0, [committable] if committable else [])
        return committable

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        ("commits nothing", "committed: a reader sees other rows"),
        ("commits the first", "a commit that broke off was done again"),
        ("commits again", "committed twice"),
        ("abort shows", "one of two committables was aborted"),
        ("hides nothing", "were hidden"),
        ("hides none without names", "staged after a checkpoint was hidden"),
        ("hides every gang's", "a staged file is gone"),
        ("hides older ones", "staged after a checkpoint was hidden"),
        ("keeps nothing", "a staged file is gone"),
        ("shows early", "prepared and not committed"),
    ],
)
def test_a_broken_sink_is_found(breaks: str, sentence: str, fresh_directory: Callable[[], Path]) -> None:
    def new_sink() -> Sink:
        sink = BrokenSink("broken", str(fresh_directory()))
        sink.breaks = breaks
        return sink

    with pytest.raises((AssertionError, CorruptDataError), match=sentence):
        check_sink(new_sink, table_of)


def table_of(sink: Sink) -> pa.Table:
    assert isinstance(sink, BrokenSink)
    return sink.table()


def test_whoever_wins_a_race_of_commit_and_hide_the_rows_end_hidden(
    fresh_directory: Callable[[], Path],
) -> None:
    sink = CollectSink("raced", str(fresh_directory()))
    for number in range(50):
        writer = sink.writer(WriterContext("sink", 0, 0, SINK_SCHEMA))
        writer.write(rows_of(number))
        committable = writer.prepare(number + 1)
        assert committable is not None
        start = threading.Barrier(2)
        late = threading.Thread(target=lambda c=committable, s=start: (s.wait(), sink.commit(1, [c])))
        late.start()
        start.wait()
        sink.hide([committable])
        late.join()
        sink.commit(1, [committable])
        assert sink.is_empty()


def test_whoever_wins_a_race_of_commit_and_hiding_without_names_the_rows_end_hidden(
    fresh_directory: Callable[[], Path],
) -> None:
    sink = CollectSink("raced", str(fresh_directory()))

    def late_commit(committable: Committable, start: threading.Barrier) -> None:
        start.wait()
        with suppress(CorruptDataError):  # the file was swept before: the late leader has nothing to show
            sink.commit(1, [committable])

    for number in range(50):
        writer = sink.writer(WriterContext("sink", 0, 0, SINK_SCHEMA))
        writer.write(rows_of(number))
        committable = writer.prepare(number + 1)
        assert committable is not None
        start = threading.Barrier(2)
        late = threading.Thread(target=late_commit, args=(committable, start))
        late.start()
        start.wait()
        sink.hide_unnamed(1, 0, [])
        late.join()
        assert sink.is_empty()
