"""Record framing of the write-ahead log: lengths, checksums, order, torn tails (F-STREAM-013)."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.session import wal
from tidegate.core.session.changelog import Change, OpType, replay
from tidegate.core.session.wal import (
    HEADER_BYTES,
    WalEncoder,
    WalEnd,
    WalReader,
    WalRecord,
    WalStop,
    encode_record,
    replay_after,
)
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import U64_LIMIT


def log_of(*payloads: bytes, last_lsn: int = 0) -> bytes:
    encoder = WalEncoder(zlib.crc32, last_lsn=last_lsn)
    return b"".join(encoder.append(payload) for payload in payloads)


def read(data: bytes) -> tuple[list[bytes], WalStop]:
    reader = WalReader(data, zlib.crc32)
    return [record.payload for record in reader], reader.stop


def test_the_bytes_of_a_record_are_fixed() -> None:
    data = encode_record(5, b"abc", lambda covered: len(covered))
    assert data == bytes.fromhex("03000000 0f000000 0500000000000000 616263")


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_records_come_back_in_order(payloads: list[bytes]) -> None:
    data = log_of(*payloads)
    reader = WalReader(data, zlib.crc32)
    records = list(reader)
    assert [record.payload for record in records] == payloads
    assert [record.lsn for record in records] == list(range(1, len(payloads) + 1))
    assert reader.stop == WalStop(len(data), WalEnd.CLEAN, len(payloads), 0)
    assert not reader.stop.torn
    assert list(reader) == [], "a log is read once"


def test_a_record_knows_where_it_begins() -> None:
    records = list(WalReader(log_of(b"ab", b"c"), zlib.crc32))
    assert records == [WalRecord(1, b"ab", 0), WalRecord(2, b"c", HEADER_BYTES + 2)]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_a_log_cut_anywhere_yields_its_complete_records_and_says_where_it_stopped(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = log_of(*payloads)
    cut = data.draw(st.integers(0, len(whole)))
    found, stop = read(whole[:cut])
    assert found == payloads[: len(found)]
    assert stop.offset == len(log_of(*found))
    assert (stop.last_lsn, stop.rest_bytes) == (len(found), cut - stop.offset)
    assert stop.torn == (stop.offset != cut)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_one_flipped_bit_is_found_wherever_it_is(payloads: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(log_of(*payloads))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    found, stop = read(bytes(whole))
    assert found == payloads[: len(found)]
    assert stop.torn
    assert stop.offset <= position


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_without_an_error(data: bytes) -> None:
    found, stop = read(data)
    assert stop.offset + stop.rest_bytes == len(data)
    assert stop.torn == bool(stop.rest_bytes)
    assert not found or stop.offset >= HEADER_BYTES


def header(length: int, checksum: int, lsn: int) -> bytes:
    return struct.pack("<IIQ", length, checksum, lsn)


GOOD = log_of(b"good")
NEXT = encode_record(2, b"next", zlib.crc32)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", WalEnd.CLEAN),
        (b"\0", WalEnd.SHORT_HEADER),
        (NEXT[: HEADER_BYTES - 1], WalEnd.SHORT_HEADER),
        (NEXT[:-1], WalEnd.SHORT_PAYLOAD),
        (header((1 << 32) - 1, 0, 2), WalEnd.TOO_LONG),
        (NEXT[:-1] + b"X", WalEnd.CHECKSUM),
        (bytes(64), WalEnd.CHECKSUM),
        (encode_record(3, b"gap", zlib.crc32), WalEnd.OUT_OF_ORDER),
        (encode_record(1, b"again", zlib.crc32), WalEnd.OUT_OF_ORDER),
    ],
)
def test_every_kind_of_tail_has_its_reason(tail: bytes, reason: WalEnd) -> None:
    found, stop = read(GOOD + tail)
    assert found == [b"good"]
    assert stop == WalStop(len(GOOD), reason, 1, len(tail))


def test_a_record_with_the_number_0_is_none() -> None:
    covered = struct.pack("<IQ", 0, 0)
    _, stop = read(header(0, zlib.crc32(covered), 0))
    assert stop.reason is WalEnd.OUT_OF_ORDER


def test_a_log_may_begin_at_any_number() -> None:
    found, stop = read(log_of(b"x", b"y", last_lsn=41))
    assert found == [b"x", b"y"]
    assert stop.last_lsn == 43


def test_the_end_is_not_known_before_it_is_reached() -> None:
    reader = WalReader(log_of(b"a", b"b"), zlib.crc32)
    next(iter(reader))
    with pytest.raises(InvalidUseError):
        _ = reader.stop


@pytest.mark.parametrize("lsn", [0, -1, U64_LIMIT])
def test_a_number_that_no_record_has_is_refused(lsn: int) -> None:
    with pytest.raises(InvalidUseError, match=f"lsn={lsn}"):
        encode_record(lsn, b"", zlib.crc32)


@pytest.mark.parametrize("lsn", [-1, U64_LIMIT])
def test_a_log_cannot_go_on_from_a_position_that_is_none(lsn: int) -> None:
    with pytest.raises(InvalidUseError):
        WalEncoder(zlib.crc32, last_lsn=lsn)


def test_too_long_a_payload_is_refused_and_uses_up_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "PAYLOAD_MAX_BYTES", 4)
    encoder = WalEncoder(zlib.crc32)
    with pytest.raises(InvalidUseError, match="length=5"):
        encoder.append(b"12345")
    assert encoder.last_lsn == 0
    assert read(encoder.append(b"1234"))[0] == [b"1234"]
    assert encoder.last_lsn == 1


# -- replay ------------------------------------------------------------------------------------------


def test_replay_starts_after_the_checkpoint() -> None:
    records, stop = replay_after(2, log_of(b"a", b"b", b"c", b"d"), zlib.crc32)
    assert [(record.lsn, record.payload) for record in records] == [(3, b"c"), (4, b"d")]
    assert stop.last_lsn == 4


def test_replay_of_a_log_that_was_cut_off_at_the_checkpoint() -> None:
    records, _ = replay_after(7, log_of(b"h", b"i", last_lsn=7), zlib.crc32)
    assert [record.lsn for record in records] == [8, 9]


def test_replay_stops_at_the_torn_tail() -> None:
    records, stop = replay_after(0, log_of(b"a", b"b")[:-1], zlib.crc32)
    assert [record.payload for record in records] == [b"a"]
    assert stop.reason is WalEnd.SHORT_PAYLOAD


def test_a_log_that_ends_before_the_checkpoint_has_nothing_to_add() -> None:
    """An asynchronous log may be older than the checkpoint when the machine dies; the checkpoint holds it all."""
    records, stop = replay_after(9, log_of(b"a", b"b")[:-1], zlib.crc32)
    assert records == []
    assert stop.last_lsn == 1
    assert replay_after(9, b"", zlib.crc32)[0] == []


def test_a_log_that_begins_too_late_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="after_lsn=3 first_lsn=5") as caught:
        replay_after(3, log_of(b"e", last_lsn=4), zlib.crc32, path="wal/5")
    assert caught.value.path == "wal/5"


def test_deletes_replay_as_deletes_from_the_log() -> None:
    script = [Change(0, 1, OpType.INSERT, b"k", b"v"), Change(0, 2, OpType.DELETE, b"k")]
    data = log_of(*(change.pack() for change in script))
    table = {b"k": b"from the checkpoint"}
    records, _ = replay_after(1, data, zlib.crc32)
    replay((Change.unpack(record.payload) for record in records), lambda _: table)
    assert table == {}
