"""Users' functions with keyed state, against plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from keyed import Gang, Inline, process_gang
from windowed import in_batches, random_events, sorted_rows

from specs import context, process
from tidegate.errors import CorruptDataError
from tidegate.operators.map import UserFunctionError
from tidegate.operators.process import ProcessOperator
from tidegate.plan.operator import Port
from tidegate.plan.schemas import process_state
from tidegate.state import table
from tidegate.state.run import Restored, Run

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
STATE = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])
LIMIT = 7


def up_to_limit(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Counts rows per key; emits a key that has reached the limit, and forgets it."""
    counts = pa.TableGroupBy(pa.table({"key": batch.column("key")}), "key").aggregate([([], "count_all")])
    added = counts.column("count_all").take(pc.index_in(state.column("key"), counts.column("key").combine_chunks()))
    n = pc.add(pc.fill_null(state.column("n"), 0), added.combine_chunks())
    after = pa.RecordBatch.from_arrays([state.column("key"), n], schema=state.schema)
    full = pc.greater_equal(n, LIMIT)
    return after.filter(full), after.filter(pc.invert(full))


def in_plain_python(batches: list[pa.RecordBatch], state: dict[object, int] | None = None) -> list[tuple[object, ...]]:
    state, emitted = {} if state is None else state, []
    for batch in batches:
        keys = batch.column("key").to_pylist()
        for key in keys:
            state[key] = state.get(key, 0) + 1
        for key in dict.fromkeys(keys):
            if state[key] >= LIMIT:
                emitted.append((key, state.pop(key)))
    return sorted(emitted, key=str)


def limits(parallelism: int = 1, executor: Any = None, function: Any = up_to_limit) -> Gang:
    return process_gang(function, SCHEMA, ("key",), STATE, OUTPUT, parallelism, executor)


def events(seed: int = 1, rows: int = 3000) -> list[pa.RecordBatch]:
    found = random_events(seed, rows)
    return in_batches(pa.table([found.column("ts"), found.column("key").cast(pa.int64())], schema=SCHEMA), 60)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SMALL_ROWS", 10)
    monkeypatch.setattr(table, "CHUNK_ROWS", 20)
    monkeypatch.setattr(table, "SMALL_CHUNKS_MAX", 2)
    monkeypatch.setattr(table, "GONE_KEYS_MIN", 5)
    monkeypatch.setattr(table, "FREE_SLOTS_MAX", 5)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_states_come_back_and_forgotten_keys_begin_anew(parallelism: int) -> None:
    gang = limits(parallelism)
    for index, batch in enumerate(events()):
        gang.feed(batch)
        if index % 3 == 0:
            gang.barrier()
    assert sorted(map(tuple, sorted_rows(gang.finish())), key=str) == in_plain_python(events())


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 4), (3, 7), (4, 1)])
def test_states_go_on_after_a_restore(before: int, after: int) -> None:
    gangs = [limits(before), limits(after), limits(before)]
    current = gangs[0]
    for index, batch in enumerate(events()):
        frozen = current.barrier() if index % 3 == 0 else []
        if index in (12, 33):
            current = gangs[1 + (index > 12)]
            current.restore(frozen)
        current.feed(batch)
    together = pa.concat_tables([gang.result() for gang in gangs])
    assert sorted(map(tuple, sorted_rows(together)), key=str) == in_plain_python(events())


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_batch_at_work_is_stored_and_processed_again(after: int) -> None:
    batches = events(rows=600)
    executor = Inline()
    old = limits(1, executor)
    for batch in batches[:-1]:
        old.feed(batch)
    executor.hold = True
    (receiver,) = old.receivers
    assert not list(receiver.process(0, batches[-1]))
    assert receiver.busy and receiver.result() is None  # type: ignore[attr-defined]
    new = limits(after)
    new.restore([frozen for frozen in [receiver.freeze()] if frozen is not None])
    for each in new.receivers:
        while each.busy:  # type: ignore[attr-defined]
            new.emitted.append(each.result())  # type: ignore[attr-defined]
    together = pa.concat_tables([old.result(), new.result()])
    assert sorted(map(tuple, sorted_rows(together)), key=str) == in_plain_python(batches)


