"""Which key group a row belongs to, and which subtask owns it.

The hash is part of the stored format: state, recordings and channels of every version must agree on it, so
the fixed vectors of its test may never change. It looks at values only, not at how they are laid out:
integers of any width, strings in any encoding, NaNs of any bits and both zeros hash alike. Everything is per
column and per batch; nothing runs per row in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError

GROUPS_MAX = 1 << 16
U64: TypeAlias = npt.NDArray[np.uint64]
Indices: TypeAlias = npt.NDArray[np.intp]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_NULL = np.uint64(0xA5B35705F1C3D2E9)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_32, _29, _8, _1 = np.uint64(32), np.uint64(29), np.uint64(8), np.uint64(1)
# Few targets: one take per target is quicker (measured). Many: one sort, then slices.
_TAKE_TARGETS_MAX = 4


# -- groups and subtasks -------------------------------------------------------------------------------------


def key_groups(batch: pa.RecordBatch, keys: Sequence[str], groups: int = 128) -> npt.NDArray[np.uint16]:
    """The key group of every row."""
    check_groups(groups)
    return groups_of(hashes(batch, keys), groups)


def groups_of(hashed: U64, groups: int) -> npt.NDArray[np.uint16]:
    """The key groups of keys with these hashes."""
    if groups & (groups - 1) == 0:
        return (hashed & np.uint64(groups - 1)).astype(np.uint16)
    return (hashed % np.uint64(groups)).astype(np.uint16)


def range_of(subtask: int, parallelism: int, groups: int = 128) -> range:
    """The key groups that a subtask owns.

    Empty when there are more subtasks than groups and this one has none.
    """
    check_groups(groups)
    if not 0 <= subtask < parallelism:
        raise InvalidUseError(f"no such subtask subtask={subtask} parallelism={parallelism}")
    return range(-(-subtask * groups // parallelism), -(-(subtask + 1) * groups // parallelism))


def owners(parallelism: int, groups: int = 128) -> npt.NDArray[np.uint16]:
    """The subtask that owns each key group."""
    check_groups(groups)
    if not 0 < parallelism <= GROUPS_MAX:
        raise InvalidUseError(f"parallelism is 1 to {GROUPS_MAX} parallelism={parallelism}")
    return (np.arange(groups, dtype=np.int64) * parallelism // groups).astype(np.uint16)


def partition(batch: pa.RecordBatch, keys: Sequence[str], parallelism: int, groups: int = 128) -> list[pa.RecordBatch | None]:
    """The batch's rows by owning subtask, in their order; ``None`` for a subtask that gets none."""
    if parallelism == 1:
        return [batch if batch.num_rows else None]
    return split(batch, owners(parallelism, groups)[key_groups(batch, keys, groups)], parallelism)


def split(batch: pa.RecordBatch, targets: npt.NDArray[np.uint16], count: int) -> list[pa.RecordBatch | None]:
    """The batch's rows by target, in their order; ``None`` where there are none."""
    sizes = np.bincount(targets, minlength=count).tolist()
    if batch.num_rows in sizes:
        return [batch if size and size == batch.num_rows else None for size in sizes]
    if count <= _TAKE_TARGETS_MAX:
        return [rows(batch, np.flatnonzero(targets == target)) if size else None for target, size in enumerate(sizes)]
    ordered = rows(batch, np.argsort(targets, kind="stable"))
    ends = np.cumsum(sizes).tolist()
    return [ordered.slice(end - size, size) if size else None for end, size in zip(ends, sizes, strict=True)]


def rows(batch: pa.RecordBatch, indices: Indices) -> pa.RecordBatch:
    """These rows of the batch, copied."""
    return batch.take(pa.array(indices))


def check_groups(groups: int) -> None:
    """Refuse a number of key groups that does not fit its 16 bits."""
    if not 0 < groups <= GROUPS_MAX:
        raise InvalidUseError(f"key groups are 1 to {GROUPS_MAX} key_groups={groups}")


# -- the hash ------------------------------------------------------------------------------------------------


def hashes(batch: pa.RecordBatch, keys: Sequence[str]) -> U64:
    """A 64-bit hash of every row's key. The order of the key columns matters."""
    combined: U64 | None = None
    for name in keys:
        hashed = _hash_column(batch.column(name), name)
        combined = hashed if combined is None else _mix(combined * _ODD + hashed)
    return np.full(batch.num_rows, _NULL) if combined is None else combined


