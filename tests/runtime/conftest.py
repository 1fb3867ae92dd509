"""What the tests of the runtime share: the modules beside this file, and no job left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runtime_jobs import Jobs


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Starts jobs on threads; whatever still runs at the end of the test is stopped."""
    made = Jobs(tmp_path)
    yield made
    made.stop_all()
