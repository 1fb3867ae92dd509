"""Entries whose bytes have changed: what they were, what they did to the log, and what is decided past them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from coordination import SHAPE
from driving import EVERYONE, Driver
from hypothesis import given
from hypothesis import strategies as st
from test_log import commit, restore, takeover

from tidegate.core import entries as stored
from tidegate.core import events, orders
from tidegate.core.append import Landed, LogAppender, Taken
from tidegate.core.codec import encode, seal, unsealed
from tidegate.core.entries import Commit, Damaged, LogEntry, Restore, encode_entry, explained, read_entry
from tidegate.core.events import Conflict, PutAnswered
from tidegate.core.lead import Mode
from tidegate.core.log import LogView
from tidegate.core.manifest import CommittableEntry, ObjectEntry, OperatorSnapshotEntry, RunEntry
from tidegate.core.resolve import FallBack, Refuse, RestoreFrom, StartFresh, resolve
from tidegate.core.retain import oldest_restorable
from tidegate.errors import CorruptDataError, InvalidUseError

Kind = Any


def torn(entry: LogEntry) -> Damaged:
    """The entry with its last byte gone."""
    found = read_entry(encode_entry(entry)[:-1], f"log/{entry.slot}", entry.slot)
    assert isinstance(found, Damaged)
    return found


def unknown(slot: int) -> Damaged:
    """An entry of which nothing is left."""
    found = read_entry(b"", f"log/{slot}", slot)
    assert isinstance(found, Damaged) and found.kind is None
    return found


# -- telling what it was -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [takeover(4), restore(5, 3), commit(1)], ids=lambda entry: entry.kind)
def test_whatever_bit_is_flipped_the_kind_is_still_told(entry: LogEntry) -> None:
    data = bytearray(encode_entry(entry))
    expected = torn(entry)
    assert expected.kind == entry.kind
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            assert read_entry(bytes(data), f"log/{entry.slot}", entry.slot) == expected
            data[place] ^= 1 << bit


def test_openings_are_so_different_that_flips_cannot_turn_one_into_another() -> None:
    for one, other in combinations(stored._OPENINGS.values(), 2):
        size = min(len(one), len(other))
        pairs = zip(one[:size], other[:size], strict=True)
        assert sum((a ^ b).bit_count() for a, b in pairs) > 2 * stored.FLIPS_MAX


@pytest.mark.parametrize("data", [b"", b"{", b'{"kind":"commit"', b"\x00" * 500, b'{"kind":"merge","slot":4}'])
def test_what_has_lost_its_opening_is_of_no_known_kind(data: bytes) -> None:
    assert unknown(4) == read_entry(data, "log/4", 4)


WHOLE = encode(takeover(4))


@pytest.mark.parametrize(
    "body",
    [
        b"[}",
        b'{"kind":"merge"}',
        b'{"kind":7}',
        b'{"kind":"takeover"}',
        WHOLE.replace(b'"format_version":1', b'"format_version":2'),
        WHOLE.replace(b'"term":4', b'"term":3'),
        WHOLE.replace(b'"t4"', b'""'),
        encode(commit(1)).replace(b'"slot":1', b'"slot":4'),
    ],
    ids=str,
)
def test_what_is_sealed_and_not_understood_is_no_damage_but_an_error(body: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        read_entry(seal(body), "log/4", 4)
    assert caught.value.path == "log/4"


def test_a_whole_entry_of_another_slot_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="another slot"):
        read_entry(encode_entry(takeover(5)), "log/4", 4)


@given(st.binary())
def test_a_seal_gives_back_what_was_sealed_and_nothing_else(data: bytes) -> None:
    assert unsealed(seal(data + b"}")) == data + b"}"
    assert unsealed(data) is None


# -- what it did ---------------------------------------------------------------------------------------------------


class Writer:
    """Writes a log as leaders do: any sequence of takeovers, commits and restores that the rules allow."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = [takeover(0)]
        self.view = LogView(self.entries)

    def add(self, kind: Kind, pick: int) -> None:
        slot, term = self.view.next_slot, self.view.term or 0
        entry: LogEntry
        if kind == "takeover":
            entry = takeover(slot)
        elif kind == "commit":
            entry = commit(slot, self.view.head_epoch, term, gang=self.view.gang)
        else:
            choices = [None, *(m.epoch for m in self.view.restorables())]
            entry = restore(slot, choices[pick % len(choices)], term)
        self.view.apply(entry)
        self.entries.append(entry)


