"""A gang without Spark: the nodes are threads of this process, with the same sockets and the same control line."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.runtime.host import Launch, run_node


class ThreadGang:
    """Starts nodes as threads. For fast tests; a thread can't be killed, so crashes are played by the tests."""

    def __init__(self, parallelism: int, run: Callable[[Launch, int], str] = run_node) -> None:
        self._parallelism = parallelism
        self._run = run
        self._threads: list[threading.Thread] = []

    def start(self, launch: Launch, on_exit: Callable[[str | None], None]) -> None:
        """Start every node; ``on_exit`` is called once, when the last has returned."""
        left = threading.Semaphore(0)
        outcomes: list[str] = []

        def work(index: int) -> None:
            try:
                outcomes.append(self._run(launch, index))
            except Exception as error:  # a node that can't even be built must not leave the others waited for
                outcomes.append(f"failed: {error!r}")
            finally:
                left.release()

        def wait() -> None:
            for _ in range(self._parallelism):
                left.acquire()
            failed = [outcome for outcome in outcomes if outcome.startswith("failed")]
            on_exit(failed[0] if failed else None)

        nodes = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(self._parallelism)]
        self._threads = [*nodes, threading.Thread(target=wait, daemon=True)]
        for thread in self._threads:
            thread.start()

    def cancel(self) -> None:
        """Nothing to cancel by force: nodes stop when the coordinator says so or is gone."""

    def join(self, timeout_s: float) -> bool:
        """Wait for every thread. True when all have ended."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)
