"""A gang without Spark: the nodes are threads of this process, with the same sockets and the same control line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from tidegate.core.failure.restart import FailureKind
from tidegate.errors import ThreadDied
from tidegate.runtime.failure import kind_of
from tidegate.runtime.gang import Exit
from tidegate.runtime.host import Launch, run_node
from tidegate.supervise import supervised


class ThreadGang:
    """Starts nodes as threads. For fast tests; a thread can't be killed, so crashes are played by the tests."""

    def __init__(self, parallelism: int, run: Callable[[Launch, int], str] = run_node) -> None:
        self._parallelism = parallelism
        self._run = run
        self._threads: list[threading.Thread] = []

    def start(self, launch: Launch, on_exit: Callable[[Exit | None], None]) -> None:
        """Start every node; ``on_exit`` is called once, when the last has returned."""
        left = threading.Semaphore(0)
        outcomes: list[Exit] = []

        def work(index: int) -> None:
            try:
                outcome = self._run(launch, index)
                if outcome.startswith("failed"):  # it has said why itself, if anybody listened
                    outcomes.append(Exit(FailureKind.PEER_LOST, outcome))
            except Exception as error:  # a node that can't even be built must not leave the others waited for
                outcomes.append(Exit(kind_of(error), f"node {index}: {error!r}"))
            finally:
                left.release()

        def wait() -> None:
            for _ in range(self._parallelism):
                left.acquire()
            on_exit(outcomes[0] if outcomes else None)

        def died(death: ThreadDied) -> None:
            outcomes.append(Exit(kind_of(death), str(death)))

        nodes = [supervised(f"tidegate-node-{index}", partial(work, index), died) for index in range(self._parallelism)]
        self._threads = [*nodes, supervised("tidegate-nodes", wait, lambda death: on_exit(Exit(kind_of(death), str(death))))]
        for thread in self._threads:
            thread.start()

    def running(self) -> int | None:
        """How many nodes have not returned."""
        return sum(thread.is_alive() for thread in self._threads[:-1])

    def cancel(self) -> None:
        """Nothing to cancel by force: nodes stop when the coordinator says so or is gone."""

    def join(self, timeout_s: float) -> bool:
        """Wait for every thread. True when all have ended."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)
