"""A view from a summary answers like one of all entries, and a view that forgets like one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_log import commit, restore, takeover
from torn import torn, unknown

from tidegate.core.entries import Commit, Damaged, LogEntry, LogRecord, Restore
from tidegate.core.log import LogView
from tidegate.core.manifest import CommittableEntry, CommittableKey
from tidegate.core.retain import collection_bound, kept_objects, oldest_restorable
from tidegate.core.summary import LogSummary, decode_summary, encode_summary
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

    def _restore(self, slot: int, term: int, pick: int) -> LogEntry:
        choices = [*(m.epoch for m in self.view.restorables()), None]
        return restore(slot, choices[pick % len(choices)], term)


KINDS = ("takeover", "commit", "commit", "commit", "commit", "restore")


@st.composite
def logs(draw: st.DrawFn) -> list[LogEntry]:
    author = Author()
    for kind, pick in draw(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), max_size=24)):
        author.add(kind, pick)
    return author.entries


@st.composite
def damaged_logs(draw: st.DrawFn) -> list[LogRecord]:
    entries: list[LogRecord] = list(draw(logs()))
    for place in draw(st.sets(st.integers(0, len(entries) - 1), max_size=2)):
        entry = entries[place]
        assert not isinstance(entry, Damaged)
        entries[place] = draw(st.sampled_from([torn(entry), unknown(entry.slot)]))
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
    yield "damage", (view.damage, view.unclear)
    yield "lineage", (list(view.lineage()), list(view.reachable()))
    for name in ("held", "retained", "off_lineage", "restorables", "summary"):
        yield name, getattr(view, name)()
    for epoch in range(view.next_slot + 2):
        yield f"epoch {epoch}", (view.lost(epoch), view.lost_after(epoch), tried(lambda e=epoch: view.restorable(e)))
    yield "lost", view.lost_after(None)
    yield "retention", [oldest_restorable(view, retain, view.next_slot) for retain in range(1, 7)]
    yield "garbage", (kept_objects(view), collection_bound(view))


def beside(summary: LogSummary, entries: Sequence[LogRecord]) -> list[LogRecord]:
    """What a reader of the summary reads of the log."""
    return [e for e in entries if e.slot in summary.slots or e.slot >= summary.next_slot]


def stored(view: LogView) -> LogSummary | None:
    summary = view.summary()
    return None if summary is None else decode_summary(encode_summary(summary), "p")


@given(damaged_logs())
def test_a_summary_of_any_prefix_and_the_rest_add_up_to_the_whole(entries: list[LogRecord]) -> None:
    whole = tried(lambda: list(answers(LogView(entries))))
    for place in range(len(entries) + 1):
        view = tried(lambda place=place: LogView(entries[:place]))
        summary = stored(view) if isinstance(view, LogView) else None
        if summary is not None:
            resumed = tried(lambda summary=summary: list(answers(LogView(beside(summary, entries), summary))))
            assert resumed == whole, place


@given(logs())
def test_every_prefix_of_a_sound_log_has_a_summary(entries: list[LogEntry]) -> None:
    assert LogView().summary() is None
    for place in range(1, len(entries) + 1):
        assert LogView(entries[:place]).summary() is not None


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


def test_the_newest_sound_epoch_that_is_too_old_is_remembered_behind_damaged_ones() -> None:
    """Else retention would let go of epoch 3, whose file may yet be put back, as soon as the view forgets."""
    first = [takeover(0), commit(1), torn(commit(2, 1)), torn(commit(3, 2)), commit(4, 3, oldest_restorable=3)]
    view = LogView(first)
    assert list(view.lineage()) == [4, 3, 1] and oldest_restorable(view, 3, 5) == 3


def test_a_view_does_not_grow_with_the_log() -> None:
    author = Author()
    author.add("commit", 11)
    for number in range(500):
        author.add("commit", 2 + 4 * (number % 2))
        if number % 50 == 0:
            author.add("restore", 1)
    summary = author.view.summary()
    assert summary is not None and summary.next_slot > 500
    assert len(summary.lineage) < 12 and len(summary.left) < 6 and len(summary.held) < 8
    assert len(encode_summary(summary)) < 600


# -- what does not fit ---------------------------------------------------------------------------------------

LOG: list[Any] = [takeover(0), commit(1), torn(commit(2, 1)), commit(3, 2), restore(4, 3)]
SUMMARY = LogView(LOG).summary()


@pytest.mark.parametrize(
    ("slot", "other"),
    [
        (4, replace(restore(4, 3), write_id="another")),
        (4, torn(restore(4, 3))),
        (4, None),
        (3, torn(commit(3, 2))),
        (3, takeover(3)),
        (3, None),
        (2, commit(2, 1)),
        (2, None),
    ],
)
def test_a_log_that_is_not_what_its_summary_says_is_noticed(slot: int, other: LogRecord | None) -> None:
    assert SUMMARY is not None and LogView(beside(SUMMARY, LOG), SUMMARY).next_slot == 5
    entries = [other if entry.slot == slot else entry for entry in LOG]
    with pytest.raises(CorruptDataError, match=f"something else than the log does slot={slot}"):
        LogView(beside(SUMMARY, [entry for entry in entries if entry is not None]), SUMMARY)


@pytest.mark.parametrize("last", [unknown(4), torn(restore(4, 1)), torn(takeover(4))])
def test_there_is_no_summary_while_the_last_entry_cannot_be_read(last: Damaged) -> None:
    assert LogView([*LOG[:4], last]).summary() is None


def test_there_is_no_summary_while_it_is_not_known_what_a_damaged_entry_did() -> None:
    view = LogView([*LOG[:4], torn(restore(4, 1)), takeover(5)])
    assert view.unclear is not None and view.summary() is None
    view.apply(restore(6, None, term=5))
    assert view.unclear is None and view.summary() is None, "this leader has not read what the restore tells of it"
    assert LogView([*LOG[:4], torn(restore(4, 1)), takeover(5), restore(6, None, term=5)]).summary() is not None


def test_an_ancestor_that_is_too_old_to_be_held_is_not_compared_with() -> None:
    """Epoch 3 was restored and damaged later; nothing sound that is held comes before it."""
    first = [takeover(0), commit(1), commit(2, 1), torn(commit(3, 2)), commit(4, 3, oldest_restorable=3)]
    view = LogView([*first, restore(5, 3), commit(6, 3, gang=5)])
    assert list(view.lineage()) == [6, 3, 2] and [m.epoch for m in view.held()] == [4, 6]
