"""The rows that benchmarks and the demo read: made once, always the same, kept for the next run.

Row i has event time i / rate, moved later by less than ``disorder_ms``: rows are out of order, never by
more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import InvalidUseError

FORMAT = 1
ZIPF_EXPONENT = 1.0
KINDS = 10
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64()), ("kind", pa.int8())])

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What to make. Equal specs make equal files, on any machine."""

    name: str
    rows: int
    keys: int
    skew: Literal["zipf", "uniform"] = "uniform"
    seed: int = 0
    rows_per_second: int = 100_000
    disorder_ms: int = 1_000
    rows_per_file: int = 1_000_000
    rows_per_group: int = 250_000

    def __post_init__(self) -> None:
        for name in ("rows", "keys", "rows_per_second", "disorder_ms", "rows_per_file", "rows_per_group"):
            if getattr(self, name) < 1:
                raise InvalidUseError(f"benchmark data needs a positive number {name}={getattr(self, name)}")

    @property
    def files(self) -> int:
        """How many files there will be."""
        return -(-self.rows // self.rows_per_file)

    @property
    def folder(self) -> str:
        """A name that no other spec has."""
        text = json.dumps({**asdict(self), "format": FORMAT}, sort_keys=True)
        return f"{self.name}-{self.rows}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def ensure(spec: DataSpec, root: Path, tell: Callable[[int], None] = lambda rows: None) -> Path:
    """The directory with these rows below ``root``; made if it is not there, complete or not at all.

    ``tell`` gets the number of rows written so far. Blocks for about a second per five million rows.
    """
    target = root / spec.folder
    if target.is_dir():
        return target
    making = root / f"_{spec.folder}.{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(parents=True)
        for index in range(spec.files):
            _write_file(spec, index, making)
            tell(min(spec.rows, (index + 1) * spec.rows_per_file))
        making.rename(target)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        if not target.is_dir():  # else somebody made the same rows at the same time
            raise InvalidUseError(f"can't write benchmark data: {error} directory={root}") from error
    return target


def table(spec: DataSpec, index: int) -> pa.Table:
    """The rows of one file. A pure function of its arguments."""
    first = index * spec.rows_per_file
    count = min(spec.rows_per_file, spec.rows - first)
    random = np.random.default_rng([spec.seed, index])
    even = np.arange(first, first + count, dtype=np.int64) * 1_000 // spec.rows_per_second
    columns = [
        even + random.integers(0, spec.disorder_ms, count, dtype=np.int64),
        _keys(spec, random, count),
        random.random(count) * 100.0,
        random.integers(0, KINDS, count, dtype=np.int8),
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def first_files(folder: Path, rows: int) -> tuple[list[Path], int]:
    """The first files of a directory that hold this many rows together, and how many they do hold."""
    chosen: list[Path] = []
    found = 0
    for path in sorted(folder.glob("*.parquet")):
        if found >= rows:
            break
        chosen.append(path)
        found += pq.read_metadata(path).num_rows
    return chosen, found


def _keys(spec: DataSpec, random: np.random.Generator, count: int) -> Ints:
    if spec.skew == "uniform":
        return random.integers(0, spec.keys, count, dtype=np.int64)
    ranks = np.searchsorted(_zipf_steps(spec.keys), random.random(count), side="right")
    return _shuffled(spec.keys, spec.seed)[ranks]


@lru_cache(maxsize=4)
def _zipf_steps(keys: int) -> Floats:
    """The share of the k most frequent keys, for every k but the last: the rest is the last key's."""
    weights = 1.0 / np.arange(1, keys + 1, dtype=np.float64) ** ZIPF_EXPONENT
    shares: Floats = np.cumsum(weights) / weights.sum()
    return shares[:-1]


@lru_cache(maxsize=4)
def _shuffled(keys: int, seed: int) -> Ints:
    """A key's number must not tell how frequent it is."""
    return np.random.default_rng([seed, keys]).permutation(keys).astype(np.int64)


def _write_file(spec: DataSpec, index: int, folder: Path) -> None:
    path = folder / f"part-{index:05d}.parquet"
    pq.write_table(table(spec, index), path, row_group_size=spec.rows_per_group)
    # Spark's file stream reads in order of modification time: it must be the order of event time.
    written = path.stat().st_mtime
    os.utime(path, (written, written + index))
