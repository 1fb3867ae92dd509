"""When a leader has its log summed up: seldom, behind the commit, and when the job is about to end."""

from __future__ import annotations

from driving import Driver
from test_log import commit, restore, takeover
from torn import torn

from tidegate.core import events, orders
from tidegate.core.lead import SUMMARY_AT_END, SUMMARY_EVERY
from tidegate.core.log import LogRecord, LogView


def summed(given: list[orders.Effect]) -> list[int]:
    return [order.summary.next_slot for order in given if isinstance(order, orders.WriteSummary)]


def history(slots: int) -> tuple[LogRecord, ...]:
    return (takeover(0), *(commit(slot, slot - 1 or None) for slot in range(1, slots)))


def test_the_log_is_summed_up_now_and_then_behind_a_commit() -> None:
    driver = Driver().start()
    for _ in range(2 * SUMMARY_EVERY + 10):
        driver.checkpoint()
    assert summed(driver.orders) == [SUMMARY_EVERY, 2 * SUMMARY_EVERY]
    order = driver.last(orders.WriteSummary)
    given = next(i for i, each in enumerate(driver.orders) if each is order)
    assert isinstance(driver.orders[given - 1], orders.CollectGarbage), "all that follows from the commit comes first"


def test_a_new_leader_counts_from_the_summary_that_it_read() -> None:
    entries = history(SUMMARY_EVERY + 30)
    summary = LogView(entries[:SUMMARY_EVERY]).summary()
    assert summary is not None
    driver = Driver()
    read = tuple(e for e in entries if e.slot in summary.slots or e.slot >= summary.next_slot)
    driver.tell(events.LogRead(read, summary))
    assert driver.last(orders.PutEntry).slot == len(entries)
    assert summed(driver.answer()) == [], "31 entries more than in the summary"
    driver.restore(len(entries) - 1)
    for _ in range(SUMMARY_EVERY):
        driver.checkpoint()
    assert summed(driver.orders) == [2 * SUMMARY_EVERY]


def test_a_long_log_without_a_summary_gets_one_at_once() -> None:
    driver = Driver(log=history(SUMMARY_EVERY)).lead()
    assert summed(driver.orders) == [SUMMARY_EVERY + 1]


def test_a_stop_has_the_log_summed_up_before_the_gang_is_gone() -> None:
    driver = Driver().start()
    while driver.machine.log.next_slot < SUMMARY_AT_END:
        driver.checkpoint()
    given = driver.tell(events.StopRequested())
    assert summed(given) == [SUMMARY_AT_END] and isinstance(given[-1], orders.StopGang)
    assert summed(driver.lose_gang("stopped")) == []


def test_a_short_log_is_not_summed_up_at_a_stop() -> None:
    driver = Driver().start()
    driver.checkpoint()
    assert summed(driver.tell(events.StopRequested())) == []


def test_a_stop_before_the_log_is_read_has_nothing_to_sum_up() -> None:
    assert Driver().tell(events.StopRequested()) == [orders.JobStopped()]


def test_the_final_checkpoint_has_the_log_summed_up_while_sinks_publish() -> None:
    driver = Driver().start()
    while driver.machine.log.next_slot < SUMMARY_AT_END:
        driver.checkpoint()
    for node in (0, 1):
        driver.tell(events.NodeDrained(node, 0))
    driver.prepare_all()
    given = driver.answer()
    assert summed(given) == [SUMMARY_AT_END + 1]
    assert orders.Publish in [type(order) for order in given] and orders.JobFinished not in map(type, given)


def test_a_log_with_damage_of_unknown_effect_is_not_summed_up() -> None:
    log = (*history(SUMMARY_EVERY), torn(restore(SUMMARY_EVERY, 1)))
    driver = Driver(log=log).start()
    driver.checkpoint()
    assert driver.machine.log.damage and summed(driver.orders) == []
