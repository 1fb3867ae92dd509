"""Who has asked for a checkpoint, and which attempt serves whom. It starts none."""

from __future__ import annotations

from collections import deque

from tidegate.core.checkpoint.attempt import CheckpointAttempt
from tidegate.core.checkpoint.effects import RequestRefused
from tidegate.core.checkpoint.events import TriggerRequested

REQUESTS_MAX = 64


class RequestQueue:
    """The requests that no attempt serves yet."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[TriggerRequested] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, event: TriggerRequested, attempt: CheckpointAttempt | None) -> RequestRefused | None:
        """Join the attempt under way, if it is of the same kind; else wait for the next. Refused where too many do."""
        joins = attempt is not None and event.savepoint in (None, attempt.savepoint)
        waiting = len(attempt.requests) if attempt is not None and joins else len(self._waiting)
        if waiting >= REQUESTS_MAX:
            return refused(event, f"too many requests are waiting waiting={waiting}")
        if attempt is not None and joins:
            attempt.requests.append(event.request_id)
        else:
            self._waiting.append(event)
        return None

    def serve(self, *, final: bool) -> tuple[str | None, list[str]]:
        """The savepoint that the next attempt makes, and whom it serves. A final one makes none."""
        wanted = [w.savepoint for w in self._waiting if w.savepoint is not None and not final]
        savepoint = wanted[0] if wanted else None
        served = [w for w in self._waiting if w.savepoint in (None, savepoint)]
        self._waiting = deque(w for w in self._waiting if w not in served)
        return savepoint, [w.request_id for w in served]

    def close(self, reason: str) -> list[RequestRefused]:
        """No attempt will serve anybody."""
        given = [refused(event, reason) for event in self._waiting]
        self._waiting.clear()
        return given


def refused(event: TriggerRequested, reason: str) -> RequestRefused:
    """The answer to a request that no checkpoint is made for."""
    return RequestRefused(event.request_id, reason)
