"""Rows of one key reach a function at most ``out_of_orderness`` out of order, whichever node reads which split."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pyarrow as pa
import pytest
from runtime_jobs import Jobs, MemorySink, once, until

import tidegate as tg
from tidegate.plan.connector import Offset, Polled, Split

HOUR = 3_600_000
BOUND = 5_000
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64())])


class Hours:
    """Splits of an hour each, rows up to ``BOUND`` out of order in each; ``start`` says when each begins."""

    schema, event_time, out_of_orderness, bounded, name = SCHEMA, "ts", BOUND, True, "hours"

    def __init__(self, *starts: int, rows: int = 400, on_poll: object = lambda number: None) -> None:
        self.starts, self.rows, self.on_poll, self.polls = starts, rows, on_poll, 0

    def splits(self) -> list[Split]:
        return [Split(str(number), start, self.rows) for number, start in enumerate(self.starts)]

    def open(self, split: Split, offset: Offset) -> Hour:
        return Hour(self, int(split.id), int(str(offset or 0)))

    def times(self, number: int) -> list[int]:
        chance = random.Random(number)
        steps = [self.starts[number] + BOUND + at * (HOUR // self.rows) for at in range(self.rows)]
        return [time - chance.randrange(BOUND) for time in steps]


class Hour:
    def __init__(self, source: Hours, number: int, at: int) -> None:
        self._source, self._times, self._at = source, source.times(number), at

    @property
    def offset(self) -> int:
        return self._at

    def poll(self, max_rows: int) -> Polled:
        self._source.polls += 1
        self._source.on_poll(self._source.polls)  # type: ignore[operator]
        times = self._times[self._at : self._at + 20]
        self._at += len(times)
        batch = pa.RecordBatch.from_pydict({"ts": times, "key": [time % 7 for time in times]}, schema=SCHEMA)
        return Polled(batch, len(times), max(times), self._at >= len(self._times))

    def close(self) -> None:
        return None


class Seen:
    """What a function saw of every key, in its order. A key is always on one node, and a node has one thread for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.times: dict[int, list[int]] = defaultdict(list)

    def __call__(self, batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        with self.lock:
            for time, key in zip(batch.column("ts").to_pylist(), batch.column("key").to_pylist(), strict=True):
                self.times[key].append(time)
        return batch, state

    def worst(self) -> int:
        """The largest step backwards from the latest row of the same key so far."""
        worst = 0
        for times in self.times.values():
            latest = times[0]
            for time in times:
                worst, latest = max(worst, latest - time), max(latest, time)
        return worst


def pipeline(source: Hours, seen: Seen, sink: MemorySink) -> tg.Pipeline:
    keyed = tg.from_source(source).key_by("key")
    return tg.Pipeline("order", keyed.process(seen, state=pa.schema([("n", pa.int64())]), output=SCHEMA).write(sink))


@pytest.mark.parametrize("starts", [(0, 2 * HOUR), (0, HOUR, 2 * HOUR, 3 * HOUR), (0, 0, HOUR // 2)])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_rows_of_a_key_come_within_the_bound_of_their_order(jobs: Jobs, starts: tuple[int, ...], parallelism: int) -> None:
    source, seen, sink = Hours(*starts), Seen(), MemorySink()
    jobs.finish(pipeline(source, seen, sink), parallelism)
    assert seen.worst() <= BOUND
    expected = sorted(time for number in range(len(starts)) for time in source.times(number))
    assert sorted(row[0] for row in sink.rows()) == expected


def test_rows_that_wait_are_there_once_after_losses_at_another_parallelism_too(jobs: Jobs) -> None:
    source = Hours(0, 2 * HOUR, on_poll=once(ConnectionError("lost"), lambda number: number == 22))
    sink = MemorySink()
    job = jobs.start(pipeline(source, Seen(), sink), 2, interval="10ms")
    until(lambda: job.metrics()["restarts"] == 1 or job.status == "FINISHED", "a restart")
    job.stop()
    assert jobs.start(pipeline(source, Seen(), sink), 3, interval="10ms").await_termination(20)
    assert sorted(row[0] for row in sink.rows()) == sorted([*source.times(0), *source.times(1)])
