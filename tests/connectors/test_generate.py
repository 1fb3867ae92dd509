from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors.generate import GenerateSource
from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Source, Split
from tidegate.testing.connectors import check_source


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def read(source: GenerateSource, split: int, first: int, count: int) -> pa.RecordBatch:
    return source.open(source.splits()[split], first).poll(count).batch


def everything(source: GenerateSource) -> pa.Table:
    return pa.Table.from_batches([source.open(s, None).poll(1 << 20).batch for s in source.splits() if s.rows])


@pytest.mark.parametrize(
    "source",
    [
        GenerateSource(1001),
        GenerateSource(3, splits=5),
        GenerateSource(rows_per_second=1_000_000, skew="zipf", seed=7),
        GenerateSource(5000, skew="zipf", keys=5, out_of_orderness="0s", start=-5),
    ],
    ids=repr,
)
def test_it_keeps_the_contract(source: GenerateSource) -> None:
    assert isinstance(source, Source)
    check_source(source, rows_max=2000, to_node=lambda source: pickle.loads(pickle.dumps(source)))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    split=st.integers(0, 2),
    first=st.one_of(st.integers(0, 1000), st.integers(0, 2**46)),
    cut=st.integers(1, 60),
    skew=st.sampled_from(["uniform", "zipf"]),
)
def test_resuming_at_any_offset_returns_the_same_rows(seed: int, split: int, first: int, cut: int, skew: str) -> None:
    source = GenerateSource(seed=seed, splits=3, skew=skew)  # type: ignore[arg-type]
    whole = read(source, split, first, 64)
    assert read(source, split, first + cut, 64 - cut).equals(whole.slice(cut))


def test_rows_are_these_for_ever() -> None:
    got = read(GenerateSource(seed=1, keys=100), 0, 1_000_000, 3).to_pydict()
    assert got == {
        "ts": [100143, 100778, 100167],
        "key": [32, 15, 57],
        "value": [9976.5, 1482.25, 11565.0],
        "kind": [1, 2, 0],
    }
    skewed = read(GenerateSource(seed=1, keys=100_000, skew="zipf"), 0, 1_000_000, 8).column("key").to_pylist()
    assert skewed == [21522, 262, 683, 0, 586, 5112, 24944, 147]


def test_another_seed_makes_other_rows() -> None:
    assert not read(GenerateSource(seed=2), 0, 0, 100).equals(read(GenerateSource(seed=1), 0, 0, 100))


def test_splits_change_nothing_and_fewer_rows_are_the_beginning_of_more() -> None:
    whole = everything(GenerateSource(200_000))
    assert [split.rows for split in GenerateSource(200_000).splits()] == [65_536, 65_536, 65_536, 3392]
    assert everything(GenerateSource(200_000, splits=7)).equals(whole)
    assert everything(GenerateSource(1000, splits=3)).equals(whole.slice(0, 1000))
    endless = GenerateSource(splits=2)
    even, odd = (read(endless, lane, 0, 500).to_pylist() for lane in (0, 1))
    assert [row for pair in zip(even, odd, strict=True) for row in pair] == whole.slice(0, 1000).to_pylist()


def test_a_bounded_source_has_slices_of_event_time() -> None:
    source = GenerateSource(10, splits=4, event_rate=1000)
    assert [split.rows for split in source.splits()] == [3, 3, 3, 1]
    assert [split.lowest for split in source.splits()] == [0, 3, 6, 9]
    assert source.bounded
    assert GenerateSource(0).splits() == []
    assert len(GenerateSource(1 << 48).splits()) == 65_536


def test_an_unbounded_source_is_one_lane_unless_told_otherwise() -> None:
    assert [split.rows for split in GenerateSource().splits()] == [None]
    assert len(GenerateSource(splits=3).splits()) == 3
    assert not GenerateSource().bounded


def test_other_parameters_make_other_splits() -> None:
    first = GenerateSource(100).splits()[0].id
    for other in (
        GenerateSource(100, seed=1),
        GenerateSource(101),
        GenerateSource(100, keys=5),
        GenerateSource(),
    ):
        assert other.splits()[0].id != first


def test_no_row_is_later_than_the_disorder_allows() -> None:
    source = GenerateSource(20_000, splits=2, out_of_orderness="500ms", event_rate=1000)
    for number, split in enumerate(source.splits()):
        times = read(source, number, 0, 10_000).column("ts").to_numpy()
        disorder = np.maximum.accumulate(times) - times
        assert 0 < disorder.max() <= 500
        assert times.min() >= split.lowest


