"""What can go wrong on a node: at its end, and with what others send it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import psutil
import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, events, left_over, until

import tidegate as tg
from tidegate.plan.connector import Offset, Split
from tidegate.runtime.host import Launch, run_node
from tidegate.runtime.local import ThreadGang


class Stubborn(GatedSource):
    """Its readers can't be closed."""

    def open(self, split: Split, offset: Offset) -> Any:
        reader: Any = super().open(split, offset)

        def close() -> None:
            raise OSError("can't be closed")

        reader.close = close
        return reader


def test_a_reader_that_cannot_be_closed_leaves_nothing_else_behind(jobs: Jobs) -> None:
    process = psutil.Process()
    gc.collect()
    before, sockets = set(threading.enumerate()), len(process.net_connections())
    source, sink = Stubborn(events(600), allowed=300), MemorySink()
    stream = tg.from_source(source).key_by("key").aggregate(n=tg.count())
    job = jobs.start(tg.Pipeline("w", stream.write(sink)), 2)
    until(lambda: source.emitted == 300)
    job.stop()
    assert left_over(before) == []
    assert len(process.net_connections()) <= sockets
    assert sink.closed == sink.opened


@pytest.mark.parametrize("what", ["ControlClient", "TcpTransport"])
def test_a_node_that_cannot_open_its_lines_leaves_nothing_behind(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    module = "tidegate.wire.control" if what == "ControlClient" else "tidegate.runtime.host"
    before = set(threading.enumerate())
    source, sink = GatedSource(events(600)), MemorySink()
    fails = threading.Event()
    fails.set()

    def run(launch: Launch, index: int) -> str:
        with monkeypatch.context() as patched:
            if fails.is_set():
                fails.clear()
                patched.setattr(f"{module}.{what}", refuse)
            return run_node(launch, index)

    def refuse(*args: Any, **options: Any) -> Any:
        raise OSError("no more files")

    job = jobs.finish(tg.Pipeline("w", tg.from_source(source).write(sink)), 1, gang=ThreadGang(1, run))
    assert job.metrics()["restarts"] == 1
    assert left_over(before) == []
    assert sink.closed == sink.opened
