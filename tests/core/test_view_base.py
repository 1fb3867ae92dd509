"""A view that begins at a base answers like one of all entries, and a view that forgets like one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_view import commit, restore, takeover
from torn import torn, unknown

from tidegate.core.checkpoint.manifest import CommittableEntry, CommittableKey
from tidegate.core.log.base import Base
from tidegate.core.log.entries import (
    Commit,
    LogEntry,
    LogRecord,
    Restore,
    encode_entry,
    explained,
    missing_entry,
)
from tidegate.core.log.retain import collection_bound, kept_objects, oldest_restorable
from tidegate.core.log.view import LogView, newest_base
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError


class Author:
    """Writes a log as leaders do: what sinks have not confirmed is carried on, retention moves, savepoints stay."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.view = LogView()
        self._carried: dict[CommittableKey, CommittableEntry] = {}
        self.add("takeover", 0)

    def add(self, kind: str, pick: int) -> None:
        entry = getattr(self, f"_{kind}")(self.view.next_slot, self.view.term, pick)
        self.view.apply(entry)
        self.entries.append(entry)
        if isinstance(entry, Restore):
            head = self.view.head
            self._carried = {} if head is None else {c.key: c for c in head.committables}

    def _takeover(self, slot: int, term: int, pick: int) -> LogEntry:
        return takeover(slot)

    def _commit(self, slot: int, term: int, pick: int) -> LogEntry:
        if pick % 3 == 0:
            self._carried.clear()  # the sinks have confirmed them
        made = CommittableEntry("out", 0, self.view.gang, (term << 32) | slot, {}, slot)
        self._carried[made.key] = made
        changes = {"savepoint": "s"} if pick == 11 else {}
        return commit(
            slot,
            self.view.head_epoch,
            term,
            gang=self.view.gang,
            committables=tuple(self._carried.values()),
            oldest_restorable=oldest_restorable(self.view, 1 + pick % 4, slot),
            **changes,
        )

    def _base(self, slot: int, term: int, pick: int) -> LogEntry:
        base = self.view.summed_up(f"b{slot}")
        assert base is not None
        return base

    def _restore(self, slot: int, term: int, pick: int) -> LogEntry:
        choices = [*(m.epoch for m in self.view.restorables()), None]
        return restore(slot, choices[pick % len(choices)], term)


KINDS = ("takeover", "commit", "commit", "commit", "commit", "restore", "base")


@st.composite
def logs(draw: st.DrawFn) -> list[LogEntry]:
    author = Author()
    for kind, pick in draw(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), max_size=24)):
        author.add(kind, pick)
    return author.entries


@st.composite
def damaged_logs(draw: st.DrawFn) -> list[LogRecord]:
    """Damage after the newest base. What a base says of an entry before it is more than a damaged one could tell."""
    entries: list[LogRecord] = list(draw(logs()))
    base = newest_base(entries)
    later = [entry.slot for entry in entries if base is None or entry.slot > base.slot]
    for slot in draw(st.sets(st.sampled_from(later), max_size=2)) if later else ():
        entries[slot] = draw(st.sampled_from([torn(entries[slot]), unknown(slot)]))  # type: ignore[arg-type]
    return entries


def tried(ask: Callable[[], Any]) -> object:
    try:
        return ask()
    except TidegateError as error:
        return type(error), str(error)


def answers(view: LogView) -> Iterator[tuple[str, object]]:
    """Everything that anybody asks a view."""
    for name in ("next_slot", "term", "gang", "head_epoch", "head", "head_is_lost", "last_id", "oldest_restorable"):
        yield name, getattr(view, name)
    yield "damage", ([each.slot for each in view.damage if each.may_be_commit], view.unclear)
    yield "lineage", (list(view.lineage()), list(view.reachable()))
    for name in ("held", "retained", "off_lineage", "restorables"):
        yield name, getattr(view, name)()
    yield "base", view.summed_up("w")
    for epoch in range(view.next_slot + 2):
        yield f"epoch {epoch}", (view.lost(epoch), view.lost_after(epoch), tried(lambda e=epoch: view.restorable(e)))
    yield "lost", view.lost_after(None)
    yield "retention", [oldest_restorable(view, retain, view.next_slot) for retain in range(1, 7)]
    yield "garbage", (kept_objects(view), collection_bound(view))


