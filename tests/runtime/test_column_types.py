"""Every Arrow type in every use of a column works, with a restore at another parallelism, or is refused at once."""

from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, failure

import tidegate as tg
from tidegate.api.aggregates import AggregateCall
from tidegate.state.functions import named
from tidegate.state.plain import plain

ROWS = 24
LONG_S = 60.0
PICKS = [index % 5 for index in range(ROWS)]  # four values, and null
WORDS = ["a", "b", "a longer text than fits into a view itself", "d"]


def _of(values: list[Any], kind: pa.DataType) -> pa.Array:
    four = pa.array([*values, None], kind)
    return pa.concat_arrays([four.slice(pick, 1) for pick in PICKS])


def _extension(kind: Any, storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, storage)


def _union(mode: str) -> pa.Array:
    numbers, words = _of([1, 2, 3, 4], pa.int64()), _of(WORDS, pa.string())
    types = pa.array([index % 2 for index in range(ROWS)], pa.int8())
    if mode == "sparse":
        return pa.UnionArray.from_sparse(types, [numbers, words])
    return pa.UnionArray.from_dense(types, pa.array(range(ROWS), pa.int32()), [numbers, words])


NUMBERS, TEXTS = _of([1, 2, 3, 4], pa.int64()), _of(WORDS, pa.string())
DECIMALS = [Decimal("1.25"), Decimal("-2.50"), Decimal("3.75"), Decimal("0.00")]  # exact as floats: so is their mean
COLUMNS: dict[str, pa.Array] = {
    "null": pa.nulls(ROWS),
    "bool": _of([True, False, True, False], pa.bool_()),
    **{str(kind): _of([1, 2, 3, 4], kind) for kind in (pa.int8(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64())},
    **{str(kind): _of([1.5, float("nan"), -0.0, 0.0], kind) for kind in (pa.float32(), pa.float64())},
    "float16": _of(list(np.array([1.5, np.nan, -0.0, 0.0], np.float16)), pa.float16()),
    **{str(kind): _of(DECIMALS, kind) for kind in (pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(20, 2))},
    "decimal256": _of(DECIMALS, pa.decimal256(50, 2)),
    **{str(kind): _of(WORDS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): _of([w.encode() for w in WORDS], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed": _of([b"ab", b"cd", b"ef", b"gh"], pa.binary(2)),
    "date32": _of([1, -2, 3, 4], pa.date32()),
    "date64": _of([86_400_000, 0, -86_400_000, 172_800_000], pa.date64()),
    **{str(kind): _of([1, 2, 3, 4], kind) for kind in (pa.time32("s"), pa.time64("us"), pa.duration("ms"))},
    "time64[ns]": _of([1_000, 2_000, 3_000, 4_001], pa.time64("ns")),
    **{f"ts {unit}": _of([-1001, 2_000, 3_500, 4], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "ts zone": _of([-1001, 2_000, 3_500, 4], pa.timestamp("ns", "Europe/Berlin")),
    "interval": _of([(1, 2, 3), (4, 5, 6), (0, 0, 1), (0, 1, 0)], pa.month_day_nano_interval()),
    "list": _of([[1], [2, None], [], [3]], pa.list_(pa.int64())),
    "list view": _of([["a"], ["b", None], [], ["c"]], pa.list_view(pa.string_view())),
    "fixed list": _of([[1, 2], [3, 4], [None, 5], [6, 7]], pa.list_(pa.int32(), 2)),
    "struct": _of([{"x": 1}, {"x": None}, {"x": 3}, {"x": 4}], pa.struct([("x", pa.int64())])),
    "struct of ns": _of([{"t": -1}, {"t": None}, {"t": 3}, {"t": 4_001}], pa.struct([("t", pa.timestamp("ns"))])),
    "struct of nothing": _of([{}, {}, {}, {}], pa.struct([])),
    "map": _of([[("a", 1)], [], [("b", None)], [("c", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": TEXTS.dictionary_encode(),
    "dictionary twice": pa.DictionaryArray.from_arrays(
        pa.array([pick if pick < 4 else None for pick in PICKS]), pa.array(WORDS).dictionary_encode()
    ),
    "list of dictionaries": pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), TEXTS.dictionary_encode()),
    "runs": pc.run_end_encode(NUMBERS),
    "sparse union": _union("sparse"),
    "dense union": _union("dense"),
    "uuid": _extension(pa.uuid(), _of([uuid.UUID(int=n).bytes for n in range(4)], pa.binary(16))),
    "json": _extension(pa.json_(), TEXTS),
    "bool8": _extension(pa.bool8(), _of([1, 0, 1, 0], pa.int8())),
    "struct of a uuid": pa.StructArray.from_arrays([_extension(pa.uuid(), _of([bytes(16)] * 4, pa.binary(16)))], ["u"]),
}  # fmt: skip
NOT_KEYS = {
    "null", "float16", "decimal32(5, 2)", "decimal64(10, 2)", "interval", "list", "list view", "fixed list", "struct",
    "struct of ns", "struct of nothing", "map", "list of dictionaries", "sparse union", "dense union", "uuid", "json", "bool8",
    "struct of a uuid",
}  # fmt: skip
NOT_PARQUET = {"interval", "struct of nothing", "sparse union", "dense union"}
FUNCTIONS = ("count", "sum", "min", "max", "mean", "first", "last", "count_distinct")


def table() -> pa.Table:
    """A row a second, two keys, one column of every type."""
    times, keys = pa.array([index * 1_000 for index in range(ROWS)]), pa.array([index % 2 for index in range(ROWS)])
    return pa.table({"ts": times, "k": keys, **COLUMNS})


def shown(rows: Any) -> list[str]:
    """Rows that can be compared, whatever their values: NaN is itself."""
    return sorted(repr(list(row.values())) for row in rows)


def restored(jobs: Jobs, source: GatedSource, pipeline: tg.Pipeline) -> None:
    """Run it to the middle, take a checkpoint, and go on at another parallelism to the end."""
    job = jobs.start(pipeline, 2)
    job.checkpoint()
    job.stop()
    source.allow()
    assert jobs.start(pipeline, 3).await_termination(LONG_S)


def gated() -> GatedSource:
    return GatedSource(table(), splits=4, rows_per_poll=3, allowed=ROWS // 2)


def accepted(build: Any, names: Any) -> dict[str, Any]:
    """What ``build`` makes for the names that it does not refuse."""
    found = {}
    for name in names:
        try:
            found[name] = build(name)
        except tg.InvalidUseError as error:
            assert repr(name) in str(error), error
    return found


def test_every_column_is_carried_decoded_and_joined(jobs: Jobs) -> None:
    source, plain_sink, joined_sink = gated(), MemorySink("plain"), MemorySink("joined")
    stream = tg.from_source(source)
    raw = {batch.column("ts")[0].as_py(): batch for batch in table().to_batches(max_chunksize=1)}

    def encoded(batch: pa.RecordBatch) -> pa.Table:  # what the source had, encodings and all
        return pa.Table.from_batches([raw[time] for time in batch.column("ts").to_pylist()])

    mapped = stream.map_batches(encoded, schema=source.schema)
    joined = mapped.join(stream.select("ts", "k"), on="k", window=tg.tumbling("1s"))
    assert stream.schema.types == [plain(kind) for kind in source.schema.types] == mapped.schema.types
    restored(jobs, source, tg.Pipeline("carried", mapped.write(plain_sink), joined.write(joined_sink)))
    expected = table().to_pylist()
    assert shown(r for _, part in plain_sink.visible.values() for b in part for r in b.to_pylist()) == shown(expected)
    pairs = [r for _, part in joined_sink.visible.values() for b in part for r in b.to_pylist()]
    assert shown({name: row[name] for name in ("ts", "k", *COLUMNS)} for row in pairs) == shown(expected)


KEYED: dict[str, Any] = {
    "windows": lambda each, name, kind: each.window(tg.tumbling("1h")).aggregate(n=tg.count()),
    "sessions": lambda each, name, kind: each.window(tg.session("1h")).aggregate(n=tg.count()),
    "running": lambda each, name, kind: each.aggregate(n=tg.count()),
    "process": lambda each, name, kind: each.process(
        _tally(name), pa.schema([("n", pa.int64())]), pa.schema([(name, kind), ("n", pa.int64())])
    ),
}


@pytest.mark.parametrize("use", KEYED)
def test_every_type_is_a_key_or_refused(use: str, jobs: Jobs) -> None:
    source = gated()
    stream = tg.from_source(source)
    keyed = accepted(lambda name: stream.key_by(name), COLUMNS)
    assert COLUMNS.keys() - keyed.keys() == NOT_KEYS
    sinks = {name: MemorySink(name) for name in keyed}
    results = {name: KEYED[use](each, name, stream.schema.field(name).type) for name, each in keyed.items()}
    restored(jobs, source, tg.Pipeline("keys", *(results[name].select(name, "n").write(sinks[name]) for name in keyed)))
    for name, sink in sinks.items():
        found: dict[str, int] = {}
        for key, n in [(repr(r[name]), r["n"]) for _, part in sink.visible.values() for b in part for r in b.to_pylist()]:
            found[key] = max(found.get(key, 0), n)
        assert sum(found.values()) == ROWS, (name, found)
        assert len(found) == len({_canonical(value) for value in COLUMNS[name].to_pylist()}), name


def _canonical(value: object) -> str:
    return "0.0" if value == 0 and isinstance(value, float) else repr(value)


def _tally(name: str) -> Any:
    def tally(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        counts: dict[str, int] = {}
        for value in batch.column(name).to_pylist():
            counts[_canonical(value)] = counts.get(_canonical(value), 0) + 1
        old = zip(state.column(name).to_pylist(), state.column("n").to_pylist(), strict=True)
        new = [counts[_canonical(key)] + (n or 0) for key, n in old]
        whole = pa.RecordBatch.from_arrays([state.column(name), pa.array(new, pa.int64())], [name, "n"])
        return whole, whole

    return tally


def test_every_aggregate_takes_a_type_or_refuses_it_and_all_ways_agree(jobs: Jobs) -> None:
    source = gated()
    stream = tg.from_source(source)
    calls = {f"{function} {name}": AggregateCall(named(function), name) for function in FUNCTIONS for name in COLUMNS}
    keyed = stream.key_by("k")

    def tried(label: str) -> AggregateCall:
        try:
            keyed.aggregate(**{label: calls[label]})
        except tg.InvalidUseError as error:
            with pytest.raises(tg.InvalidUseError):  # in windows too
                keyed.window(tg.tumbling("1h")).aggregate(**{label: calls[label]})
            raise tg.InvalidUseError(f"{label!r} {error}") from None
        return calls[label]

    taken = accepted(tried, calls)
    assert {label.removeprefix("count ") for label in taken if label.startswith("count ")} == COLUMNS.keys()
    names = list(taken)
    ways = {
        "windows": keyed.window(tg.tumbling("1h")).aggregate(**taken).select("k", *names),
        "sessions": keyed.window(tg.session("1h")).aggregate(**taken).select("k", *names),
        "running": keyed.aggregate(**taken).select("k", *names),
    }
    sinks = {way: MemorySink(way) for way in ways}
    restored(jobs, source, tg.Pipeline("aggregates", *(ways[way].write(sinks[way]) for way in ways)))
    results = {}
    for way, sink in sinks.items():
        parts = sorted(sink.visible.values(), key=lambda each: each[0])
        last = {row["k"]: row for _, part in parts for batch in part for row in batch.to_pylist()}
        results[way] = [[repr(value) for value in last[key].values()] for key in sorted(last)]
    for other in ("sessions", "running"):
        for one, two in zip(results["windows"], results[other], strict=True):
            assert one == two, [(n, a, b) for n, a, b in zip(["k", *names], one, two, strict=True) if a != b]


def test_process_keeps_state_of_every_type(jobs: Jobs) -> None:
    source, sink = gated(), MemorySink("process")
    names = list(COLUMNS)
    schema = pa.schema([source.schema.field(name) for name in ("k", *names)])

    def newest(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        last = {key: index for index, key in enumerate(batch.column("k").to_pylist())}
        rows = batch.take(pa.array([last[key] for key in state.column("k").to_pylist()])).select(["k", *names])
        return rows, rows

    stream = tg.from_source(source)
    kept = stream.key_by("k").process(newest, schema, schema)
    restored(jobs, source, tg.Pipeline("states", kept.write(sink)))
    last = {repr(list(r.values())) for _, part in sink.visible.values() for b in part for r in b.to_pylist()}
    assert {repr([row["k"], *(row[name] for name in names)]) for row in table().to_pylist()[-2:]} <= last


def test_a_parquet_sink_writes_a_type_or_refuses_it_before_anything_starts(jobs: Jobs, tmp_path: Path) -> None:
    source = gated()
    stream = tg.from_source(source)
    fine = accepted(lambda name: stream.select(name).write_parquet(tmp_path / "never"), COLUMNS)
    assert COLUMNS.keys() - fine.keys() == NOT_PARQUET
    assert not (tmp_path / "never").exists()
    restored(jobs, source, tg.Pipeline("files", stream.select("ts", *fine).write_parquet(tmp_path / "out")))
    written = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")]).sort_by("ts")
    assert written.schema.field("ts ns").type == pa.timestamp("us")
    assert written.schema.field("ts zone").type == pa.timestamp("us", "Europe/Berlin")
    assert written.schema.field("struct of ns").type == pa.struct([("t", pa.timestamp("us"))])
    assert written.column("ts ns").cast(pa.int64()).to_pylist()[:4] == [-2, 2, 3, 0]
    exact = [name for name in fine if not any(word in str(COLUMNS[name].type) for word in ("[ns", "date64"))]
    assert shown(written.select(exact).to_pylist()) == shown(table().select(exact).to_pylist())


def test_nanoseconds_are_written_where_they_are_asked_for(jobs: Jobs, tmp_path: Path) -> None:
    source = GatedSource(table().select(["ts", "ts ns", "struct of ns"]))
    jobs.finish(tg.Pipeline("ns", tg.from_source(source).write_parquet(tmp_path / "out", timestamps="ns")))
    written = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")])
    assert written.schema.field("ts ns").type == pa.timestamp("ns")
    assert sorted(written.column("ts ns").drop_null().cast(pa.int64()).to_pylist())[0] == -1001
    with pytest.raises(tg.InvalidUseError, match="timestamps must be one of us, ns"):
        tg.from_source(source).write_parquet(tmp_path / "out", timestamps="ms")


def test_what_a_function_returns_is_held_to_its_schema_and_the_function_is_named(jobs: Jobs) -> None:
    source = GatedSource(table().select(["ts", "k"]))

    def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, "k", batch.column("k").cast(pa.string()).dictionary_encode())

    job = jobs.start(tg.Pipeline("other", tg.from_source(source).map_batches(other).named("wrong").collect()))
    text = failure(job)
    assert "the function of map_batches 'wrong' must return a RecordBatch with the schema" in text
    assert "k: dictionary" in text
    assert job.metrics()["restarts"] <= 1


def test_a_function_that_emits_no_event_time_is_named(jobs: Jobs) -> None:
    source = GatedSource(table().select(["ts", "k"]))

    def forgetful(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "ts", pa.nulls(batch.num_rows, pa.int64()))

    stream = tg.from_source(source).map_batches(forgetful).named("forgetful")
    counted = stream.key_by("k").window(tg.tumbling("1s")).aggregate(n=tg.count())
    text = failure(jobs.start(tg.Pipeline("forgetful", counted.collect())))
    assert "the function of map_batches 'forgetful' returned rows without an event time" in text
    assert "column=ts" in text


def test_a_source_that_emits_no_event_time_is_named(jobs: Jobs) -> None:
    rows = table().select(["ts", "k"])
    source = GatedSource(rows)
    holes = pc.if_else(pc.equal(rows.column("ts"), 7_000), pa.scalar(None, pa.int64()), rows.column("ts"))
    source.table = rows.set_column(0, "ts", holes).combine_chunks()
    source.splits = GatedSource(rows).splits  # type: ignore[method-assign]
    text = failure(jobs.start(tg.Pipeline("holes", tg.from_source(source).collect())))
    assert "returned rows without an event time: leave them out, or set one column=ts rows=1" in text


@pytest.mark.parametrize("way", ["windows", "sessions", "running"])
def test_a_sum_of_uint64_is_int64_or_an_error_that_names_the_result(way: str, jobs: Jobs) -> None:
    def summed(values: list[int]) -> tg.Stream:
        rows = pa.table({"ts": pa.array([0, 1]), "k": pa.array([1, 1]), "x": pa.array(values, pa.uint64())})
        keyed = tg.from_source(GatedSource(rows, rows_per_poll=1)).key_by("k")
        window: Any = {"windows": tg.tumbling("1s"), "sessions": tg.session("1s")}.get(way)
        return keyed.aggregate(total=tg.sum("x")) if window is None else keyed.window(window).aggregate(total=tg.sum("x"))

    fits = summed([(1 << 63) - 8, 7])
    assert fits.schema.field("total").type == pa.int64()
    assert jobs.finish(tg.Pipeline("fits", fits.collect()), 1).collect().column("total").to_pylist()[-1] == (1 << 63) - 1
    job = jobs.start(tg.Pipeline("wraps", summed([(1 << 63) - 1, 1]).collect()), 1)
    text = failure(job)
    assert "a sum is too large for its type: cast the column to decimal128(38, 0) or float64 before result=total" in text
    assert job.metrics()["restarts"] <= 1
