"""Two small streams on real Parquet files, and shorthands for plans."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate as tg

BIDS = {
    "ts": pa.array([1_000, 2_000, 11_000, 12_000, 25_000], pa.int64()),
    "key": pa.array([1, 2, 1, 1, 2], pa.int64()),
    "value": pa.array([1.0, 2.0, 3.0, None, 5.0], pa.float64()),
    "kind": pa.array([0, 1, 1, 2, 1], pa.int8()),
    "note": pa.array(["a", "b", "c", "d", "e"]),
}
PEOPLE = {
    "ts": pa.array([1_500, 2_500, 11_500, 26_000], pa.int64()),
    "key": pa.array([1, 2, 1, 3], pa.int64()),
    "note": pa.array(["ann", "bob", "cid", "dan"]),
}


@pytest.fixture
def bids(tmp_path: Path) -> tg.Stream:
    (tmp_path / "bids").mkdir()
    pq.write_table(pa.table(BIDS), tmp_path / "bids" / "0.parquet")
    return tg.read_parquet(tmp_path / "bids", event_time="ts")


@pytest.fixture
def people(tmp_path: Path) -> tg.Stream:
    (tmp_path / "people").mkdir()
    pq.write_table(pa.table(PEOPLE), tmp_path / "people" / "0.parquet")
    return tg.read_parquet(tmp_path / "people", event_time="ts")
