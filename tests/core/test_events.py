"""Events are plain facts."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from tidegate.core import events


@pytest.mark.parametrize("kind", get_args(events.Event))
def test_every_event_is_a_frozen_value(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__
