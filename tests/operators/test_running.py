"""Running aggregates from rows to results, against DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from keyed import Gang, running_gang
from windowed import in_batches, random_events, sorted_rows

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.operators import preaggregate
from tidegate.state import table
from tidegate.state.functions import AggregateColumn
from tidegate.state.run import Restored, Run

AGGREGATES = (
    AggregateColumn.of("n", "count"),
    AggregateColumn.of("values", "count", "value"),
    AggregateColumn.of("total", "sum", "value"),
    AggregateColumn.of("whole", "sum", "count"),
    AggregateColumn.of("low", "min", "value"),
    AggregateColumn.of("high", "max", "name"),
    AggregateColumn.of("average", "mean", "count"),
    AggregateColumn.of("opening", "first", "value"),
    AggregateColumn.of("closing", "last", "name"),
    AggregateColumn.of("names", "count_distinct", "name"),
    AggregateColumn.of("counts", "count_distinct", "count"),
)
SQL = """count(*), count(value), sum(value), sum("count")::BIGINT, min(value), max(name), avg("count"),
         first(value ORDER BY ts, value) FILTER (value IS NOT NULL),
         last(name ORDER BY ts, name) FILTER (name IS NOT NULL), count(DISTINCT name), count(DISTINCT "count")"""


def expected(events: pa.Table, keys: Sequence[str], sql: str = SQL) -> list[tuple[object, ...]]:
    names = ", ".join(keys)
    with duckdb.connect() as connection:
        connection.register("events", events)
        found = connection.sql(f"SELECT {names}, {sql} FROM events GROUP BY {names}").to_arrow_table()
    return sorted_rows(found)


def newest(results: pa.Table, keys: Sequence[str]) -> list[tuple[object, ...]]:
    """The last row of every key."""
    rows = {tuple(row[key] for key in keys): row for row in results.to_pylist()}
    return sorted_rows(pa.Table.from_pylist(list(rows.values()), results.schema))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge, rewrite and flush all the time."""
    monkeypatch.setattr(table, "SMALL_ROWS", 40)
    monkeypatch.setattr(table, "CHUNK_ROWS", 60)
    monkeypatch.setattr(table, "SMALL_CHUNKS_MAX", 3)
    monkeypatch.setattr(preaggregate, "BUFFER_ROWS", 150)


@pytest.mark.parametrize("checkpointing", [True, False], ids=["epochs", "batches"])
@pytest.mark.parametrize("keys", [("key",), ("name",), ("key", "name")], ids="+".join)
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_newest_results_equal_one_batch_query(keys: tuple[str, ...], parallelism: int, checkpointing: bool) -> None:
    events = random_events(7, 3000)
    # Few different times, so that first and last have ties to break.
    events = events.set_column(0, "ts", pc.multiply(pc.divide(events.column("ts"), 800), 800))
    gang = running_gang(events.schema, keys, AGGREGATES, parallelism, checkpointing=checkpointing)
    for index, batch in enumerate(in_batches(events, 97)):
        gang.feed(batch)
        if index % 5 == 4:
            gang.barrier()
    assert newest(gang.finish(), keys) == expected(events, keys)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 4), (3, 7), (4, 1)])
def test_a_running_aggregate_goes_on_after_a_restore(before: int, after: int) -> None:
    events = random_events(11, 2000)
    keys = ("key", "name")
    gangs = [running_gang(events.schema, keys, AGGREGATES, n) for n in (before, after, before)]
    batches = in_batches(events, 50)
    current = gangs[0]
    for index, batch in enumerate(batches):
        frozen = current.barrier() if index % 4 == 0 else []
        if index in (12, 28):
            current = gangs[1 + (index > 12)]
            current.restore(frozen)
        current.feed(batch)
    current.finish()
    together = pa.concat_tables([gang.result() for gang in gangs])
    assert newest(together, keys) == expected(events, keys)


def test_results_at_a_barrier_are_those_of_the_rows_before_it() -> None:
    events = random_events(3, 1000)
    gang = running_gang(events.schema, ("key",), AGGREGATES)
    for index, batch in enumerate(in_batches(events, 100)):
        gang.feed(batch)
        gang.barrier()
        assert newest(gang.result(), ("key",)) == expected(events.slice(0, 100 * (index + 1)), ("key",))


def keyed(*keys: int) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array([0] * len(keys)), "key": pa.array(keys, pa.int64())})


def counting(parallelism: int = 1, *, checkpointing: bool = True) -> Gang:
    aggregates = (AggregateColumn.of("n", "count"),)
    return running_gang(keyed().schema, ("key",), aggregates, parallelism, checkpointing=checkpointing)


def test_only_keys_that_changed_are_emitted_once_per_epoch() -> None:
    gang = counting()
    gang.feed(keyed(1, 2, 3))
    gang.feed(keyed(1))
    assert gang.result().num_rows == 0
    gang.barrier()
    assert sorted_rows(gang.result()) == [(1, 2), (2, 1), (3, 1)]
    gang.barrier()
    gang.feed(keyed(3))
    gang.barrier()
    gang.finish()
    assert sorted_rows(gang.result()) == [(1, 2), (2, 1), (3, 1), (3, 2)]


