"""The strict JSON codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.log.codec import build, decode, encode, parse, seal, unsealed
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import Epoch, GangNumber


@dataclass(frozen=True)
class Inner:
    name: str
    flag: bool = False


@dataclass(frozen=True)
class Outer:
    number: int
    kind: Literal["a", "b"]
    items: tuple[Inner, ...]
    maybe: int | None
    meta: Mapping[str, object]
    free: object

    def __post_init__(self) -> None:
        if self.number == 13:
            raise InvalidUseError("not thirteen")


GOOD = Outer(1, "a", (Inner("x"), Inner("ü", True)), None, {"k": [1, 2.5, None]}, [True, {"n": "s"}])
PLAIN = {"number": 1, "kind": "a", "items": [], "maybe": 2, "meta": {}, "free": None}


def test_a_record_round_trips() -> None:
    assert decode(Outer, encode(GOOD), "p") == GOOD


@dataclass(frozen=True)
class Numbered:
    gang: GangNumber
    parent: Epoch | None


def test_an_id_is_a_number_where_it_is_stored() -> None:
    stored = Numbered(GangNumber(3), None)
    assert encode(stored) == b'{"gang":3,"parent":null}'
    assert decode(Numbered, encode(stored), "p") == stored
    assert decode(Numbered, b'{"gang":3,"parent":4}', "p") == Numbered(GangNumber(3), Epoch(4))
    with pytest.raises(CorruptDataError, match="gang must be a whole number"):
        decode(Numbered, b'{"gang":"3","parent":4}', "p")


def test_ascii_only_and_compact() -> None:
    assert encode(Inner("ü")) == b'{"name":"\\u00fc","flag":false}'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": -1}, "number must be a whole number"),
        ({"number": True}, "number must be a whole number"),
        ({"number": 1.0}, "number must be a whole number"),
        ({"number": 2**64}, "number must be a whole number"),
        ({"number": 13}, "not thirteen"),
        ({"kind": "c"}, "kind must be one of a, b"),
        ({"kind": []}, "kind must be one of"),
        ({"items": {}}, "items must be a list"),
        ({"items": [{"name": 1, "flag": False}]}, r"items\[0\].name must be text"),
        ({"items": [{"name": "\ud800", "flag": False}]}, "must be text"),
        ({"items": [{"name": "x", "flag": 0}]}, "must be true or false"),
        ({"items": [{"name": "x"}]}, "exactly the keys name, flag"),
        ({"items": ["x"]}, "exactly the keys"),
        ({"maybe": "2"}, "maybe must be a whole number"),
        ({"meta": []}, "meta must be a JSON object"),
        ({"extra": 1}, "exactly the keys"),
    ],
)
def test_anything_else_is_corrupt_and_names_the_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(CorruptDataError, match=message) as caught:
        build(Outer, PLAIN | change, "some/path")
    assert caught.value.path == "some/path"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"NaN", b"1e999", b"[" * 100_000, b"1" * 5_000, b"-Infinity"])
def test_bytes_that_are_no_json_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="not JSON"):
        parse(data, "p")


@pytest.mark.parametrize("free", [float("nan"), object(), {1, 2}])
def test_what_json_cannot_say_is_refused(free: object) -> None:
    with pytest.raises(InvalidUseError, match="not JSON"):
        encode(Outer(1, "a", (), None, {}, free))


@given(st.binary())
def test_decoding_arbitrary_bytes_raises_only_our_error(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(Outer, data, "p")


def test_a_finite_float_stays() -> None:
    assert parse(b"[2.5]", "p") == [2.5]


@given(st.binary())
def test_a_seal_returns_what_was_sealed_and_nothing_else(data: bytes) -> None:
    assert unsealed(seal(data + b"}")) == data + b"}"
    assert unsealed(data) is None
