"""Filters, projections and unions, and how the plan's chain becomes operators."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from windowed import random_events, sorted_rows

from specs import build, context, filtered, projected
from tidegate.errors import InvalidUseError
from tidegate.operators.union import Union
from tidegate.plan.operator import Operator, OperatorSpec, Port
from tidegate.runtime.assemble import fused

BATCH = pa.record_batch({"a": pa.array([1, None, 3, -4]), "b": pa.array(["x", "y", None, "z"])})
POSITIVE = filtered("positive", pc.field("a") > 0, BATCH.schema)
DOUBLED = projected(
    "doubled",
    (pc.field("b"), pc.field("a") * 2),
    BATCH.schema,
    pa.schema([pa.field("b", pa.string()), pa.field("twice", pa.int64(), metadata={"unit": "pairs"})]),
)


def union(name: str) -> Union:
    return Union(schema=BATCH.schema, event_time=None, inputs=(Port(BATCH.schema),) * 2, name=name)


def one(spec: OperatorSpec) -> Operator:
    return build(spec)


def emitted(operator: Operator, batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(operator.process(0, batch))


def test_a_filter_keeps_true_rows_in_order_and_drops_nulls() -> None:
    assert emitted(one(POSITIVE), BATCH).to_pydict() == {"a": [1, 3], "b": ["x", None]}


def test_a_filter_that_keeps_nothing_emits_nothing() -> None:
    assert list(one(filtered("none", pc.field("a") > 100, BATCH.schema)).process(0, BATCH)) == []
    assert list(one(POSITIVE).process(0, BATCH.slice(0, 0))) == []


def test_a_projection_emits_the_planned_columns() -> None:
    found = emitted(one(DOUBLED), BATCH)
    assert found.to_pydict() == {"b": ["x", "y", None, "z"], "twice": [2, None, 6, -8]}
    assert found.schema.equals(DOUBLED.schema, check_metadata=True)


def test_a_fused_chain_does_what_its_parts_do_in_a_row() -> None:
    events = random_events(1, 3000)
    schema = events.schema
    specs = (
        filtered("f", pc.field("value") > -10, schema),
        projected(
            "p",
            (pc.field("key"), pc.field("value") * pc.field("count")),
            schema,
            pa.schema([("key", pa.int32()), ("product", pa.float64())]),
        ),
        filtered("g", pc.field("product") < 100, pa.schema([("key", pa.int32()), ("product", pa.float64())])),
    )
    (batch,) = events.combine_chunks().to_batches()
    by_step = pa.Table.from_batches([batch])
    for spec in specs:
        (batch,) = by_step.combine_chunks().to_batches()
        by_step = emitted(one(spec), batch)
    (batch,) = events.combine_chunks().to_batches()
    assert emitted(specs[0].build_fused(specs[1:], context()), batch).to_pylist() == by_step.to_pylist()
    assert 0 < by_step.num_rows < 3000


def test_large_batches_keep_their_order() -> None:
    batch = pa.record_batch({"a": pa.array(range(200_000))})
    found = emitted(one(filtered("f", pc.field("a") >= 5, batch.schema)), batch)
    assert found.column("a").to_pylist() == list(range(5, 200_000))


def test_an_expression_that_fails_on_the_data_names_its_operator() -> None:
    halves = projected("halves", (pc.scalar(1) / pc.field("a"),), BATCH.schema, pa.schema([("h", pa.int64())]))
    with pytest.raises(InvalidUseError, match="operator=halves"):
        list(one(halves).process(0, pa.record_batch({"a": [0]})))


def test_a_union_passes_every_port_on() -> None:
    both = one(union("u"))
    assert sorted_rows(emitted(both, BATCH)) == sorted_rows(pa.Table.from_batches([BATCH]))
    assert list(both.process(5, BATCH)) == [BATCH]


def test_operators_without_state_have_nothing_to_freeze_or_flush() -> None:
    for operator in (one(POSITIVE), one(union("u"))):
        operator.restore([])
        assert operator.freeze() is None
        assert not [*operator.watermark(5), *operator.before_barrier(), *operator.end()]


def test_filters_and_projections_in_a_row_are_put_together() -> None:
    both = union("u")
    chain = [POSITIVE, DOUBLED, both, both, POSITIVE]
    assert fused(chain) == [[POSITIVE, DOUBLED], [both], [both], [POSITIVE]]
    assert fused([]) == []
