"""The hash that routes rows: fixed for ever, the same for equal values, and even."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidUseError
from tidegate.state.keygroups import canonical, hashes, key_groups, owners, partition, range_of, rows, split

VECTORS = [
    (pa.int64(), 0, 0x0000000000000000),
    (pa.int64(), 1, 0x43397D8F89A4131F),
    (pa.int64(), -1, 0x8F6BC9BFDD0C3E37),
    (pa.int64(), 9223372036854775807, 0xC7B5E4DF6E861F1B),
    (pa.uint64(), 18446744073709551615, 0x8F6BC9BFDD0C3E37),
    (pa.string(), "", 0xB109B8D3767359AA),
    (pa.string(), "a", 0xFA7E2519ACCF5AB2),
    (pa.string(), "tidegate", 0x343F4F1AD805141B),
    (pa.string(), "tidegate barrier", 0xD13BF48F4CF64625),
    (pa.string(), "äöü €", 0x55E6958150CBDE76),
    (pa.binary(), b"\x00", 0x4D3B331E2DCDD720),
    (pa.binary(), b"\x00\x00", 0x7DA30F85C6530687),
    (pa.float64(), 0.0, 0x0000000000000000),
    (pa.float64(), 1.5, 0xC5A7393B5EF990A5),
    (pa.float64(), float("nan"), 0x77358F12307124AE),
    (pa.bool_(), True, 0x43397D8F89A4131F),
    (pa.bool_(), False, 0x0000000000000000),
    (pa.decimal128(10, 2), Decimal("12.34"), 0x191401962C63B5C5),
    (pa.decimal256(50, 2), Decimal("-12.34"), 0xCBB5AA82C6807C84),
    (pa.date32(), 19000, 0x533FD99D8310FEBA),
    (pa.timestamp("us"), 1700000000000000, 0x60BDD797ED15A028),
    (pa.string(), None, 0xA5B35705F1C3D2E9),
]


def hashed(values: list[object], kind: pa.DataType) -> list[int]:
    return hashes(pa.record_batch({"k": pa.array(values, kind)}), ["k"]).tolist()


@pytest.mark.parametrize(("kind", "value", "expected"), VECTORS, ids=lambda value: str(value)[:40])
def test_the_hash_of_a_value_never_changes(kind: pa.DataType, value: object, expected: int) -> None:
    assert hashed([value], kind) == [expected]


def mixed(word: int) -> int:
    word ^= word >> 32
    word = word * 0xD6E8FEB86659FD93 % 2**64
    word ^= word >> 29
    word = word * 0x9E3779B97F4A7C15 % 2**64
    return word ^ word >> 32


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1))
def test_bytes_hash_as_one_value_at_a_time_would(values: list[bytes]) -> None:
    def one(value: bytes) -> int:
        words = [value[start : start + 8] for start in range(0, len(value), 8)] or [b""]
        numbered = enumerate((int.from_bytes(word, "little") for word in words), 1)
        total = sum(mixed((word + index * 0x9E3779B97F4A7C15) % 2**64) for index, word in numbered)
        return mixed((total + len(value)) % 2**64)

    assert hashed(list(values), pa.binary()) == [one(value) for value in values]


def test_the_hash_of_a_compound_key_never_changes() -> None:
    batch = pa.record_batch({"a": pa.array([1, None]), "b": pa.array(["x", "y"])})
    assert hashes(batch, ["a", "b"]).tolist() == [0xCD592547311665C6, 0x03EA1DF9464F7B5E]
    assert hashes(batch, ["b", "a"]).tolist() != hashes(batch, ["a", "b"]).tolist()


def test_equal_integers_of_any_width_hash_alike() -> None:
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    assert len({tuple(hashed([0, 7, 100], kind)) for kind in kinds}) == 1
    assert hashed([-5], pa.int8()) == hashed([-5], pa.int64())


def test_strings_hash_alike_in_every_encoding() -> None:
    values: list[object] = ["", "a", "abcdefgh", "abcdefghi", "ä" * 40, None, "a"]
    plain = hashed(values, pa.string())
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert hashed(values, kind) == plain
    assert hashed([b"abc"], pa.binary()) == hashed([b"abc"], pa.binary(3)) == hashed(["abc"], pa.string())


def test_a_dictionary_may_hold_nulls_and_be_a_slice() -> None:
    for kind in (pa.large_binary(), pa.string()):
        values = pa.array(["skipped", "a", None, "b"], pa.string()).cast(kind).slice(1)
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int8()), values)
        found = hashes(pa.record_batch({"k": column}), ["k"]).tolist()
        assert found == hashed(["a", None, "b", None], pa.string())


def test_a_slice_hashes_like_the_same_rows_alone() -> None:
    cases: tuple[tuple[list[Any], pa.DataType], ...] = (
        (["abc", None, "defg", "", "abc"], pa.string()),
        ([Decimal("1.10"), None, Decimal("-3.00"), Decimal("0.01"), Decimal("9")], pa.decimal128(10, 2)),
        ([1.5, None, -0.0, float("nan"), 2.0], pa.float64()),
        ([True, None, False, True, True], pa.bool_()),
    )
    for values, kind in cases:
        whole = pa.record_batch({"k": pa.array(values, kind)})
        assert hashes(whole, ["k"])[1:4].tolist() == hashes(whole.slice(1, 3), ["k"]).tolist()
        assert hashes(whole, ["k"])[1:4].tolist() == hashed(values[1:4], kind)


def test_zeros_and_nans_and_nulls_have_one_hash_each() -> None:
    other_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    one, two, three, four = hashed([0.0, -0.0, float("nan"), other_nan], pa.float64())
    assert one == two != three == four
    assert hashed([None], pa.float64()) == hashed([None], pa.string()) == hashed([None], pa.null())
    assert hashed([float("nan")], pa.float32()) == [three]


def test_canonical_floats_have_one_zero_and_one_nan() -> None:
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    column = canonical(pa.array([0.0, -0.0, float("nan"), other_nan, None, 1.5]))
    assert len(column.dictionary_encode().dictionary) == 3
    assert column.to_pylist()[4:] == [None, 1.5]
    assert canonical(pa.array([-0.0], pa.float32())).to_numpy().view(np.uint32).tolist() == [0]


def test_long_strings_that_differ_in_one_byte_hash_differently() -> None:
    base = "x" * 1000
    variants = [base[:index] + "y" + base[index + 1 :] for index in range(1000)] + [base, base + "\0"]
    assert len(set(hashed(list(variants), pa.string()))) == len(variants)


@pytest.mark.parametrize("kind", ["integers", "multiples", "strings"])
def test_groups_are_even(kind: str) -> None:
    numbers = np.arange(128_000)
    values = {
        "integers": pa.array(numbers),
        "multiples": pa.array(numbers * 4096),
        "strings": pa.array([f"user-{number}" for number in numbers]),
    }[kind]
    counts = np.bincount(key_groups(pa.record_batch({"k": values}), ["k"]), minlength=128)
    assert counts.min() > 800 and counts.max() < 1200  # 1000 each, six standard deviations are 190


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.month_day_nano_interval()])
def test_a_key_that_is_no_plain_value_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidUseError, match="column=k"):
        hashed([None, None], kind)


@pytest.mark.parametrize("groups", [1, 7, 128, 1000])
@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 7, 100, 128])
def test_ranges_cover_every_group_once_and_agree_with_the_owners(parallelism: int, groups: int) -> None:
    ranges = [range_of(subtask, parallelism, groups) for subtask in range(parallelism)]
    assert [group for own in ranges for group in own] == list(range(groups))
    owner = owners(parallelism, groups)
    assert all(owner[group] == subtask for subtask, own in enumerate(ranges) for group in own)
    assert owner.tolist() == [group * parallelism // groups for group in range(groups)]


def test_numbers_out_of_range_are_refused() -> None:
    batch = pa.record_batch({"k": [1]})
    for wrong in (
        lambda: key_groups(batch, ["k"], 0),
        lambda: key_groups(batch, ["k"], 65_537),
        lambda: range_of(2, 2),
        lambda: range_of(-1, 2),
        lambda: owners(0),
    ):
        with pytest.raises(InvalidUseError):
            wrong()


keys = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(keys, st.one_of(st.none(), st.text(max_size=20)))), st.integers(1, 12))
def test_partition_is_a_permutation_that_keeps_order(pairs: list[tuple[object, object]], parallelism: int) -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([a for a, _ in pairs], pa.int64()),
            "b": pa.array([b for _, b in pairs], pa.string()),
            "row": pa.array(range(len(pairs)), pa.int64()),
        }
    )
    parts = partition(batch, ["a", "b"], parallelism)
    assert len(parts) == parallelism
    found = [part.column("row").to_pylist() if part is not None else [] for part in parts]
    assert all(numbers == sorted(numbers) for numbers in found)
    assert sorted(number for numbers in found for number in numbers) == list(range(len(pairs)))
    for subtask, part in enumerate(parts):
        if part is not None:
            assert part.num_rows
            assert set(key_groups(part, ["a", "b"]).tolist()) <= set(range_of(subtask, parallelism))
            assert part.equals(rows(batch, np.array(found[subtask], dtype=np.intp)))


@pytest.mark.parametrize("count", [2, 9])
def test_rows_of_one_target_are_not_copied(count: int) -> None:
    batch = pa.record_batch({"k": [1, 2, 3]})
    parts = split(batch, np.full(3, 1, np.uint16), count)
    assert parts[1] is batch and parts[0] is None


def test_no_key_column_means_one_group() -> None:
    assert len(set(key_groups(pa.record_batch({"k": [1, 2, 3]}), []).tolist())) == 1


def test_dates_and_times_hash_by_their_number() -> None:
    when = datetime(2024, 5, 6, 7, 8, 9)
    assert hashed([when], pa.timestamp("us")) == hashed([pa.scalar(when).cast(pa.int64()).as_py()], pa.int64())
    assert hashed([date(1970, 1, 3)], pa.date32()) == hashed([2], pa.int64())
