"""Encodings are decoded to the same values, however they are nested and sliced."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.state.plain import as_plain, is_plain, plain

WORDS = pa.array(["a", "b", None, "a", "c"])
INDICES = pa.array([0, 1, None, 0, 2])


def _listed(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 5], pa.int32()), values)


ENCODED = {
    "dictionary": WORDS.dictionary_encode(),
    "dictionary of a dictionary": pa.DictionaryArray.from_arrays(INDICES, pa.array(["a", "b", "c"]).dictionary_encode()),
    "dictionary of views": pa.DictionaryArray.from_arrays(INDICES, pa.array(["a", "b", "c"], pa.string_view())),
    "dictionary of structs": pa.DictionaryArray.from_arrays(INDICES, pa.array([{"x": 1}, None, {"x": 3}])),
    "string view": pa.array(WORDS.to_pylist(), pa.string_view()),
    "binary view": pa.array([b"a", None, b"long enough to have no room in the view itself"], pa.binary_view()),
    "list view": pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64())),
    "large list view of views": pa.array([["a"], None, [], ["b", None]], pa.large_list_view(pa.string_view())),
    "list of list views": pa.array([[[1], None], None, [], [[2, 3]]], pa.list_(pa.list_view(pa.int64()))),
    "list of dictionaries": _listed(WORDS.dictionary_encode()),
    "fixed-size list of views": pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string_view(), 2)),
    "map of views": pa.array([[("a", "b")], None, [], [("c", None)]], pa.map_(pa.string_view(), pa.string_view())),
    "struct of a dictionary": pa.StructArray.from_arrays(
        [WORDS.dictionary_encode()], ["d"], mask=pa.array([False, True, False, False, False])
    ),
    "runs": pc.run_end_encode(pa.array([1, 1, None, 2, 2])),
    "struct of runs": pa.StructArray.from_arrays([pc.run_end_encode(WORDS)], ["r"]),
}


@pytest.mark.parametrize("name", sorted(ENCODED))
def test_the_values_stay_whatever_the_slice(name: str) -> None:
    array = ENCODED[name]
    assert not is_plain(array.type)
    for start in range(len(array)):
        for length in range(len(array) - start + 1):
            decoded = as_plain(array.slice(start, length))
            decoded.validate(full=True)
            assert decoded.type == plain(array.type)
            assert is_plain(decoded.type)
            assert decoded.to_pylist() == array.to_pylist()[start : start + length]


def test_an_encoding_below_a_union_or_an_extension_type_is_found() -> None:
    words = WORDS.dictionary_encode()
    union = pa.UnionArray.from_sparse(pa.array([0] * 5, pa.int8()), [words])
    assert not is_plain(union.type)
    assert not is_plain(pa.opaque(words.type, "x", "y"))
    assert is_plain(pa.uuid())
