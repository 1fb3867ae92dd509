"""What the tests of the runtime share: the modules beside this file, and no job left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runtime_jobs import Jobs

GONE_S = 5.0


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Starts jobs on threads; whatever still runs at the end of the test is stopped."""
    made = Jobs(tmp_path)
    yield made
    made.stop_all()


def left_over(before: set[threading.Thread]) -> list[str]:
    """The threads that were not there before and do not end by themselves soon."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        new = [thread for thread in threading.enumerate() if thread not in before]
        if not new:
            return []
        new[0].join(0.05)
    return [thread.name for thread in new]
