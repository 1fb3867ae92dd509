"""Every operator's name: the user's, else one derived from what the operator computes.

A derived name is the kind and a hash of the operator and everything upstream of it. So it does not depend on other
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

from tidegate.errors import InvalidUseError
from tidegate.plan.logical import LogicalPlan, Named, rewrite, topological
from tidegate.plan.operator import OperatorSpec

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    chosen: dict[OperatorSpec, str] = {}

    def without_named(node: OperatorSpec, inputs: tuple[OperatorSpec, ...]) -> OperatorSpec:
        if not isinstance(node, Named):
            return node.with_inputs(inputs)
        if chosen.setdefault(inputs[0], node.alias) != node.alias:
            raise InvalidUseError(f"one operator has two names, keep one names={chosen[inputs[0]]}, {node.alias}")
        return inputs[0]

    bare = rewrite(plan, without_named)
    names = _unique(bare, chosen)
    return rewrite(bare, lambda node, inputs: replace(node.with_inputs(inputs), name=names[node]))


def _unique(plan: LogicalPlan, chosen: dict[OperatorSpec, str]) -> dict[OperatorSpec, str]:
    """Names that users chose, which must be unique; derived ones with a counter where two operators are alike."""
    taken = Counter(chosen.values())
    for name, times in taken.items():
        if times > 1:
            raise InvalidUseError(f"two operators have the same name, give each its own name={name}")
    digests: dict[OperatorSpec, str] = {}
    names: dict[OperatorSpec, str] = {}
    for node in topological(plan):
        digests[node] = _digest(node, chosen.get(node), [digests[child] for child in node.specs])
        names[node] = chosen.get(node) or _free(f"{node.label()}-{digests[node][:6]}", taken)
        taken[names[node]] += 1
    return names


def _free(name: str, taken: Counter[str]) -> str:
    if not taken[name]:
        return name
    return next(each for each in (f"{name}-{number}" for number in count(2)) if not taken[each])


def _digest(node: OperatorSpec, chosen: str | None, inputs: list[str]) -> str:
    """A hash of what a node computes; downstream of a name that a user chose, changes upstream no longer count."""
    text = json.dumps(["named", chosen] if chosen else [node.kind, node.meaning(), inputs])
    return hashlib.sha256(text.encode()).hexdigest()
