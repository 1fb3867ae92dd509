"""A real cluster of etcd on this machine, whose members a test may kill and start again."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tidegate.errors import RetryableError
from tidegate.runtime.etcd import Etcd, parse_etcd

NEEDED = "TIDEGATE_TESTS_NEED_ALL"
"""In CI a part of the world that is missing is a failure, not a reason to skip."""
READY_S = 30.0


def tool() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "etcd.py"
    spec = importlib.util.spec_from_file_location("tools_etcd", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def etcd_program() -> str:
    """The program; a test without it is skipped, or fails in CI."""
    try:
        return str(tool().find_etcd() or tool().fetch_etcd())
    except RuntimeError as error:
        if os.environ.get(NEEDED):
            pytest.fail(str(error))
        pytest.skip(str(error))


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Cluster:
    """``members`` processes with data below ``folder``. ``extra`` are more arguments for each."""

    def __init__(self, folder: Path, members: int = 3, *, scheme: str = "http", extra: Sequence[str] = ()) -> None:
        self._program = etcd_program()
        self._folder = folder
        self._scheme = scheme
        self._extra = extra
        ports = free_ports(2 * members)
        self.ports, self._peers = ports[:members], ports[members:]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(members):
            self.start(index)

    def start(self, index: int) -> None:
        """Start a member, for the first time or again."""
        client, peer = f"{self._scheme}://127.0.0.1:{self.ports[index]}", f"http://127.0.0.1:{self._peers[index]}"
        everybody = ",".join(f"m{each}=http://127.0.0.1:{port}" for each, port in enumerate(self._peers))
        command = [
            self._program, "--name", f"m{index}", "--data-dir", str(self._folder / f"m{index}"), "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", everybody, "--logger", "zap", *self._extra,
        ]  # fmt: skip
        with (self._folder / f"m{index}.log").open("ab") as log:
            self._running[index] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, index: int) -> None:
        """As if its machine had lost power."""
        process = self._running.pop(index)
        process.kill()
        process.wait(30)

    def restart_all(self) -> None:
        """Start whoever was killed, and wait until the cluster answers."""
        for index in range(len(self.ports)):
            if index not in self._running:
                self.start(index)
        self.await_ready()

    def url(self, prefix: str) -> str:
        """For ``election=``."""
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{prefix}"

    def await_ready(self, url: str | None = None) -> None:
        """Wait until a majority reads."""
        etcd, deadline = Etcd(parse_etcd(url or self.url("ready"))), time.monotonic() + READY_S
        while True:
            try:
                etcd.call("kv/range", {"key": "cmVhZHk="})
                return
            except RetryableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def close(self) -> None:
        for index in list(self._running):
            self.kill(index)
        shutil.rmtree(self._folder, ignore_errors=True)
