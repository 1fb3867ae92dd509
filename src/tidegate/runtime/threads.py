"""Threads for work in the background, made by whoever starts a node, so that a test may run it all in one thread."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Protocol


class Threads(Protocol):
    """Gives executors by name and ends them."""

    def executor(self, name: str) -> Executor:
        """An executor that runs one thing at a time, in order. The same name gives the same one."""

    def close(self) -> None:
        """Let what runs finish, drop what waits. Idempotent."""


class ThreadPools:
    """One real thread per name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._executors: dict[str, ThreadPoolExecutor] = {}

    def executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = ThreadPoolExecutor(1, thread_name_prefix=f"{self._prefix}-{name}")
        return self._executors[name]

    def close(self) -> None:
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)


class InlineExecutor(Executor):
    """Runs everything at once, in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Inline:
    """No threads at all, for deterministic tests."""

    def executor(self, name: str) -> Executor:
        return InlineExecutor()

    def close(self) -> None:
        return None
