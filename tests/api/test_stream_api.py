"""Building streams: the columns that come out, and every refusal before anything runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate import col

TEN = tg.tumbling("10s")
STATE = pa.schema([("n", pa.int64())])
BASE = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64()), ("note", pa.string())])


def stream(tmp_path: Path, schema: pa.Schema = BASE, event_time: str | None = "ts", name: str = "in") -> tg.Stream:
    (tmp_path / name).mkdir()
    table = pa.table(
        [pa.array([0], pa.int64()).cast(f.type) if f.name == "ts" else pa.nulls(1, f.type) for f in schema],
        schema=schema,
    )
    pq.write_table(table, tmp_path / name / "0.parquet")
    return tg.read_parquet(tmp_path / name, event_time=event_time)


@pytest.fixture
def bids(tmp_path: Path) -> tg.Stream:
    return stream(tmp_path)


def fields(found: tg.Stream) -> list[str]:
    return [f"{field.name} {field.type}" for field in found.schema]


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_col_is_pyarrows_field() -> None:
    assert tg.col is pc.field


def test_filter_keeps_the_columns_and_the_event_time(bids: tg.Stream) -> None:
    found = bids.filter((col("value") > 1) & (col("note") == "x"))
    assert (found.schema, found.event_time) == (bids.schema, "ts")
    assert repr(found) == "Stream(ts int64, key int64, value double, note string)"


def test_select_takes_names_expressions_and_named_ones(bids: tg.Stream) -> None:
    found = bids.select("note", col("ts"), half=col("value") / 2, one=1, yes=True)
    assert fields(found) == ["note string", "ts int64", "half double", "one int64", "yes bool"]
    assert found.event_time == "ts"


def test_select_follows_a_renamed_event_time_and_loses_one_left_out(bids: tg.Stream) -> None:
    assert bids.select("key", time=col("ts")).event_time == "time"
    assert bids.select("ts", time=col("ts")).event_time == "ts"
    assert bids.select("key").event_time is None
    assert bids.select("key", ts=col("key")).event_time is None


def test_with_columns_replaces_in_place_and_appends(bids: tg.Stream) -> None:
    found = bids.with_columns(key=col("key").cast("string"), cents=col("value") * 100)
    assert fields(found) == ["ts int64", "key string", "value double", "note string", "cents double"]


def test_map_batches_keeps_the_columns_or_takes_a_schema(bids: tg.Stream) -> None:
    assert bids.map_batches(lambda batch: batch).schema == bids.schema
    other = bids.map_batches(lambda batch: batch, pa.schema([("x", pa.int8())]))
    assert (fields(other), other.event_time) == (["x int8"], None)
    kept = bids.map_batches(lambda batch: batch, schema=pa.schema([("ts", pa.int64())]))
    assert kept.event_time == "ts"
    assert bids.map_batches(lambda batch: batch, schema=pa.schema([("ts", pa.int32())])).event_time is None


def test_a_windowed_aggregate_has_keys_bounds_and_results(bids: tg.Stream) -> None:
    found = (
        bids.key_by("key", "note")
        .window(TEN)
        .aggregate(
            n=tg.count(),
            v=tg.count("value"),
            s=tg.sum("value"),
            k=tg.sum("key"),
            m=tg.mean("key"),
            lo=tg.min("note"),
        )
    )
    assert fields(found) == [
        "key int64", "note string", "window_start int64", "window_end int64",
        "n int64", "v int64", "s double", "k int64", "m double", "lo string",
    ]  # fmt: skip
    assert found.event_time == "window_end"


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns")])
def test_window_bounds_have_the_type_of_the_event_time(kind: pa.DataType, tmp_path: Path) -> None:
    made = stream(tmp_path, pa.schema([("ts", kind), ("key", pa.int64())]))
    if kind.unit == "s":  # Parquet has no seconds: they come back as milliseconds
        kind = pa.timestamp("ms")
    found = made.key_by("key").window(tg.tumbling("10s")).aggregate(n=tg.count())
    assert found.schema.field("window_start").type == kind
    assert found.schema.field("window_end").type == kind
    seconds = {"ms": 10_000, "us": 10**7, "ns": 10**10}
    assert found.node.window.size == seconds[kind.unit]  # type: ignore[attr-defined]


def test_windows_can_be_put_on_windows_with_lateness(bids: tg.Stream) -> None:
    late = bids.key_by("key").window(tg.tumbling("10s", allowed_lateness="5s")).aggregate(n=tg.count())
    assert late.event_time == "window_end"
    assert late.key_by("key").window(TEN).aggregate(n=tg.count()).event_time == "window_end"


def test_a_running_aggregate_has_keys_and_names(bids: tg.Stream) -> None:
    found = bids.key_by("key").aggregate(n=tg.count(), newest=tg.last("note"), notes=tg.count_distinct("note"))
    assert found.schema == pa.schema([("key", pa.int64()), ("n", pa.int64()), ("newest", pa.string()), ("notes", pa.int64())])
    assert found.event_time is None


def test_late_rows_have_the_columns_of_the_input_and_no_event_time(bids: tg.Stream) -> None:
    windowed = bids.key_by("key").window(tg.session("10s"))
    result = windowed.aggregate(n=tg.count())
    for late in (result.late(), result.named("per_key").late(), windowed.late()):
        assert late.schema == bids.schema and late.event_time is None


def test_process_has_the_columns_of_its_output(bids: tg.Stream) -> None:
    output = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("n", pa.int64())])
    found = bids.key_by("key").process(lambda batch, state: (batch, state), state=STATE, output=output)
    assert found.schema == output and found.event_time == "ts"
    assert found.node.state.names == ["key", "n"]  # type: ignore[attr-defined]


def test_a_join_has_keys_bounds_left_and_right(bids: tg.Stream, tmp_path: Path) -> None:
    people = stream(tmp_path, pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("name", pa.string())]), name="people")
    found = bids.join(people, on="key", window=TEN)
    assert found.schema.names == [
        "key",
        "window_start",
        "window_end",
        "ts",
        "value",
        "note",
        "ts_right",
        "name",
    ]
    assert found.event_time == "window_end"
    assert bids.join(people, on=["key"], window=TEN).schema == found.schema


def test_a_join_of_windows_keeps_everybodys_bounds(bids: tg.Stream) -> None:
    counts = bids.key_by("key").window(TEN).aggregate(n=tg.count())
    found = counts.join(counts, on="key", window=TEN)
    assert found.schema.names == [
        "key", "window_start", "window_end", "window_start_left", "window_end_left", "n",
        "window_start_right", "window_end_right", "n_right",
    ]  # fmt: skip


def test_union_puts_the_columns_in_the_first_ones_order(bids: tg.Stream) -> None:
    found = bids.union(bids.select("note", "value", "key", "ts"), bids)
    assert (found.schema.names, found.event_time) == (bids.schema.names, "ts")


def test_durations_may_be_text_numbers_or_timedeltas() -> None:
    assert tg.tumbling("10s") == tg.tumbling(10_000) == tg.tumbling(timedelta(seconds=10))
    assert (tg.sliding("1m", "10s").size_ms, tg.sliding("1m", "10s").slide_ms) == (60_000, 10_000)
    assert tg.session("30s").gap_ms == 30_000


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED = {
    "unknown column in filter": (
        lambda s: s.filter(col("valeu") > 1),
        "filter: there is no column 'valeu', did you mean 'value'.*columns=ts, key",
    ),
    "filter without an expression": (lambda s: s.filter(True), "filter takes an expression"),
    "filter that is no condition": (lambda s: s.filter(col("key") + 1), "true or false, not int64"),
    "types that do not compare": (lambda s: s.filter(col("note") > 1), "filter: .*string.*note string"),
    "select nothing": (lambda s: s.select(), "at least one column columns=ts, key, value, note"),
    "select unknown": (
        lambda s: s.select("nope"),
        "select: there is no column 'nope'.*columns=ts, key, value, note",
    ),
    "select a number": (lambda s: s.select(3), "named by a string, not int"),
    "select without a name": (lambda s: s.select(col("key") + 1), "needs a name"),
    "select an unknown field": (lambda s: s.select(col("nope")), "no column 'nope'"),
    "select twice": (lambda s: s.select("key", "key"), "two columns of the result would be called 'key'"),
    "with a string": (lambda s: s.with_columns(x="key"), "with_columns takes an expression.*not str"),
    "with another event time": (
        lambda s: s.with_columns(ts=col("ts") + 1),
        "event-time column can't be replaced",
    ),
    "map without a function": (lambda s: s.map_batches(3), "map_batches needs a function"),
    "map with a bad schema": (lambda s: s.map_batches(len, {"a": 1}), "schema is a pyarrow.Schema"),
    "map to no columns": (
        lambda s: s.map_batches(len, pa.schema([])),
        "schema is a pyarrow.Schema with columns",
    ),
    "union of one": (lambda s: s.union(), "at least one other stream"),
    "union with a table": (lambda s: s.union(3), "union needs another stream"),
    "union of other columns": (
        lambda s: s.union(s.select("ts", "key", "note")),
        "only one side has the column 'value'",
    ),
    "union of other types": (
        lambda s: s.union(s.with_columns(key=col("key").cast("int8"))),
        "'key' has different types.*int64, int8",
    ),
    "union of other event times": (
        lambda s: s.union(s.select("key", "value", "note", ts=col("key"))),
        "same event-time column columns=ts, None",
    ),
    "no key": (lambda s: s.key_by(), "key_by needs the name of at least one key"),
    "unknown key": (lambda s: s.key_by("nope"), "key_by: there is no column 'nope'"),
    "key twice": (lambda s: s.key_by("key", "key"), "a key comes twice"),
    "key of the wrong kind": (lambda s: s.key_by(col("key")), "named by a string"),
    "a bound as key": (
        lambda s: s.with_columns(window_end=col("key")).key_by("window_end"),
        "rename it with select",
    ),
    "no window": (lambda s: s.key_by("key").window("10s"), "written like tumbling"),
    "window without time": (
        lambda s: s.select("key").key_by("key").window(TEN),
        "no event time.*columns=key",
    ),
    "join of sessions": (lambda s: s.join(s, on="key", window=tg.session("1m")), "other bounds on each side"),
    "first without time": (
        lambda s: s.select("key", "value").key_by("key").aggregate(n=tg.first("value")),
        "first goes by event time.*result=n",
    ),
    "late rows of a running aggregate": (
        lambda s: s.key_by("key").aggregate(n=tg.count()).late(),
        "late.. belongs to the result of a windowed aggregate",
    ),
    "late rows before there is an aggregate": (
        lambda s: s.key_by("key").window(TEN).late(),
        "late.. belongs to one aggregate",
    ),
    "process without a function": (lambda s: s.key_by("key").process(3, STATE, STATE), "needs a function"),
    "process without a state": (
        lambda s: s.key_by("key").process(len, state=pa.schema([]), output=STATE),
        "state is a pyarrow.Schema with columns",
    ),
    "process without an output": (
        lambda s: s.key_by("key").process(len, state=STATE, output="n"),
        "output is a pyarrow.Schema with columns output='n'",
    ),
    "process with another type of key": (
        lambda s: s.key_by("key").process(len, pa.schema([("key", pa.string()), ("n", pa.int64())]), STATE),
        "the key 'key' has another type in the state.*int64, string",
    ),
    "process with keys only": (
        lambda s: s.key_by("key").process(len, pa.schema([("key", pa.int64())]), STATE),
        "needs a column besides the keys",
    ),
    "no aggregate": (lambda s: s.key_by("key").window(TEN).aggregate(), "at least one result"),
    "unknown aggregate": (lambda s: s.key_by("key").window(TEN).aggregate(n=sum), "n is no aggregate"),
    "aggregate of nothing": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.sum("nope")),
        r"n=sum\('nope'\): there is no column 'nope'",
    ),
    "sum of text": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.sum("note")),
        "sum needs a column of numbers type=string",
    ),
    "mean of text": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.mean("note")),
        "mean needs a column of numbers",
    ),
    "aggregate called like a key": (
        lambda s: s.key_by("key").window(TEN).aggregate(key=tg.count()),
        "would be called 'key'",
    ),
    "aggregate called like a bound": (
        lambda s: s.key_by("key").window(TEN).aggregate(window_end=tg.count()),
        "would be called 'window_end'",
    ),
    "last of nothing": (
        lambda s: s.key_by("key").window(TEN).aggregate(n=tg.last("nope")),
        "n=last\\('nope'\\): there is no column 'nope'",
    ),
    "join with a table": (lambda s: s.join(3, on="key", window=TEN), "join needs another stream"),
    "join without keys": (lambda s: s.join(s, on=[], window=TEN), "join needs the name of at least one key"),
    "join on a number": (lambda s: s.join(s, on=3, window=TEN), "join needs the name of at least one key"),
    "join on the unknown": (
        lambda s: s.join(s.select("ts", "note"), on="key", window=TEN),
        "join, right side: there is no column 'key'",
    ),
    "join of other keys": (
        lambda s: s.join(s.with_columns(key=col("key").cast("string")), on="key", window=TEN),
        "the key 'key' has different types.*left=int64 right=string",
    ),
    "join without time": (lambda s: s.join(s.select("key"), on="key", window=TEN), "no event time"),
    "join without a window": (lambda s: s.join(s, on="key", window=None), "a window is written like"),
    "write nowhere": (lambda s: s.write(object()), "write needs a Sink"),
    "parquet with an unknown option": (
        lambda s: s.write_parquet("out", compresion="zstd"),
        "write_parquet: there is no option 'compresion', did you mean 'compression'. options=path, compression, file_bytes",
    ),
    "a window with an unknown option": (
        lambda s: tg.tumbling("10s", lateness="1s"),  # type: ignore[call-arg]
        "tumbling: there is no option 'lateness', did you mean 'allowed_lateness'. options=size, allowed_lateness",
    ),
    "files with an unknown option": (
        lambda s: tg.read_parquet("in", continous=True),
        "read_parquet: there is no option 'continous', did you mean 'continuous'. options=path, event_time, out_of",
    ),
    "files that are watched only by half": (lambda s: tg.read_parquet("in", idle_timeout="1s"), "add continuous=True"),
    "made-up rows with an unknown option": (
        lambda s: tg.generate(row=5),
        "generate: there is no option 'row', did you mean 'rows'. options=rows, rows_per_second, keys",
    ),
    "a DataFrame with an unknown option": (
        lambda s: tg.from_dataframe(None, event_tme="ts"),  # type: ignore[call-arg]
        "from_dataframe: there is no option 'event_tme', did you mean 'event_time'",
    ),
    "certificates with an unknown option": (
        lambda s: tg.Tls(cert="a", key="b", authority="c"),  # type: ignore[call-arg]
        "Tls: there is no option 'cert'.*options=certificate, key, authority, name",
    ),
    "a function that is none": (lambda s: s.for_each_batch(3), "for_each_batch needs a function"),
    "a bad name": (lambda s: s.named("a/b"), "the name of an operator"),
    "a bad result name": (lambda s: s.collect("a/b"), "the name of a result"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_can_not_work_is_refused_at_the_call(name: str, bids: tg.Stream) -> None:
    call, words = REFUSED[name]
    with pytest.raises(tg.InvalidUseError, match=words) as caught:
        call(bids)
    assert "\n" not in str(caught.value)


def test_a_join_needs_the_same_type_of_event_time(bids: tg.Stream, tmp_path: Path) -> None:
    other = stream(tmp_path, pa.schema([("ts", pa.timestamp("us")), ("key", pa.int64())]), name="other")
    with pytest.raises(tg.InvalidUseError, match=r"same type of event time types=int64, timestamp\[us\]"):
        bids.join(other, on="key", window=TEN)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int8()), pa.struct([("x", pa.int8())]), pa.dictionary(pa.int8(), pa.list_(pa.int8())), pa.null()],
)
def test_a_key_is_a_plain_value(kind: pa.DataType, bids: tg.Stream) -> None:
    mapped = bids.map_batches(lambda batch: batch, schema=pa.schema([("ts", pa.int64()), ("key", kind)]))
    with pytest.raises(tg.InvalidUseError, match="column 'key' can't be a key, give a column of plain values"):
        mapped.key_by("key")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tg.tumbling("0s"), "size must be at least 1 ms"),
        (lambda: tg.tumbling("-3s"), "no length of time"),
        (lambda: tg.tumbling(-3), "size must be at least"),
        (lambda: tg.tumbling("ten"), "no length of time"),
        (lambda: tg.sliding("10s", "20s"), "a slide longer than the window"),
        (lambda: tg.sliding("1d", "1ms"), "more than 10000 windows"),
        (lambda: tg.session("0s"), "gap must be at least"),
        (lambda: tg.tumbling("1s", allowed_lateness="-1s"), "allowed_lateness is no length of time"),
        (lambda: tg.sum(3), "sum takes the name of a column"),
        (lambda: tg.count(col("x") + 1), "count takes the name of a column"),
        (lambda: tg.count_distinct(None), "count_distinct takes the name of a column"),
    ],
)
def test_windows_and_aggregates_check_their_arguments(call: object, words: str) -> None:
    with pytest.raises(tg.InvalidUseError, match=words):
        call()  # type: ignore[operator]
