"""What distinguishes two functions, or two connectors of a kind, in derived names."""

from __future__ import annotations

import os
import re
from types import CodeType
from typing import Any

from tidegate.plan.capabilities import name_of, path_of

_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


def labelled(kind: str, part: str) -> str:
    """A kind and what distinguishes one of it, as the beginning of a name."""
    safe = _UNSAFE.sub("_", part).strip("_")[:40]
    return f"{kind}-{safe}" if safe else kind


def last_part(connector: object) -> str:
    """What distinguishes two connectors of a kind: the last part of a path, or a name, or nothing."""
    path = path_of(connector) or name_of(connector)
    return str(path).rstrip("/").rpartition("/")[2] if isinstance(path, str | os.PathLike) else ""


def function_name(function: object) -> str:
    """What people call a function."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def function_text(function: Any) -> str:
    """Distinguishes functions by name and code, and by plain values that they close over."""
    name = function_name(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    cells = [_plain(cell) for cell in function.__closure__ or ()]
    return f"{name}:{_code_text(code)}:{cells}"


def _code_text(code: CodeType) -> str:
    return f"{code.co_code.hex()}{code.co_names}{[_constant(each) for each in code.co_consts]}"


def _constant(value: object) -> str:
    match value:
        case CodeType():
            return _code_text(value)
        case frozenset():
            # The order of a set of strings differs from process to process.
            return str(sorted(repr(each) for each in value))
        case _:
            return repr(value)


def _plain(cell: Any) -> str:
    try:
        value = cell.cell_contents
    except ValueError:
        return ""
    return repr(value) if isinstance(value, bool | int | float | str | bytes | None) else type(value).__name__
