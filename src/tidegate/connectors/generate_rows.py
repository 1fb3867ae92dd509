"""The rows of the generator: row n is a pure function of the recipe and n.

Integers and correctly rounded float operations only, so every machine makes the same rows. Values are multiples
of a quarter: sums of them are exact in any order.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Skew: TypeAlias = Literal["uniform", "zipf"]
RowNumbers: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64()), ("kind", pa.int8())])
KINDS = 4

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what the rows are."""

    keys: int
    seed: int
    skew: Skew
    event_rate: int
    start: int
    disorder_ms: int

    @property
    def fingerprint(self) -> str:
        """Changes with the recipe, so that a checkpoint of other rows is not taken for ours."""
        return f"{zlib.crc32(repr(self).encode()):08x}"


def make_rows(recipe: Recipe, numbers: RowNumbers, zipf: npt.NDArray[np.float64] | None = None) -> pa.RecordBatch:
    """The rows with these numbers. ``zipf`` is the table of ``recipe.keys``, where keys are skewed."""
    words = _mixed(numbers.view(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_seeded(recipe.seed)))
    more = _mixed(words ^ np.uint64(_GOLDEN))
    columns = [
        pa.array(event_time(recipe, numbers) + _disorder(recipe, more)),
        pa.array(_uniform_keys(recipe, words) if zipf is None else _zipf_keys(zipf, words)),
        pa.array((more & np.uint64(0xFFFF)).astype(np.float64) * 0.25),
        pa.array(((more >> np.uint64(16)) & np.uint64(KINDS - 1)).astype(np.int8)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def event_time(recipe: Recipe, numbers: RowNumbers) -> RowNumbers:
    """When these rows are due in event time, before any disorder: none of them has an earlier time."""
    # Whole seconds and the rest apart: the product would leave 64 bits for long streams.
    seconds, rest = np.divmod(numbers, recipe.event_rate)
    times: RowNumbers = recipe.start + seconds * 1000 + rest * 1000 // recipe.event_rate
    return times


def _disorder(recipe: Recipe, words: _Words) -> RowNumbers:
    """Only ever later than the row's turn in time, and at most by the disorder: so no row is late."""
    span = recipe.disorder_ms + 1
    late: RowNumbers = ((words >> np.uint64(18)) % np.uint64(span)).astype(np.int64)
    return late


def _uniform_keys(recipe: Recipe, words: _Words) -> RowNumbers:
    keys: RowNumbers = (words % np.uint64(recipe.keys)).astype(np.int64)
    return keys


def _zipf_keys(table: npt.NDArray[np.float64], words: _Words) -> RowNumbers:
    point = (words >> np.uint64(11)).astype(np.float64) * (2.0**-53 * table[-1])
    found = np.searchsorted(table, point, side="right")
    keys: RowNumbers = np.minimum(found, len(table) - 1).astype(np.int64)
    return keys


def zipf_table(keys: int) -> npt.NDArray[np.float64]:
    """Running sums of 1/k: key k - 1 is drawn with a weight of 1/k."""
    table: npt.NDArray[np.float64] = np.cumsum(1.0 / np.arange(1, keys + 1, dtype=np.float64))
    return table


def _mixed(words: _Words) -> _Words:
    """A bijection of 64-bit words whose output looks random (the finisher of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _seeded(seed: int) -> int:
    """Where a seed's rows start in the space of words."""
    return int(_mixed(np.array([(seed + 1) & _MASK], dtype=np.uint64))[0])