def canonical(column: pa.Array) -> pa.Array:
    """Floats with one NaN and one zero, so that grouping and joining agree with the hash.

    Other types as they are.
    """
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(value, pa.float64()).cast(column.type) for value in (0.0, np.nan))
    positive = pc.if_else(pc.equal(column, zero), zero, column)
    return pc.if_else(pc.is_nan(positive), nan, positive)


def _mix(words: U64) -> U64:
    mixed: U64 = words ^ (words >> _32)
    mixed *= _ODD
    mixed ^= mixed >> _29
    mixed *= _GOLDEN
    mixed ^= mixed >> _32
    return mixed


def _hash_column(column: pa.Array, name: str) -> U64:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL)
    hashed = _hash_values(column, name)
    if column.null_count:
        hashed = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, hashed)
    return hashed


def _hash_values(column: pa.Array, name: str) -> U64:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _spread(_hash_column(column.dictionary, name), column.indices)
    if pa.types.is_floating(kind):
        return _mix(_float_words(column))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _mix(_integer_words(column, name))
    if pa.types.is_decimal(kind):
        return _hash_decimal(column)
    if _is_bytes(kind):
        encoded = column.cast(pa.large_binary()).dictionary_encode()
        return _spread(_hash_bytes(encoded.dictionary), encoded.indices)
    raise InvalidUseError(f"a key must be a plain value, not {kind}: use another column column={name}")


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _integer_words(column: pa.Array, name: str) -> U64:
    kind = column.type
    if pa.types.is_interval(kind):
        raise InvalidUseError(f"a key must be a plain value, not {kind}: use another column column={name}")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    values: npt.NDArray[np.int64] = column.to_numpy()
    return values.view(np.uint64) if values.itemsize == 8 else values.astype(np.int64).view(np.uint64)


def _float_words(column: pa.Array) -> U64:
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # adding zero makes -0.0 positive
    values[np.isnan(values)] = np.nan
    return np.asarray(values).view(np.uint64)


def _spread(distinct: U64, indices: pa.Array) -> U64:
    """The hash of every row, of the hashes of the distinct values."""
    if not len(distinct):
        return np.full(len(indices), _NULL)
    filled = indices.fill_null(0) if indices.null_count else indices
    return np.asarray(distinct[filled.to_numpy()])


def _hash_decimal(column: pa.Array) -> U64:
    if column.type.bit_width < 128:
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    per_row = column.type.bit_width // 64
    words = np.frombuffer(column.buffers()[1], "<u8", len(column) * per_row, column.offset * per_row * 8)
    salt = np.arange(1, per_row + 1, dtype=np.uint64) * _GOLDEN
    return _mix(_mix(words.reshape(-1, per_row) + salt).sum(axis=1, dtype=np.uint64))


def _hash_bytes(values: pa.LargeBinaryArray) -> U64:
    """Every value is cut into 8-byte words; the sum of the words, each mixed with its index, is mixed with
    the length."""
    if not len(values):
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(values.buffers()[1], "<i8", len(values) + 1, values.offset * 8)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    words_each = np.maximum((lengths + 7) >> 3, 1)
    ends = np.cumsum(words_each)
    index = np.arange(ends[-1]) - np.repeat(ends - words_each, words_each)
    words = _padded_words(values, offsets)[np.repeat(starts, words_each) + index * 8]
    left = np.minimum(np.repeat(lengths, words_each) - index * 8, 8).astype(np.uint64)
    inside = np.where(left == _8, _ALL_BITS, (_1 << (left * _8 % np.uint64(64))) - _1)
    mixed = _mix((words & inside) + (index.astype(np.uint64) + _1) * _GOLDEN)
    return _mix(np.add.reduceat(mixed, ends - words_each) + lengths.astype(np.uint64))


def _padded_words(values: pa.LargeBinaryArray, offsets: npt.NDArray[np.int64]) -> U64:
    """The 8 bytes that begin at each byte, as one overlapping view of a copy with 8 zero bytes after it."""
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(values.buffers()[2], np.uint8, last - first, first)
    return np.ndarray((last - first + 1,), "<u8", data, strides=(1,))
