"""Every decoder of the core takes damaged bytes of its own kind: a value or ``CorruptDataError`` comes out, nothing else."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from driving import make_ack, make_manifest
from hypothesis import given
from hypothesis import strategies as st
from test_base import BASE
from test_changelog import RECORD
from test_manifest import FULL
from test_snapshot import SAMPLE, file_of
from test_view import commit, restore, takeover

from damage import damaged, with_wrong_parts
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.checkpoint.manifest import CheckpointManifest, InFlightEntry
from tidegate.core.checkpoint.prepare import PrepareAck
from tidegate.core.control.signals import BarrierControlSignalKind
from tidegate.core.control.signals import unpack as unpack_signal
from tidegate.core.log.codec import encode, seal
from tidegate.core.log.view import LogEntry, decode_entry, encode_entry
from tidegate.core.session.changelog import RECORD_BYTES, Change, ChangeRecord, OpType
from tidegate.core.session.snapshot import Checkpoint
from tidegate.core.session.wal import WalEncoder, WalReader
from tidegate.errors import CorruptDataError

Decoder = Callable[[bytes], object]


def packed(record: ChangeRecord) -> bytes:
    buffer = bytearray(RECORD_BYTES)
    record.pack_into(buffer, 0)
    return bytes(buffer)


def read_log(data: bytes) -> list[bytes]:
    return [record.payload for record in WalReader(data, zlib.crc32)]


MANIFEST = make_manifest(3, **FULL)
FLIGHT = InFlightEntry("read", 0, "out", 1, 1, "job/x", 0, 5, 7, 2, 5)
ACK = make_ack(0, 5, inflight=(FLIGHT,))
SIGNAL = BarrierControlSignalKind.SyncTest.with_id(7)

# Without a checksum of its own: what carries these has one, so a damaged value may come out, but nothing impossible.
BARE: dict[str, tuple[bytes, Decoder]] = {
    "barrier": (CheckpointBarrier(5, 3).pack(), CheckpointBarrier.unpack),
    "control signal": (SIGNAL.pack(), unpack_signal),
    "change record": (packed(RECORD), ChangeRecord.unpack_from),
    "change": (Change(1, 2, OpType.UPDATE, b"key", b"value").pack(), Change.unpack),
    "manifest": (MANIFEST.to_json(), lambda data: CheckpointManifest.from_json(data, "p")),
    "prepare ack": (ACK.to_json(), PrepareAck.from_json),
}
ENTRIES: list[LogEntry] = [takeover(1), restore(1, None), commit(1)]


@pytest.mark.parametrize("kind", BARE)
@given(data=st.data())
def test_damaged_bytes_give_a_value_or_our_error(kind: str, data: st.DataObject) -> None:
    whole, decode = BARE[kind]
    try:
        decode(data.draw(damaged(whole)))
    except CorruptDataError:
        return


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
@given(data=st.data())
def test_a_damaged_log_entry_is_what_it_was_or_corrupt(entry: LogEntry, data: st.DataObject) -> None:
    try:
        found = decode_entry(data.draw(damaged(encode_entry(entry))), "p", 1)
    except CorruptDataError:
        return
    assert found == entry


@pytest.mark.parametrize("entry", ENTRIES[1:], ids=lambda entry: entry.kind)
def test_one_flipped_bit_anywhere_in_a_restore_or_commit_is_noticed(entry: LogEntry) -> None:
    whole = encode_entry(entry)
    for index in range(len(whole)):
        for bit in range(8):
            flipped = whole[:index] + bytes((whole[index] ^ 1 << bit,)) + whole[index + 1 :]
            with pytest.raises(CorruptDataError):
                decode_entry(flipped, "p", 1)


@given(damaged(SAMPLE.to_json()))
def test_a_damaged_checkpoint_file_is_what_it_was_or_corrupt(data: bytes) -> None:
    try:
        found = Checkpoint.from_json(data)
    except CorruptDataError:
        return
    assert found == SAMPLE


@given(damaged(encode_entry(BASE)))
def test_a_damaged_base_is_what_it_was_or_corrupt(data: bytes) -> None:
    try:
        found = decode_entry(data, "p", BASE.slot)
    except CorruptDataError:
        return
    assert found == BASE


PAYLOADS = [b"one", b"", b"three"]
ENCODER = WalEncoder(zlib.crc32)
WAL = b"".join(ENCODER.append(payload) for payload in PAYLOADS)


@given(damaged(WAL))
def test_a_damaged_log_of_changes_yields_its_first_records_and_no_others(data: bytes) -> None:
    found = read_log(data)
    assert found == PAYLOADS[: len(found)]


# -- right JSON, right checksum, wrong parts -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["manifest", "prepare ack"])
@given(data=st.data())
def test_records_with_wrong_parts_give_a_value_or_our_error(kind: str, data: st.DataObject) -> None:
    whole, decode = BARE[kind]
    wrong = data.draw(with_wrong_parts(json.loads(whole)))
    try:
        decode(json.dumps(wrong).encode())
    except CorruptDataError:
        return


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
@given(data=st.data())
def test_log_entries_with_wrong_parts_give_an_entry_or_our_error(entry: LogEntry, data: st.DataObject) -> None:
    plain: dict[str, Any] = json.loads(encode_entry(entry))
    wrong = data.draw(with_wrong_parts({key: value for key, value in plain.items() if key != "sha256"}))
    body = json.dumps(wrong, separators=(",", ":")).encode()
    try:
        decode_entry(json.dumps({**wrong, "sha256": sha256(body).hexdigest()}).encode(), "p", 1)
    except CorruptDataError:
        return


@given(with_wrong_parts(json.loads(encode(BASE))))
def test_bases_with_wrong_parts_give_a_base_or_our_error(wrong: dict[str, Any]) -> None:
    try:
        decode_entry(seal(json.dumps(wrong, separators=(",", ":")).encode()), "p", BASE.slot)
    except CorruptDataError:
        return


@given(with_wrong_parts(json.loads(SAMPLE.to_json())["checkpoint"]))
def test_checkpoint_files_with_wrong_parts_give_a_checkpoint_or_our_error(body: dict[str, Any]) -> None:
    try:
        Checkpoint.from_json(file_of(body))
    except CorruptDataError:
        return
