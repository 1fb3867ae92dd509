"""The contract suite against every backend: memory, a directory, S3 over HTTP, and a faulty store that has no faults."""

from __future__ import annotations

import itertools
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import StoreContract
from moto.server import ThreadedMotoServer

from tidegate.store.durable import DurableFileStore
from tidegate.store.interface import Store
from tidegate.store.open import open_store
from tidegate.testing.store import FaultyStore

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on loopback with one bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")).close()
    yield endpoint
    server.stop()


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_store("memory://")


class TestDirectory(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "new" / "store")


class TestDirectoryWithoutSync(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DurableFileStore(tmp_path, durable=False)


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, s3_endpoint: str) -> Store:
        options = {
            "endpoint": s3_endpoint,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
        }
        return open_store(f"s3://bucket/job-{next(_numbers)}", options=options)


class TestFaultyWithoutFaults(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(open_store("memory://"))
