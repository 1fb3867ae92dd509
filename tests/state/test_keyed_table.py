"""The key index and the table of keyed state, against a plain dictionary."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import CorruptDataError
from tidegate.state import index, table
from tidegate.state.index import KeyIndex, Mask, Slots
from tidegate.state.keygroups import U64
from tidegate.state.ownership import EVERYTHING, Ownership
from tidegate.state.run import Frozen, Restored, Run
from tidegate.state.table import KeyedTable

SCHEMA = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])


def made(schema: pa.Schema = SCHEMA, keys: tuple[str, ...] = ("a", "b"), owned: Ownership = EVERYTHING) -> KeyedTable:
    return KeyedTable(owned, schema, keys)


def restored(frozen: Frozen, into: KeyedTable | None = None) -> KeyedTable:
    kept = made() if into is None else into
    kept.restore([Restored(0, frozen.meta, frozen.runs)])
    return kept


def batch(rows: dict[tuple[str | None, int | None], int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"a": a, "b": b, "v": v} for (a, b), v in rows.items()], SCHEMA)


def content(kept: KeyedTable, keys: list[tuple[str | None, int | None]]) -> dict[object, object]:
    slots = kept.find(batch(dict.fromkeys(keys, 0)))
    rows = kept.take(slots).to_pylist()
    return {key: row["v"] for key, row, there in zip(keys, rows, kept.present(slots), strict=True) if there}


KEYS = [(a, b) for a in ("x", "y", "", None) for b in (*range(12), None)]


@pytest.fixture(params=["good hashes", "few hashes", "one hash"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table must be right even when different keys have the same hash."""
    real = table.hashes
    masks = {"good hashes": (1 << 64) - 1, "few hashes": 3 << 62, "one hash": 0}
    mask = np.uint64(masks[request.param])

    def poor(rows: pa.RecordBatch, keys: tuple[str, ...]) -> U64:
        return real(rows, keys) & mask

    monkeypatch.setattr(table, "hashes", poor)


@pytest.mark.usefixtures("hashing")
@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_a_dictionary_that_can_be_cut_and_restored(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SMALL_ROWS": 8, "CHUNK_ROWS": 12, "SMALL_CHUNKS_MAX": 2, "GONE_KEYS_MIN": 4}.items():
        monkeypatch.setattr(table, name, value)
    monkeypatch.setattr(table, "FREE_SLOTS_MAX", 3)
    rng = random.Random(seed)
    kept, wanted = made(), {}
    for step in range(150):
        some = rng.sample(KEYS, rng.randrange(1, 12))
        slots = kept.find(batch(dict.fromkeys(some, step)))
        if rng.random() < 0.6:
            kept.put(slots, batch(dict.fromkeys(some, step)))
            wanted |= dict.fromkeys(some, step)
        else:
            kept.drop(slots)
            wanted = {key: value for key, value in wanted.items() if key not in some}
        if rng.random() < 0.3:
            kept.freeze()
        if rng.random() < 0.1:
            kept = restored(kept.freeze())
        assert content(kept, KEYS) == wanted and kept.rows == len(wanted)


def test_what_was_cut_does_not_change_afterwards() -> None:
    kept = made()
    kept.put(kept.find(batch(dict.fromkeys(KEYS, 1))), batch(dict.fromkeys(KEYS, 1)))
    runs = kept.freeze().runs
    before = [run.batch.to_pylist() for run in runs]
    for step in range(50):
        some = dict.fromkeys(KEYS[step % 7 :: 3], step)
        kept.put(kept.find(batch(some)), batch(some))
        kept.drop(kept.find(batch(dict.fromkeys(KEYS[:3], 0))))
    assert [run.batch.to_pylist() for run in runs] == before


def test_a_restore_takes_only_our_rows() -> None:
    kept = made()
    kept.insert(batch(dict.fromkeys(KEYS, 1)))
    ours = Ownership(("a", "b"), range(3), 7)
    half = restored(kept.freeze(), made(owned=ours))
    mine = [key for key, own in zip(KEYS, ours.mask(batch(dict.fromkeys(KEYS, 1))), strict=True) if own]
    assert content(half, KEYS) == dict.fromkeys(mine, 1) and 0 < len(mine) < len(KEYS)
    assert [run.batch.num_rows for run in half.freeze().runs] == [len(mine)]


def test_a_restored_run_that_is_ours_as_a_whole_stays_the_same_run() -> None:
    kept = made()
    kept.insert(batch(dict.fromkeys(KEYS, 1)))
    frozen = kept.freeze()
    assert restored(frozen).freeze() == frozen


def test_runs_of_other_columns_are_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="other columns"):
        restored(Frozen({}, (Run(pa.record_batch({"z": [1]})),)))


def test_null_and_the_number_with_its_hash_are_two_keys() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    kept = made(schema, ("k",))
    # The hash of an integer can be undone, so some integer has the hash of null.
    twin = next_twin()
    rows = pa.RecordBatch.from_pylist([{"k": twin, "v": 1}], schema)
    nulls = pa.RecordBatch.from_pylist([{"k": None, "v": 2}], schema)
    assert table.hashes(rows, ("k",)) == table.hashes(nulls, ("k",))
    kept.put(kept.find(rows), rows)
    kept.put(kept.find(nulls), nulls)
    assert kept.take(kept.find(rows)).to_pylist() == rows.to_pylist() and kept.rows == 2


def next_twin() -> int:
    """The integer whose hash is that of null, found by undoing each step of the mixing."""
    nulls = pa.record_batch({"k": pa.array([None], pa.int64())})
    word = int(table.hashes(nulls, ("k",))[0])
    whole = (1 << 64) - 1
    odd, golden = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15
    word ^= word >> 32
    word = word * pow(golden, -1, 1 << 64) & whole
    word ^= (word >> 29) ^ (word >> 58)
    word = word * pow(odd, -1, 1 << 64) & whole
    word ^= word >> 32
    return word - (1 << 64) if word >> 63 else word


def all_equal(rows: np.ndarray[tuple[int], np.dtype[np.intp]], slots: Slots) -> Mask:
    return np.ones(len(rows), np.bool_)


@pytest.mark.parametrize("spread", [64, 12, 3])
def test_an_index_finds_again_what_it_has_assigned(spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_TAIL", 2)
    rng = np.random.default_rng(spread)
    hashes = np.unique(rng.integers(0, 1 << 63, 5000 if spread == 64 else 300, np.uint64))
    if spread < 64:  # the same first bits, so that probing is long and runs over the end
        hashes |= ~np.uint64((1 << (64 - spread)) - 1)
    rng.shuffle(hashes)
    found = KeyIndex()
    assigned = np.concatenate([found.find(part, all_equal) for part in np.array_split(hashes, 9)])
    assert sorted(assigned.tolist()) == list(range(len(hashes))) and found.count == len(hashes)
    again = found.find(hashes[::-1].copy(), all_equal)
    assert again.tolist() == assigned[::-1].tolist() and found.count == len(hashes)
    kept = found.only(np.sort(assigned[:100]))
    order = np.argsort(assigned[:100])
    part = kept.find(hashes[:100][order], all_equal)
    assert part.tolist() == list(range(100))
