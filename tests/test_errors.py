"""Errors: one root, one reaction each, and they survive the way through Spark."""

from __future__ import annotations

import inspect
import pickle
import warnings

import pytest

from tidegate import errors
from tidegate.errors import (
    CheckpointAbortedError,
    CorruptDataError,
    FencedError,
    InvalidUseError,
    JobFailedError,
    ProtocolError,
    RetryableError,
    ThreadDied,
    TidegateError,
)

REACTIONS = (
    RetryableError, FencedError, InvalidUseError, CorruptDataError,
    CheckpointAbortedError, ProtocolError, JobFailedError, ThreadDied,
)  # fmt: skip
ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TidegateError) and kind is not TidegateError
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_exactly_one_reaction(kind: type[TidegateError]) -> None:
    assert sum(issubclass(kind, reaction) for reaction in REACTIONS) == 1


@pytest.mark.parametrize("kind", [TidegateError, *ALL], ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_with_its_story(kind: type[TidegateError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what happened key=1", story=["first", "second"])))
    assert type(copy) is kind
    assert str(copy) == "what happened key=1"
    assert copy.story == ("first", "second")


@pytest.mark.parametrize("kind", [TidegateError, *ALL], ids=lambda kind: kind.__name__)
def test_every_error_can_be_raised_bare(kind: type[TidegateError]) -> None:
    error = kind()
    assert str(error) == ""
    assert error.story == ()
    assert type(pickle.loads(pickle.dumps(error))) is kind


def test_own_fields_survive_pickling() -> None:
    corrupt = pickle.loads(pickle.dumps(CorruptDataError("bad", path="a/b")))
    aborted = pickle.loads(pickle.dumps(CheckpointAbortedError("over", checkpoint_id=7)))
    assert corrupt.path == "a/b"
    assert aborted.checkpoint_id == 7


def test_an_error_without_a_message_is_rebuilt() -> None:
    error = TidegateError("gone")
    error.args = ()
    assert str(pickle.loads(pickle.dumps(error))) == ""


def test_a_wrong_call_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="fix it"):
        raise InvalidUseError("fix it")


def test_a_low_threshold_is_a_warning_and_no_error() -> None:
    with pytest.warns(errors.ThresholdTooLow):
        warnings.warn("every checkpoint goes unaligned", errors.ThresholdTooLow, stacklevel=1)
