"""Operators know state by its interface: which implementation stands behind it is the backend's alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from specs import context, running_aggregate
from tidegate import operators
from tidegate.errors import InvalidUseError
from tidegate.state.backend import BACKENDS, Memory, backend
from tidegate.state.functions import AggregateColumn
from tidegate.state.ownership import Ownership
from tidegate.state.partial import partial_schema
from tidegate.state.table import KeyedTable

IMPLEMENTATIONS = {
    getattr(each, name).__module__ for each in BACKENDS.values() for name in ("table", "panes", "sessions", "held", "queue")
}


def imported(path: Path) -> set[str]:
    return {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module}


def test_no_operator_imports_an_implementation() -> None:
    folder = Path(str(operators.__file__)).parent
    users = {path.name for path in folder.glob("*.py") if imported(path) & IMPLEMENTATIONS}
    assert len(IMPLEMENTATIONS) == 5 and users == {"stored.py"}, "stored.py reads what implementations have stored"


def test_an_operator_has_its_state_from_the_backend_of_its_context() -> None:
    made: list[tuple[str, ...]] = []

    class Other(Memory):
        @staticmethod
        def table(ownership: Ownership, schema: pa.Schema, keys: Sequence[str]) -> KeyedTable:
            made.append(tuple(keys))
            return KeyedTable(ownership, schema, keys)

    rows = pa.schema([("key", pa.int64()), ("value", pa.int64())])
    aggregates = (AggregateColumn.of("n", "count"), AggregateColumn.of("kinds", "count_distinct", "value"))
    partials = partial_schema(("key",), aggregates, rows, ())
    output = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("kinds", pa.int64())])
    spec = running_aggregate("agg", ("key",), aggregates, partials, output)
    spec.build(replace(context(0, 1), backend=Other()))
    assert made[0] == ("key",) and [keys[0] for keys in made] == ["key", "key"]


def test_a_backend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="no such state backend: use one of memory state='floppy'"):
        backend("floppy")
