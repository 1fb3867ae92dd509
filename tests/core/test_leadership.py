"""The right to write the log: what a leader writes, and what the store's answers mean for it."""

from __future__ import annotations

from typing import Any

import pytest
from coordination import CONFIG
from driving import make_manifest
from test_view import commit, restore, takeover
from torn import torn

from tidegate.core.checkpoint.effects import CheckLog, Hide, PutEntry, Replaced, Stamp, StoreSilent, Unnamed
from tidegate.core.checkpoint.events import (
    Conflict,
    Followed,
    Last,
    LogChecked,
    LogRead,
    PutAnswered,
    Unknown,
    Written,
)
from tidegate.core.checkpoint.leadership import Confirmed, Leadership, OutrunTakeover
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.log.append import Landed, NotAsked, StillOpen
from tidegate.core.log.view import Base, LogRecord, Restore, Takeover

ONE = CommittableEntry("out", 0, 0, 1, {"file": "1"}, 1)
TWO = CommittableEntry("out", 0, 0, 2, {"file": "2"}, 2)
LOG = (takeover(0), commit(1, committables=(ONE,)), commit(2, 1, committables=(TWO,)))
SHORT = DistributedCheckpointConfig(put_retry_ms=10, storage_timeout_ms=500, base_every=2)


def candidate(log: tuple[LogRecord, ...] = (), config: DistributedCheckpointConfig = CONFIG) -> Leadership:
    made = Leadership(config, "me", "host", 7)
    made.read(LogRead(log))
    return made


def written(leadership: Leadership, put: PutEntry | None) -> object:
    assert put is not None
    return leadership.answered(PutAnswered(put.slot, put.write_id, Written()), 0)


def leading(log: tuple[LogRecord, ...] = (), config: DistributedCheckpointConfig = CONFIG) -> Leadership:
    made = candidate(log, config)
    written(made, made.take_over(0, 1))
    return made


def answered(leadership: Leadership, put: PutEntry, answer: Any) -> object:
    return leadership.answered(PutAnswered(put.slot, put.write_id, answer), 0)


def test_a_takeover_takes_the_next_slot_and_says_who_and_when() -> None:
    made = candidate(LOG)
    entry = made.take_over(5, 99).entry
    assert isinstance(entry, Takeover) and entry.slot == entry.term == 3
    assert (entry.leader, entry.host, entry.pid, entry.wall_ms) == ("me", "host", 7, 99)
    assert made.is_writing and made.term is None


def test_the_term_is_the_slot_of_the_takeover_once_it_has_landed() -> None:
    made = candidate(LOG)
    put = made.take_over(0, 1)
    assert written(made, put) == Landed(put.entry)
    assert made.term == made.own_term == 3 and not made.is_writing
    assert made.stamp() == Stamp(gang=0, term=3, committed_epoch=2, committed_id=LOG[2].manifest.checkpoint_id)


def test_nobody_gives_orders_before_its_takeover() -> None:
    with pytest.raises(AssertionError):
        candidate().stamp()


def test_a_lost_takeover_is_no_defeat_and_a_lost_restore_is() -> None:
    made = candidate()
    assert answered(made, made.take_over(0, 1), Conflict(takeover(0))) == OutrunTakeover()
    made = leading()
    theirs = takeover(1)
    assert answered(made, made.restore(None, "why", 0), Conflict(theirs)) == Replaced(theirs, 1)
    made = leading()
    assert answered(made, made.restore(None, "why", 0), Conflict(restore(1, None))) == Replaced(None, 1)


def test_a_slot_that_can_not_be_read_is_lost_too() -> None:
    made, broken = leading(), torn(commit(1))
    assert answered(made, made.restore(None, "why", 0), Conflict(broken)) == Replaced(None, broken.slot, broken.why)


def test_what_nobody_asked_and_what_is_not_known_changes_nothing() -> None:
    made = leading()
    put = made.restore(None, "why", 0)
    assert answered(made, put, Unknown("?")) == StillOpen() and made.is_writing
    assert made.answered(PutAnswered(9, "other", Written()), 0) == NotAsked()
    with pytest.raises(AssertionError):
        made._settled("outcome")  # type: ignore[arg-type]


def test_every_write_has_an_id_of_its_own() -> None:
    made = leading()
    first = made.restore(None, "why", 0)
    written(made, first)
    second = made.restore(None, "why", 0)
    assert first.write_id != second.write_id and first.write_id.startswith("me/")


