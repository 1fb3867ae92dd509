"""What the tests of the runtime share: the modules beside this file, and no job left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runtime_jobs import Jobs

from etcd_cluster import Cluster


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Starts jobs on threads; whatever still runs at the end of the test is stopped."""
    made = Jobs(tmp_path)
    yield made
    made.stop_all()


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three members. Whoever kills one starts it again (``restart_all``)."""
    cluster = Cluster(tmp_path_factory.mktemp("etcd"))
    try:
        cluster.await_ready()
        yield cluster
    finally:
        cluster.close()
