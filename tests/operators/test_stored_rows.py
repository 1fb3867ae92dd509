"""Reading stored runs as data returns each row of state once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from keyed import through_ipc
from stopping import Gang
from test_process import LIMIT, events, limits
from test_running import counting as running
from test_running import keyed
from test_sessions import counting as sessions
from test_sessions import rows

from tidegate.operators import closing, join
from tidegate.operators.stored import current_rows
from tidegate.state import table
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import results


@pytest.fixture(autouse=True)
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SMALL_CHUNKS_MAX", 1000)


def test_running_aggregates_have_one_row_per_key() -> None:
    gang = running()
    for index in range(10):
        gang.feed(keyed(1, 2, index + 10))
        (frozen,) = gang.barrier()
    (frozen,) = [through_ipc(frozen)]
    assert len(frozen.runs) > 2
    found = current_rows(["key"], [run.batch for run in frozen.runs], frozen.meta)
    counts = {}
    for batch in found:
        (n,) = results(batch, (AggregateColumn.of("n", "count"),))
        counts |= dict(zip(batch.column("key").to_pylist(), n.to_pylist(), strict=True))
    assert counts == {1: 10, 2: 10, **{index + 10: 1 for index in range(10)}}
    assert sum(batch.num_rows for batch in found) == len(counts)


def test_states_of_functions_lack_the_keys_that_are_gone() -> None:
    gang = limits()
    wanted: dict[object, int] = {}
    for batch in events(rows=600):
        gang.feed(batch)
        (frozen,) = gang.barrier()
        keys = batch.column("key").to_pylist()
        wanted |= {key: wanted.get(key, 0) + keys.count(key) for key in set(keys)}
        wanted = {key: n for key, n in wanted.items() if key not in keys or n < LIMIT}
    found = pa.Table.from_batches(current_rows(["key"], [run.batch for run in frozen.runs], frozen.meta))
    assert dict(zip(found["key"].to_pylist(), found["n"].to_pylist(), strict=True)) == wanted
    assert found.num_rows == len(wanted)


def test_sessions_that_were_emitted_are_not_among_the_rows() -> None:
    gang = sessions()
    for key in range(40):
        gang.feed(rows(0 if key % 4 == 0 else 100, key=key))
    gang.watermark(50)
    (frozen,) = gang.barrier()
    assert len(frozen.runs) >= 2
    found = current_rows(["key"], [run.batch for run in frozen.runs], frozen.meta)
    assert sorted(key for batch in found for key in batch.column("key").to_pylist()) == [k for k in range(40) if k % 4]


@pytest.mark.parametrize("kind", ["tumbling", "join"])
def test_rows_of_a_window_that_were_emitted_are_not_among_the_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 12)
    monkeypatch.setattr(join, "PIECE_ROWS", 5)
    gang = Gang(kind, 1)
    gang.feed([(5, key // 2, key) for key in range(100)])
    gang.feed([(105, 60 + key // 2, key) for key in range(20)])
    gang.watermark(100, 9)
    emitted = set(gang.results["key"].to_pylist())
    (frozen,) = gang.freeze()
    found = current_rows(["key"], [run.batch for run in frozen.runs], frozen.meta)
    left = {key for batch in found for key in batch.column("key").to_pylist()}
    assert gang.has_pending and emitted and not emitted & left and emitted | left == {*range(50), *range(60, 70)}
    assert sum(batch.num_rows for batch in found) == 2 * len(left), "each row once"


def test_rows_of_overlapping_windows_are_those_of_the_panes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 12)
    gang = Gang("sliding", 1)
    gang.feed([(5, key, key) for key in range(50)])
    gang.watermark(50, 5)
    (frozen,) = gang.freeze()
    found = current_rows(["key"], [run.batch for run in frozen.runs], frozen.meta, overlapping=True)
    assert gang.has_pending and gang.results.num_rows and sum(batch.num_rows for batch in found) == 50
