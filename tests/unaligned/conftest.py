from __future__ import annotations

from collections.abc import Iterator

import pytest
from pressure import end_all


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Whatever a test does, its jobs end with it."""
    yield
    end_all()
