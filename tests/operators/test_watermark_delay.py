"""Windows with allowed lateness hold back the watermark for everything downstream."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from keyed import END_OF_TIME, windowed_gang

from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.operators.window import Window
from tidegate.plan.operator import Stateless
from tidegate.runtime.chain import Chain
from tidegate.state.functions import AggregateColumn

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
LATENESS = 300


class Probe(Stateless):
    """Notes what comes, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.seen += batch.column("window_end").to_pylist()
        return (batch,)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        self.seen.append(f"W{timestamp}")
        return ()


@pytest.mark.parametrize("window", [FixedWindow("tumbling", 100, 100, LATENESS), SessionWindow(100, LATENESS)], ids=str)
def test_a_result_comes_before_every_watermark_that_would_make_it_late(window: Window) -> None:
    gang = windowed_gang(SCHEMA, ("key",), window, (AggregateColumn.of("n", "count"),))
    assert gang.sender is not None
    probe = Probe()
    chain = Chain([("pre", gang.sender), ("agg", gang.receivers[0]), ("probe", probe)])
    assert list(chain.process(0, pa.record_batch([[0], [1]], schema=SCHEMA))) == []
    for timestamp in (50, 100, 399, 400):
        list(chain.watermark(timestamp))
    assert probe.seen == ["W-250", "W-200", "W99", 100, "W100"]
    assert [chain.passed_on(t) for t in (0, 400, END_OF_TIME)] == [-300, 100, END_OF_TIME]


def test_the_end_of_time_is_passed_on_at_once() -> None:
    gang = windowed_gang(SCHEMA, ("key",), SessionWindow(100, LATENESS), (AggregateColumn.of("n", "count"),))
    gang.feed(pa.record_batch([[5], [1]], schema=SCHEMA))
    assert gang.finish().column("window_end").to_pylist() == [105]
