"""A large window closes in front of a function that does not return: a checkpoint stores what is left of it as state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pressure import Gate, PausingSource, Row, Scene, took_unaligned, wait_for

import tidegate as tg
from tidegate.operators import aggregate, closing, join, session
from tidegate.plan.connector import Split
from tidegate.runtime import start, task
from tidegate.runtime.setup import NodeSetup

ROWS = 6_000
FAR = 10_000_000
ROOM_BYTES = 4 << 10
CREDIT_BYTES = 8 << 10
STEP_ROWS = 100


class Burst(PausingSource):
    """All rows are in one window, each with a key of its own. ``moves``: after them comes one that closes the window."""

    def __init__(self, *, first: int = 0, moves: bool) -> None:
        super().__init__(2, ROWS + 2 * moves, first=first, poll_rows=250, pause_at=ROWS + 1 if moves else None)

    def rows(self, split: int, start: int, stop: int) -> list[Row]:
        return [
            {"ts": i * 7 % 900 if i < ROWS else FAR, "key": split * ROWS + i * 11 % ROWS, "value": self._first + i}
            for i in range(start, stop)
        ]

    def splits(self) -> list[Split]:
        return [Split(split.id, 0, split.rows) for split in super().splits()]


def windowed(window: Any) -> Callable[..., tg.Stream]:
    def build(left: tg.Stream, _: tg.Stream) -> tg.Stream:
        return left.key_by("key").window(window).aggregate(n=tg.count(), total=tg.sum("value"))

    return build


SHAPES: dict[str, Callable[..., tg.Stream]] = {
    "tumbling": windowed(tg.tumbling("1s")),
    "sliding": windowed(tg.sliding("2s", "1s")),
    "session": windowed(tg.session("5s")),
    "join": lambda left, right: left.join(right, on="key", window=tg.tumbling("1s")),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in proportion: a window is many steps, and a step is more than the queues hold."""
    monkeypatch.setattr(closing, "CLOSE_ROWS", STEP_ROWS)
    monkeypatch.setattr(session, "CLOSE_KEYS", STEP_ROWS)
    for module in (aggregate, join, session):
        monkeypatch.setattr(module, "PIECE_ROWS", STEP_ROWS // 2)
    monkeypatch.setattr(task, "OUTPUT_ROOM_BYTES", ROOM_BYTES)
    monkeypatch.setattr(start, "NodeSetup", partial(NodeSetup, credit_bytes=CREDIT_BYTES))


class Turnstile(Gate):
    """A gate that lets as many batches pass as it is told to."""

    def __init__(self) -> None:
        self._left = threading.Semaphore(0)
        super().__init__(lambda _: not self._left.acquire(blocking=False))

    def let(self, batches: int) -> None:
        before = len(self.passed)
        self._left.release(batches)
        wait_for("rows to pass", lambda: len(self.passed) >= before + batches)


def scene_of(shape: str, store: Path, *, moves: bool) -> Scene:
    gate = Turnstile()
    sources = (Burst(moves=moves), Burst(first=1_000_000, moves=moves))
    stream = SHAPES[shape](*map(tg.from_source, sources)).map_batches(gate)
    return Scene(tg.Pipeline("closing", stream.collect()), store, (gate,), sources[: 2 if shape == "join" else 1])


def rows_of(job: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in job.collect().to_pylist())


def expected(shape: str, tmp_path: Path, *, moves: bool) -> list[tuple[Any, ...]]:
    """The same pipeline without any pressure."""
    found = rows_of(scene_of(shape, tmp_path / "calm", moves=moves).finish(1))
    assert len(found) >= 2 * ROWS
    return found


def pending(scene: Scene) -> list[object]:
    return [entry.meta["pending"] for entry in scene.manifests()[-1].operators if "pending" in entry.meta]


def cut(scene: Scene, job: Any) -> dict[str, Any]:
    """A checkpoint while a window is being emitted."""
    record = took_unaligned(job)
    assert record["inflight_bytes"] < 8 * (ROOM_BYTES + CREDIT_BYTES), "what is in flight does not grow with the window"
    assert pending(scene), "no window was on its way out: this shows nothing"
    return record


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("moves", [True, False], ids=["a watermark closes it", "the end closes it"])
@pytest.mark.parametrize("after", [2, 1, 3])
def test_a_window_that_is_being_emitted_is_restored_from_its_cut(shape: str, moves: bool, after: int, tmp_path: Path) -> None:
    scene = scene_of(shape, tmp_path / "stored", moves=moves)
    with scene.running() as job:
        scene.paused_everywhere(job)
        record = cut(scene, job)
    job = scene.finish(after)
    assert job.restored_from == record["epoch"]
    assert rows_of(job) == expected(shape, tmp_path, moves=moves)


@pytest.mark.parametrize("shape", SHAPES)
def test_cuts_in_a_row_while_one_window_is_emitted_and_while_it_is_emitted_again(shape: str, tmp_path: Path) -> None:
    scene = scene_of(shape, tmp_path / "stored", moves=False)
    (gate,) = scene.gates
    assert isinstance(gate, Turnstile)
    with scene.running() as job:
        scene.paused_everywhere(job)
        cut(scene, job)
        gate.let(3)
        cut(scene, job)
    for parallelism in (2, 1):
        with scene.running(parallelism) as job:
            wait_for("something at the gate", lambda job=job: job.error or gate.entered)
            gate.let(3)
            cut(scene, job)
    assert rows_of(scene.finish(2)) == expected(shape, tmp_path, moves=False)
