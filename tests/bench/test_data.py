"""The made-up rows: always the same, of the promised shape, out of order by no more than was said."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tidegate.bench.data import KINDS, SCHEMA, DataSpec, ensure, first_files, table
from tidegate.errors import InvalidUseError

SMALL = DataSpec("small", 10_000, 100, rows_per_file=4_000, rows_per_group=1_000)


def whole(spec: DataSpec) -> dict[str, np.ndarray]:
    tables = [table(spec, index) for index in range(spec.files)]
    return {name: np.concatenate([t[name].to_numpy() for t in tables]) for name in SCHEMA.names}


def test_equal_specs_give_equal_rows_and_other_seeds_others() -> None:
    assert table(SMALL, 1).equals(table(SMALL, 1))
    assert not table(SMALL, 1).equals(table(DataSpec("small", 10_000, 100, seed=1, rows_per_file=4_000), 1))
    assert not table(SMALL, 0).equals(table(SMALL, 1))


def test_the_schema_is_what_the_workloads_read() -> None:
    assert [(field.name, str(field.type)) for field in table(SMALL, 0).schema] == [
        ("ts", "int64"),
        ("key", "int64"),
        ("value", "double"),
        ("kind", "int8"),
    ]


def test_files_and_row_groups_have_the_asked_size(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    metadata = [pq.read_metadata(path) for path in sorted(folder.iterdir())]
    assert [m.num_rows for m in metadata] == [4_000, 4_000, 2_000]
    assert {m.row_group(n).num_rows for m in metadata for n in range(m.num_row_groups)} == {1_000}


def test_rows_are_out_of_order_but_never_by_more_than_was_said() -> None:
    spec = DataSpec("s", 50_000, 10, rows_per_second=5_000, disorder_ms=700, rows_per_file=20_000)
    times = whole(spec)["ts"]
    disorder = np.maximum.accumulate(times) - times
    assert disorder.max() > 100
    assert disorder.max() < 700
    assert times.min() >= 0
    assert 9_900 <= times.max() <= 10_700


def test_files_follow_each_other_in_event_time(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    lowest = [pc.min(pq.read_table(path)["ts"]).as_py() for path in sorted(folder.iterdir())]
    changed = [path.stat().st_mtime for path in sorted(folder.iterdir())]
    assert lowest == sorted(lowest)
    assert all(later > earlier for earlier, later in pairwise(changed))


@pytest.mark.parametrize("skew", ["zipf", "uniform"])
def test_keys_stay_in_range(skew: str) -> None:
    keys = whole(DataSpec("s", 50_000, 1_000, skew))["key"]  # type: ignore[arg-type]
    assert keys.min() >= 0
    assert keys.max() < 1_000


def test_zipf_keys_are_skewed_and_uniform_ones_are_not() -> None:
    def shares(skew: str) -> np.ndarray:
        keys = whole(DataSpec("s", 200_000, 1_000, skew))["key"]  # type: ignore[arg-type]
        return np.sort(np.bincount(keys, minlength=1_000))[::-1] / len(keys)

    harmonic = (1 / np.arange(1, 1_001)).sum()
    zipf, uniform = shares("zipf"), shares("uniform")
    assert zipf[:3] == pytest.approx([1 / harmonic, 1 / 2 / harmonic, 1 / 3 / harmonic], rel=0.05)
    assert uniform[0] < 2 / 1_000


def test_a_keys_number_does_not_tell_how_frequent_it_is() -> None:
    keys = whole(DataSpec("s", 200_000, 1_000, "zipf"))["key"]
    counts = np.bincount(keys, minlength=1_000)
    assert abs(np.corrcoef(np.arange(1_000), counts)[0, 1]) < 0.2


def test_kinds_and_values_cover_their_range() -> None:
    rows = whole(SMALL)
    assert set(np.unique(rows["kind"])) == set(range(KINDS))
    assert 0 <= rows["value"].min() < 1
    assert 99 < rows["value"].max() < 100


def test_rows_are_made_once(tmp_path: Path) -> None:
    told: list[int] = []
    folder = ensure(SMALL, tmp_path, told.append)
    assert told == [4_000, 8_000, 10_000]
    assert ensure(SMALL, tmp_path, told.append) == folder
    assert len(told) == 3
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_every_field_of_a_spec_is_in_the_folders_name() -> None:
    other = [
        DataSpec("small", 10_000, 100, rows_per_file=4_000, rows_per_group=500),
        DataSpec("small", 10_000, 101, rows_per_file=4_000, rows_per_group=1_000),
        DataSpec("small", 10_000, 100, "zipf", rows_per_file=4_000, rows_per_group=1_000),
    ]
    assert len({spec.folder for spec in [SMALL, *other]}) == 4


def test_a_path_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidUseError, match="can't write benchmark data"):
        ensure(SMALL, tmp_path / "file")


@pytest.mark.parametrize("field", ["rows", "keys", "rows_per_second", "disorder_ms", "rows_per_file"])
def test_numbers_that_make_no_sense_are_refused(field: str) -> None:
    with pytest.raises(InvalidUseError, match=f"{field}=0"):
        DataSpec(**{"name": "s", "rows": 1, "keys": 1, field: 0})  # type: ignore[arg-type]


def test_the_first_files_are_taken_until_there_are_enough_rows(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    for wanted, files, rows in [(1, 1, 4_000), (4_000, 1, 4_000), (4_001, 2, 8_000), (99_999, 3, 10_000)]:
        chosen, found = first_files(folder, wanted)
        assert ([path.name for path in chosen], found) == (names[:files], rows)
