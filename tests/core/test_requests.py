"""Requests for checkpoints: who joins which attempt, who waits, who is refused."""

from __future__ import annotations

from driving import Driver, kinds

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.attempt import CheckpointPhase
from tidegate.core.checkpoint.requests import REQUESTS_MAX


def aborted(driver: Driver) -> do.CheckpointAborted:
    return driver.last(do.CheckpointAborted)


def phase(driver: Driver) -> CheckpointPhase:
    assert driver.machine.attempt is not None
    return driver.machine.attempt.phase


def test_a_request_before_the_gang_runs_waits_for_it() -> None:
    driver = Driver().lead()
    driver.tell(events.TriggerRequested("early"))
    driver.restore(None)
    assert driver.machine.attempt is not None and driver.machine.attempt.requests == ["early"]


def test_a_savepoint_does_not_join_a_plain_checkpoint_and_comes_next() -> None:
    driver = Driver().start()
    plain = driver.trigger("plain")
    driver.tell(events.TriggerRequested("save", "here"))
    driver.tell(events.TriggerRequested("other", "there"))
    driver.prepare_all()
    driver.answer()
    assert driver.live > plain
    assert driver.machine.attempt is not None
    assert (driver.machine.attempt.savepoint, driver.machine.attempt.requests) == ("here", ["save"])
    driver.tell(events.TriggerRequested("more", "here"))
    driver.tell(events.TriggerRequested("any"))
    assert driver.machine.attempt.requests == ["save", "more", "any"]


def test_requests_have_a_limit() -> None:
    driver = Driver().lead()
    for number in range(REQUESTS_MAX + 1):
        driver.tell(events.TriggerRequested(f"r{number}"))
    assert driver.last(do.RequestRefused).request_id == f"r{REQUESTS_MAX}"
    driver.restore(None)
    driver.tell(events.TriggerRequested("one more"))
    assert driver.last(do.RequestRefused).request_id == "one more"


def test_a_stop_ends_the_attempt_and_refuses_requests() -> None:
    driver = Driver().start()
    driver.trigger()
    driver.tell(events.TriggerRequested("save", "here"))
    assert do.StopGang in kinds(driver.tell(events.StopRequested()))
    assert aborted(driver).reason == "stop requested"
    driver.tell(events.TriggerRequested("late"))
    driver.lose_gang("stopped")
    driver.tell(events.TriggerRequested("later"))
    assert [order.request_id for order in driver.every(do.RequestRefused)] == ["late", "save", "later"]
    assert driver.machine.metrics.checkpoints_aborted == 1
