"""What a leader does by itself where it stands, once nothing is in the way: start, stop, look into the log, end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidegate.core.checkpoint.mode import Mode


class Step(Enum):
    """What comes next."""

    START_GANG = "start a gang"
    STOP_GANG = "stop the gang"
    CONFIRM = "look whether the log is its own"
    STOP = "stop the job"
    FINISH = "finish the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a leader stands. ``writing``: a put is open. ``publishing``: a sink has not answered. ``backlog``: sinks do not show
    all that is committed. ``finished``: the head is a final checkpoint. ``stopping``: somebody wants the end."""

    mode: Mode
    writing: bool = False
    publishing: bool = False
    backlog: bool = False
    finished: bool = False
    stopping: bool = False


def next_step(at: Standing) -> Step | None:
    """``None``: it waits, or checkpoints are its only business."""
    match at.mode:
        case Mode.RECOVERING if not at.backlog:
            return Step.FINISH if at.finished else Step.STOP if at.stopping else Step.START_GANG
        case Mode.FINISHING if not at.backlog:
            return Step.FINISH
        case Mode.ENDING if not at.writing:
            return Step.STOP_GANG
        case Mode.SETTLING if not at.writing and not at.publishing:
            return None if at.stopping and at.backlog else Step.STOP if at.stopping else Step.CONFIRM
        case _:
            return None