def folded(entries: Sequence[LogRecord]) -> LogView:
    """One after the other, without beginning at a base."""
    view = LogView()
    for entry in explained(entries):
        view.apply(entry)
    return view


def read(entries: Sequence[LogRecord]) -> list[LogRecord]:
    """What a reader reads of a log that was trimmed as far as its newest base allows."""
    base = newest_base(entries)
    return [entry for entry in entries if base is None or entry.slot >= base.slot or entry.slot in base.needed]


@given(damaged_logs())
def test_a_trimmed_log_adds_up_to_the_same_as_the_complete_one(entries: list[LogRecord]) -> None:
    whole = tried(lambda: list(answers(folded(entries))))
    assert tried(lambda: list(answers(LogView(read(entries))))) == whole
    assert tried(lambda: list(answers(LogView(entries)))) == whole, "what is below a base and not needed is ignored"


@given(damaged_logs())
def test_readers_begin_at_the_base_before_if_the_newest_is_damaged(entries: list[LogRecord]) -> None:
    base = newest_base(entries)
    if base is not None:
        damaged = [torn(entry) if entry is base else entry for entry in entries]
        kept = [e for e in damaged if e in read(damaged) or e.slot in base.needed]
        assert tried(lambda: list(answers(LogView(kept)))) == tried(lambda: list(answers(folded(damaged))))


@given(logs())
def test_every_prefix_of_a_sound_log_can_be_summed_up(entries: list[LogEntry]) -> None:
    assert LogView().summed_up("w") is None
    for index in range(1, len(entries) + 1):
        assert LogView(entries[:index]).summed_up("w") is not None


@given(logs())
def test_a_later_base_needs_nothing_older_that_an_earlier_one_did_not(entries: list[LogEntry]) -> None:
    """So a trim that comes late, ordered by an old base, takes nothing away from a newer one."""
    bases = [entry for entry in entries if isinstance(entry, Base)]
    for older, newer in pairwise(bases):
        assert {slot for slot in newer.needed if slot < older.slot} <= set(older.needed)


@given(logs())
def test_what_a_view_forgets_nobody_asks_for(entries: list[LogEntry]) -> None:
    """Against a fold that keeps everything."""
    parents: dict[int, int | None] = {}
    head: int | None = None
    for entry in entries:
        if isinstance(entry, Commit):
            head, parents[entry.slot] = entry.slot, entry.manifest.parent
        elif isinstance(entry, Restore):
            head = entry.parent
    lineage: list[int] = []
    while head is not None:
        lineage.append(head)
        head = parents[head]
    view = LogView(entries)
    bound, named = view.oldest_restorable, [c for m in view.held() for c in m.committables]
    assert list(view.reachable()) == [e for e in lineage if e >= bound]
    assert {c.key for c in view.off_lineage()} == {c.key for c in named if c.epoch not in lineage}
    for top in lineage:  # what a restore of this epoch could not show
        kept = {e for e in view.lineage() if e <= top}
        assert [c.epoch in kept for c in named] == [c.epoch in lineage and c.epoch <= top for c in named]
    for retain in range(1, 8):
        kept_at = [view.next_slot, *lineage][:retain][-1]
        assert oldest_restorable(view, retain, view.next_slot) == max(bound, kept_at)
    for epoch in set(parents) - set(lineage):
        with pytest.raises(InvalidUseError, match="left this checkpoint behind" if epoch >= bound else "no longer"):
            view.restorable(epoch)


def test_the_newest_sound_epoch_that_is_too_old_is_remembered_after_damaged_ones() -> None:
    """Else retention would let go of epoch 3, whose file may yet be put back, as soon as the view forgets."""
    first: list[LogRecord] = [takeover(0), commit(1), torn(commit(2, 1)), torn(commit(3, 2)), commit(4, 3, oldest_restorable=3)]
    view = LogView(first)
    assert list(view.lineage()) == [4, 3, 1] and oldest_restorable(view, 3, 5) == 3