def test_rows_that_waited_are_processed_even_if_the_plan_has_no_event_time_any_more() -> None:
    schema = pa.schema([("ts", pa.int64()), ("key", pa.int64())])
    spec = process("process", up_to_limit, ("key",), process_state("process", ("key",), STATE, schema), schema, OUTPUT)
    timed = replace(spec, inputs=(Port(schema, "ts"),))
    inline = context(executor=lambda _: Inline())
    waiting, new = ProcessOperator(timed, inline), ProcessOperator(spec, inline)
    list(waiting.process(0, pa.record_batch([[50] * LIMIT, [1] * LIMIT], schema=schema)))
    assert not waiting.busy and waiting.state_rows == LIMIT
    frozen = waiting.freeze()
    new.restore([Restored(0, frozen.meta, frozen.runs)])
    result = new.result()
    assert result is not None and result.to_pylist() == [{"key": 1, "n": LIMIT}] and not new.busy


def test_the_function_sees_nulls_for_new_keys_and_its_own_values_for_others() -> None:
    seen: list[list[dict[str, object]]] = []

    def remember(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[None, pa.RecordBatch]:
        seen.append(sorted(state.to_pylist(), key=str))
        return None, pa.RecordBatch.from_pylist([{"key": key, "n": 5} for key in state.column("key").to_pylist()], state.schema)

    gang = limits(function=remember)
    gang.feed(pa.record_batch([[0, 0, 0], [1, 1, None]], schema=SCHEMA))
    gang.feed(pa.record_batch([[0, 0], [1, 2]], schema=SCHEMA))
    assert seen == [
        [{"key": 1, "n": None}, {"key": None, "n": None}],
        [{"key": 1, "n": 5}, {"key": 2, "n": None}],
    ]
    assert gang.receivers[0].state_rows == 3 and gang.finish().num_rows == 0  # type: ignore[attr-defined]


def raises(batch: pa.RecordBatch, state: pa.RecordBatch) -> object:
    raise LookupError("no luck")


def row(key: int = 1) -> pa.RecordBatch:
    return pa.record_batch([[key], [1]], schema=OUTPUT)


WRONG = {
    "raised LookupError": raises,
    "a pair": lambda batch, state: state,
    r"RecordBatch as output .* it returned \[int\]": lambda batch, state: (3, state),
    r"RecordBatch as state .* it returned \[NoneType\]": lambda batch, state: (None, None),
    r"RecordBatch as output with the schema .* it returned \[ts: int64": lambda batch, state: (batch, state),
    r"RecordBatch as state with the schema .* it returned \[ts: int64": lambda batch, state: (None, batch),
    "two states for one key": lambda batch, state: (None, pa.concat_batches([row(), row()])),
    "a key that its batch does not have": lambda batch, state: (None, row(2)),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_function_that_fails_or_returns_the_wrong_thing_is_named(message: str) -> None:
    gang = limits(function=WRONG[message])
    with pytest.raises(UserFunctionError, match=message) as caught:
        gang.feed(pa.record_batch([[0], [1]], schema=SCHEMA))
    assert "process 'process'" in str(caught.value)
    if message.startswith("raised"):
        assert isinstance(caught.value.__cause__, LookupError)


def test_state_that_does_not_fit_is_refused() -> None:
    gang = limits()
    gang.feed(events()[0])
    (frozen,) = gang.barrier()
    for broken in (pa.record_batch({"x": [1]}), pa.record_batch({"x": [1]}).replace_schema_metadata({b"tidegate.input": b"1"})):
        with pytest.raises(CorruptDataError, match="other columns"):
            limits().receivers[0].restore([Restored(0, frozen.meta, (Run(broken),))])


def test_keys_that_come_and_go_leave_nothing_behind() -> None:
    def forget(batch: pa.RecordBatch, state: pa.RecordBatch) -> tuple[None, pa.RecordBatch]:
        new = state.filter(state.column("n").is_null())
        return None, new.set_column(1, "n", pa.array([1] * new.num_rows, pa.int64()))

    gang = limits(function=forget)
    for start in range(0, 4000, 10):
        batch = pa.record_batch([[0] * 10, list(range(start, start + 10))], schema=SCHEMA)
        gang.feed(batch)
        runs = gang.barrier()[0].runs
        gang.feed(batch)
    (receiver,) = gang.receivers
    assert receiver.state_rows == 0 and len(runs) < 12  # type: ignore[attr-defined]
    assert sum(run.batch.num_rows for run in runs) < 100
    assert receiver.state_bytes < 100_000  # type: ignore[attr-defined]