STEPS = st.lists(st.tuples(st.sampled_from(["takeover", "commit", "commit", "restore"]), st.integers(0, 5)), max_size=12)


@given(STEPS, st.data())
def test_one_damaged_entry_changes_nothing_that_the_log_adds_up_to(steps: list[tuple[Kind, int]], data: Any) -> None:
    """Only what the entry alone knew is gone: its manifest, or where a gang started that has not committed."""
    writer = Writer()
    for kind, pick in steps:
        writer.add(kind, pick)
    whole, place = writer.view, data.draw(st.integers(0, len(writer.entries) - 1))
    entry = writer.entries[place]
    lost = data.draw(st.sampled_from([torn(entry), unknown(entry.slot)]))
    view = LogView([*writer.entries[:place], lost, *writer.entries[place + 1 :]])
    assert view.next_slot == whole.next_slot and [d.slot for d in view.damage] == [entry.slot]
    later = [e for e in writer.entries[place + 1 :] if isinstance(e, Commit | Restore)]
    hidden = not later and (isinstance(entry, Restore) or (lost.kind is None and entry.slot > 0))
    assert (view.unclear is not None) == hidden
    if hidden:
        assert view.head_is_lost and set(whole.lineage()) - {entry.slot} <= set(view.lineage())
        return
    assert list(view.lineage()) == list(whole.lineage()) and view.gang == whole.gang and view.term == whole.term
    assert view.restorables() == tuple(m for m in whole.restorables() if m.epoch != entry.slot)
    assert view.head_is_lost == (isinstance(entry, Commit) and whole.head_epoch == entry.slot)
    left_behind = isinstance(entry, Commit) and whole.head_epoch is not None and entry.slot > whole.head_epoch
    assert not left_behind or view.lost_after(whole.head_epoch) is not None


LOG: list[Any] = [takeover(0), commit(1), commit(2, 1), commit(3, 2)]


def test_a_commit_on_a_damaged_parent_is_followed() -> None:
    view = LogView([*LOG[:2], torn(LOG[2]), LOG[3]])
    assert list(view.lineage()) == [3, 2, 1] and not view.head_is_lost
    assert [m.epoch for m in view.restorables()] == [3, 1]
    with pytest.raises(InvalidUseError, match="damaged"):
        view.restorable(2)
    assert view.lost(2) is not None and view.lost(3) is None


def test_a_damaged_restore_is_known_by_the_commit_of_its_gang() -> None:
    view = LogView([*LOG, torn(restore(4, 1)), commit(5, 1, gang=4)])
    assert list(view.lineage()) == [5, 1] and view.gang == 4


def test_a_damaged_restore_does_not_matter_when_another_followed() -> None:
    view = LogView([*LOG, torn(restore(4, 1)), takeover(5), restore(6, 1, term=5)])
    assert list(view.lineage()) == [1] and view.gang == 6 and view.unclear is None


@pytest.mark.parametrize(
    ("entry", "follower", "effect"),
    [
        (takeover(4), commit(5, 3, term=4), "takeover"),
        (takeover(4), restore(5, 3, term=4), "takeover"),
        (commit(4, 3), commit(5, 4), "commit"),
        (commit(4, 3), restore(5, 4), "commit"),
        (commit(4, 3), restore(5, 3), "none"),
        (restore(4, 3), commit(5, 3, gang=4), "restore"),
        (restore(4, 3), restore(5, 3), "none"),
        (commit(4, 3), takeover(5), "unclear"),
    ],
)
def test_what_nothing_is_left_of_is_told_by_what_follows(entry: LogEntry, follower: LogEntry, effect: str) -> None:
    (_, _, _, _, told, _) = explained([*LOG, unknown(4), follower])
    assert isinstance(told, Damaged) and told.effect == effect
    assert list(LogView([*LOG, unknown(4), follower]).lineage())[-3:] == [3, 2, 1]
    whole = LogView([*LOG, entry, follower])
    assert effect == "unclear" or list(LogView([*LOG, unknown(4), follower]).lineage()) == list(whole.lineage())


