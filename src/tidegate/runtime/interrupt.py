"""What Ctrl-C and the end of the program mean for a job: it stops in good order, and nothing is started again.

A terminal sends Ctrl-C to every process of its foreground group. Of a local Spark that is the driver alone: the JVM ignores it,
and Spark's daemon puts itself and the Python workers into a group of their own.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

log = logging.getLogger("tidegate")

EXIT_WAIT_S = 30.0


class StoppableJob(Protocol):
    """The part of a leader that the end of the program needs."""

    job: str
    ended: threading.Event

    def stop(self) -> None: ...


_running: WeakSet[StoppableJob] = WeakSet()


def stop_at_exit(leader: StoppableJob) -> None:
    """Stop this job, and wait for it, when the program ends while it runs."""
    _register()
    _running.add(leader)


@cache
def _register() -> None:
    # An ordinary exit handler comes too late: by then no executor takes work any more, and the job could only crash.
    threads: Any = threading
    threads._register_atexit(_stop_all)


def _stop_all() -> None:
    left = [leader for leader in _running if not leader.ended.is_set()]
    for leader in left:
        log.warning("the program ends: stopping the job, the next start goes on from its last checkpoint job=%s", leader.job)
        leader.stop()
    for leader in left:
        leader.ended.wait(EXIT_WAIT_S)


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """While this lasts Ctrl-C raises ``KeyboardInterrupt`` here and does nothing else.

    PySpark's handler would first cancel all Spark jobs, and with them the gang that is to stop by itself. A user's own handler
    stays. Does nothing in other threads than the main one: interrupts never come there.
    """
    previous = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not str(getattr(previous, "__module__", "")).startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
