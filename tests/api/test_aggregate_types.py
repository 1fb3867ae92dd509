"""The promised result types are those that the operators give, for every type of column."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.plan.schemas import aggregate_type
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import partial_schema

KINDS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us", "UTC")),
    *(pa.duration("s"), pa.decimal128(10, 2), pa.decimal256(50, 3), pa.decimal32(5, 1), pa.decimal64(10, 1)),
    *(pa.list_(pa.int8()), pa.null(), pa.dictionary(pa.int8(), pa.string())),
]
SUFFIX = {"sum": "s", "min": "lo", "max": "hi", "mean": "s", "count": "n"}


@pytest.mark.parametrize("function", sorted(SUFFIX))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_planned_type_is_the_operators(function: str, kind: pa.DataType) -> None:
    schema = pa.schema([("key", pa.int64()), ("x", kind)])
    aggregate = AggregateColumn.of("r", function, "x")  # type: ignore[arg-type]
    try:
        planned = aggregate_type(aggregate, schema)
    except tg.InvalidUseError as error:
        assert f"r={function}('x')" in str(error)
        return
    partial = partial_schema(("key",), (aggregate,), schema).field(f"r__{SUFFIX[function]}").type
    assert planned == (pa.float64() if function == "mean" else partial)


def test_what_is_refused_is_refused_for_a_reason() -> None:
    def refused(function: str) -> list[str]:
        schema = pa.schema([(str(kind), kind) for kind in KINDS])
        found = []
        for kind in KINDS:
            try:
                aggregate_type(AggregateColumn.of("r", function, str(kind)), schema)  # type: ignore[arg-type]
            except tg.InvalidUseError:
                found.append(str(kind))
        return found

    nested = ["list<item: int8>", "null"]
    assert refused("count") == []
    assert refused("min") == ["halffloat", "duration[s]", "decimal32(5, 1)", "decimal64(10, 1)", *nested]
    assert "decimal128(10, 2)" not in refused("sum")
    assert {"bool", "string", "date32[day]", "halffloat"} <= set(refused("sum"))