def test_without_checkpoints_keys_are_emitted_with_every_batch() -> None:
    gang = counting(checkpointing=False)
    for _ in range(3):
        gang.feed(keyed(1))
        gang.watermark(0)
    assert gang.result().column("n").to_pylist() == [1, 2, 3]
    assert gang.finish().num_rows == 3


def test_a_snapshot_has_new_runs_of_changed_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SMALL_CHUNKS_MAX", 100)
    gang = counting()
    gang.feed(keyed(*range(1000)))
    before = gang.barrier()[0].runs
    gang.feed(keyed(1, 2, 3))
    gang.feed(keyed(3, 4))
    after = gang.barrier()[0].runs
    new = [run for run in after if run.uid not in {old.uid for old in before}]
    assert len(after) == len(before) + 1 and sum(run.batch.num_rows for run in new) == 4


def test_runs_stay_few_and_rows_stay_within_twice_the_keys() -> None:
    gang = counting()
    gang.feed(keyed(*range(500)))
    for index in range(300):
        gang.feed(keyed(*range(index, index + 20)))
        runs = gang.barrier()[0].runs
    assert len(runs) <= 40 and sum(run.batch.num_rows for run in runs) <= 2 * 500 + 200


def test_a_sum_that_leaves_64_bits_is_an_error() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", pa.int64())])
    gang = running_gang(schema, ("key",), (AggregateColumn.of("s", "sum", "v"),))
    gang.feed(pa.record_batch([[0], [1], [(1 << 63) - 1]], schema=schema))
    gang.barrier()
    gang.feed(pa.record_batch([[0], [1], [1]], schema=schema))
    with pytest.raises(InvalidUseError, match="too large"):
        gang.barrier()


def test_decimals_are_added_up_over_batches_and_too_many_digits_are_an_error() -> None:
    kind = pa.decimal128(38, 2)
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("v", kind)])
    gang = running_gang(schema, ("key",), (AggregateColumn.of("s", "sum", "v"),), 1)

    def feed(value: str) -> None:
        gang.feed(pa.record_batch([pa.array([1]), pa.array([1]), pa.array([Decimal(value)], kind)], schema=schema))
        gang.barrier()

    for value in ("1.25", "-0.75", "9" * 35):
        feed(value)
    assert gang.result().column("s").to_pylist()[-1] == Decimal("9" * 35 + ".50")
    with pytest.raises(InvalidUseError, match="too large"):
        feed("9" * 36)


KEYS = {
    "string": (pa.string(), ["a", "b", None, "", "a"]),
    "binary": (pa.binary(), [b"a", b"\x00", None, b"", b"a"]),
    "timestamp": (pa.timestamp("us", "Europe/Berlin"), [1, 2, None, -5, 1]),
    "decimal": (pa.decimal128(20, 3), [Decimal("1.5"), Decimal("-2"), None, Decimal(0), Decimal("1.5")]),
    "float": (pa.float64(), [0.0, float("nan"), None, 1.5, -0.0]),
    "bool": (pa.bool_(), [True, False, None, True, False]),
    "date": (pa.date32(), [1, 2, None, -3, 1]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type(kind: str) -> None:
    of, values = KEYS[kind]
    schema = pa.schema([("ts", pa.int64()), ("key", of)])
    batch = pa.record_batch([pa.array(range(5)), pa.array(values, of)], schema=schema)
    aggregates = (
        AggregateColumn.of("n", "count"),
        AggregateColumn.of("keys", "count_distinct", "key"),
        AggregateColumn.of("v", "last", "key"),
    )
    gang = running_gang(schema, ("key",), aggregates, 2)
    other = running_gang(schema, ("key",), aggregates, 3)
    for _ in range(3):
        gang.feed(batch)
        frozen = gang.barrier()
    other.restore(frozen)
    other.feed(batch)
    other.barrier()
    counts = {str(row["key"]).replace("-0.0", "0.0"): (row["n"], row["keys"]) for row in other.result().to_pylist()}
    wanted: dict[str, int] = {}
    for value in batch.column("key").to_pylist():
        name = str(value).replace("-0.0", "0.0")
        wanted[name] = wanted.get(name, 0) + 4
    assert counts == {name: (n, int(name != "None")) for name, n in wanted.items()}


def test_state_that_does_not_fit_is_refused() -> None:
    gang = counting()
    gang.feed(keyed(1))
    (frozen,) = gang.barrier()
    with pytest.raises(CorruptDataError, match="other columns"):
        counting().receivers[0].restore([Restored(0, frozen.meta, (Run(pa.record_batch({"x": [1]})),))])
    with pytest.raises(InvalidUseError, match="key groups"):
        counting().receivers[0].restore([Restored(0, {"key_groups": 7}, frozen.runs)])
