"""The one door to a thread: whatever it dies of is told to whoever depends on it.

A thread of Python that raises ends with a line on standard error, and the rest of the process goes on without it. Here every
thread names who is told: ``died`` is called once, in the dying thread, with what it died of. Nothing else in the package
starts a thread; a house rule holds that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.errors import ThreadDied

log = logging.getLogger("tidegate")

Died = Callable[[ThreadDied], None]


def supervised(name: str, work: Callable[[], None], died: Died) -> threading.Thread:
    """A daemon thread for ``work``, not started yet. ``died`` must be quick and thread-safe; it may run out of memory too."""
    return threading.Thread(target=guarded(name, work, died), name=name, daemon=True)


def guarded(name: str, work: Callable[[], None], died: Died) -> Callable[[], None]:
    """``work`` for a thread that somebody else makes: it raises nothing, and its death is told."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # memory, recursion and exits included: nobody else will ever see it
            tell(name, error, died)

    return run


def tell(name: str, error: BaseException, died: Died) -> None:
    """Say what the thread of this name died of, to the log and to who depends on it."""
    death = ThreadDied(f"a thread died of {error!r} thread={name}")
    death.__cause__ = error
    try:
        log.error("%s", death, exc_info=error)
    finally:
        _call(died, death)


def _call(died: Died, death: ThreadDied) -> None:
    try:
        died(death)
    except Exception:
        log.exception("nobody could be told that a thread died: %s", death)


def only_logged(death: ThreadDied) -> None:
    """For a thread that nobody depends on."""
