"""Ties, NaN and both zeros: no result depends on the order of arrival, in windows, sessions and running aggregates alike."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from keyed import Gang, running_gang, windowed_gang

from tidegate.operators.fixed import FixedWindow
from tidegate.operators.session import SessionWindow
from tidegate.state.functions import AggregateColumn
from tidegate.state.order import comparable

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
VALUES = [float("nan"), OTHER_NAN, -0.0, 0.0, None, 1.5, float("-inf")]
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("x", pa.float64())])
AGGREGATES = tuple(
    AggregateColumn.of(function, function, "x")  # type: ignore[arg-type]
    for function in ("first", "last", "min", "max", "count_distinct")
)
WAYS: dict[str, Callable[[int], Gang]] = {
    "running": lambda n: running_gang(SCHEMA, ("key",), AGGREGATES, n),
    "window": lambda n: windowed_gang(SCHEMA, ("key",), FixedWindow("tumbling", 1_000, 1_000), AGGREGATES, n),
    "sliding": lambda n: windowed_gang(SCHEMA, ("key",), FixedWindow("sliding", 1_000, 1_000), AGGREGATES, n),
    "session": lambda n: windowed_gang(SCHEMA, ("key",), SessionWindow(1_000), AGGREGATES, n),
}


def bits(value: float | None) -> bytes:
    return b"" if value is None else struct.pack("<d", value)


def results(way: str, values: list[float | None]) -> tuple[bytes, ...]:
    """Every value alone in its batch, all at one time; half of them before a restore at another parallelism."""
    before, after = WAYS[way](2), WAYS[way](3)
    for index, value in enumerate(values):
        gang = before if index < len(values) // 2 else after
        if index == len(values) // 2:
            after.restore(before.barrier())
        gang.feed(pa.RecordBatch.from_pylist([{"ts": 5, "key": 1, "x": value}], schema=SCHEMA))
        gang.barrier()
    row = after.finish().slice(after.result().num_rows - 1).to_pylist()[0]
    return tuple(bits(float(row[each.name])) for each in AGGREGATES)


@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_arrival_never_shows(way: str) -> None:
    dice = random.Random(7)
    expected = [float("-inf"), float("nan"), float("-inf"), 1.5, 4.0]
    for _ in range(40):
        values = dice.sample(VALUES, len(VALUES))
        assert results(way, values) == tuple(map(bits, expected)), values


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", [[-0.0, 0.0], [0.0, -0.0]], ids=str)
def test_minus_zero_comes_first_and_zeros_are_one_to_min_and_max(way: str, values: list[float | None]) -> None:
    assert results(way, values) == tuple(map(bits, [-0.0, 0.0, 0.0, 0.0, 1.0]))


def test_floats_are_compared_in_one_order() -> None:
    for kind in (pa.float32(), pa.float64()):
        ordered = pa.array([float("-inf"), -1.5, -1e-30, -0.0, 0.0, 1e-30, 1.5, float("inf"), float("nan"), None], kind)
        found = comparable(ordered).to_pylist()
        assert found[:-1] == sorted(set(found[:-1]))
        assert found[-1] is None
