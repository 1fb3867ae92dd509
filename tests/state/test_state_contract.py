"""Every implementation of state, against a plain model: the same cases for all kinds and all backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import GROUPS, SUBJECTS, Row, Subject, texts

from tidegate.errors import CorruptDataError
from tidegate.state import held, panes, sessionruns, table
from tidegate.state.backend import BACKENDS, backend
from tidegate.state.keygroups import key_groups, range_of
from tidegate.state.run import Restored, Run

ROW = st.tuples(st.integers(0, 30), st.integers(0, 99), st.integers(-5, 5))
INSERT = st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=40))
EXPIRE = st.tuples(st.just("expire"), st.integers(0, 110))
FREEZE = st.tuples(st.just("freeze"), st.none())
RESTORE = st.tuples(st.just("restore"), st.sampled_from([1, 2, 3, 7]))
ACTIONS = st.lists(st.one_of(INSERT, INSERT, EXPIRE, FREEZE, RESTORE), min_size=3, max_size=14)
WAYS = [(1, 2), (2, 1), (3, 7), (7, 3), (1, 1)]
SOME: list[Row] = [(key, key * 37 % 100, key % 9) for key in range(31)]
ALL = [pytest.param(kind, name, id=f"{kind}-{name}") for name in BACKENDS for kind in SUBJECTS]

pytestmark = pytest.mark.parametrize(("kind", "name"), ALL)


@pytest.fixture
def subject(kind: str, name: str) -> Subject:
    return SUBJECTS[kind](backend(name))


@pytest.fixture
def tight() -> Iterator[None]:
    """Everything that merges, moves and forgets does so all the time."""
    with pytest.MonkeyPatch.context() as patch:
        for module, sizes in {
            table: {"SMALL_ROWS": 8, "CHUNK_ROWS": 12, "SMALL_CHUNKS_MAX": 2, "GONE_KEYS_MIN": 4, "FREE_SLOTS_MAX": 3},
            panes: {"RUNS_PER_TIER": 3, "MERGE_ROWS_MAX": 30},
            sessionruns: {"RUNS_PER_TIER": 3, "MERGE_ROWS_MAX": 30},
            held: {"RUNS_MAX": 3},
        }.items():
            for each, value in sizes.items():
                patch.setattr(module, each, value)
        yield


@pytest.mark.usefixtures("tight")
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_it_is_a_dictionary_whatever_is_frozen_and_restored(kind: str, name: str, actions: list[tuple[str, object]]) -> None:
    now: Subject = SUBJECTS[kind](backend(name))
    model = Counter[Row]()
    frozen = now.freeze()
    before = texts(frozen)
    for action, value in actions:
        match action, value:
            case "insert", list(rows):
                now.insert(rows)
                now.insert_into(model, rows)
            case "expire", int(through):
                now.expire(model, through)
            case "freeze", _:
                frozen = now.freeze()
                before = texts(frozen)
            case _, int(parallelism):
                now = now.restored(parallelism)
        assert now.content() == now.expected(+model)
    assert texts(frozen) == before, "I4: what was frozen never changes"


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_a_restore_has_every_row_once_and_only_where_its_key_group_is(kind: str, name: str, before: int, after: int) -> None:
    first = SUBJECTS[kind](backend(name), before)
    first.insert(SOME)
    second = first.restored(after)
    assert second.content() == first.content() != []
    for subtask, state in enumerate(second.states):
        for batch in state.read():
            assert set(key_groups(batch, ("key",), GROUPS).tolist()) <= set(range_of(subtask, after, GROUPS))


def test_what_is_frozen_never_changes(subject: Subject) -> None:
    model = Counter[Row]()
    for start in range(3):
        subject.insert(SOME[start::3])
        subject.insert_into(model, SOME[start::3])
    frozen = subject.freeze()
    before = texts(frozen)
    for through in (20, 60, 110):
        subject.insert(SOME[::2])
        subject.insert_into(model, SOME[::2])
        subject.expire(model, through)
        subject.freeze()
    assert texts(frozen) == before and before[0][1]


def test_a_second_freeze_shares_the_runs_that_have_not_changed(subject: Subject) -> None:
    subject.insert(SOME)
    (first,) = subject.freeze()
    (again,) = subject.freeze()
    assert first.runs and [run.uid for run in again.runs] == [run.uid for run in first.runs]
    subject.insert([(99, 99, 1)])
    (second,) = subject.freeze()
    fresh = [run for run in second.runs if run.uid not in {run.uid for run in first.runs}]
    assert len(second.runs) == len(first.runs) + 1 and [run.batch.num_rows for run in fresh] == [1]


def test_a_restored_run_that_is_ours_alone_is_the_same_run(subject: Subject) -> None:
    subject.insert(SOME)
    (first,) = subject.freeze()
    (second,) = subject.restored(1).freeze()
    assert [run.uid for run in second.runs] == [run.uid for run in first.runs] != []


def test_size_grows_with_rows_and_shrinks_when_they_leave(subject: Subject) -> None:
    (state,) = subject.states
    assert state.size().rows == 0
    sizes = [state.size()]
    model = Counter[Row]()
    for start in range(3):
        rows = [(key + 100 * start, time, value) for key, time, value in SOME]
        subject.insert(rows)
        subject.insert_into(model, rows)
        sizes.append(state.size())
    assert all(a.rows < b.rows and a.nbytes < b.nbytes for a, b in pairwise(sizes))
    assert sizes[-1].rows == len(subject.content())
    subject.expire(model, 110)
    assert not subject.content() and state.size().rows == 0 and state.size().nbytes < sizes[-1].nbytes
    assert not subject.restored(2).content()


def test_rows_of_other_columns_are_corrupt(subject: Subject) -> None:
    subject.insert(SOME)
    (frozen,) = subject.freeze()
    other = tuple(Run(pa.record_batch({"x": [1]})) for _ in frozen.runs)
    with pytest.raises(CorruptDataError, match="other columns"):
        type(subject)(subject.backend).states[0].restore([Restored(0, frozen.meta, other)])
