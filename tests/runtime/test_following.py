"""When a driver that follows a leader takes over, and when it does not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from runtime_jobs import until

from tidegate.core.failure.election import LeaderBeat
from tidegate.errors import RetryableError
from tidegate.ids import Term
from tidegate.runtime.following import PREFERENCE_MS, Following
from tidegate.runtime.leaderline import OnLost, OnMessage
from tidegate.runtime.threads import ThreadPools
from tidegate.wire._gen import control_pb2 as pb

TIMEOUT_MS = 300
BEAT = LeaderBeat(
    term=3, sequence=1, leader="a", role="coordinator", host="elsewhere", pid=7, process="", since_ms=5, address="h:1", gang=2,
    status="RUNNING", has_driver=True,
)  # fmt: skip


class Election:
    """One that says what the test says."""

    lease_ms: int | None = None

    def __init__(self) -> None:
        self.beat: LeaderBeat | None = BEAT
        self.is_down = False

    def newest(self) -> LeaderBeat | None:
        if self.is_down:
            raise RetryableError("down")
        return self.beat

    def announce(self, beat: LeaderBeat) -> None:
        raise NotImplementedError

    def forget(self, below: Term) -> None:
        raise NotImplementedError


class Owner:
    """Notes what it is told."""

    job = "w"

    def __init__(self) -> None:
        self.leads = self.found = False

    def lead_again(self, following: Following) -> None:
        self.leads = True

    def leader_found(self) -> None:
        self.found = True

    def replaced(self, by: LeaderBeat) -> None:
        raise NotImplementedError

    def led_to_its_end(self, status: str, error: str | None) -> None:
        raise NotImplementedError

    def led_elsewhere(self, status: str) -> None:
        return None


class Line:
    """One on which the leader answers."""

    silent_s = 0.0

    def __init__(self, address: str, on_message: OnMessage, on_lost: OnLost) -> None:
        on_message(pb.CoordinatorMessage(term=BEAT.term))

    def send(self, message: pb.NodeMessage) -> None:
        return None

    def close(self, grace_s: float = 2.0) -> None:
        return None


class Driver:
    """A driver that follows and looks."""

    def __init__(self) -> None:
        self.election, self.owner = Election(), Owner()
        unused: Any = None
        self.following = Following(
            self.owner,
            host=unused,
            publisher=unused,
            election=self.election,
            connect=Line,
            moved=lambda address, term: None,
            threads=ThreadPools("following"),
            timeout_ms=TIMEOUT_MS,
            hello=pb.Hello(),
            term=3,
        )
        until(lambda: self.owner.found, "a line to the leader")

    def look_for(self, duration_ms: int) -> bool:
        """Whether it took over meanwhile."""
        until = time.monotonic() + duration_ms / 1000
        while time.monotonic() < until and not self.owner.leads:
            self.following.look()
            time.sleep(0.02)
        return self.owner.leads


@pytest.fixture
def driver() -> Any:
    made = Driver()
    yield made
    made.following.close()


def test_a_leader_that_could_not_be_looked_for_is_not_silent(driver: Driver) -> None:
    driver.following.look()
    driver.election.is_down = True
    assert not driver.look_for(TIMEOUT_MS + PREFERENCE_MS + 200)
    driver.election.is_down = False
    driver.following.look()
    assert not driver.owner.leads, "the leader could not say anything either"
    driver.election.beat = replace(BEAT, sequence=2)
    assert not driver.look_for(TIMEOUT_MS)
    assert driver.look_for(TIMEOUT_MS + PREFERENCE_MS), "now it is silent"


def test_a_leader_that_has_taken_over_may_not_have_said_so_yet(driver: Driver) -> None:
    driver.election.beat = None
    driver.following.look()
    assert not driver.owner.leads
    assert driver.look_for(2 * TIMEOUT_MS), "nobody has come"


def test_a_leader_whose_lease_has_gone_is_gone_after_a_moment_for_other_candidates() -> None:
    Election.lease_ms = TIMEOUT_MS
    driver = Driver()
    try:
        assert not driver.look_for(TIMEOUT_MS + PREFERENCE_MS + 200), "it is there"
        driver.election.beat = None
        assert not driver.look_for(PREFERENCE_MS // 2)
        assert driver.look_for(PREFERENCE_MS)
    finally:
        Election.lease_ms = None
        driver.following.close()
