"""Every operator's name: the one the user gave, else one derived from what the operator computes.

A derived name is the kind and a hash of the operator and everything above it. So it does not depend on other
branches or on the order of sinks, and it changes when the meaning of the state may have changed. Paths count
by their last part only: data may move to another directory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import count
from types import CodeType
from typing import Any

from tidegate.errors import InvalidUseError
from tidegate.plan.connector import Json
from tidegate.plan.logical import (
    Aggregate,
    Filter,
    Join,
    LogicalPlan,
    MapBatches,
    Named,
    Node,
    Process,
    Project,
    Read,
    RunningAggregate,
    Write,
    rewrite,
    topological,
    with_inputs,
)
from tidegate.plan.physical import Window

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


def check_name(what: str, name: object) -> str:
    """A name that is safe as a part of a path; raises otherwise."""
    if not isinstance(name, str) or not _ALLOWED.fullmatch(name):
        raise InvalidUseError(
            f"the name of {what} is made of up to 100 letters, digits, '_', '-' and '.', "
            f"and starts with a letter or digit name={name!r}"
        )
    return name


def name_operators(plan: LogicalPlan) -> LogicalPlan:
    """Take out the ``Named`` nodes and give every other node its name, each one once."""
    given: dict[Node, str] = {}

    def without_named(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not isinstance(node, Named):
            return with_inputs(node, inputs)
        if given.setdefault(inputs[0], node.label) != node.label:
            raise InvalidUseError(
                f"one operator has two names, keep one names={given[inputs[0]]}, {node.label}"
            )
        return inputs[0]

    bare = rewrite(plan, without_named)
    names = _unique(bare, given)
    return rewrite(bare, lambda node, inputs: replace(with_inputs(node, inputs), name=names[node]))


def _unique(plan: LogicalPlan, given: dict[Node, str]) -> dict[Node, str]:
    """Given names, which must be unique; derived ones with a counter where two operators are alike."""
    taken = Counter(given.values())
    for name, times in taken.items():
        if times > 1:
            raise InvalidUseError(f"two operators have the same name, give each its own name={name}")
    digests: dict[Node, str] = {}
    names: dict[Node, str] = {}
    for node in topological(plan):
        digests[node] = _digest(node, given.get(node), [digests[child] for child in node.inputs])
        names[node] = given.get(node) or _free(f"{_label(node)}-{digests[node][:6]}", taken)
        taken[names[node]] += 1
    return names


def _free(name: str, taken: Counter[str]) -> str:
    if not taken[name]:
        return name
    return next(each for each in (f"{name}-{number}" for number in count(2)) if not taken[each])


def _label(node: Node) -> str:
    match node:
        case Read():
            return _joined("read", node.identity or last_part(node.source))
        case Write():
            return _joined(node.label, last_part(node.sink))
        case _:
            return node.kind


def _joined(kind: str, part: str) -> str:
    safe = _UNSAFE.sub("_", part).strip("_")[:40]
    return f"{kind}-{safe}" if safe else kind


def last_part(connector: object) -> str:
    """What tells two connectors of a kind apart: the last part of a path, or a name, or nothing."""
    path = getattr(connector, "path", None) or getattr(connector, "name", None)
    return (
        str(path).rstrip("/").rpartition("/")[2]
        if isinstance(path, str) or hasattr(path, "__fspath__")
        else ""
    )


def _digest(node: Node, given: str | None, inputs: list[str]) -> str:
    """A hash of what a node computes; below a name that a user gave, changes above it no longer count."""
    text = json.dumps(["named", given] if given else [node.kind, _meaning(node), inputs])
    return hashlib.sha256(text.encode()).hexdigest()


def _meaning(node: Node) -> Json:
    """What an operator does, as far as it can be told."""
    match node:
        case Read():
            return [type(node.source).__name__, node.identity or last_part(node.source), node.event_time]
        case Write():
            return [type(node.sink).__name__, last_part(node.sink), node.identity]
        case Filter():
            return str(node.expression)
        case Project():
            return [[each.name, str(each.expression)] for each in node.columns if not each.is_same]
        case MapBatches():
            return function_text(node.function)
        case Aggregate():
            columns: list[Json] = [[each.name, each.function, each.column] for each in node.aggregates]
            return [list(node.keys), _window(node.window), columns]
        case RunningAggregate():
            results: list[Json] = [[each.name, each.function, each.column] for each in node.aggregates]
            return [list(node.keys), results]
        case Process():
            return [list(node.keys), function_text(node.function)]
        case Join():
            return [list(node.keys), _window(node.window)]
        case _:
            return None


def _window(window: Window) -> Json:
    return [window.kind, window.size, window.slide]


def function_text(function: Any) -> str:
    """Tells functions apart by name and code, and by plain values that they close over."""
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
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
