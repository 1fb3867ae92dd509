"""A log with damaged entries: what it still adds up to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_view import commit, restore, takeover
from torn import LOG, torn, unknown

from tidegate.core.checkpoint.manifest import ObjectEntry, OperatorSnapshotEntry, RunEntry
from tidegate.core.log.entries import Commit, LogEntry, Restore
from tidegate.core.log.view import LogRecord, LogView
from tidegate.errors import CorruptDataError, InvalidUseError

Kind = Any


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
    whole, index = writer.view, data.draw(st.integers(0, len(writer.entries) - 1))
    entry = writer.entries[index]
    lost = data.draw(st.sampled_from([torn(entry), unknown(entry.slot)]))
    view = LogView([*writer.entries[:index], lost, *writer.entries[index + 1 :]])
    assert view.next_slot == whole.next_slot and [d.slot for d in view.damage] == [entry.slot]
    later = [e for e in writer.entries[index + 1 :] if isinstance(e, Commit | Restore)]
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
    first: list[LogRecord] = [takeover(0), torn(commit(1)), commit(2, 1, **state_in(1))]
    assert LogView(first).head_epoch == 2


def test_what_an_entry_of_no_known_kind_may_have_published_is_hidden_too() -> None:
    entries = [*LOG, unknown(4), restore(5, 2)]
    assert LogView(entries).lost_after(2) is not None
    assert LogView([*entries, commit(6, 2, gang=5)]).lost_after(6) is None
