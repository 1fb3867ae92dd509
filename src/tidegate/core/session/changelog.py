"""What changed since the last cut, in memory that was set aside beforehand.

The buffer never blocks and never grows. When it is full the source of the refused change is *dirty*: its
log has a gap, so nothing more of it is recorded and the next checkpoint must be a full one. One thread owns
the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import U32_LIMIT, U64_LIMIT

Table: TypeAlias = MutableMapping[bytes, bytes]

U16_LIMIT = 1 << 16
CHANGES_MAX = 65_536
DATA_BYTES_MAX = 16 << 20

_RECORD = struct.Struct("<HQBIHII")
RECORD_BYTES = _RECORD.size
_CHANGE = struct.Struct("<HQBHI")


class OpType(Enum):
    """What happened to a key."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


def _check(name: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        bits = limit.bit_length() - 1
        raise InvalidUseError(f"{name} has {bits} bits: it is refused, never cut off {name}={value}")


def _check_change(source: int, sequence: int, op_type: OpType, key_len: int, value_len: int) -> None:
    _check("source", source, U16_LIMIT)
    _check("sequence", sequence, U64_LIMIT)
    _check("key_len", key_len, U16_LIMIT)
    _check("value_len", value_len, U32_LIMIT)
    if op_type is OpType.DELETE and value_len:
        raise InvalidUseError(f"a delete has no value source={source} sequence={sequence}")


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change as the buffer keeps it: 25 bytes that point into the buffer's shared key and value bytes."""

    source: int
    sequence: int
    op_type: OpType
    key_offset: int
    key_len: int
    value_offset: int
    value_len: int

    def __post_init__(self) -> None:
        _check("source", self.source, U16_LIMIT)
        _check("sequence", self.sequence, U64_LIMIT)
        _check("key_offset", self.key_offset, U32_LIMIT)
        _check("key_len", self.key_len, U16_LIMIT)
        _check("value_offset", self.value_offset, U32_LIMIT)
        _check("value_len", self.value_len, U32_LIMIT)

    def pack_into(self, buffer: bytearray, offset: int) -> None:
        """Write this record's 25 bytes."""
        _RECORD.pack_into(
            buffer, offset, self.source, self.sequence, self.op_type.value,
            self.key_offset, self.key_len, self.value_offset, self.value_len,
        )  # fmt: skip

    @classmethod
    def unpack_from(cls, buffer: bytes | bytearray, offset: int = 0) -> ChangeRecord:
        """The record at this offset; too few bytes or an unknown operation are corrupt."""
        if not 0 <= offset <= len(buffer) - RECORD_BYTES:
            raise CorruptDataError(f"no complete change record here offset={offset} length={len(buffer)}")
        source, sequence, op_code, *rest = _RECORD.unpack_from(buffer, offset)
        return cls(source, sequence, _op_type(op_code), *rest)


@dataclass(frozen=True, slots=True)
class Change:
    """One change with its bytes. A delete has no value."""

    source: int
    sequence: int
    op_type: OpType
    key: bytes
    value: bytes = b""

    def __post_init__(self) -> None:
        _check_change(self.source, self.sequence, self.op_type, len(self.key), len(self.value))

    def pack(self) -> bytes:
        """The bytes of this change, for a record of the write-ahead log."""
        lengths = (len(self.key), len(self.value))
        return _CHANGE.pack(self.source, self.sequence, self.op_type.value, *lengths) + self.key + self.value

    @classmethod
    def unpack(cls, data: bytes) -> Change:
        """The change in exactly these bytes; anything else is corrupt."""
        if len(data) < _CHANGE.size:
            raise CorruptDataError(f"a change is cut off length={len(data)}")
        source, sequence, op_code, key_len, value_len = _CHANGE.unpack_from(data)
        if len(data) != _CHANGE.size + key_len + value_len:
            raise CorruptDataError(f"a change's lengths do not add up length={len(data)} key_len={key_len} value_len={value_len}")
        key_end = _CHANGE.size + key_len
        try:
            return cls(source, sequence, _op_type(op_code), data[_CHANGE.size : key_end], data[key_end:])
        except InvalidUseError as error:
            raise CorruptDataError(f"a change that no buffer makes: {error}") from error


def _op_type(code: int) -> OpType:
    try:
        return OpType(code)
    except ValueError as error:
        raise CorruptDataError(f"no such change operation op_type={code}") from error


def replay(changes: Iterable[Change], table_of: Callable[[int], Table]) -> dict[int, int]:
    """Apply changes in order to the table of their source; returns the last sequence of each source.

    A delete takes the key away. Applying the same changes again changes nothing.
    """
    last: dict[int, int] = {}
    for change in changes:
        table = table_of(change.source)
        if change.op_type is OpType.DELETE:
            table.pop(change.key, None)
        else:
            table[change.key] = change.value
        last[change.source] = change.sequence
    return last


@dataclass(frozen=True, slots=True)
class ChangelogCut:
    """What changed up to a cut. With ``dirty`` sources the changes have gaps: the checkpoint must be a full
    one.
    """

    changes: tuple[Change, ...]
    dirty: frozenset[int]

    @property
    def full(self) -> bool:
        """True when the changes alone do not lead to the state at the cut."""
        return bool(self.dirty)


class ChangelogBuffer:
    """A bounded log of changes. Its memory is taken once; appending copies bytes into it and never waits."""

    def __init__(self, *, changes_max: int = CHANGES_MAX, data_bytes_max: int = DATA_BYTES_MAX) -> None:
        if changes_max < 1 or not 0 <= data_bytes_max < U32_LIMIT:
            raise InvalidUseError(f"a changelog buffer needs room changes_max={changes_max} data_bytes_max={data_bytes_max}")
        self._changes_max = changes_max
        self._records = bytearray(changes_max * RECORD_BYTES)
        self._data = bytearray(data_bytes_max)
        self._count = 0
        self._data_end = 0
        self._last: dict[int, int] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def dirty(self) -> frozenset[int]:
        """The sources with a gap."""
        return frozenset(self._dirty)

    @property
    def needs_full(self) -> bool:
        """True when the next checkpoint must be a full one."""
        return bool(self._dirty)

    def append(self, source: int, sequence: int, op_type: OpType, key: bytes, value: bytes = b"") -> bool:
        """Record a change. False: no room, and the source is dirty from here on. A refused one changes
        nothing.
        """
        _check_change(source, sequence, op_type, len(key), len(value))
        last = self._last.get(source, -1)
        if sequence <= last:
            raise InvalidUseError(f"a source's sequence only grows source={source} sequence={sequence} last={last}")
        self._last[source] = sequence
        if source in self._dirty:
            return False
        if self._count == self._changes_max or len(key) + len(value) > len(self._data) - self._data_end:
            self._dirty.add(source)
            return False
        self._store(source, sequence, op_type, key, value)
        return True

    def drain(self) -> list[Change]:
        """Take out everything recorded, oldest first. Marks of dirty sources stay."""
        changes = [self._load(index) for index in range(self._count)]
        self._count = 0
        self._data_end = 0
        return changes

    def cut(self) -> ChangelogCut:
        """A checkpoint's cut is now: takes everything out, and all sources are clean again.

        If that checkpoint does not complete, pass its ``dirty`` sources to ``mark_dirty`` again, and those
        of its ``changes`` too unless they are in the write-ahead log.
        """
        cut = ChangelogCut(tuple(self.drain()), frozenset(self._dirty))
        self._dirty.clear()
        return cut

    def mark_dirty(self, sources: Iterable[int]) -> None:
        """These sources have a gap from here on, until the next cut."""
        marked = set(sources)
        for source in marked:
            _check("source", source, U16_LIMIT)
        self._dirty |= marked

    def _store(self, source: int, sequence: int, op_type: OpType, key: bytes, value: bytes) -> None:
        key_offset = self._data_end
        value_offset = key_offset + len(key)
        end = value_offset + len(value)
        self._data[key_offset:value_offset] = key
        self._data[value_offset:end] = value
        _RECORD.pack_into(
            self._records, self._count * RECORD_BYTES,
            source, sequence, op_type.value, key_offset, len(key), value_offset, len(value),
        )  # fmt: skip
        self._data_end = end
        self._count += 1

    def _load(self, index: int) -> Change:
        record = ChangeRecord.unpack_from(self._records, index * RECORD_BYTES)
        key = bytes(self._data[record.key_offset : record.key_offset + record.key_len])
        value = bytes(self._data[record.value_offset : record.value_offset + record.value_len])
        return Change(record.source, record.sequence, record.op_type, key, value)
