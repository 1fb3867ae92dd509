"""Event times anywhere in 64 bits: windows that fit come out, rows whose windows do not fit are late, nothing wraps around."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runtime_jobs import GatedSource, Jobs

import tidegate as tg
from tidegate.runtime.source import SourceReader, reached
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME

LOW, HIGH = BEGINNING_OF_TIME, END_OF_TIME
TIMES = [
    *(LOW, LOW + 1, LOW + 999, LOW + 5_000, LOW + 5_500, -1_500, -1),
    *(0, 1, HIGH - 5_000, HIGH - 4_500, HIGH - 999, HIGH - 1, HIGH),
]
SIZE = 1_000


def rows(times: list[int]) -> pa.Table:
    return pa.table({"ts": pa.array(times, pa.int64()), "k": pa.array([1] * len(times))})


def sessions(times: list[int]) -> tuple[list[tuple[int, int, int]], int]:
    """Start, end and rows of each session, and the rows that have none."""
    made: list[tuple[int, int, int]] = []
    fitting = [time for time in times if time + SIZE <= HIGH]
    for time in fitting:
        if made and time < made[-1][1]:
            made[-1] = (made[-1][0], time + SIZE, made[-1][2] + 1)
        else:
            made.append((time, time + SIZE, 1))
    return made, len(times) - len(fitting)


def windows(times: list[int], slide: int) -> tuple[list[tuple[int, int, int]], int]:
    fitting = [time for time in times if LOW + SIZE + slide <= time <= HIGH - SIZE - slide]
    counts: dict[int, int] = {}
    for time in fitting:
        last = time // slide * slide
        for start in range(last, time - SIZE, -slide):
            counts[start] = counts.get(start, 0) + 1
    return sorted((start, start + SIZE, n) for start, n in counts.items()), len(times) - len(fitting)


@pytest.mark.parametrize("kind", ["session", "tumbling", "sliding", "session late", "tumbling late"])
@pytest.mark.parametrize("out_of_orderness", [0, 10_000])
def test_windows_at_both_ends_of_time(kind: str, out_of_orderness: int, jobs: Jobs) -> None:
    source = GatedSource(rows(TIMES), splits=3, rows_per_poll=2)
    source.out_of_orderness = out_of_orderness
    shapes: dict[str, Any] = {"session": tg.session("1s"), "tumbling": tg.tumbling("1s"), "sliding": tg.sliding("1s", "500ms")}
    result = tg.from_source(source).key_by("k").window(shapes[kind.split()[0]]).aggregate(n=tg.count())
    outputs = [result.collect("result"), *([result.late().collect("late")] if "late" in kind else [])]
    job = jobs.finish(tg.Pipeline("ends", *outputs), 1)
    expected, late = sessions(TIMES) if "session" in kind else windows(TIMES, 500 if kind == "sliding" else SIZE)
    found = job.collect("result").sort_by("window_start")
    assert list(zip(*(found.column(name).to_pylist() for name in ("window_start", "window_end", "n")), strict=True)) == expected
    assert job.metrics()["late_rows"] == late
    if "late" in kind:
        assert job.collect("late").num_rows == late


def test_a_row_without_room_for_its_session_is_not_put_into_one_at_the_beginning_of_time(jobs: Jobs) -> None:
    source = GatedSource(rows([LOW, HIGH]), splits=1)
    counted = tg.from_source(source).key_by("k").window(tg.session("1s")).aggregate(n=tg.count())
    job = jobs.finish(tg.Pipeline("both", counted.collect()), 1)
    assert job.collect().column("n").to_pylist() == [1]
    assert job.metrics()["late_rows"] == 1


def test_a_watermark_stays_within_64_bits_and_the_end_is_said_by_the_end_alone() -> None:
    assert reached(LOW + 5, 10) == LOW
    assert reached(HIGH) == HIGH - 1
    source = GatedSource(rows([LOW, LOW + 1, LOW + 2]), splits=1, rows_per_poll=1)
    source.out_of_orderness = 10_000
    reader = SourceReader("rows", source, source.splits(), 0, 1)
    reader.poll(1)
    assert reader.watermark == LOW


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_near_their_ends(unit: str, jobs: Jobs) -> None:
    times = [LOW + 1, -1, 0, HIGH - 1]
    path = jobs.path / "rows.parquet"
    if unit == "s":  # Parquet has no seconds
        times = [-(1 << 40), -1, 0, 1 << 40]
    pq.write_table(pa.table({"ts": pa.array(times, pa.timestamp(unit)), "k": pa.array([1] * 4)}), path)
    counted = tg.read_parquet(path, event_time="ts").key_by("k").window(tg.tumbling("1s")).aggregate(n=tg.count())
    job = jobs.finish(tg.Pipeline("units", counted.collect()), 1)
    assert job.metrics()["late_rows"] + sum(job.collect().column("n").to_pylist()) == 4


def test_a_window_too_long_for_the_unit_is_refused() -> None:
    kind = pa.timestamp("ns")
    source = GatedSource(pa.table({"ts": pa.array([0], kind), "k": pa.array([1])}))
    with pytest.raises(tg.InvalidUseError, match="too long for the column's unit, cast the event time to a coarser one"):
        tg.from_source(source).key_by("k").window(tg.tumbling("40000d"))
