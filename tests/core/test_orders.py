"""Orders are plain values; a put's bytes are the same on every try."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from test_view import takeover

from tidegate.core.checkpoint import orders
from tidegate.core.log.view import decode_entry


@pytest.mark.parametrize("kind", get_args(orders.Effect))
def test_every_order_is_a_frozen_value(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__


def test_a_put_has_the_same_bytes_on_every_try() -> None:
    order = orders.PutEntry(4, "t4", takeover(4))
    assert order.data == order.data
    assert decode_entry(order.data, "p", 4) == takeover(4)
