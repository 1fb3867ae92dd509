"""Every interleaving of signals and checkpoints keeps one version per checkpoint; each rule is needed. See ``signalling``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from explorer import Violation
from signalling import Play, Signalling

from tidegate.core.control.ask import ControlChanged
from tidegate.core.control.head import ControlSourceProcessor
from tidegate.core.control.sequence import Emit, HeadSequencer
from tidegate.errors import TidegateError

SMALL = Play("a signal and a checkpoint")
LARGER = [
    Play("rows before and after", rows=(1, 0)),
    Play("two signals and a checkpoint", signals=2),
    Play("a signal and two checkpoints", checkpoints=2),
    Play("a source that ends", ends=True),
]
PLAYS = [SMALL, *(pytest.param(play, marks=pytest.mark.slow) for play in LARGER)]


@pytest.mark.parametrize("play", PLAYS, ids=[play.name for play in (SMALL, *LARGER)])
def test_every_checkpoint_has_one_version_of_a_parameter(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    found = Signalling(play).run()
    with capsys.disabled():
        print(f"\n  {play.name}: {found.states} states, {found.commits} commits, {found.overtaken} overtaking", end="")
    assert found.commits and found.overtaken and found.ends, "the search shows nothing"


_request, _changed, _emitted = HeadSequencer.request, ControlSourceProcessor._changed, ControlSourceProcessor.emitted


def lets_every_barrier_go_at_once(self: HeadSequencer, barrier: Any) -> Any:
    _request(self, barrier)
    return Emit(barrier)


def takes_the_word_of_one_source_for_all(self: ControlSourceProcessor, node: int, number: int, now_ms: int) -> Any:
    return [*_emitted(self, 0, number, now_ms), *_emitted(self, 1, number, now_ms)]


def pins_nothing(self: ControlSourceProcessor) -> Any:
    return [replace(e, pinned=False) if isinstance(e, ControlChanged) else e for e in _changed(self)]


def pins_only_until_it_was_emitted(self: ControlSourceProcessor) -> Any:
    entering, self._told = self._entering is not None, ControlChanged(objects=frozenset({"say it anew"}))
    return [replace(e, pinned=entering) if isinstance(e, ControlChanged) else e for e in _changed(self)]


@pytest.mark.parametrize(
    ("owner", "method", "wrong", "promise"),
    [
        (HeadSequencer, "request", lets_every_barrier_go_at_once, "deadlock|one version"),
        (ControlSourceProcessor, "emitted", takes_the_word_of_one_source_for_all, "deadlock|one version"),
        (ControlSourceProcessor, "_changed", pins_nothing, "one version"),
        (ControlSourceProcessor, "_changed", pins_only_until_it_was_emitted, "one version"),
    ],
)
def test_each_rule_is_needed(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, wrong: Callable[..., Any], promise: str
) -> None:
    monkeypatch.setattr(owner, method, wrong)
    with pytest.raises((Violation, TidegateError), match=promise):
        Signalling(SMALL).run()
