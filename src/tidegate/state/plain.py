"""Plain columns: what Arrow's encodings stand for, and how to get there.

Dictionaries, views and runs say the same values in another layout. Arrow has no kernel that takes rows out of a view, a message
can't carry a dictionary by itself, and keys must be equal whatever their layout: so rows are decoded where they enter a plan,
and nothing downstream knows encodings. ``converted`` changes the leaves of nested columns; Arrow's own cast makes invalid lists
of list views, and truncates times before 1970 upwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without encodings, inside of nested types too."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if pa.types.is_list_view(kind):
        kind = pa.list_(kind.value_field)
    if pa.types.is_large_list_view(kind):
        kind = pa.large_list(kind.value_field)
    return with_leaves(_VIEWS.get(kind, kind), plain)


def with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with its children changed; any other as it is."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if pa.types.is_struct(kind):
        return pa.struct([changed(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(changed(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    return kind


def is_plain(kind: pa.DataType) -> bool:
    """True when there is no encoding anywhere, in unions and below extension types neither."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_plain(kind.storage_type)
    if plain(kind) != kind:
        return False
    return all(is_plain(kind.field(index).type) for index in range(kind.num_fields))


def as_plain(array: pa.Array) -> pa.Array:
    """The same values without encodings."""
    return converted(array, plain(array.type), lambda leaf, kind: leaf.cast(kind))


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without encodings; the same batch where there are none."""
    if all(plain(kind) == kind for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays([as_plain(column) for column in batch.columns], batch.schema.names)


def converted(array: pa.Array, kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """The array as ``kind``, which nests in the same way once encodings are gone; ``leaf`` converts what is not nested."""
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return converted(array.dictionary, kind, leaf).take(array.indices)
    if pa.types.is_run_end_encoded(array.type):
        return converted(array.values, kind, leaf).take(_runs_of(array))
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        return converted(_listed(array), kind, leaf)
    return _nested(array, kind, leaf) if pa.types.is_nested(kind) else leaf(array, kind)


def _runs_of(array: pa.RunEndEncodedArray) -> pa.Array:
    """The run that each row is in."""
    rows = np.arange(array.offset, array.offset + len(array))
    return pa.array(np.searchsorted(array.run_ends.to_numpy(), rows, side="right"))


def _listed(array: pa.Array) -> pa.Array:
    """A list view as a list."""
    large = pa.types.is_large_list_view(array.type)
    sizes = array.sizes.to_numpy().astype(np.int64)
    nulls = array.is_null()
    sizes[nulls.to_numpy(zero_copy_only=False)] = 0
    offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int64() if large else pa.int32())
    kind = (pa.large_list if large else pa.list_)(array.type.value_field)
    made = pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(offsets, array.flatten(), type=kind, mask=nulls)


def _nested(array: pa.Array, kind: pa.DataType, leaf: Leaf) -> pa.Array:
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])  # children and offsets begin with the first row
    nulls = array.is_null()
    if pa.types.is_struct(kind):
        children = [converted(array.field(index), kind.field(index).type, leaf) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_map(kind):
        keys, items = converted(array.keys, kind.key_type, leaf), converted(array.items, kind.item_type, leaf)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=nulls)
    if pa.types.is_fixed_size_list(kind):
        values = converted(array.values.slice(0, len(array) * kind.list_size), kind.value_type, leaf)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    values = converted(array.values, kind.value_type, leaf)
    made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return made.from_arrays(array.offsets, values, type=kind, mask=nulls)
