"""What a coordinator gives in answer to one fact: the effects in their order, the timer, and the story that led to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidegate.core.checkpoint.effects import CheckpointAborted, CoordinatorEffect, SetTimer

STORY_LENGTH = 50


class EffectCollector:
    """Collects effects. ``story`` has the last facts, for whoever has to find out what went wrong."""

    __slots__ = ("_given", "_story", "_timer")

    def __init__(self) -> None:
        self._given: list[CoordinatorEffect] = []
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)
        self._timer: int | None = None

    @property
    def story(self) -> tuple[str, ...]:
        """The last facts, oldest first."""
        return tuple(self._story)

    def open(self, event: object, now_ms: int) -> None:
        """A fact has come: what is given from now on answers it."""
        self._story.append(f"{now_ms} {event!r:.300}")
        self._given = []

    def give(self, *effects: CoordinatorEffect | None) -> None:
        """These come next; ``None`` is nothing."""
        self.give_all(effect for effect in effects if effect is not None)

    def give_all(self, effects: Iterable[CoordinatorEffect]) -> None:
        """These come next. An aborted checkpoint carries the story that led to it."""
        for effect in effects:
            if isinstance(effect, CheckpointAborted):
                effect.error.story = self.story
            self._given.append(effect)

    def close(self, now_ms: int, deadlines: Iterable[int | None]) -> list[CoordinatorEffect]:
        """All that was given, and the timer for the first of the deadlines if that is another one than before."""
        at_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if self._timer is not None and now_ms >= self._timer:
            self._timer = None
        if at_ms is not None and at_ms != self._timer:
            self._timer = at_ms
            self._given.append(SetTimer(at_ms))
        return self._given
