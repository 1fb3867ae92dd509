"""Which columns a plan can carry, and which can be keys: asked once for every schema that enters it.

A source, an expression and a user's function bring columns in. After them every column is plain (``tidegate.state.plain``) and
has a name of its own. What a type can do is found by trying it on a row, not by a list of types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.state.plain import is_plain, plain


def carried(where: str, schema: pa.Schema) -> pa.Schema:
    """The schema without encodings; raises for columns that can't be distinguished or decoded."""
    check_names(where, schema.names)
    return pa.schema([field.with_type(_carried_type(where, field)) for field in schema], schema.metadata)


def check_names(where: str, names: Iterable[str]) -> None:
    """Refuse a column without a name, and a name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if not name:
            raise InvalidUseError(f"{where}: every column needs a name, one has none columns={', '.join(map(repr, names))}")
        if name in seen:
            raise InvalidUseError(f"{where}: two columns of the result would be called {name!r}, rename one")
        seen.add(name)


def check_result_names(where: str, names: Iterable[str]) -> None:
    """Refuse results that are called like columns of our own."""
    for name in names:
        if name.startswith("__"):
            raise InvalidUseError(
                f"{where}: names that begin with two underscores are kept for tidegate, choose another result={name!r}"
            )


def check_key_type(where: str, field: pa.Field) -> None:
    """Refuse a key whose values can't be compared and grouped, with what to cast it to."""
    if not _can_be_key(plain(field.type)):
        raise InvalidUseError(f"{where}: column {field.name!r} can't be a key, {_key_hint(field.type)} type={field.type}")


def _carried_type(where: str, field: pa.Field) -> pa.DataType:
    kind = plain(field.type)
    if not is_plain(kind):
        raise InvalidUseError(
            f"{where}: column {field.name!r} has an encoding below a union or an extension type, which can't be decoded: cast it "
            f"before type={field.type}"
        )
    return kind


@cache
def _can_be_key(kind: pa.DataType) -> bool:
    column = pa.nulls(1, kind)
    tries: tuple[Callable[[], object], ...] = (
        lambda: pc.equal(column, column),
        lambda: column.dictionary_encode(null_encoding="encode"),
        lambda: pa.TableGroupBy(pa.table({"k": column}), ["k"], use_threads=False).aggregate([]),
    )
    return all(_works(each) for each in tries)


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (pa.ArrowException, TypeError, AttributeError):
        return False
    return True


def _key_hint(kind: pa.DataType) -> str:
    other = _key_of(kind)
    if other is None:
        return "give a column of plain values: compute one with with_columns()"
    return f"cast it to {other} with with_columns()"


def _key_of(kind: pa.DataType) -> pa.DataType | None:
    """A type that the values can be cast to and that can be a key."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type if _can_be_key(kind.storage_type) else _key_of(kind.storage_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return None
