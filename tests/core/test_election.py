"""Heartbeats: when a leader counts as alive, silent or gone, and whom a node follows. Tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.core.failure.election import (
    Alive,
    GoHome,
    LeaderBeat,
    LeaderWatch,
    Move,
    Sighting,
    Silent,
    Stay,
    Unsure,
    Vacant,
    whom_to_follow,
)
from tidegate.errors import InvalidUseError

BEAT = LeaderBeat(
    term=3, sequence=1, leader="a", role="driver", host="h", pid=7, process="boot/1", since_ms=0, address="h:1", gang=2,
    status="RUNNING", has_driver=True,
)  # fmt: skip
NEXT = replace(BEAT, sequence=2)


@pytest.mark.parametrize(
    ("looks", "seen"),
    [
        ([(0, None)], Vacant(None)),
        ([(0, None), (700, None)], Vacant(None, 700)),
        ([(0, None), (700, BEAT), (900, None), (1_000, None)], Vacant(None, 100)),
        ([(0, BEAT)], Unsure(BEAT)),
        ([(0, BEAT), (2_999, BEAT)], Unsure(BEAT)),
        ([(0, BEAT), (3_000, BEAT)], Silent(BEAT)),
        ([(0, BEAT), (1_000, NEXT)], Alive(NEXT)),
        ([(0, BEAT), (1_000, NEXT), (3_999, NEXT)], Alive(NEXT)),
        ([(0, BEAT), (1_000, NEXT), (4_000, NEXT)], Silent(NEXT)),
        ([(0, BEAT), (3_000, BEAT), (3_100, NEXT)], Alive(NEXT)),
        ([(0, NEXT), (10, replace(BEAT, term=4))], Alive(replace(BEAT, term=4))),
        ([(0, replace(BEAT, status="STOPPED"))], Vacant(replace(BEAT, status="STOPPED"))),
        ([(0, replace(BEAT, status="RESIGNED"))], Vacant(replace(BEAT, status="RESIGNED"))),
    ],
)
def test_what_a_watcher_makes_of_heartbeats(looks: list[tuple[int, LeaderBeat | None]], seen: Sighting) -> None:
    watch = LeaderWatch(3_000)
    assert [watch.look(beat, now_ms) for now_ms, beat in looks][-1] == seen


STOPPED = replace(BEAT, sequence=2, status="STOPPED")


@pytest.mark.parametrize(
    ("timeout_ms", "looks", "seen"),
    [
        (3_000, [(0, None), (9_000, None)], Vacant(None, 9_000)),
        (3_000, [(0, BEAT)], Unsure(BEAT)),
        (3_000, [(0, BEAT), (3_999, BEAT)], Unsure(BEAT)),
        (3_000, [(0, BEAT), (4_000, BEAT)], Alive(BEAT)),
        (3_000, [(0, BEAT), (99_000, BEAT)], Alive(BEAT)),
        (3_000, [(0, BEAT), (10, NEXT)], Alive(NEXT)),
        (3_000, [(0, BEAT), (10, None)], Silent(BEAT)),
        (1_500, [(0, BEAT), (10, None)], Silent(BEAT)),
        (3_700, [(0, BEAT), (10, None), (709, None)], Unsure(BEAT)),
        (3_700, [(0, BEAT), (10, None), (710, None)], Silent(BEAT)),
        (3_700, [(0, BEAT), (10, None), (500, BEAT), (800, None)], Unsure(BEAT)),
        (3_000, [(0, BEAT), (10, STOPPED)], Vacant(STOPPED)),
        (3_000, [(0, BEAT), (10, STOPPED), (20, None)], Vacant(None)),
    ],
)
def test_what_a_watcher_makes_of_heartbeats_that_expire(
    timeout_ms: int, looks: list[tuple[int, LeaderBeat | None]], seen: Sighting
) -> None:
    watch = LeaderWatch(timeout_ms, lease_ms=3_000)
    assert [watch.look(beat, now_ms) for now_ms, beat in looks][-1] == seen


@pytest.mark.parametrize(("lease_ms", "seen"), [(None, Unsure(BEAT)), (3_000, Unsure(BEAT))])
def test_time_in_which_nobody_could_look_is_no_silence(lease_ms: int | None, seen: Sighting) -> None:
    watch = LeaderWatch(3_700, lease_ms=lease_ms)
    watch.look(BEAT, 0)
    watch.missed()
    assert watch.look(BEAT, 60_000) == seen
    watch.look(None, 60_100)
    watch.missed()
    assert watch.look(None, 70_000) == (Vacant(None) if lease_ms is None else Unsure(BEAT))


def test_a_process_that_is_known_to_be_dead_is_silent_at_once() -> None:
    assert LeaderWatch(3_000).look(BEAT, 0, dead=True) == Silent(BEAT)


@pytest.mark.parametrize(
    ("beat", "term", "gang", "outcome"),
    [
        (None, 3, 2, Stay()),
        (BEAT, 3, 2, Stay()),
        (BEAT, 4, 2, Stay()),
        (BEAT, 2, 2, Move(BEAT)),
        (BEAT, 2, 3, Move(BEAT)),
        (replace(BEAT, address=""), 2, 2, Stay()),
        (replace(BEAT, status="RESIGNED"), 2, 2, Stay()),
        (BEAT, 2, 1, GoHome("another gang runs now gang=2 ours=1")),
        (replace(BEAT, status="FAILED"), 2, 2, GoHome("the job has ended status=FAILED")),
    ],
)
def test_whom_a_node_follows(beat: LeaderBeat | None, term: int, gang: int, outcome: Stay | Move | GoHome) -> None:
    assert whom_to_follow(beat, term, gang) == outcome


def test_people_read_who_leads_and_where() -> None:
    assert BEAT.whereabouts == "driver process 7 on h term=3 address=h:1"
    assert not BEAT.is_over and replace(BEAT, status="FINISHED").is_over


def test_a_heartbeat_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="another version"):
        replace(BEAT, format_version=2)
