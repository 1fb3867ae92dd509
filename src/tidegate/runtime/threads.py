"""Threads for work in the background, made by whoever starts a node, so that a test may run it all in one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Protocol

from tidegate.runtime.activity import Activity, name_of
from tidegate.supervise import only_logged, supervised

log = logging.getLogger("tidegate")


class Threads(Protocol):
    """Makes executors by name and ends them."""

    def executor(self, name: str) -> Executor:
        """An executor that runs one thing at a time, in order. The same name has the same one."""

    def close(self) -> None:
        """Let what runs finish, drop what waits. Idempotent."""


class ThreadPools:
    """One real thread per name. ``close`` waits for what runs, but no longer than ``close_limit_s`` if that is given.

    ``activity`` is told what runs. What work raises is in its future, and whoever submitted it looks there.
    """

    def __init__(self, prefix: str, *, close_limit_s: float | None = None, activity: Activity | None = None) -> None:
        self._prefix = prefix
        self._close_limit_s = close_limit_s
        self._activity = activity or Activity()
        self._executors: dict[str, ThreadPoolExecutor] = {}

    def executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = _Noted(self._activity, name_of(name), f"{self._prefix}-{name}")
        return self._executors[name]

    def close(self) -> None:
        closing = supervised(f"{self._prefix}-close", self._close, only_logged)
        closing.start()
        closing.join(self._close_limit_s)
        if closing.is_alive():
            log.warning("something in the background does not return and is left threads=%s", self._prefix)

    def _close(self) -> None:
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)
        for executor in self._executors.values():
            executor.shutdown(wait=True)


class _Noted(ThreadPoolExecutor):
    """One thread; while it works, the activity says so."""

    def __init__(self, activity: Activity, what: str, thread: str) -> None:
        super().__init__(1, thread_name_prefix=thread)
        self._activity = activity
        self._what = what

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._noted, fn, args, kwargs)

    def _noted(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._activity.during(self._what):
            return fn(*args, **kwargs)


class InlineExecutor(Executor):
    """Runs everything at once, in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class InlineThreads:
    """No threads at all, for deterministic tests."""

    def executor(self, name: str) -> Executor:
        return InlineExecutor()

    def close(self) -> None:
        return None