def test_a_restore_without_state_can_be_written_whatever_is_hidden() -> None:
    view = LogView([*LOG, torn(restore(4, 1))])
    with pytest.raises(InvalidUseError, match="damaged"):
        view.restorable(1)
    view.apply(restore(5, None))
    assert view.unclear is None and view.head_epoch is None


@pytest.mark.parametrize("follower", [torn(commit(5, 1, gang=4)), commit(5, 1, gang=3)])
def test_what_depends_on_a_hidden_head_is_refused(follower: Any) -> None:
    with pytest.raises(CorruptDataError, match="can't be read"):
        LogView([*LOG, torn(restore(4, 1)), follower])


def test_a_gang_whose_first_commit_is_damaged_too_stays_unexplained() -> None:
    records = [*LOG, torn(restore(4, 1)), torn(commit(5, 1, gang=4)), commit(6, 5, gang=4)]
    assert [r.effect for r in explained(records) if isinstance(r, Damaged)] == ["unclear", "commit"]


def test_a_damaged_restore_to_where_the_log_cannot_have_gone_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="left this checkpoint behind"):
        LogView([*LOG, restore(4, 1), torn(restore(5, 3)), commit(6, 3, gang=5)])


def test_a_commit_beside_its_damaged_parent_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="not this manifest's parent"):
        LogView([*LOG[:2], torn(LOG[2]), commit(3, 1)])


def state_in(checkpoint: int, crc: int = 1) -> dict[str, Any]:
    """A manifest's parts whose state is one object of this checkpoint."""
    entry = ObjectEntry(f"job/checkpoints/{checkpoint:020d}/0.arrow", 10, crc)
    run = RunEntry(entry.path, 0, 10, crc, 1)
    return {"operators": (OperatorSnapshotEntry("window", 0, {}, (run,)),), "objects": (entry,)}


def test_objects_on_a_damaged_parent_are_its_own_or_an_ancestors_as_they_were() -> None:
    def follow(**parts: Any) -> LogView:
        return LogView([takeover(0), commit(1, **state_in(1)), torn(commit(2, 1)), commit(3, 2, **parts)])

    assert follow(**state_in(1)).head_epoch == 3
    assert follow(**state_in(2)).head_epoch == 3
    with pytest.raises(CorruptDataError, match="neither it nor its parent"):
        follow(**state_in(1, crc=2))
    first = [takeover(0), torn(commit(1)), commit(2, 1, **state_in(1))]
    assert LogView(first).head_epoch == 2


# -- what is decided -----------------------------------------------------------------------------------------------


def choose(entries: list[Any], **options: Any) -> Any:
    return resolve(LogView(entries), SHAPE, lambda manifest: None, **options)


def test_a_damaged_newest_commit_is_skipped_and_named() -> None:
    lost = torn(LOG[3])
    assert choose([*LOG[:3], lost]) == FallBack(LOG[2].manifest, ((3, lost.why),))
    assert "log/3" in lost.why


def test_older_damage_is_no_reason_to_go_back() -> None:
    assert choose([*LOG[:2], torn(LOG[2]), LOG[3]]) == RestoreFrom(LOG[3].manifest)


def test_when_all_commits_are_damaged_nothing_is_started() -> None:
    found = choose([takeover(0), torn(commit(1))])
    assert isinstance(found, Refuse) and "every retained checkpoint is damaged" in found.why
    assert choose([takeover(0), torn(commit(1))], restore="none") == StartFresh()


