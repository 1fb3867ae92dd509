"""Parameters: their values as bytes, where functions read them, and how a pipeline finds them."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.parameter import bound, decode_value, encode_value, parameters_of, united

TABLE = pa.table({"limit": [1, 2]})
EVERYWHERE = tg.Parameter("everywhere", 1)
RULES = tg.Parameter("rules", {"limit": 5})


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text", [1, [2]], {"a": {"b": None}}])
def test_plain_data_survives_its_bytes(value: object) -> None:
    assert decode_value(encode_value(value)) == value


def test_tables_and_batches_survive_their_bytes() -> None:
    assert decode_value(encode_value(TABLE)).equals(TABLE)
    (batch,) = TABLE.to_batches()
    again = decode_value(encode_value(batch))
    assert isinstance(again, pa.RecordBatch) and again.equals(batch)


@pytest.mark.parametrize("value", [object(), {1: "a"}, (1, 2), float("nan"), {"a": {1, 2}}])
def test_what_would_not_come_back_as_it_was_is_refused(value: object) -> None:
    with pytest.raises(InvalidUseError, match="plain data as in JSON"):
        tg.Parameter("p", value)


@pytest.mark.parametrize("data", [b"", b"X", b"J{", b"T123", b"B", encode_value(TABLE)[:40]])
def test_damaged_values_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_value(data)


@pytest.mark.parametrize("name", ["", "1st", "a b", 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(InvalidUseError, match="name"):
        tg.Parameter(name, 1)


def test_a_new_value_must_be_like_the_first() -> None:
    assert tg.Parameter("p", 1).encode({"any": "plain data"})
    assert tg.Parameter("p", TABLE).encode(pa.table({"limit": [9]}))
    for wrong in (1, pa.table({"other": [1]}), TABLE.to_batches()[0]):
        with pytest.raises(InvalidUseError, match="like the initial one"):
            tg.Parameter("p", TABLE).encode(wrong)


def test_a_value_is_read_where_a_call_is_bound_to_it_and_nowhere_else() -> None:
    read = lambda: RULES.value  # noqa: E731
    assert bound({"rules": 7}, read) == 7
    with pytest.raises(InvalidUseError, match="inside a function"):
        read()
    with pytest.raises(InvalidUseError, match=r"parameters=\[...\].* known=other"):
        bound({"other": 1}, read)


def test_a_copy_reads_the_same_value() -> None:
    copy = pickle.loads(pickle.dumps(RULES))
    assert (copy, copy.initial, hash(copy), repr(copy)) == (RULES, {"limit": 5}, hash(RULES), "Parameter('rules')")
    assert bound({"rules": 7}, lambda: copy.value) == 7


class Judge:
    def __init__(self, rules: tg.Parameter) -> None:
        self.held = {"rules": [rules]}

    def __call__(self, batch: object) -> object:
        return helper(batch)


def helper(batch: object) -> object:
    return (batch, EVERYWHERE.value)


def test_parameters_are_found_in_closures_globals_defaults_and_attributes() -> None:
    local = tg.Parameter("local", 1)

    def closing(batch: object, default: object = RULES, *, key: object = None) -> object:
        return [local.value for _ in range(3)]

    def names(function: object) -> list[str]:
        return [each.name for each in parameters_of(function)]

    assert names(closing) == ["local", "rules"]
    assert names(helper) == ["everywhere"]
    assert names(Judge(RULES)) == ["everywhere", "rules"]
    assert names(Judge(RULES).__call__) == ["everywhere", "rules"]
    assert names(functools.partial(closing, key=EVERYWHERE)) == ["everywhere", "local", "rules"]
    assert names(len) == []


def test_a_cell_that_is_not_assigned_yet_is_no_parameter() -> None:
    def outer() -> list[tg.Parameter]:
        def inner() -> object:
            return later

        found = list(parameters_of(inner))
        later = RULES
        assert inner() is later
        return found

    assert outer() == []


def test_declared_parameters_count_and_must_be_some() -> None:
    assert parameters_of(len, [RULES]) == (RULES,)
    with pytest.raises(InvalidUseError, match="Parameter objects"):
        parameters_of(len, ["rules"])  # type: ignore[list-item]


def test_two_of_one_name_must_be_the_same() -> None:
    assert united([RULES, tg.Parameter("rules", {"limit": 5})]) == (RULES,)
    with pytest.raises(InvalidUseError, match="two parameters have one name"):
        united([RULES, tg.Parameter("rules", {"limit": 6})])
