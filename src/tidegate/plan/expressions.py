"""What a pyarrow expression needs and returns, found by trying it on an empty table.

pyarrow shows no tree of an expression, so the questions are asked by probing: does it bind to this schema, to
which type, and which column may not be missing. Everything here runs while the pipeline is being written,
never per batch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from tidegate.errors import InvalidUseError
from tidegate.state.plain import is_plain, plain

_MISSING = re.compile(r"No match for FieldRef\.(?:Name\((.*?)\)|Nested\(FieldRef\.Name\((.*?)\).*\)) in ")
_BY_POSITION = re.compile(r"\bFieldPath\(\d")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALL = re.compile(r"\b(\w+)\(")
_RANDOM = re.compile(r"\brandom\(\{")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One computed column: its name, the expression, the type it has and the columns it reads."""

    name: str
    expression: pc.Expression
    type: pa.DataType
    uses: frozenset[str]

    @property
    def is_same(self) -> bool:
        """True when this passes on the input's column of the same name."""
        return self.is_field(self.name)

    def is_field(self, name: str) -> bool:
        """True when the expression is nothing but this input column."""
        return bool(self.expression.equals(pc.field(name)))


def column(where: str, name: str, expression: pc.Expression, schema: pa.Schema) -> Column:
    """The checked column; raises ``InvalidUseError`` naming what does not fit."""
    found = output_type(where, expression, schema)
    if not is_plain(found):
        expression, found = _decoded(where, expression, found), plain(found)
    return Column(name, expression, found, columns_used(expression, schema))


def passed_on(field: pa.Field) -> Column:
    """The column that passes on this field."""
    return Column(field.name, pc.field(field.name), field.type, frozenset((field.name,)))


def output_type(where: str, expression: pc.Expression, schema: pa.Schema) -> pa.DataType:
    """The type of the expression's values over this schema. ``where`` starts the error's sentence."""
    _check_replayable(where, expression)
    try:
        found = _bind(expression, schema.empty_table())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidUseError(f"{where}: {_reason(error, schema)} expression={expression}") from None
    _check_row_by_row(where, expression, schema)
    return found


def predicate(where: str, expression: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """Check that the expression is true or false per row; the columns it reads."""
    found = output_type(where, expression, schema)
    if not pa.types.is_boolean(found):
        raise InvalidUseError(f"{where}: the condition must be true or false, not {found} expression={expression}")
    return columns_used(expression, schema)


def columns_used(expression: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    """The columns without which the expression no longer binds. It must bind to the complete schema."""
    table = schema.empty_table()
    return frozenset(name for name in schema.names if not _binds(expression, table.drop_columns([name])))


def need_column(where: str, name: object, schema: pa.Schema) -> pa.Field:
    """The field of this name; raises ``InvalidUseError`` that says what there is."""
    if not isinstance(name, str):
        raise InvalidUseError(f"{where}: a column is named by a string, not {type(name).__name__} column={name!r}")
    if name not in schema.names:
        raise InvalidUseError(f"{where}: {no_column(name, schema.names)}")
    return schema.field(name)


def no_column(name: str, names: Iterable[str]) -> str:
    """The words for a column that is not there."""
    there = list(names)
    close = difflib.get_close_matches(name, there, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"there is no column {name!r}{hint} columns={', '.join(there)}"


def _check_replayable(where: str, expression: pc.Expression) -> None:
    """Refuse what would not have the same value on another node, or when rows are read again after a failure."""
    called = _TEXT.sub("", str(expression))
    if _BY_POSITION.search(called):
        raise InvalidUseError(f"{where}: name columns, do not number them expression={expression}")
    if _RANDOM.search(called):
        raise InvalidUseError(
            f"{where}: random numbers would be others when rows are read again after a failure, compute them from a column "
            f"expression={expression}"
        )
    known = set(pc.list_functions())
    own = [name for name in _CALL.findall(called) if name in known and not hasattr(pc, name)]
    if own:
        raise InvalidUseError(
            f"{where}: a function that was registered with Arrow exists in this process only, call it in map_batches() "
            f"function={own[0]}"
        )


def _decoded(where: str, expression: pc.Expression, found: pa.DataType) -> pc.Expression:
    """The expression, its values decoded. Arrow's cast can't do that for everything, and makes invalid lists of list views."""
    if not _casts(found):
        raise InvalidUseError(
            f"{where}: the result has an encoding that can't be decoded here, cast to {plain(found)} instead type={found} "
            f"expression={expression}"
        )
    return expression.cast(plain(found))


def _casts(kind: pa.DataType) -> bool:
    if pa.types.is_run_end_encoded(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return False
    if pa.types.is_dictionary(kind):
        return bool(plain(kind.value_type) == kind.value_type and not pa.types.is_nested(kind.value_type))
    return is_plain(plain(kind)) and all(_casts(kind.field(index).type) for index in range(kind.num_fields))


def _bind(expression: pc.Expression, table: pa.Table) -> pa.DataType:
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]))
    return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False).schema.field(0).type


def _binds(expression: pc.Expression, table: pa.Table) -> bool:
    try:
        _bind(expression, table)
    except pa.ArrowException:
        return False
    return True


def _check_row_by_row(where: str, expression: pc.Expression, schema: pa.Schema) -> None:
    """Refuse functions over all rows of a column: they bind, and fail only on the first row."""
    try:
        _bind(expression, pa.table([pa.nulls(1, field.type) for field in schema], schema=_nullable(schema)))
    except pa.ArrowException as error:
        # Any other failure is this one row's (a null the expression can't take), not the expression's.
        if "non-scalar" in str(error):
            raise InvalidUseError(
                f"{where}: only functions of single rows work here, use aggregate() expression={expression}"
            ) from None


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _reason(error: Exception, schema: pa.Schema) -> str:
    missing = _MISSING.search(str(error))
    if missing:
        return no_column(missing[1] or missing[2], schema.names)
    first = str(error).partition("\n")[0].strip()
    types = ", ".join(f"{field.name} {field.type}" for field in schema)
    return f"{first[:1].lower()}{first[1:]} columns={types}"
