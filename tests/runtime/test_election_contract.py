"""What every election does, whatever it is made of."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from etcd_cluster import Cluster
from tidegate.core.failure.election import Alive, LeaderBeat, Silent, Vacant
from tidegate.runtime.election import Election, open_election, watching

TIMEOUT_MS = {"store": 500, "etcd": 2_000}
LATE_S = 2.0
"""For a lease to be removed, and for a machine with other things to do."""
BEAT = LeaderBeat(
    term=3, sequence=1, leader="a", role="driver", host="elsewhere", pid=7, process="", since_ms=5, address="h:1", gang=2,
    status="RUNNING", has_driver=True,
)  # fmt: skip


class Open:
    """Another view of the same election at each call, as other processes have it."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        self.url = url
        self.timeout_ms = timeout_ms

    def __call__(self, job: str = "w") -> Election:
        return open_election(self.url, job, self.timeout_ms)


@pytest.fixture(params=["store", pytest.param("etcd", marks=[pytest.mark.etcd, pytest.mark.slow])])
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    url = str(tmp_path)
    if request.param == "etcd":
        cluster: Cluster = request.getfixturevalue("etcd_cluster")
        url = cluster.url(tmp_path.name)
    return Open(url, TIMEOUT_MS[request.param])


def test_at_first_there_is_nobody(open_: Open) -> None:
    assert open_().newest() is None


def test_everybody_reads_what_a_leader_says(open_: Open) -> None:
    leader, other = open_(), open_()
    leader.announce(BEAT)
    assert other.newest() == BEAT == leader.newest()
    leader.announce(replace(BEAT, sequence=2, status="RESTARTING", gang=3))
    assert other.newest() == replace(BEAT, sequence=2, status="RESTARTING", gang=3)


def test_jobs_do_not_see_each_other(open_: Open) -> None:
    open_().announce(BEAT)
    assert open_("w2").newest() is None and open_("v").newest() is None


def test_the_highest_term_counts_whoever_speaks_last(open_: Open) -> None:
    old, new = open_(), open_()
    old.announce(BEAT)
    new.announce(replace(BEAT, term=12, leader="b"))
    old.announce(replace(BEAT, sequence=2, status="RESTARTING"))
    for each in (old, new, open_()):
        assert each.newest() == replace(BEAT, term=12, leader="b")


def test_lower_terms_are_forgotten_and_no_others(open_: Open) -> None:
    for term in (3, 9, 10):
        open_().announce(replace(BEAT, term=term))
    leader = open_()
    leader.forget(10)
    assert leader.newest() == replace(BEAT, term=10)
    leader.forget(11)
    assert leader.newest() is None


def test_a_leader_says_it_again_when_somebody_has_deleted_it(open_: Open) -> None:
    leader = open_()
    leader.announce(BEAT)
    open_().forget(4)
    assert leader.newest() is None
    leader.announce(replace(BEAT, sequence=2))
    assert leader.newest() == replace(BEAT, sequence=2)


def test_one_that_leads_again_has_a_new_term(open_: Open) -> None:
    leader = open_()
    leader.announce(BEAT)
    leader.announce(replace(BEAT, term=5))
    leader.forget(5)
    assert open_().newest() == replace(BEAT, term=5)


def test_a_beat_that_is_late_does_not_replace_the_last_word(open_: Open) -> None:
    leader = open_()
    ended = replace(BEAT, sequence=3, status="STOPPED")
    leader.announce(BEAT)
    leader.announce(ended)
    leader.announce(replace(BEAT, sequence=2))
    assert open_().newest() == ended


def look_until(wanted: type, open_: Open, leader: Election | None) -> float:
    """Seconds until a watcher sees this, while the leader goes on if there is one."""
    election, began, sequence = open_(), time.monotonic(), 1
    watch = watching(election, open_.timeout_ms)
    while not isinstance(watch.look(election.newest(), int(time.monotonic() * 1000)), wanted):
        assert time.monotonic() - began < 10
        sequence += 1
        if leader is not None:
            leader.announce(replace(BEAT, sequence=sequence))
        time.sleep(0.1)
    return time.monotonic() - began


def test_silence_is_noticed_in_time_and_life_is_seen_and_an_end_is_there_to_stay(open_: Open) -> None:
    leader, ending, most_s = open_(), open_("v"), open_.timeout_ms / 1000 + LATE_S
    leader.announce(BEAT)
    ending.announce(BEAT)
    ended = replace(BEAT, sequence=2, status="STOPPED")
    ending.announce(ended)
    assert look_until(Alive, open_, leader) < most_s
    assert look_until(Silent, open_, None) < most_s
    watcher = open_("v")
    assert watching(watcher, open_.timeout_ms).look(watcher.newest(), 0) == Vacant(ended)
