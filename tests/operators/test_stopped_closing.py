"""Emitting a window stops at a cut: what was emitted before and what is emitted after the restore are everything, once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stopping import KINDS, Gang

from tidegate.errors import CorruptDataError
from tidegate.operators import closing, join, session
from tidegate.state import panes, sessionruns
from tidegate.state.keygroups import key_groups, range_of
from tidegate.state.run import Restored, Run

WAYS = [(1, 1), (1, 2), (2, 3), (3, 1)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 12)
    monkeypatch.setattr(join, "PIECE_ROWS", 5)
    monkeypatch.setattr(session, "CLOSE_KEYS", 2)
    monkeypatch.setattr(sessionruns, "RUNS_PER_TIER", 3)
    monkeypatch.setattr(panes, "RUNS_PER_TIER", 4)


def rows(first: int, count: int, keys: int = 11) -> list[tuple[int, int, int]]:
    """Rows of many keys, half of them in the first window: that one is large, those after it are small."""
    return [(first + (i * 7 % 95 if i % 2 else i * 13 % 400), i * 5 % keys, i) for i in range(count)]


def half_way(kind: str, parallelism: int) -> Gang:
    """Four windows of rows, fed in several batches."""
    gang = Gang(kind, parallelism)
    for start in range(0, 120, 24):
        gang.feed(rows(0, 120)[start : start + 24])
    gang.watermark(-50)
    return gang


def whole(kind: str) -> list[tuple[object, ...]]:
    gang = half_way(kind, 1)
    gang.watermark(330)
    gang.feed(rows(400, 40))
    gang.finish()
    return gang.rows


def stops(kind: str, parallelism: int) -> range:
    """How many pieces a receiver emits at most."""
    gang = half_way(kind, 1)
    gang.watermark(330)
    return range(len(gang.emitted) // parallelism + 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), WAYS)
def test_stopped_anywhere_and_restored_the_union_is_exact(kind: str, before: int, after: int) -> None:
    expected, stopped = whole(kind), 0
    for stop in stops(kind, before):
        first = half_way(kind, before)
        first.watermark(330, stop)
        stopped += first.has_pending
        second = first.restored(after)
        second.resume()
        second.feed(rows(400, 40))
        second.finish()
        assert second.rows == expected, stop
        assert second.late_rows == 0
    assert stopped > 1, "it never stopped: this shows nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_not_restored_it_goes_on_where_it_was(kind: str) -> None:
    for stop in stops(kind, 1):
        gang = half_way(kind, 1)
        rounds = 0
        gang.watermark(330, stop)
        while gang.has_pending:
            before = len(gang.emitted)
            gang.watermark(330, 1)
            rounds += 1
            assert rounds < 500 and (len(gang.emitted) > before or not gang.has_pending)
        gang.feed(rows(400, 40))
        gang.finish()
        assert gang.rows == whole(kind), stop


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "join" not in kind])
@pytest.mark.parametrize(("before", "after"), WAYS)
@pytest.mark.parametrize("again", [True, False])
def test_a_late_row_after_the_cut_is_counted_and_reopens_nothing(kind: str, before: int, after: int, again: bool) -> None:
    """Rows of windows that had begun are late; those of windows that had not are in time until the watermark comes again."""
    for stop in stops(kind, before):
        first = half_way(kind, before)
        first.watermark(330, stop)
        second = first.restored(after)
        second.resume()
        if again:
            second.watermark(330)
        second.feed(rows(0, 60))
        second.finish()
        check_each_once(second, 180)
        if again and "lateness" not in kind:
            assert second.late_rows >= 45, "all rows whose windows ended by 330"


def check_each_once(gang: Gang, fed: int) -> None:
    """Every row is in the results or counted as late; no window or session is emitted twice, and sessions do not overlap."""
    table = gang.results
    windows = Counter(zip(table["key"].to_pylist(), table["window_start"].to_pylist(), strict=True))
    assert not [window for window, count in windows.items() if count > 1]
    if "sliding" not in gang.kind:
        assert sum(table["n"].to_pylist()) + gang.late_rows == fed
    if "session" in gang.kind:
        spans = sorted(zip(*(table[name].to_pylist() for name in ("key", "window_start", "window_end")), strict=True))
        ended = [(a, b) for a, b in pairwise(spans) if a[0] == b[0] and b[1] < a[2] - 20]
        assert not ended, "a row is in two sessions"


@pytest.mark.parametrize("stop", range(1, 12, 3))
def test_a_session_that_was_emitted_in_part_of_the_keys_takes_no_late_rows(stop: int) -> None:
    """Lateness is judged by the watermark that was closing, for keys that were emitted and for those that were not."""
    gang = Gang("session", 1)
    gang.feed([(10, key, 0) for key in range(30)])
    gang.watermark(40, stop)
    gang = gang.restored(2)
    gang.resume()
    gang.feed([(15, key, 0) for key in range(30)])
    gang.finish()
    assert gang.late_rows == 30
    assert Counter(gang.results["n"].to_pylist()) == {1: 30}


@pytest.mark.parametrize(("kind", "time"), [("tumbling", 100), ("session", 40)])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_one_subtasks_debt_closes_nothing_of_another(kind: str, time: int, after: int) -> None:
    """One subtask stops while it closes; the other has not seen that watermark, and its windows take more rows."""
    keys = range(30)
    gang = Gang(kind, 2)
    gang.feed([(10, key, 0) for key in keys])
    gang.watermark(time, 2, only=1)
    assert gang.has_pending
    gang = gang.restored(after)
    gang.resume()
    gang.feed([(15, key, 0) for key in keys])
    gang.finish()
    groups = key_groups(pa.record_batch({"key": keys}), ["key"])
    late = sum(int(group) in range_of(0, 2) for group in groups)
    assert gang.late_rows == late > 0
    assert Counter(gang.results["n"].to_pylist()) == {1: late, 2: len(keys) - late}


def test_one_key_with_very_many_pairs_stops_between_rows_of_its_left_side() -> None:
    for stop in range(0, 500, 37):
        gang = Gang("join", 1)
        gang.feed([(i % 100, 7, i) for i in range(100)])  # 50 times 50 pairs of one key
        gang.watermark(100, stop)
        assert len(gang.emitted) <= stop + 10, "a row that was begun is finished, and nothing more"
        gang = gang.restored(2)
        gang.resume(stop)
        gang = gang.restored(1)
        gang.finish()
        assert len(gang.rows) == len(set(gang.rows)) == 2500


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_checkpoint_has_stored_of_a_large_window_is_not_stored_again_while_it_is_emitted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panes, "MERGE_ROWS_MAX", 0)  # else a window's small panes are merged when it closes
    gang = half_way(kind, 1)
    (receiver,) = gang.receivers
    stored = {run.uid for run in receiver.freeze().runs}
    gang.watermark(130, 1)
    assert gang.has_pending
    frozen = receiver.freeze()
    fresh = [run for run in frozen.runs if run.uid not in stored and run.batch.schema != sessionruns.HOLES]
    assert len(frozen.runs) > len(fresh) + 2
    # Of a join, the step that was stopped inside; of sessions, those of its keys that are open still.
    most = 60 if "join" in kind else 10 if "session" in kind else 0
    assert sum(run.batch.num_rows for run in fresh) <= most


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "join"])
def test_freezing_while_a_window_is_given_allocates_nothing(kind: str) -> None:
    gang = half_way(kind, 1)
    gang.watermark(330, 2)
    assert gang.has_pending
    allocated = pa.total_allocated_bytes()
    frozen = [receiver.freeze() for receiver in gang.receivers]
    assert frozen and pa.total_allocated_bytes() == allocated


def test_wide_rows_are_emitted_in_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_ROWS", 1_000_000)
    monkeypatch.setattr(closing, "CLOSE_BYTES", 1_000)
    gang = half_way("tumbling", 1)
    gang.watermark(100, 1)
    assert 0 < len(gang.rows) < 11 and gang.has_pending


# -- any schedule --------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["feed", "watermark", "cut", "cut while resuming"]), st.integers(0, 6), st.integers(1, 3)),
    min_size=4,
    max_size=14,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(actions=ACTIONS)
def test_any_number_of_cuts_anywhere_changes_nothing(kind: str, actions: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        gang, reference, now = Gang(kind, 2), Gang(kind, 1), 0
        for number, (action, size, parallelism) in enumerate(actions):
            match action:
                case "feed":
                    batch = [(now + i * 17 % 190, (i + number) % 9, i) for i in range(8 * size)]
                    gang.feed(batch)
                    reference.feed(batch)
                case "watermark":
                    now += 40 * size
                    reference.watermark(now)
                    gang.watermark(now, size)
                    gang = go_on(gang, now, parallelism if gang.has_pending and size % 2 else None)
                case "cut":
                    gang = gang.restored(parallelism)
                    gang.resume()
                case "cut while resuming":
                    gang = gang.restored(parallelism)
                    gang.resume(size)
                    gang = gang.restored(1 + parallelism % 3)
                    gang.resume()
        gang.finish()
        reference.finish()
        assert gang.rows == reference.rows
        assert gang.late_rows == reference.late_rows == 0


def go_on(gang: Gang, now: int, parallelism: int | None) -> Gang:
    """After a cut: go on, or crash and let the watermark come again, stopped once more."""
    if parallelism is None:
        gang.watermark(now)
        return gang
    gang = gang.restored(parallelism)
    gang.resume(1)
    gang.resume()
    gang.watermark(now, 1)
    gang.watermark(now)
    return gang


# -- what is stored ------------------------------------------------------------------------------------------

BAD: list[Any] = [
    7,
    [],
    {"runs": 1},
    {"runs": 99, "rest": 0, "label": None, "steps": 2, "emitted": 1},
    {"runs": -1, "rest": 1, "label": None, "steps": 2, "emitted": 1},
    {"runs": 1, "rest": 0, "label": "0", "steps": 2, "emitted": 1},
    {"runs": 1, "rest": 0, "label": 1 << 63, "steps": 2, "emitted": 1},
    {"runs": 1, "rest": 0, "label": None, "steps": 2, "emitted": 3},
    {"runs": 1, "rest": 0, "label": None, "steps": 1 << 16, "emitted": 0},
    {"runs": 1, "rest": 0, "label": None, "steps": 2, "emitted": -1},
]


@pytest.mark.parametrize("pending", BAD, ids=str)
@pytest.mark.parametrize("kind", ["tumbling", "join"])
def test_impossible_pending_output_is_corrupt(kind: str, pending: Any) -> None:
    gang = half_way(kind, 1)
    gang.watermark(330, 1)
    (frozen,) = gang.freeze()
    with pytest.raises(CorruptDataError, match=r"impossible pending output|is not as it was written"):
        Gang(kind, 1).receivers[0].restore([Restored(0, {**frozen.meta, "pending": pending}, frozen.runs)])


@pytest.mark.parametrize("pending", [7, [], *({"groups": g} for g in (7, {}, [[0, 128]], [[5, 5, 0]], [[0, 129, 0]]))], ids=str)
def test_impossible_pending_output_of_sessions_is_corrupt(pending: Any) -> None:
    (frozen,) = half_way("session", 1).freeze()
    with pytest.raises(CorruptDataError):
        Gang("session", 1).receivers[0].restore([Restored(0, {**frozen.meta, "pending": pending}, frozen.runs)])


@pytest.mark.parametrize("kind", ["tumbling", "join"])
def test_pending_output_with_other_columns_is_corrupt(kind: str) -> None:
    gang = half_way(kind, 1)
    gang.watermark(330, 1)
    (frozen,) = gang.freeze()
    wrong = Run(pa.record_batch({"x": [1]}))
    with pytest.raises(CorruptDataError):
        Gang(kind, 1).receivers[0].restore([Restored(0, frozen.meta, (*frozen.runs[:-1], wrong))])


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_a_closing_that_was_not_stopped_has_no_pending_output(kind: str) -> None:
    gang = half_way(kind, 2)
    gang.watermark(330)
    assert all("pending" not in frozen.meta for frozen in gang.freeze())
    assert not gang.restored(3).has_pending
