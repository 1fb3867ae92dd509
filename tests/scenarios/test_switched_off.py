"""With checkpointing off, nothing of it is made in a running job (I12). With it on, the same look finds it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "runtime"))

from runtime_jobs import GatedSource, MemorySink, counts, events
from runtime_world import World

import tidegate as tg
from tidegate.core.barrier.inject import CheckpointBarrierInjector
from tidegate.runtime.timers import Timers

DEADLINES = {"_deadline", "_expire"}  # a node's timers: barriers may overtake, the checkpoint is given up


def made_by(interval: str | None, patch: pytest.MonkeyPatch) -> set[str]:
    """What a job of two nodes makes for checkpoints from start to end: injectors and timers of deadlines."""
    found: set[str] = set()

    make, set_timer = CheckpointBarrierInjector.__init__, Timers.at

    def init(self: CheckpointBarrierInjector, *args: Any, **rest: Any) -> None:
        found.add("injector")
        make(self, *args, **rest)

    def at(self: Timers, at_ms: int, act: Any) -> None:
        if isinstance(act, partial) and act.func.__name__ in DEADLINES:
            found.add(act.func.__name__)
        set_timer(self, at_ms, act)

    patch.setattr(CheckpointBarrierInjector, "__init__", init)
    patch.setattr(Timers, "at", at)
    source, sink = GatedSource(events(300), rows_per_poll=5), MemorySink()
    World(tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), 2, interval=interval).finish()
    return found


def test_switched_off_there_is_no_injector_and_no_timer_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_by(None, monkeypatch) <= {"_expire"}  # the last checkpoint, at the end, has a limit too


def test_switched_on_there_are_injectors_and_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_by("30ms", monkeypatch) == {"injector", *DEADLINES}