@pytest.mark.parametrize("choice", ["latest", 2])
def test_a_hidden_head_is_refused_saying_what_to_do(choice: Any) -> None:
    entries = [*LOG, torn(restore(4, 1))]
    found = choose(entries, restore=choice)
    assert isinstance(found, Refuse) and "log/4" in found.why and "restore='none'" in found.why
    assert choose(entries, restore="none") == StartFresh()


def test_a_damaged_epoch_that_was_asked_for_is_refused() -> None:
    found = choose([*LOG[:3], torn(LOG[3])], restore=3)
    assert isinstance(found, Refuse) and "log/3" in found.why


def test_going_back_over_a_damaged_commit_needs_sinks_that_hide_without_names() -> None:
    entries = [*LOG[:3], torn(LOG[3])]
    for choice in ("latest", 2):
        found = choose(entries, restore=choice, can_hide_unnamed=False)
        assert isinstance(found, Refuse) and "log/3" in found.why
    assert choose(entries, restore="none", can_hide_unnamed=False) == StartFresh()
    for choice in ("latest", 2, "none"):
        assert isinstance(choose(entries, restore=choice, can_hide=False), Refuse)


def test_what_an_entry_of_no_known_kind_may_have_published_is_hidden_too() -> None:
    entries = [*LOG, unknown(4), restore(5, 2)]
    assert LogView(entries).lost_after(2) is not None
    assert LogView([*entries, commit(6, 2, gang=5)]).lost_after(6) is None


def test_retention_does_not_count_damaged_commits() -> None:
    assert oldest_restorable(LogView(LOG), 3, 4) == 2
    assert oldest_restorable(LogView([*LOG[:3], torn(LOG[3])]), 3, 4) == 1


# -- a leader that meets one ---------------------------------------------------------------------------------------


def test_a_slot_with_a_damaged_entry_is_taken_whoever_wrote_it() -> None:
    appender, ours = LogAppender(10, 1000), takeover(4)
    for found, outcome in ((torn(ours), Taken(torn(ours), ours)), (ours, Landed(ours))):
        appender.put(ours, 0)
        assert appender.answered(PutAnswered(4, ours.write_id, Conflict(found)), 0) == outcome


def test_a_takeover_whose_slot_can_not_be_read_tries_the_next() -> None:
    driver = Driver()
    driver.tell(events.LogRead(()))
    driver.answer(events.Conflict(torn(takeover(0))))
    assert driver.last(orders.PutEntry).slot == 1


def test_a_restore_whose_slot_can_not_be_read_ends_the_leader() -> None:
    driver = Driver(log=tuple(LOG)).lead()
    driver.tell(events.RestoreRequested(3))
    given = driver.answer(events.Conflict(torn(restore(5, 3, term=4))))
    assert [order.reason for order in given if isinstance(order, orders.StepDown)] == [
        f"slot 5 of the log is taken: {torn(restore(5, 3)).why}"
    ]


def test_rows_that_a_damaged_commit_may_have_published_are_hidden_before_the_gang_starts() -> None:
    kept = CommittableEntry("out", 0, 0, 2, {}, 2)
    entries = (takeover(0), commit(1), commit(2, 1, committables=(kept,)), torn(commit(3, 2)))
    driver = Driver(log=entries).lead()
    driver.tell(events.RestoreRequested(2))
    assert driver.answer() == [orders.Hide(5, (), False, orders.Unnamed(2, (kept,)))]
    given = driver.tell(events.Hidden(5))
    assert [type(order) for order in given] == [orders.Publish]


@pytest.mark.parametrize("last", [torn(commit(4, 3)), torn(restore(4, 3))])
def test_a_gang_that_runs_past_a_hidden_head_is_not_taken_over(last: Damaged) -> None:
    """Its state has no manifest to go on from: the next one starts from what can be read."""
    driver = Driver(log=(*LOG, last)).lead()
    driver.tell(events.GangRunning(0, EVERYONE, EVERYONE))
    assert driver.machine.mode is Mode.READY and driver.machine.metrics.stale_messages == 1
