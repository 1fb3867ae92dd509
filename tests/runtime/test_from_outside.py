"""An operator, a window and an aggregate function from outside the package, one file each: they run, checkpoint, rescale,
show up in explain and are refused where they do not fit, and nothing in ``src/`` knows of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from outside_aggregate import spread
from outside_operator import FirstOfKey
from outside_window import ShiftedTumbling
from runtime_jobs import GatedSource, Jobs, MemorySink, events, until

import tidegate as tg
from tidegate.errors import InvalidUseError

ROWS = events(1_500, keys=40)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    running = Jobs(tmp_path)
    yield running
    running.stop_all()


def first_of_key(stream: tg.Stream) -> tg.Stream:
    return stream.apply(
        lambda rows: FirstOfKey(schema=rows.schema, event_time=rows.event_time, inputs=(rows,), keys=("key",))
    ).named("firsts")


def spreads(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("key").window(ShiftedTumbling(1_000, 250)).aggregate(by=spread("value"), n=tg.count()).named("spreads")


def pipeline(source: GatedSource, firsts: MemorySink, windows: MemorySink) -> tg.Pipeline:
    stream = tg.from_source(source)
    return tg.Pipeline("outside", first_of_key(stream).write(firsts), spreads(stream).write(windows))


def expected_spreads() -> list[tuple[int, ...]]:
    windows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in ROWS.to_pylist():
        windows[row["key"], (row["ts"] - 250) // 1_000 * 1_000 + 250].append(row["value"])
    return sorted((key, start, start + 1_000, max(v) - min(v), len(v)) for (key, start), v in windows.items())


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_they_run_checkpoint_and_rescale(jobs: Jobs, before: int, after: int) -> None:
    firsts, windows = MemorySink("firsts"), MemorySink("windows")
    source = GatedSource(ROWS, splits=1, allowed=700)
    job = jobs.start(pipeline(source, firsts, windows), before)
    until(lambda: source.emitted == 700)
    job.checkpoint()
    job.stop()
    stored = {entry.operator for entry in jobs.manifests("outside")[-1].operators}
    assert {"firsts", "spreads"} <= stored
    source.allow()
    jobs.finish(pipeline(source, firsts, windows), after)
    assert windows.rows() == expected_spreads()
    seen = [row[1] for row in firsts.rows()]
    assert sorted(seen) == sorted(set(ROWS.column("key").to_pylist()))


def test_their_state_is_data(jobs: Jobs) -> None:
    source = GatedSource(ROWS, splits=1, allowed=700)
    job = jobs.start(pipeline(source, MemorySink("a"), MemorySink("b")), 2)
    until(lambda: source.emitted == 700)
    job.checkpoint()
    job.stop()
    state = tg.read_state(jobs.store, "firsts")
    assert sorted(state.column("key").to_pylist()) == sorted(set(ROWS.slice(0, 700).column("key").to_pylist()))
    assert {"key", "window_start", "by", "n"} <= set(tg.read_state(jobs.store, "spreads").column_names)


def test_explain_shows_them() -> None:
    shown = pipeline(GatedSource(ROWS), MemorySink("a"), MemorySink("b")).explain()
    assert "PhysicalFirstOfKey firsts keys=[key]" in shown
    assert "shifted(1s, offset=250ms)" in shown and "by=spread(value)" in shown


def test_pre_flight_refuses_what_does_not_fit(jobs: Jobs) -> None:
    stream = tg.from_source(GatedSource(ROWS))
    with pytest.raises(InvalidUseError, match="spread needs whole numbers type=string"):
        stream.with_columns(text=tg.col("value").cast(pa.string())).key_by("key").aggregate(by=spread("text"))
    with pytest.raises(InvalidUseError, match="a shifted has other bounds"):
        stream.join(stream, on="key", window=ShiftedTumbling(1_000, 250))
    source = GatedSource(ROWS, splits=1, allowed=100)
    job = jobs.start(pipeline(source, MemorySink("a"), MemorySink("b")), 1)
    until(lambda: source.emitted == 100)
    job.checkpoint()
    job.stop()
    other = stream.key_by("key").window(ShiftedTumbling(1_000, 500)).aggregate(by=spread("value"), n=tg.count()).named("spreads")
    changed = tg.Pipeline("outside", first_of_key(stream).write(MemorySink("a")), other.write(MemorySink("b")))
    with pytest.raises(InvalidUseError, match=r"does not fit the plan: operator 'spreads' was .*shifted"):
        jobs.start(changed, 1)