def test_event_time_advances_by_the_event_rate() -> None:
    rate = everything(GenerateSource(4000, event_rate=1000, start=50, out_of_orderness="0s"))["ts"]
    assert pc.min_max(rate).as_py() == {"min": 50, "max": 50 + 3999}
    paced = everything(GenerateSource(4000, rows_per_second=500, out_of_orderness="0s", clock=FarLater()))["ts"]
    assert pc.max(paced).as_py() == 7998


class FarLater:
    """A clock that is far later at every look."""

    def __init__(self) -> None:
        self.looks = 0.0

    def __call__(self) -> float:
        self.looks += 1e6
        return self.looks


def test_values_add_up_exactly_in_any_order() -> None:
    values = everything(GenerateSource(10_000))["value"].to_numpy()
    assert float(values.sum()) == float(values[::-1].cumsum()[-1])
    assert set(np.unique(everything(GenerateSource(1000))["kind"].to_numpy())) == {0, 1, 2, 3}


def test_zipf_keys_are_drawn_by_rank() -> None:
    keys = everything(GenerateSource(100_000, keys=100, skew="zipf"))["key"].to_numpy()
    counts = np.bincount(keys, minlength=100)
    share = counts / counts.sum()
    assert len(counts) == 100
    expected = 1 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()
    assert np.abs(share - expected).max() < 0.01


def test_uniform_keys_are_even() -> None:
    keys = everything(GenerateSource(100_000, keys=100))["key"].to_numpy()
    counts = np.bincount(keys, minlength=100)
    assert len(counts) == 100
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_paced_reader_returns_nothing_before_a_row_is_due() -> None:
    clock = Clock()
    source = GenerateSource(rows_per_second=100, splits=4, clock=clock)
    reader = source.open(source.splits()[0], None)
    assert reader.poll(1000).batch is None
    clock.seconds += 1
    assert reader.poll(1000).rows == 25
    assert reader.poll(1000).batch is None
    clock.seconds += 10
    assert reader.poll(100).rows == 100
    assert reader.poll(1000).rows == 150
    assert reader.offset == 275


def test_slices_share_one_pace() -> None:
    clock = Clock()
    source = GenerateSource(1000, rows_per_second=100, clock=clock)
    first, second, *others = source.splits()
    assert (first.rows, second.rows, len(others)) == (10, 10, 98)
    readers = [source.open(first, None), source.open(second, None)]
    clock.seconds += 0.17  # between two ticks: what fell due at the last one
    assert [reader.poll(1000).rows for reader in readers] == [10, 6]
    clock.seconds += 100
    assert source.open(others[-1], None).poll(1000).rows == 10


def test_the_pace_begins_at_the_first_row_that_is_read() -> None:
    clock = Clock()
    source = GenerateSource(rows_per_second=100, clock=clock)
    reader = source.open(source.splits()[0], 5000)
    assert reader.poll(1000).batch is None
    clock.seconds += 0.5
    assert reader.poll(1000).rows == 50
    assert reader.offset == 5050


def test_the_clock_stays_behind_when_it_is_pickled() -> None:
    source = GenerateSource(10, rows_per_second=5, clock=lambda: 0.0)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.splits() == source.splits()
    assert copy.open(copy.splits()[0], None).poll(10).batch is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", -1),
        ("rows", 1.5),
        ("rows", True),
        ("rows_per_second", 0),
        ("rows_per_second", float("nan")),
        ("rows_per_second", "fast"),
        ("keys", 0),
        ("splits", 0),
        ("seed", -1),
        ("skew", "normal"),
        ("event_rate", 0),
        ("start", "now"),
        ("out_of_orderness", "-1s"),
    ],
)
def test_wrong_parameters_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidUseError, match=name):
        GenerateSource(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [-1, 13, "x", True])
def test_an_offset_outside_the_split_is_refused(offset: object) -> None:
    source = GenerateSource(12)
    with pytest.raises(InvalidUseError, match="offset is not within the split"):
        source.open(source.splits()[0], offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("split_id", ["4", "x", "0+1x12@00000000", "0+1xendless@" + GenerateSource(12).splits()[0].id[-8:]])
def test_a_foreign_split_is_refused(split_id: str) -> None:
    with pytest.raises(InvalidUseError, match="no split of this source"):
        GenerateSource(12).open(Split(split_id), None)
