"""Drives windowed operators the way a gang would, and says in plain Python what should come out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from specs import build, pre_aggregate, window_aggregate, window_join
from tidegate.operators.join import WindowJoin
from tidegate.plan.operator import Operator
from tidegate.plan.schemas import aggregate_type
from tidegate.state.functions import AggregateColumn
from tidegate.state.keygroups import partition
from tidegate.state.partial import partial_schema
from tidegate.state.plain import plain
from tidegate.state.run import Frozen, Restored

END_OF_TIME = (1 << 63) - 1


@dataclass
class AggregateGang:
    """One sender that pre-aggregates and the receivers it partitions to."""

    schema: pa.Schema
    keys: tuple[str, ...]
    window: Any
    aggregates: tuple[AggregateColumn, ...]
    parallelism: int = 1
    event_time: str = "ts"
    receivers: list[Operator] = field(default_factory=list)
    emitted: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.partials = partial_schema(self.keys, self.aggregates, self.schema)
        time = self.schema.field(self.event_time).type
        plain_schema = pa.schema([each.with_type(plain(each.type)) for each in self.schema])
        self.output = pa.schema(
            [self.schema.field(key) for key in self.keys]
            + [pa.field("window_start", time), pa.field("window_end", time)]
            + [pa.field(a.name, aggregate_type(a, plain_schema)) for a in self.aggregates]
        )
        self.sender = build(
            pre_aggregate("pre", self.keys, self.window, self.aggregates, self.event_time, self.schema, self.partials),
        )
        spec = window_aggregate("agg", self.keys, self.window, self.aggregates, self.event_time, self.partials, self.output)
        self.receivers = [build(spec, subtask, self.parallelism) for subtask in range(self.parallelism)]

    def feed(self, batch: pa.RecordBatch) -> None:
        self._send(self.sender.process(0, batch))

    def watermark(self, timestamp: int) -> None:
        self._send(self.sender.watermark(timestamp))
        for receiver in self.receivers:
            self.emitted += receiver.watermark(timestamp)

    def finish(self) -> pa.Table:
        self.watermark(END_OF_TIME)
        self._send(self.sender.end())
        for receiver in self.receivers:
            self.emitted += receiver.end()
        return self.result()

    def result(self) -> pa.Table:
        return pa.Table.from_batches(self.emitted, self.output)

    def freeze(self) -> list[Frozen]:
        self._send(self.sender.before_barrier())
        return [frozen for receiver in self.receivers if (frozen := receiver.freeze()) is not None]

    @property
    def late_rows(self) -> int:
        return sum(receiver.late_rows for receiver in self.receivers)  # type: ignore[attr-defined]

    def _send(self, partials: Iterable[pa.RecordBatch]) -> None:
        for batch in partials:
            assert batch.schema == self.partials
            for receiver, part in zip(self.receivers, partition(batch, self.keys, self.parallelism), strict=True):
                if part is not None:
                    self.emitted += receiver.process(0, part)


@dataclass
class JoinGang:
    """Receivers of a join; rows are partitioned to them as senders would."""

    spec: WindowJoin
    parallelism: int = 1
    receivers: list[Operator] = field(default_factory=list)
    emitted: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.receivers = [build(self.spec, subtask, self.parallelism) for subtask in range(self.parallelism)]

    def feed(self, port: int, batch: pa.RecordBatch) -> None:
        for receiver, part in zip(self.receivers, partition(batch, self.spec.keys, self.parallelism), strict=True):
            if part is not None:
                self.emitted += receiver.process(port, part)

    def watermark(self, timestamp: int) -> None:
        for receiver in self.receivers:
            self.emitted += receiver.watermark(timestamp)

    def finish(self) -> pa.Table:
        self.watermark(END_OF_TIME)
        return self.result()

    def result(self) -> pa.Table:
        return pa.Table.from_batches(self.emitted, self.spec.schema)

    def freeze(self) -> list[Frozen]:
        return [frozen for receiver in self.receivers if (frozen := receiver.freeze()) is not None]

    @property
    def late_rows(self) -> int:
        return sum(receiver.late_rows for receiver in self.receivers)  # type: ignore[attr-defined]


def restore_into(receivers: Sequence[Operator], frozen: Sequence[Frozen]) -> None:
    """Every new subtask is shown the state of every old one."""
    for receiver in receivers:
        receiver.restore([Restored(subtask, piece.meta, piece.runs) for subtask, piece in enumerate(frozen)])


def join_spec(left: pa.Schema, right: pa.Schema, keys: tuple[str, ...], window: Any) -> WindowJoin:
    time = left.field("ts").type
    fields = [left.field(key) for key in keys] + [
        pa.field("window_start", time),
        pa.field("window_end", time),
    ]
    fields += [column for column in left if column.name not in keys]
    taken = {column.name for column in fields}
    for column in right:
        if column.name not in keys:
            fields.append(column.with_name(f"{column.name}_right") if column.name in taken else column)
    return window_join("join", keys, window, left, right, ("ts", "ts"), pa.schema(fields))


def starts_of(time: int, window: Any) -> list[int]:
    """The starts of all windows that hold this time, by trying every one near it."""
    first = (time - window.size) // window.slide * window.slide
    candidates = range(first, time + 1, window.slide)
    return [start for start in candidates if start <= time < start + window.size]


def in_batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    return list(table.combine_chunks().to_batches(max_chunksize=rows))


def sorted_rows(table: pa.Table, digits: int = 6) -> list[tuple[object, ...]]:
    """The rows in an order of their own, with floats rounded."""
    plain = [
        tuple(round(value, digits) if isinstance(value, float) else value for value in row.values()) for row in table.to_pylist()
    ]
    return sorted(plain, key=lambda row: [(value is not None, str(type(value)), str(value)) for value in row])


def random_events(seed: int, rows: int, *, low: int = -20_000, spread: int = 500) -> pa.Table:
    """Events in a rough order: none is more than ``spread`` before an earlier one. Only ``ts`` has no nulls."""
    rng = random.Random(seed)

    def maybe(value: object) -> object:
        return None if rng.random() < 0.05 else value

    return pa.table(
        {
            "ts": pa.array([low + 4 * row - rng.randrange(spread) for row in range(rows)], pa.int64()),
            "key": pa.array([maybe(rng.randrange(40)) for _ in range(rows)], pa.int32()),
            "name": pa.array([maybe(f"n{rng.randrange(5)}") for _ in range(rows)], pa.string()),
            "value": pa.array([maybe(rng.uniform(-50, 50)) for _ in range(rows)], pa.float64()),
            "count": pa.array([maybe(rng.randrange(-9, 9)) for _ in range(rows)], pa.int16()),
        }
    )
