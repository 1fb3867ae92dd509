"""Plays scenario files: steps that a person can read, each followed by what the protocol did about it.

A file is text. Lines that start with ``#`` are prose. The first other line names the world (``world subtasks``,
``world leaders`` or ``world heads``). A line that starts with ``>`` is a step. The indented lines under a step
are its golden part: first every effect, in order, then the state that it left.

The steps run over the real protocol classes; the worlds only carry messages and write down what happens.
``test_scenarios`` compares. To write the golden parts anew after a wanted change, and then read the difference:

    TIDEGATE_REGENERATE=1 python -m pytest tests/scenarios -q

The words of each world are the patterns in ``scenario_subtasks``, ``scenario_leaders`` and ``scenario_heads``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tidegate.errors import TidegateError

INDENT = "    "


class World(Protocol):
    """Something that steps happen to. ``words`` are tried in order; the first pattern that fits is the step."""

    words: list[tuple[re.Pattern[str], str]]

    def take_trace(self) -> list[str]:
        """The lines that the last step left behind."""
        ...


def step(pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method the meaning of every step of this form."""

    def register(method: Callable[..., None]) -> Callable[..., None]:
        method.pattern = pattern  # type: ignore[attr-defined]
        return method

    return register


def words_of(world: type[Any]) -> list[tuple[re.Pattern[str], str]]:
    """All steps of a world: pattern and name of the method."""
    found = [(name, getattr(method, "pattern", None)) for name, method in vars(world).items()]
    return [(re.compile(pattern), name) for name, pattern in found if pattern is not None]


@dataclass(frozen=True)
class Line:
    """One line that stays as it is: prose, the world, or a step."""

    text: str

    @property
    def step(self) -> str | None:
        return self.text[1:].strip() if self.text.startswith(">") else None

    @property
    def world(self) -> str | None:
        return self.text.removeprefix("world ").strip() if self.text.startswith("world ") else None


def read(path: Path) -> Iterator[Line]:
    """The lines of a file without its golden parts."""
    for text in path.read_text().splitlines():
        if not text.startswith(INDENT):
            yield Line(text.rstrip())


def play(path: Path, worlds: dict[str, Callable[[], World]]) -> str:
    """The whole file with golden parts as they come out now."""
    written: list[str] = []
    world: World | None = None
    for line in read(path):
        written.append(line.text)
        if line.world is not None:
            world = worlds[line.world]()
        if line.step is not None:
            assert world is not None, f"{path.name}: a step before the world"
            written += [f"{INDENT}{text}" for text in perform(world, line.step)]
    return "\n".join(written) + "\n"


def perform(world: World, words: str) -> list[str]:
    """Do one step. What the protocol refuses is an outcome like any other."""
    for pattern, name in world.words:
        found = pattern.fullmatch(words)
        if found:
            try:
                getattr(world, name)(*found.groups())
            except TidegateError as error:
                return [*world.take_trace(), f"refused: {type(error).__name__}: {error}"]
            return world.take_trace()
    raise ValueError(f"no such step in {type(world).__name__}: {words!r}")
