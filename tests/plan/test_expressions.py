"""What expressions need and return, found by probing."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.errors import InvalidUseError
from tidegate.plan.expressions import column, columns_used, need_column, output_type, passed_on, predicate

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("ts", pa.timestamp("us")),
        ("value", pa.float64()),
        ("kind", pa.int8()),
        ("place", pa.struct([("x", pa.int32())])),
        pa.field("note", pa.string(), nullable=False),
    ]
)
F = pc.field


@pytest.mark.parametrize(
    ("expression", "kind", "uses"),
    [
        (F("value") * 100, pa.float64(), {"value"}),
        (F("kind") != 0, pa.bool_(), {"kind"}),
        ((F("kind") != 0) & (F("value") > F("key")), pa.bool_(), {"kind", "value", "key"}),
        (F("place", "x") + 1, pa.int32(), {"place"}),
        (pc.utf8_upper(F("note")), pa.string(), {"note"}),
        (F("key").cast("int8"), pa.int8(), {"key"}),
        (F("value").isin([1.0, 2.0]), pa.bool_(), {"value"}),
        (pc.scalar(5), pa.int64(), set()),
        (pc.scalar(1) / (F("key") - F("key")), pa.int64(), {"key"}),
    ],
)
def test_type_and_columns_of_an_expression(expression: pc.Expression, kind: pa.DataType, uses: set[str]) -> None:
    assert output_type("here", expression, SCHEMA) == kind
    assert columns_used(expression, SCHEMA) == uses


def test_a_column_called_like_a_part_of_another_is_not_taken_for_it() -> None:
    schema = pa.schema([("a", pa.int64()), ("ab", pa.int64())])
    assert columns_used(F("ab") + 1, schema) == {"ab"}


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (F("valeu") + 1, ["here", "'valeu'", "did you mean 'value'", "columns=key, ts, value"]),
        (F("nope", "x"), ["no column 'nope'"]),
        (F("note") + 1, ["add_checked", "string", "note string"]),
        (F("place", "y"), ["here"]),
        (F(0) + 1, ["name columns, do not number them"]),
        (pc.sum(F("value")), ["functions of single rows", "aggregate()"]),
        (pc.cumulative_sum(F("value")), ["functions of single rows"]),
        (pc.rank(F("value")), ["here"]),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_with_the_reason(expression: pc.Expression, words: list[str]) -> None:
    with pytest.raises(InvalidUseError) as caught:
        output_type("here", expression, SCHEMA)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_condition_must_be_true_or_false() -> None:
    assert predicate("filter", F("kind") == 1, SCHEMA) == {"kind"}
    with pytest.raises(InvalidUseError, match="true or false, not double"):
        predicate("filter", F("value") * 2, SCHEMA)


def test_a_column_knows_whether_it_only_passes_another_on() -> None:
    assert passed_on(SCHEMA.field("key")).is_same
    renamed = column("select", "id", F("key"), SCHEMA)
    assert not renamed.is_same
    assert renamed.is_field("key")
    assert not column("select", "key", F("key") + 1, SCHEMA).is_same


def test_a_missing_column_is_named_with_those_there_are() -> None:
    assert need_column("key_by", "key", SCHEMA).type == pa.int64()
    with pytest.raises(InvalidUseError, match="key_by: there is no column 'xyz' columns=key, ts"):
        need_column("key_by", "xyz", SCHEMA)
    with pytest.raises(InvalidUseError, match="named by a string, not int"):
        need_column("key_by", 3, SCHEMA)


NUMBERS = pa.schema([("x", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))])


def test_random_numbers_are_refused_because_rows_may_be_read_again() -> None:
    drawn = pc.Expression._call("random", [], pc.RandomOptions(initializer=7))
    for expression in (drawn, pc.field("x").cast(pa.float64()) + drawn):
        with pytest.raises(InvalidUseError, match="random numbers would be others when rows are read again"):
            output_type("select", expression, NUMBERS)
    for fine in (pc.field("s") == 'random({"x"})', pc.field("random(x)") == 1):
        output_type("select", fine, pa.schema([*NUMBERS, ("random(x)", pa.int64())]))


def test_a_function_registered_in_this_process_is_refused() -> None:
    name = "tidegate_test_twice"
    if name not in pc.list_functions():
        doc = {"summary": "twice", "description": "twice"}
        pc.register_scalar_function(lambda _, x: pc.add(x, x), name, doc, {"x": pa.int64()}, pa.int64())
    with pytest.raises(InvalidUseError, match=f"exists in this process only, call it in map_batches\\(\\) function={name}"):
        output_type("select", pc.Expression._call(name, [pc.field("x")]), NUMBERS)


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()], ids=str)
def test_an_encoding_made_by_a_cast_is_decoded(kind: pa.DataType) -> None:
    made = column("select", "d", pc.field("s").cast(kind), NUMBERS)
    assert made.type == pa.string()
    assert output_type("select", made.expression, NUMBERS) == pa.string()


def test_an_encoding_that_a_cast_would_damage_is_refused() -> None:
    with pytest.raises(InvalidUseError, match=r"can't be decoded here, cast to list<item: int64> instead"):
        column("select", "v", pc.scalar(pa.scalar([1], pa.list_view(pa.int64()))), NUMBERS)
