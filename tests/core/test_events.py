"""Events are plain facts."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from test_view import commit, restore, takeover

from tidegate.core.checkpoint import events
from tidegate.core.log.view import LogView


@pytest.mark.parametrize("kind", get_args(events.CoordinatorEvent))
def test_every_event_is_a_frozen_value(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__


def test_a_log_that_was_read_from_its_base_on_adds_up_to_all_of_it() -> None:
    entries = (takeover(0), commit(1), restore(2, 1))
    base = LogView(entries).summed_up("b")
    assert base is not None
    every = (*entries, base, commit(4, 1, gang=2))
    read = events.LogRead((every[1], *every[3:]))
    assert read.view().summed_up("w") == events.LogRead(every).view().summed_up("w")
