"""Who waits for an answer of the leader. Every request is answered: by the leader, or by the end of the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import count
from typing import Any

from tidegate.errors import JobFailedError
from tidegate.ids import Epoch


class Requests:
    """Futures by request. Any thread opens, the leader's thread answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[Any]] = {}
        self._numbers = count(1)
        self._closed: str | None = None
        self._unpublished: dict[int, tuple[str, ...]] = {}

    def open(self) -> tuple[str, Future[Any]]:
        """A new request. After the end of the job its future has failed already."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # nobody can take it back, so an answer always fits
        with self._lock:
            request = f"r{next(self._numbers)}"
            if self._closed is None:
                self._waiting[request] = future
                return request, future
        future.set_exception(JobFailedError(self._closed))
        return request, future

    def answer(self, requests: Iterable[str], answer: object) -> None:
        """Tell whoever still waits: an exception is raised there, anything else is the result."""
        for request in requests:
            with self._lock:
                future = self._waiting.pop(request, None)
            if future is not None and isinstance(answer, Exception):
                future.set_exception(answer)
            elif future is not None:
                future.set_result(answer)

    def committed(self, requests: Iterable[str], epoch: Epoch, *, wait: bool) -> None:
        """A checkpoint is in the log. ``wait``: its askers are told when the sinks show it.

        A savepoint starts other jobs, which publish nothing of what this one staged.
        """
        if wait:
            self._unpublished[epoch] = tuple(requests)
        else:
            self.answer(requests, epoch)

    def published(self, is_public: Callable[[int], bool]) -> None:
        """The sinks may show more than before."""
        for epoch in [epoch for epoch in self._unpublished if is_public(epoch)]:
            self.answer(self._unpublished.pop(epoch), epoch)

    def close(self, reason: str) -> None:
        """The job has ended: nobody waits any longer."""
        with self._lock:
            self._closed = reason
            waiting = list(self._waiting)
        self.answer(waiting, JobFailedError(reason))
