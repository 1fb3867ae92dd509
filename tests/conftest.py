"""Settings for all tests. Hypothesis gives the same examples every time, so that a red run means a change and not bad luck;
``HYPOTHESIS_PROFILE=search`` looks for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machine may be busy: how long an example takes says nothing.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("glance", parent=settings.get_profile("steady"), max_examples=5)  # for coverage: no search
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Files that take more than a few seconds: all of them run in ``make test``, none in ``make fast``.
SLOW = {
    "runtime/test_windows_end_to_end.py",
    "runtime/test_world.py",
    "runtime/test_savepoints.py",
    "state/test_keyed_table.py",
    "core/test_explorer.py",
    "operators/test_sessions.py",
    "operators/test_first_last_distinct.py",
    "operators/test_state_restore.py",
    "operators/test_stopped_closing.py",
    "operators/test_running.py",
    "operators/test_window_aggregate.py",
    "operators/test_window_join.py",
    "unaligned/test_unaligned_shapes.py",
    "unaligned/test_unaligned_jobs.py",
    "unaligned/test_unaligned_limits.py",
    "unaligned/test_closing_windows.py",
    "bench/test_unaligned_bench.py",
    "store/test_s3_pipeline.py",
}


@pytest.fixture(autouse=True, scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokens of jobs go where they vanish with the tests; processes that tests start inherit it."""
    os.environ["TIDEGATE_HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    del os.environ["TIDEGATE_HOME"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
