"""All splits of a source, in columns: what the driver ships and every node takes its share of.

A hundred thousand objects would take a second to pickle and another on every node; columns take milliseconds, and a node makes
objects only of the splits that it opens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import pyarrow as pa

from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Split

COLUMNS = pa.schema([("id", pa.large_string()), ("lowest", pa.int64()), ("rows", pa.int64())])


@dataclass(frozen=True, slots=True, eq=False)
class SplitList(Sequence[Split]):
    """Splits in reading order. ``digest`` changes whenever the list does."""

    columns: pa.RecordBatch
    digest: str

    @classmethod
    def of(cls, splits: Sequence[Split]) -> SplitList:
        """The list in columns. Refuses numbers that are no 64-bit integers."""
        if isinstance(splits, SplitList):
            return splits
        ids = [split.id for split in splits]
        values = [ids, [split.lowest for split in splits], [split.rows for split in splits]]
        try:
            columns = [pa.array(each, field.type) for each, field in zip(values, COLUMNS, strict=True)]
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise InvalidUseError(f"a split has a name and, where known, whole numbers of 64 bits: {error}") from error
        return cls(pa.RecordBatch.from_arrays(columns, schema=COLUMNS), digest(ids))

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        split_id, lowest, rows = (column[index].as_py() for column in self.columns.columns)
        return Split(split_id, lowest, rows)

    def __iter__(self) -> Iterator[Split]:
        values = zip(*(column.to_pylist() for column in self.columns.columns), strict=True)
        return (Split(*each) for each in values)

    def lowest(self, indices: Sequence[int]) -> list[int | None]:
        """The smallest event times of these."""
        found: list[int | None] = self.columns.column(1).take(pa.array(indices, pa.int64())).to_pylist()
        return found


def digest(ids: Iterable[str]) -> str:
    """Changes whenever the list of splits does."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:32]
