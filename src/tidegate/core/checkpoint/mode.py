"""Where a leader stands, and from where it may go where."""

from __future__ import annotations

from enum import Enum

from tidegate.errors import UnexpectedPhase


class Mode(Enum):
    """Where a leader stands."""

    READING = "reading the log"
    TAKING_OVER = "taking over"
    CONFIRMING = "looking whether the log is its own"
    READY = "ready to start a gang"
    RESTORING = "writing a restore entry"
    RECOVERING = "recovering the sinks"
    STARTING = "starting a gang"
    RUNNING = "running"
    ENDING = "ending the gang"
    SETTLING = "waiting for open answers"
    FINISHING = "publishing the final checkpoint"
    FINISHED = "finished"
    STOPPED = "stopped"
    DEPOSED = "deposed"


LEGAL_MODES: dict[Mode, frozenset[Mode]] = {
    Mode.READING: frozenset({Mode.TAKING_OVER, Mode.STOPPED, Mode.DEPOSED}),
    Mode.TAKING_OVER: frozenset({Mode.READING, Mode.CONFIRMING, Mode.DEPOSED}),
    Mode.CONFIRMING: frozenset({Mode.READY, Mode.DEPOSED}),
    Mode.READY: frozenset({Mode.RESTORING, Mode.RECOVERING, Mode.STARTING, Mode.RUNNING, Mode.STOPPED, Mode.DEPOSED}),
    Mode.RESTORING: frozenset({Mode.RECOVERING, Mode.DEPOSED}),
    Mode.RECOVERING: frozenset({Mode.STARTING, Mode.FINISHED, Mode.STOPPED, Mode.DEPOSED}),
    Mode.STARTING: frozenset({Mode.RUNNING, Mode.ENDING, Mode.SETTLING, Mode.DEPOSED}),
    Mode.RUNNING: frozenset({Mode.ENDING, Mode.SETTLING, Mode.FINISHING, Mode.DEPOSED}),
    Mode.ENDING: frozenset({Mode.SETTLING, Mode.FINISHING, Mode.DEPOSED}),
    Mode.SETTLING: frozenset({Mode.CONFIRMING, Mode.STOPPED, Mode.DEPOSED}),
    Mode.FINISHING: frozenset({Mode.FINISHED, Mode.DEPOSED}),
    Mode.FINISHED: frozenset(),
    Mode.STOPPED: frozenset(),
    Mode.DEPOSED: frozenset(),
}
OVER = frozenset({Mode.FINISHED, Mode.STOPPED, Mode.DEPOSED})
PUBLISHING = frozenset({Mode.RECOVERING, Mode.RUNNING, Mode.ENDING, Mode.FINISHING})


def moved(here: Mode, there: Mode) -> Mode:
    """Where a leader stands after this move, if it is legal."""
    if there not in LEGAL_MODES[here]:
        raise UnexpectedPhase(f"a leader cannot go from {here.value!r} to {there.value!r}")
    return there
