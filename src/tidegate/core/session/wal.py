"""The bytes of the write-ahead log: records of ``[length u32][checksum u32][lsn u64][payload]``, little
endian.

A log sequence number (LSN) is the number of a record; it starts at 1 and grows by 1. The checksum covers
everything but itself, so a damaged length is found too. This module decides what is complete; the checksum
function is passed in (CRC32C in real use), and files are others' business.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import U32_LIMIT, U64_LIMIT

Checksum: TypeAlias = Callable[[bytes], int]
"""Returns a 32-bit number."""

PAYLOAD_MAX_BYTES = 64 << 20
"""The largest payload written, and the largest length believed when reading."""

_HEADER = struct.Struct("<IIQ")
HEADER_BYTES = _HEADER.size
_COVERED = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class WalRecord:
    """One record and where it begins."""

    lsn: int
    payload: bytes
    offset: int


class WalEnd(Enum):
    """Why reading stopped."""

    CLEAN = "the log ends after a complete record"
    SHORT_HEADER = "fewer bytes than a header"
    SHORT_PAYLOAD = "fewer bytes than the header says"
    TOO_LONG = "a length that no record has"
    CHECKSUM = "the checksum differs"
    OUT_OF_ORDER = "the number does not follow the record before"


@dataclass(frozen=True, slots=True)
class WalStop:
    """Where and why reading stopped. ``offset`` is the end of the last complete record: cut the file there.

    ``rest_bytes`` is what lies after it. A torn tail after a crash is the ordinary case, and not an error.
    """

    offset: int
    reason: WalEnd
    last_lsn: int
    rest_bytes: int

    @property
    def torn(self) -> bool:
        """True when something lies after the last complete record."""
        return self.reason is not WalEnd.CLEAN


def encode_record(lsn: int, payload: bytes, checksum: Checksum) -> bytes:
    """One record's bytes. Numbers and lengths that do not fit are refused."""
    if not 0 < lsn < U64_LIMIT:
        raise InvalidUseError(f"an lsn is a positive 64-bit number lsn={lsn}")
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise InvalidUseError(f"split this payload length={len(payload)} limit={PAYLOAD_MAX_BYTES}")
    return _HEADER.pack(len(payload), _sum(lsn, payload, checksum), lsn) + payload


class WalEncoder:
    """Numbers the records of one log. ``last_lsn`` is the position that a cut stores."""

    def __init__(self, checksum: Checksum, *, last_lsn: int = 0) -> None:
        if not 0 <= last_lsn < U64_LIMIT:
            raise InvalidUseError(f"an lsn is a 64-bit number last_lsn={last_lsn}")
        self._checksum = checksum
        self._last_lsn = last_lsn

    @property
    def last_lsn(self) -> int:
        """The number of the newest record, 0 before any."""
        return self._last_lsn

    def append(self, payload: bytes) -> bytes:
        """The bytes of the next record. A refused payload uses up no number."""
        data = encode_record(self._last_lsn + 1, payload, self._checksum)
        self._last_lsn += 1
        return data


class WalReader:
    """Yields the complete records of a log in order and stops at the first thing that is not one."""

    def __init__(self, data: bytes, checksum: Checksum) -> None:
        self._data = data
        self._checksum = checksum
        self._offset = 0
        self._last_lsn = 0
        self._stop: WalStop | None = None

    @property
    def stop(self) -> WalStop:
        """Where and why reading stopped; to be asked after the last record."""
        if self._stop is None:
            raise InvalidUseError(f"the log has not been read to its end offset={self._offset}")
        return self._stop

    def __iter__(self) -> Iterator[WalRecord]:
        while (record := self._next()) is not None:
            yield record

    def _next(self) -> WalRecord | None:
        if self._stop is not None:
            return None
        length, expected, lsn = 0, 0, 0
        rest = len(self._data) - self._offset
        if rest >= HEADER_BYTES:
            length, expected, lsn = _HEADER.unpack_from(self._data, self._offset)
        start = self._offset + HEADER_BYTES
        payload = self._data[start : start + min(length, PAYLOAD_MAX_BYTES)]
        reason = self._judge(rest, length, expected, lsn, payload)
        if reason is not None:
            self._stop = WalStop(self._offset, reason, self._last_lsn, rest)
            return None
        record = WalRecord(lsn, payload, self._offset)
        self._offset, self._last_lsn = start + length, lsn
        return record

    def _judge(self, rest: int, length: int, expected: int, lsn: int, payload: bytes) -> WalEnd | None:
        if rest == 0:
            return WalEnd.CLEAN
        if rest < HEADER_BYTES:
            return WalEnd.SHORT_HEADER
        if length > PAYLOAD_MAX_BYTES:
            return WalEnd.TOO_LONG
        if len(payload) < length:
            return WalEnd.SHORT_PAYLOAD
        if _sum(lsn, payload, self._checksum) != expected:
            return WalEnd.CHECKSUM
        if lsn == 0 or (self._last_lsn and lsn != self._last_lsn + 1):
            return WalEnd.OUT_OF_ORDER
        return None


def replay_after(lsn: int, data: bytes, checksum: Checksum, *, path: str = "") -> tuple[list[WalRecord], WalStop]:
    """The records after a checkpoint's position, and where reading stopped.

    A log that begins too late has lost records that the checkpoint lacks: it is corrupt. One that stops
    before the position yields nothing, which is right: the checkpoint holds all that. Write on after the
    higher of the position and ``last_lsn``, after cutting the log at ``offset``, or the next reader finds a
    gap.
    """
    reader = WalReader(data, checksum)
    records = list(reader)
    if records and records[0].lsn > lsn + 1:
        raise CorruptDataError(f"records are missing at the log's start after_lsn={lsn} first_lsn={records[0].lsn}", path=path)
    return [record for record in records if record.lsn > lsn], reader.stop


def _sum(lsn: int, payload: bytes, checksum: Checksum) -> int:
    return checksum(_COVERED.pack(len(payload), lsn) + payload) % U32_LIMIT
