"""User functions and sink writers off the loop thread: what they hold is state, what they raise is heard."""

from __future__ import annotations

import traceback

import pyarrow as pa
import pytest
from runtime_jobs import MemorySink, events
from runtime_world import QueuedExecutor

from tidegate.errors import RetryableError
from tidegate.operators import sink
from tidegate.operators.map import Called, MapOperator, UserFunctionError
from tidegate.operators.sink import SinkOperator
from tidegate.plan.connector import WriterContext
from tidegate.runtime.threads import InlineExecutor
from tidegate.state.operatorstate import OperatorState
from tidegate.state.run import Restored

BATCH = events(10).to_batches()[0]
OTHER = events(3, seed=9).to_batches()[0]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "value", pa.compute.multiply(batch.column("value"), 2))


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def mapper(function: object = doubled) -> tuple[MapOperator, QueuedExecutor, Woken]:
    executor, woken = QueuedExecutor(), Woken()
    called = Called(function)
    return MapOperator("double", called, BATCH.schema, OperatorState(), executor, woken), executor, woken  # type: ignore[arg-type]


def test_a_batch_is_in_hand_until_its_result_is_taken() -> None:
    operator, executor, woken = mapper()
    assert list(operator.process(0, BATCH)) == [] and operator.busy
    assert operator.result() is None and woken.times == 0
    executor.run_one()
    assert woken.times == 1 and operator.busy
    result = operator.result()
    assert result is not None and result.equals(doubled(BATCH)) and not operator.busy


@pytest.mark.parametrize("ran", [False, True], ids=["before it ran", "before its result was taken"])
def test_the_batch_in_hand_is_the_state_and_is_done_again(ran: bool) -> None:
    operator, executor, _ = mapper()
    list(operator.process(0, BATCH))
    if ran:
        executor.run_one()
    frozen = operator.freeze()
    assert [run.batch for run in frozen.runs] == [BATCH]
    again, executor, _ = mapper()
    again.restore([Restored(0, frozen.meta, frozen.runs), mapper_holding(OTHER, 1)])
    assert again.busy
    results = []
    while again.busy:
        if (result := again.result()) is not None:
            results.append(result)
        elif executor.waiting:
            executor.run_one()
    assert results == [doubled(BATCH), doubled(OTHER)]
    assert again.freeze().runs == ()


def mapper_holding(batch: pa.RecordBatch, subtask: int = 0) -> Restored:
    operator, _, _ = mapper()
    list(operator.process(0, batch))
    frozen = operator.freeze()
    return Restored(subtask, frozen.meta, frozen.runs)


def test_a_snapshot_of_restored_batches_that_wait_holds_them_in_order() -> None:
    operator, _, _ = mapper()
    operator.restore([mapper_holding(BATCH), mapper_holding(OTHER, 1)])
    assert operator.result() is None  # the first was handed to the function
    assert [run.batch for run in operator.freeze().runs] == [BATCH, OTHER]


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such country")


def test_an_error_of_the_function_keeps_its_traceback() -> None:
    operator, executor, _ = mapper(failing)
    list(operator.process(0, BATCH))
    executor.run_one()
    with pytest.raises(UserFunctionError, match="'double' raised KeyError") as caught:
        operator.result()
    shown = "".join(traceback.format_exception(caught.value.__cause__))
    assert "in failing" in shown and "no such country" in shown


@pytest.mark.parametrize("returned", [7, "rows", OTHER.select(["ts"])], ids=["a number", "a text", "fewer columns"])
def test_what_does_not_fit_the_schema_is_the_users_error(returned: object) -> None:
    operator, executor, _ = mapper(lambda batch: returned)
    list(operator.process(0, BATCH))
    executor.run_one()
    with pytest.raises(UserFunctionError, match="must return a RecordBatch with the schema"):
        operator.result()


@pytest.mark.parametrize("returned", [None, pa.Table.from_batches([], BATCH.schema)], ids=["nothing", "an empty table"])
def test_nothing_is_an_empty_batch(returned: object) -> None:
    operator, executor, _ = mapper(lambda batch: returned)
    list(operator.process(0, BATCH))
    executor.run_one()
    result = operator.result()
    assert result is not None and result.num_rows == 0 and result.schema.equals(BATCH.schema)


def test_a_table_is_as_good_as_a_batch() -> None:
    operator, executor, _ = mapper(lambda batch: pa.Table.from_batches([batch, batch]))
    list(operator.process(0, BATCH))
    executor.run_one()
    result = operator.result()
    assert result is not None and result.num_rows == 2 * BATCH.num_rows


# -- sinks ---------------------------------------------------------------------------------------------------------


def sink_operator() -> tuple[SinkOperator, QueuedExecutor, MemorySink]:
    sink, executor = MemorySink(), QueuedExecutor()
    writer = sink.writer(WriterContext("sink", 0, 0, BATCH.schema))
    return SinkOperator(writer, executor, Woken()), executor, sink


def test_a_sink_is_ready_until_its_backlog_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SINK_BACKLOG_BYTES", 2 * BATCH.nbytes)
    operator, executor, _ = sink_operator()
    list(operator.process(0, BATCH))
    assert operator.ready
    list(operator.process(0, BATCH))
    assert not operator.ready
    executor.run_one()
    assert operator.ready and operator.rows == 20


def test_an_empty_batch_is_not_written() -> None:
    operator, executor, _ = sink_operator()
    list(operator.process(0, BATCH.slice(0, 0)))
    assert not executor.waiting and operator.rows == 0


def test_what_the_writer_raised_comes_out_at_the_next_look() -> None:
    operator, executor, sink = sink_operator()
    sink.on_write = lambda batch: fail("disk full")
    list(operator.process(0, BATCH))
    executor.run_one()
    with pytest.raises(RetryableError, match="disk full"):
        _ = operator.ready


def test_a_cut_after_a_failed_write_fails_although_nobody_has_looked() -> None:
    """The rows are in no file and before the cut: this committable must not come about."""
    operator, executor, sink = sink_operator()
    list(operator.process(0, BATCH))
    sink.on_write = lambda batch: fail("disk full")
    list(operator.process(0, OTHER))
    future = operator.prepare(7)
    while executor.waiting:
        executor.run_one()
    with pytest.raises(RetryableError, match="disk full"):
        future.result(0)
    assert not sink.staged


def test_a_cut_takes_exactly_what_came_before_it() -> None:
    operator, executor, sink = sink_operator()
    list(operator.process(0, BATCH))
    first = operator.prepare(1)
    list(operator.process(0, OTHER))
    second = operator.prepare(2)
    third = operator.prepare(3)
    while executor.waiting:
        executor.run_one()
    names = [str(future.result(0)["name"]) for future in (first, second)]  # type: ignore[index]
    assert [sink.staged[name] for name in names] == [[BATCH], [OTHER]]
    assert third.result(0) is None


def test_inline_executors_keep_the_error_for_whoever_asks() -> None:
    future = InlineExecutor().submit(fail, "now")
    with pytest.raises(RetryableError, match="now"):
        future.result(0)


def fail(message: str) -> None:
    raise RetryableError(message)
