"""When a leader sums its log up, when it asks whether the log is still its own, and why it steps down."""

from __future__ import annotations

from driving import Driver
from test_view import commit, restore, takeover
from torn import torn

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.log.view import Base, LogRecord, LogView, Takeover

EVERY = 8
THEIRS = Takeover(slot=9, term=9, write_id="x", leader="other", host="there", pid=7, wall_ms=1_700_000_000_000)


def driven(log: tuple[LogRecord, ...] = (), **changes: int) -> Driver:
    return Driver(log=log, **{"base_every": EVERY, **changes})


def history(slots: int) -> tuple[LogRecord, ...]:
    return (takeover(0), *(commit(slot, slot - 1 or None, oldest_restorable=max(slot - 1, 1)) for slot in range(1, slots)))


def bases(driver: Driver) -> list[int]:
    return [effect.slot for effect in driver.every(do.PutEntry) if isinstance(effect.entry, Base)]


def commit_on(driver: Driver, checkpoints: int) -> None:
    for _ in range(checkpoints):
        driver.checkpoint()
        if isinstance(driver.last(do.PutEntry).entry, Base) and driver.machine.leadership.is_writing:
            driver.answer()


# -- bases


def test_the_log_is_summed_up_now_and_then_after_a_commit_and_trimmed_below_the_base_before() -> None:
    driver = driven().start()
    commit_on(driver, 3 * EVERY)
    assert bases(driver) == [8, 17, 26]
    trims = driver.every(do.TrimLog)
    assert [trim.below for trim in trims] == [8, 17], "the first base has none before it"
    second = driver.machine.log.bases[0]
    assert trims[-1].keep == {*second.needed, *driver.machine.log.bases[1].needed}
    assert driver.machine.log.since_base < EVERY


def test_no_checkpoint_starts_while_a_base_is_on_its_way() -> None:
    driver = driven().start()
    for _ in range(EVERY - 1):
        driver.checkpoint()
    assert bases(driver) == [EVERY]
    driver.tell(events.TriggerRequested("r"))
    assert driver.machine.attempt is None, "it would aim for the slot of the base"
    driver.answer()
    assert driver.machine.attempt is not None and driver.machine.attempt.epoch == EVERY + 1


def test_a_base_that_loses_its_slot_ends_the_leader() -> None:
    driver = driven().start()
    for _ in range(EVERY - 1):
        driver.checkpoint()
    effects = driver.answer(events.Conflict(takeover(EVERY)))
    assert effects == [do.StepDown(do.Replaced(takeover(EVERY), EVERY))]


def test_a_new_leader_sums_up_a_long_log_before_it_starts_anything() -> None:
    driver = driven(history(20))
    driver.lead()
    assert bases(driver) == [21] and not driver.every(do.ResolveRestore)
    assert [type(effect) for effect in driver.answer()] == [do.ResolveRestore]
    assert driver.machine.mode is Mode.READY and driver.every(do.TrimLog) == []


def test_a_new_leader_counts_from_the_base_that_it_read() -> None:
    entries = history(20)
    base = LogView(entries).summed_up("b")
    assert base is not None
    driver = driven((*entries, base))
    driver.lead()
    assert bases(driver) == [] and driver.every(do.ResolveRestore)


def test_a_leader_that_stops_or_ends_puts_no_base() -> None:
    for end in (events.StopRequested(), events.GangLost(0, "lost")):
        driver = driven().start()
        for _ in range(EVERY - 2):
            driver.checkpoint()
        driver.trigger()
        driver.prepare_all()
        driver.tell(end)
        driver.answer()
        assert bases(driver) == [] or driver.machine.mode is Mode.CONFIRMING


def test_the_final_checkpoint_is_the_last_entry() -> None:
    driver = driven().start()
    for _ in range(EVERY - 2):
        driver.checkpoint()
    driver.drain()
    driver.prepare_all()
    driver.answer()
    assert driver.machine.mode is Mode.FINISHING and bases(driver) == []


def test_a_log_with_damage_of_unknown_effect_is_not_summed_up() -> None:
    driver = driven((*history(EVERY), torn(restore(EVERY, 1)))).lead()
    assert driver.machine.log.unclear is not None and bases(driver) == []


def test_without_garbage_collection_nothing_is_trimmed() -> None:
    driver = driven(auto_gc=False).start()
    commit_on(driver, 3 * EVERY)
    assert len(bases(driver)) == 3 and driver.every(do.TrimLog) == []


# -- is the log still ours?


def unconfirmed(log: tuple[LogRecord, ...] = ()) -> Driver:
    driver = Driver(log=log)
    driver.confirms = False
    driver.tell(events.LogRead(log))
    return driver


def test_a_takeover_counts_only_if_nothing_follows_it() -> None:
    driver = unconfirmed()
    assert driver.answer()[0] == do.CheckLog(0)
    assert driver.machine.mode is Mode.CONFIRMING
    assert driver.tell(events.LogChecked(0, events.Last())) == [do.ResolveRestore("leader elected")]


def test_a_takeover_that_something_follows_does_nothing_more() -> None:
    driver = unconfirmed()
    driver.answer()
    assert driver.tell(events.LogChecked(0, events.Followed(THEIRS))) == [do.StepDown(do.Replaced(THEIRS, 1))]
    assert driver.machine.mode is Mode.DEPOSED


def test_a_listing_that_fails_is_made_again_until_the_store_has_been_silent_for_too_long() -> None:
    driver = unconfirmed()
    driver.answer()
    driver.tell(events.LogChecked(0, events.Unknown("503")))
    assert driver.tick(10)[0] == do.CheckLog(0)
    driver.tell(events.LogChecked(0, events.Unknown("504")))
    (stepped,) = driver.tick(100_000)
    assert stepped == do.StepDown(do.StoreSilent(100_000, "504"))


def test_an_answer_to_an_old_question_starts_nothing() -> None:
    driver = Driver().start()
    assert driver.tell(events.LogChecked(7, events.Last())) == []


def test_a_leader_that_lost_its_gang_looks_into_the_log_before_anything_else() -> None:
    driver = Driver().start()
    driver.checkpoint()
    driver.confirms = False
    effects = driver.lose_gang()
    assert do.CheckLog(1) in effects and do.ResolveRestore not in map(type, effects)
    assert driver.tell(events.LogChecked(1, events.Followed(THEIRS))) == [do.StepDown(do.Replaced(THEIRS, 2))]


def test_whoever_finds_out_that_the_log_has_gone_on_may_say_so() -> None:
    driver = Driver().lead()
    assert driver.tell(events.LogChecked(0, events.Followed(None))) == [do.StepDown(do.Replaced(None, 1))]


# -- why it stepped down


def test_a_store_that_never_answers_a_put_is_not_another_driver() -> None:
    driver = Driver(storage_timeout_ms=500)
    driver.tell(events.LogRead(()))
    assert driver.tick(500) == [do.StepDown(do.StoreSilent(500, "it said nothing"))]


def test_sinks_that_never_publish_are_not_another_driver() -> None:
    driver = Driver(publish_tries_max=1, storage_timeout_ms=10).start()
    driver.checkpoint(publish=False)
    driver.tell(events.PublishFailed(1, "no space"))
    driver.tick(10)
    assert driver.tell(events.PublishFailed(1, "no space")) == [do.StepDown(do.Unpublishable(1, "no space"))]


def test_a_log_that_is_read_without_being_asked_for_is_stale() -> None:
    driver = Driver().start()
    assert driver.tell(events.LogRead(())) == [] and driver.machine.metrics.stale_messages == 1
