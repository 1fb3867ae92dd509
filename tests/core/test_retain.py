"""What may be deleted."""

from __future__ import annotations

from typing import Any

import pytest
from coordination import PATHS
from hypothesis import given
from hypothesis import strategies as st
from test_view import commit, restore, takeover

from tidegate.core.checkpoint.manifest import ObjectEntry, OperatorSnapshotEntry, RunEntry
from tidegate.core.log.base import Base
from tidegate.core.log.entries import encode_entry
from tidegate.core.log.retain import (
    collection_bound,
    garbage,
    kept_objects,
    may_be_trimmed,
    oldest_restorable,
    resumable,
    trim_bound,
    trimmable,
)
from tidegate.core.log.view import Damaged, LogEntry, LogView
from tidegate.errors import InvalidUseError

VIEW = LogView([takeover(0), commit(1), commit(2, 1), commit(3, 2)])


@pytest.mark.parametrize(("retain", "oldest"), [(1, 4), (2, 3), (3, 2), (4, 1), (9, 1)])
def test_the_newest_of_the_lineage_stay_restorable(retain: int, oldest: int) -> None:
    assert oldest_restorable(VIEW, retain, 4) == oldest


def test_the_oldest_restorable_never_goes_back() -> None:
    view = LogView([takeover(0), commit(1), commit(2, 1, oldest_restorable=2)])
    assert oldest_restorable(view, 9, 3) == 2


def test_at_least_one_is_retained() -> None:
    with pytest.raises(InvalidUseError):
        oldest_restorable(VIEW, 0, 4)


def test_everything_below_the_bound_that_nobody_keeps_is_garbage() -> None:
    view = LogView([takeover(0), commit(1), commit(2, 1), commit(3, 2, oldest_restorable=2)])
    listed = [PATHS.state(number, 0) for number in range(1, 7)] + [PATHS.shared(4, "run")]
    assert garbage(PATHS, listed, kept_objects(view), 6) == [
        PATHS.state(1, 0),
        PATHS.state(4, 0),
        PATHS.state(5, 0),
        PATHS.shared(4, "run"),
    ]


def test_garbage_collection_during_an_upload_spares_the_live_attempt() -> None:
    live = [PATHS.state(4, 0), PATHS.shared(4, "run"), PATHS.inflight(4, "window", 0, "1-0")]
    assert garbage(PATHS, live, frozenset(), 4) == []
    assert garbage(PATHS, live, frozenset(), 5) == live


def test_the_log_the_hints_and_foreign_objects_are_never_garbage() -> None:
    listed = [
        PATHS.log_entry(0),
        PATHS.latest,
        f"{PATHS.job}/_summary",
        "job/notes.txt",
        "other/checkpoints/x",
        "job/shared/run.arrow",
    ]
    assert garbage(PATHS, listed, frozenset(), 2**63) == []


def test_objects_inherited_from_a_parent_are_kept_as_long_as_a_manifest_names_them() -> None:
    old = ObjectEntry(PATHS.shared(1, "run"), 10, 1)
    run = OperatorSnapshotEntry("window", 0, {}, (RunEntry(old.path, 0, 10, 1, 1),))
    shared: dict[str, Any] = {"operators": (run,), "objects": (old,)}
    view = LogView([takeover(0), commit(1, **shared), commit(2, 1, oldest_restorable=2, **shared)])
    assert garbage(PATHS, [old.path], kept_objects(view), 9) == []


def test_a_savepoint_is_kept_for_ever() -> None:
    view = LogView([takeover(0), commit(1, savepoint="s"), commit(2, 1, oldest_restorable=2)])
    assert garbage(PATHS, [PATHS.state(1, 0), PATHS.state(2, 0)], kept_objects(view), 9) == []


def test_sources_must_be_able_to_go_on_from_all_that_is_retained() -> None:
    view = LogView([takeover(0), commit(1, savepoint="s"), commit(2, 1), commit(3, 2, oldest_restorable=3)])
    assert [manifest.epoch for manifest in resumable(view)] == [1, 3]


def test_sources_let_go_of_nothing_while_a_commit_can_not_be_read() -> None:
    lost = Damaged(2, "job/log/2", "damaged", "commit", "commit")
    view = LogView([takeover(0), commit(1), lost, commit(3, 2, oldest_restorable=3)])
    assert view.retained() and resumable(view) == ()


def test_what_a_restore_in_progress_reads_is_kept() -> None:
    view = LogView([takeover(0), commit(1), commit(2, 1), restore(3, 1)])
    assert PATHS.state(2, 0) not in kept_objects(view)
    assert PATHS.state(2, 0) in kept_objects(view, restoring=[2])


def test_a_run_uploaded_for_an_aborted_checkpoint_is_garbage_and_so_are_thousands() -> None:
    orphans = [PATHS.shared(number, "run") for number in range(4, 5_000)]
    assert garbage(PATHS, orphans, kept_objects(VIEW), 5_000) == orphans


def test_a_collector_that_does_not_lead_spares_every_id_that_might_be_live() -> None:
    assert collection_bound(LogView()) == 0
    assert collection_bound(VIEW) == 4
    assert collection_bound(LogView([takeover(0), commit(1), takeover(2)])) == (2 << 32) | 1


@given(st.sets(st.integers(1, 40)), st.integers(0, 45), st.sets(st.integers(1, 40)))
def test_nothing_kept_and_nothing_at_or_above_the_bound_is_deleted(ids: set[int], bound: int, kept: set[int]) -> None:
    keep = frozenset(PATHS.state(number, 0) for number in kept)
    doomed = set(garbage(PATHS, [PATHS.state(number, 0) for number in ids], keep, bound))
    assert doomed == {PATHS.state(number, 0) for number in ids if number < bound and number not in kept}


# -- the log


def base(slot: int, *held: int) -> Base:
    return Base(slot=slot, term=0, write_id="b", gang=0, last_id=1, oldest_restorable=0, lineage=held, held=held)


def test_nothing_is_trimmed_before_there_are_two_bases() -> None:
    assert trim_bound([]) is None and trim_bound([base(4, 3)]) is None


def test_two_bases_stay_with_all_that_either_needs() -> None:
    """Should the newer one be damaged, readers begin at the older."""
    assert trim_bound([base(2, 1), base(5, 3, 4), base(9, 4, 8)]) == (5, {3, 4, 8})
    assert trimmable(range(11), 5, frozenset({3, 4, 8})) == [0, 1, 2], "as far as their entries may go"


@pytest.mark.parametrize(
    ("entry", "may_go"), [(takeover(4), False), (commit(4), True), (restore(4, None), True), (base(4, 3), True)]
)
def test_a_takeover_is_never_trimmed(entry: LogEntry, may_go: bool) -> None:
    assert may_be_trimmed(encode_entry(entry)) is may_go


def test_an_entry_that_does_not_tell_what_it_is_stays() -> None:
    assert not may_be_trimmed(b"") and not may_be_trimmed(b"x" * 40)
