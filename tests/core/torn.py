"""A small log, and entries whose bytes have changed."""

from __future__ import annotations

from typing import Any

from test_view import commit, takeover

from tidegate.core.log.entries import Damaged, LogEntry, encode_entry, read_entry

LOG: list[Any] = [takeover(0), commit(1), commit(2, 1), commit(3, 2)]


def torn(entry: LogEntry) -> Damaged:
    """The entry with its last byte gone."""
    found = read_entry(encode_entry(entry)[:-1], f"log/{entry.slot}", entry.slot)
    assert isinstance(found, Damaged)
    return found


def unknown(slot: int) -> Damaged:
    """An entry of which nothing is left."""
    found = read_entry(b"", f"log/{slot}", slot)
    assert isinstance(found, Damaged) and found.kind is None
    return found