def test_a_commit_goes_into_the_slot_of_its_epoch() -> None:
    made = leading()
    entry = made.new_commit(make_manifest(1))
    assert not made.is_writing, "what cannot be stored must fail before the put"
    assert made.commit(entry, 0).slot == 1
    assert written(made, PutEntry(1, entry.write_id, entry)) == Landed(entry) and made.log.head_epoch == 1


def test_the_log_is_summed_up_and_trimmed_when_it_is_long_enough() -> None:
    made = leading(LOG, SHORT)
    base = made.base(0)
    assert base is not None and isinstance(base.entry, Base) and made.trim() is None
    written(made, base)
    assert made.base(0) is None
    for epoch in (5, 6):
        entry = made.new_commit(make_manifest(epoch, term=3, parent=2 if epoch == 5 else 5))
        written(made, made.commit(entry, 0))
    written(made, made.base(0))
    trim = made.trim()
    assert trim is not None and trim.below == 4


def test_nothing_is_trimmed_without_garbage_collection() -> None:
    made = leading(LOG, DistributedCheckpointConfig(auto_gc=False, base_every=2))
    written(made, made.base(0))
    assert made.trim() is None


def test_a_leader_is_confirmed_when_nothing_follows_its_entry() -> None:
    made = leading(LOG)
    assert made.confirm(0) == CheckLog(3)
    assert made.checked(LogChecked(3, Unknown("?")), 0) == StillOpen()
    assert made.checked(LogChecked(3, Last()), 0) == Confirmed()
    assert made.checked(LogChecked(3, Last()), 0) == StillOpen(), "nobody had asked"


def test_whoever_finds_out_that_the_log_has_gone_on_may_say_so_unasked() -> None:
    assert leading(LOG).checked(LogChecked(3, Followed(takeover(4))), 0) == Replaced(takeover(4), 4)


def test_an_unanswered_put_is_put_again_and_given_up_in_the_end() -> None:
    made = leading((), SHORT)
    put = made.restore(None, "why", 0)
    assert made.deadline_ms() == 500 and list(made.ask_again(0)) == []
    answered(made, put, Unknown("lost"))
    assert made.deadline_ms() == 10 and list(made.ask_again(10)) == [put]
    assert list(made.ask_again(500)) == [StoreSilent(500, "lost")]


def test_an_unanswered_question_is_asked_again() -> None:
    made = leading((), SHORT)
    assert made.deadline_ms() is None
    made.confirm(0)
    assert list(made.ask_again(500)) == [StoreSilent(500, "it said nothing")]


def test_only_the_first_leader_of_an_empty_log_is_the_first_of_all() -> None:
    assert leading().is_first_of_all
    assert not leading(LOG).is_first_of_all
    again = leading()
    written(again, again.restore(None, "why", 0))
    assert not again.is_first_of_all


@pytest.mark.parametrize(
    ("log", "adopts"),
    [
        ((), False),
        (LOG, True),
        ((takeover(0),), True),
        ((takeover(0), commit(1, final=True)), False),
        ((*LOG, torn(commit(3, 2))), False),
    ],
)
def test_a_gang_of_an_earlier_leader_is_adopted_if_it_can_go_on(log: tuple[LogRecord, ...], adopts: bool) -> None:
    assert leading(log).can_adopt == adopts


def hidden(leadership: Leadership, parent: int | None, sinks_ahead: bool = False) -> Hide | None:
    put = leadership.restore(parent, "why", 0)
    written(leadership, put)
    assert isinstance(put.entry, Restore)
    return leadership.hidden_by(put.entry, sinks_ahead)


def test_a_restore_of_the_head_hides_nothing_and_an_older_one_what_came_after() -> None:
    assert hidden(leading(LOG), 2) is None
    assert hidden(leading(LOG), 1) == Hide(4, (TWO,))
    assert hidden(leading(LOG), None) == Hide(4, (ONE, TWO), True)


def test_what_the_log_has_lost_is_hidden_by_what_it_still_names() -> None:
    head = LOG[2].manifest
    assert hidden(leading(LOG), 2, sinks_ahead=True) == Hide(4, (), False, Unnamed(head.checkpoint_id, (TWO,), True))
    assert hidden(leading((*LOG, torn(commit(3, 2)))), 2) == Hide(5, (), False, Unnamed(head.checkpoint_id, (TWO,)))
    assert leading(LOG).hidden_after(head) == Hide(0, (), unnamed=Unnamed(head.checkpoint_id, (TWO,), every_gang=True))
