"""Checkpoint ids: built from term and counter, ordered, never 0."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidUseError
from tidegate.ids import U32_LIMIT, U64_LIMIT, CheckpointId


@given(term=st.integers(0, U32_LIMIT - 1), counter=st.integers(1, U32_LIMIT - 1))
def test_an_id_is_term_and_counter(term: int, counter: int) -> None:
    checkpoint_id = CheckpointId.of(term, counter)
    assert (checkpoint_id.term, checkpoint_id.counter) == (term, counter)
    assert CheckpointId.from_raw(int(checkpoint_id)) == checkpoint_id
    assert pickle.loads(pickle.dumps(checkpoint_id)) == checkpoint_id


def test_ids_of_a_later_term_are_higher_than_all_of_an_earlier_one() -> None:
    assert CheckpointId.of(4, U32_LIMIT - 1) < CheckpointId.of(5, 1)


@pytest.mark.parametrize("raw", [0, -1, U64_LIMIT])
def test_what_is_no_id_is_refused(raw: int) -> None:
    with pytest.raises(InvalidUseError, match=f"checkpoint_id={raw}"):
        CheckpointId.from_raw(raw)


@pytest.mark.parametrize(("term", "counter"), [(-1, 1), (U32_LIMIT, 1), (0, 0), (0, U32_LIMIT), (3, -1)])
def test_terms_and_counters_out_of_range_are_refused(term: int, counter: int) -> None:
    with pytest.raises(InvalidUseError):
        CheckpointId.of(term, counter)


def test_the_highest_id_fits_in_64_bits() -> None:
    assert CheckpointId.of(U32_LIMIT - 1, U32_LIMIT - 1) == U64_LIMIT - 1
