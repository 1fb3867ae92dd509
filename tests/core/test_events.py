"""Events are plain facts."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from test_log import commit, restore, takeover

from tidegate.core import events
from tidegate.core.log import LogView


@pytest.mark.parametrize("kind", get_args(events.Event))
def test_every_event_is_a_frozen_value(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__


def test_a_log_that_was_read_beside_its_summary_adds_up_to_all_of_it() -> None:
    entries = (takeover(0), commit(1), restore(2, 1), commit(3, 1, gang=2))
    summary = LogView(entries[:3]).summary()
    assert summary is not None and summary.slots == (1, 2)
    assert events.LogRead(entries[1:], summary).view().summary() == events.LogRead(entries).view().summary()
