"""What a start does about somebody who runs the job already: refuse, stand by, or take over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TypeAlias, assert_never

from tidegate.core.failure.election import Alive, LeaderBeat, LeaderWatch, Silent, Vacant
from tidegate.errors import WAITED_FOR, InvalidUseError
from tidegate.runtime.election import Election, await_sighting, watching

log = logging.getLogger("tidegate")

Contend: TypeAlias = Literal["refuse", "standby", "takeover"]
STANDBY_LOOK_S = 0.2


class JobOver(InvalidUseError):
    """The job that a standby waited for has ended in good order: there is nothing to take over."""


def contend(election: Election, job: str, how: Contend, timeout_ms: int) -> None:
    """Return when this process may try to lead. Blocks: up to the leader's timeout; as a standby, while somebody runs the job.

    A leader without a driver runs nothing: whoever brings a driver may take over from it.
    """
    if how == "takeover":
        return
    waiting, watch = False, watching(election, timeout_ms)
    while True:
        try:
            seen = await_sighting(election, watch) if how == "refuse" else patient_sighting(election, watch, job)
        except WAITED_FOR as error:
            raise _unknown(job, error) from error
        match seen:
            case Alive(beat) if beat.has_driver:
                if how == "refuse":
                    raise _refusal(job, beat)
                if not waiting:
                    log.warning("standing by: %s job=%s", beat.whereabouts, job)
                waiting = True
                time.sleep(STANDBY_LOOK_S)
            case Vacant(LeaderBeat(status="STOPPED" | "FINISHED") as beat) if waiting:
                raise JobOver(f"the job has ended, there is nothing to take over job={job} status={beat.status}")
            case Alive() | Vacant() | Silent():
                return
            case _:
                assert_never(seen)


def patient_sighting(
    election: Election, watch: LeaderWatch, job: str, stopping: Callable[[], bool] = lambda: False
) -> Vacant | Alive | Silent:
    """What is seen, once the election can be asked: a standby outlives its outages. Blocks."""
    told = False
    while True:
        try:
            return await_sighting(election, watch)
        except WAITED_FOR as error:
            if stopping():
                raise
            if not told:
                log.warning("standing by, and nobody can say now whether somebody leads: %s job=%s", error, job)
            told = True
            watch.missed()
            time.sleep(STANDBY_LOOK_S)


def _refusal(job: str, beat: LeaderBeat) -> InvalidUseError:
    since = datetime.fromtimestamp(beat.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return InvalidUseError(
        f"this job runs already, since {since}: stop it, wait beside it with standby=True (--standby), or replace it with "
        f"takeover=True (--takeover) job={job} leader={beat.whereabouts}"
    )


def _unknown(job: str, error: Exception) -> InvalidUseError:
    return InvalidUseError(
        f"nobody can say whether this job runs already: {error}; repair that, or start with takeover=True (--takeover) job={job}"
    )