def test_a_view_does_not_grow_with_the_log() -> None:
    author = Author()
    author.add("commit", 11)
    for number in range(500):
        author.add("commit", 2 + 4 * (number % 2))
        if number % 50 == 0:
            author.add("restore", 1)
    base = author.view.summed_up("w")
    assert base is not None and base.slot > 500
    assert len(base.lineage) < 12 and len(base.left) < 6 and len(base.held) < 8
    assert len(encode_entry(base)) < 600


# -- what does not fit ---------------------------------------------------------------------------------------

LOG: list[Any] = [takeover(0), commit(1), torn(commit(2, 1)), commit(3, 2), restore(4, 3)]


def based(log: Sequence[LogRecord] = LOG) -> Base:
    base = LogView(log).summed_up("b")
    assert base is not None
    return base


def test_a_base_holds_what_the_log_adds_up_to() -> None:
    base = based()
    assert (base.slot, base.held, base.lost, base.needed) == (5, (1, 3), (2,), (1, 2, 3))
    view = LogView([*LOG[1:4], base])
    assert view.next_slot == 6 and view.head_epoch == 3 and view.lost(2) is not None and view.since_base == 0
    assert LogView(LOG).since_base == 5 and LogView([*LOG, base, commit(6, 3, gang=4)]).since_base == 1


def test_a_manifest_that_is_damaged_since_is_a_lost_commit() -> None:
    for gone in (torn(commit(3, 2)), unknown(3), missing_entry("log/3", 3)):
        view = LogView([commit(1), torn(commit(2, 1)), gone, based()])
        assert view.head_is_lost and [m.epoch for m in view.restorables()] == [1]
        assert [each.slot for each in view.damage] == [2, 3] and view.lost_after(None) is not None


def test_a_commit_that_was_put_back_can_be_restored_again() -> None:
    view = LogView([commit(1), commit(2, 1), commit(3, 2), based()])
    assert view.damage == () and [m.epoch for m in view.restorables()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("slot", "other", "what"), [(3, None, "is missing"), (3, takeover(3), "is a commit"), (2, takeover(2), "commit")]
)
def test_a_log_that_is_not_what_its_base_says_is_broken(slot: int, other: LogRecord | None, what: str) -> None:
    entries = [other if entry.slot == slot else entry for entry in LOG[1:4]]
    with pytest.raises(CorruptDataError, match=what):
        LogView([*(entry for entry in entries if entry is not None), based()])


def test_what_may_have_been_a_commit_is_looked_at_until_it_can_be_read() -> None:
    log = [*LOG[:4], unknown(4), restore(5, 3)]
    base = based(log)
    assert base.unread == (4,)
    assert LogView([*log[1:5], base]).lost_after(3) is not None
    assert LogView([*log[1:4], commit(4, 3), base]).lost_after(3) is None


def test_there_is_no_base_while_it_is_not_known_what_a_damaged_entry_did() -> None:
    view = LogView([*LOG[:4], torn(restore(4, 1)), takeover(5)])
    assert view.unclear is not None and view.summed_up("w") is None
    view.apply(restore(6, None, term=5))
    assert view.unclear is None and view.summed_up("w") is not None


def test_a_base_of_another_term_does_not_follow() -> None:
    with pytest.raises(CorruptDataError, match="whose term was over"):
        LogView([*LOG]).apply(Base(slot=5, term=3, write_id="b", gang=0, last_id=0, oldest_restorable=0))


def test_an_ancestor_that_is_too_old_to_be_held_is_not_compared_with() -> None:
    """Epoch 3 was restored and damaged later; nothing sound that is held comes before it."""
    first: list[LogRecord] = [takeover(0), commit(1), commit(2, 1), torn(commit(3, 2)), commit(4, 3, oldest_restorable=3)]
    view = LogView([*first, restore(5, 3), commit(6, 3, gang=5)])
    assert list(view.lineage()) == [6, 3, 2] and [m.epoch for m in view.held()] == [4, 6]
