"""The store that fails on purpose: each fault does what it says, and the same seed does the same again."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import InvalidUseError, RetryableError
from tidegate.store.interface import Store
from tidegate.store.open import open_store
from tidegate.testing.store import Fault, FaultPlan, FaultyStore


@pytest.fixture
def inner() -> Store:
    return open_store("memory://")


@pytest.fixture
def faulty(inner: Store) -> FaultyStore:
    return FaultyStore(inner, FaultPlan(delay_calls=2))


@pytest.mark.parametrize("verb", ["put", "create"])
def test_a_lost_answer_looks_like_a_time_out_but_the_write_is_done(faulty, inner, verb: str) -> None:
    faulty.fail_next(verb, Fault.LOST_ANSWER)
    with pytest.raises(RetryableError):
        getattr(faulty, verb)("a", b"x")
    assert inner.get("a") == b"x"
    assert faulty.create("a", b"y") is False


def test_a_lost_answer_of_a_delete_deletes(faulty: FaultyStore, inner: Store) -> None:
    inner.put("a", b"x")
    faulty.fail_next("delete", Fault.LOST_ANSWER)
    with pytest.raises(RetryableError):
        faulty.delete(["a"])
    assert list(inner.list("")) == []


def test_a_late_create_lands_some_calls_later(faulty: FaultyStore) -> None:
    faulty.fail_next("create", Fault.LATE_WRITE)
    with pytest.raises(RetryableError):
        faulty.create("a", b"late")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            faulty.get("a")
    assert faulty.get("a") == b"late"


def test_a_late_create_never_replaces_who_came_first(faulty: FaultyStore) -> None:
    faulty.fail_next("create", Fault.LATE_WRITE)
    with pytest.raises(RetryableError):
        faulty.create("a", b"late")
    assert faulty.create("a", b"first") is True
    faulty.settle()
    assert faulty.get("a") == b"first"
    assert faulty.story[-1].endswith("came too late")


def test_a_late_put_overwrites_what_came_between(faulty: FaultyStore) -> None:
    faulty.fail_next("put", Fault.LATE_WRITE)
    with pytest.raises(RetryableError):
        faulty.put("a", b"late")
    faulty.put("a", b"between")
    faulty.settle()
    assert faulty.get("a") == b"late"


def test_a_hidden_write_is_answered_but_not_seen_for_a_while(faulty: FaultyStore) -> None:
    faulty.fail_next("create", Fault.HIDDEN)
    assert faulty.create("a", b"x") is True
    assert list(faulty.list("")) == []
    assert faulty.create("a", b"y") is False
    assert faulty.get("a") == b"x"


def test_settling_shows_what_was_hidden(faulty: FaultyStore) -> None:
    faulty.fail_next("put", Fault.HIDDEN)
    faulty.put("a", b"x")
    with pytest.raises(FileNotFoundError):
        faulty.get_range("a", 0, 1)
    faulty.settle()
    assert faulty.get_range("a", 0, 1) == b"x"


@pytest.mark.parametrize("verb", ["put", "create", "get", "get_range", "list", "delete"])
def test_unavailable_does_nothing(faulty: FaultyStore, inner: Store, verb: Any) -> None:
    inner.put("old", b"x")
    arguments = {
        "put": ("new", b"y"), "create": ("new", b"y"), "get": ("old",), "get_range": ("old", 0, 1),
        "list": ("",), "delete": (["old"],),
    }  # fmt: skip
    faulty.fail_next(verb, Fault.UNAVAILABLE)
    with pytest.raises(RetryableError, match="503"):
        getattr(faulty, verb)(*arguments[verb])
    assert [info.path for info in inner.list("")] == ["old"]


def test_a_storm_fails_every_call_of_its_span(inner: Store) -> None:
    faulty = FaultyStore(inner, FaultPlan(storm=(2, 5)))
    answers = []
    for number in range(6):
        try:
            faulty.put(f"a{number}", b"x")
            answers.append("done")
        except RetryableError:
            answers.append("failed")
    assert answers == ["done", "failed", "failed", "failed", "done", "done"]


def test_a_partial_upload_leaves_half(faulty: FaultyStore, inner: Store) -> None:
    faulty.fail_next("put", Fault.PARTIAL)
    with pytest.raises(RetryableError):
        faulty.put("a", b"01234567")
    assert inner.get("a") == b"0123"


@pytest.mark.parametrize("verb", ["put", "create"])
def test_a_flipped_bit_is_stored_silently(faulty: FaultyStore, inner: Store, verb: Any) -> None:
    faulty.fail_next(verb, Fault.FLIPPED_BIT)
    getattr(faulty, verb)("a", bytes(100))
    assert sum(byte.bit_count() for byte in inner.get("a")) == 1


def test_a_flipped_bit_of_a_read_is_not_stored(faulty: FaultyStore, inner: Store) -> None:
    inner.put("a", bytes(100))
    faulty.fail_next("get", Fault.FLIPPED_BIT)
    faulty.fail_next("get_range", Fault.FLIPPED_BIT)
    assert faulty.get("a") != bytes(100)
    assert faulty.get_range("a", 0, 10) != bytes(10)
    assert faulty.get("a") == bytes(100)


def test_stored_objects_can_be_damaged_directly(faulty: FaultyStore, inner: Store) -> None:
    inner.put("a", bytes(2))
    faulty.flip_bit("a", 9)
    assert inner.get("a") == b"\0\2"
    faulty.truncate("a", 1)
    assert inner.get("a") == b"\0"


def test_a_directed_fault_waits_for_its_path(faulty: FaultyStore) -> None:
    faulty.fail_next("put", Fault.UNAVAILABLE, below="log/")
    faulty.put("other", b"x")
    with pytest.raises(RetryableError):
        faulty.put("log/0", b"x")
    faulty.put("log/0", b"x")


def storm_of_calls(faulty: FaultyStore, order: list[int]) -> dict[int, str]:
    answers = {}
    for number in order:
        try:
            answers[number] = str(faulty.create(f"a/{number}", b"x"))
        except RetryableError as error:
            answers[number] = str(error)
    return answers


def test_the_same_seed_fails_the_same_calls_in_any_order() -> None:
    plan = FaultPlan(seed=7, lost_answer=0.2, unavailable=0.2, late_write=0.2)
    forward, backward = list(range(100)), list(range(99, -1, -1))
    first = storm_of_calls(FaultyStore(open_store("memory://"), plan), forward)
    again = storm_of_calls(FaultyStore(open_store("memory://"), plan), backward)
    other = storm_of_calls(FaultyStore(open_store("memory://"), FaultPlan(seed=8, lost_answer=0.5)), forward)
    assert first == again != other
    assert 30 < sum(answer != "True" for answer in first.values()) < 70


def test_a_plan_can_be_kept_to_one_folder() -> None:
    faulty = FaultyStore(open_store("memory://"), FaultPlan(unavailable=1.0, only_below="log/"))
    faulty.put("state/0", b"x")
    with pytest.raises(RetryableError):
        faulty.put("log/0", b"x")


@pytest.mark.parametrize(
    "call",
    [
        lambda: FaultPlan(unavailable=1.5),
        lambda: FaultPlan(partial=-0.1),
        lambda: FaultPlan(delay_calls=-1),
        lambda: FaultyStore(open_store("memory://")).fail_next("create", Fault.PARTIAL),
    ],
)
def test_senseless_plans_are_refused(call) -> None:
    with pytest.raises(InvalidUseError):
        call()
