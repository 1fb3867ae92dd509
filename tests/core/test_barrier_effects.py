"""Effects that are made by one function only."""

from __future__ import annotations

import pytest

from tidegate.core.barrier.effects import CheckpointFailed, Fire, aborted
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.errors import CheckpointAbortedError


@pytest.mark.parametrize(("reason", "told"), [("a node left", "a node left"), ("", "no reason given")])
def test_an_aborted_checkpoint_says_which_and_why(reason: str, told: str) -> None:
    failed = aborted(7, reason)
    assert failed.checkpoint_id == failed.error.checkpoint_id == 7
    assert isinstance(failed.error, CheckpointAbortedError) and told in str(failed.error)


def test_effects_are_compared_by_what_they_order_but_each_failure_is_one_of_its_own() -> None:
    assert Fire(CheckpointBarrier(1, 1)) == Fire(CheckpointBarrier(1, 1)) != Fire(CheckpointBarrier(2, 1))
    assert aborted(7, "x") != aborted(7, "x"), "an error carries its own story"
    assert isinstance(aborted(7, "x"), CheckpointFailed)
