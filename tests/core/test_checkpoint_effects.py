"""Orders are plain values; a put's bytes are the same on every try."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from test_view import takeover

from tidegate.core.checkpoint import effects as do
from tidegate.core.log.view import Takeover, decode_entry
from tidegate.errors import CheckpointAbortedError, NodeFailed


@pytest.mark.parametrize("kind", get_args(do.CoordinatorEffect))
def test_every_order_is_a_frozen_value(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__


def test_a_put_has_the_same_bytes_on_every_try() -> None:
    effect = do.PutEntry(4, "t4", takeover(4))
    assert effect.data == effect.data
    assert decode_entry(effect.data, "p", 4) == takeover(4)


THEIRS = Takeover(slot=9, term=9, write_id="x", leader="other")


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (do.Replaced(THEIRS, 9), "another driver has taken over slot=9"),
        (do.Replaced(None, 9, "its checksum differs"), "another driver has taken over slot=9: its checksum differs"),
        (do.StoreSilent(3_000, "503"), "the store did not answer for 3000 ms: 503"),
        (do.Unpublishable(20, "no space"), "committables cannot be published: no space"),
    ],
)
def test_why_a_leader_stepped_down_can_be_read(reason: do.StepDownReason, text: str) -> None:
    assert str(reason) == text


def test_an_aborted_checkpoint_says_which_nodes_it_failed_on() -> None:
    error = NodeFailed("node 1 is gone", checkpoint_id=5, failed_nodes={1: "is gone"})
    assert do.CheckpointAborted(5, str(error), (), error).failed_nodes == {1: "is gone"}
    cancelled = CheckpointAbortedError("cancelled")
    assert do.CheckpointAborted(5, "cancelled", (), cancelled).failed_nodes == {}
