"""What an operator's stored state is made of, so that a checkpoint that does not fit a pipeline is refused.

The description is JSON and goes into the manifest. It says nothing of parallelism: state is cut anew by key
group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tidegate.plan.physical import PhysicalPlan
from tidegate.values import Json

_ADVICE = "name operators with .named() to keep their state across changes, or start afresh with restore='none'"


def describe_state(plan: PhysicalPlan) -> dict[str, Json]:
    """Every operator that leaves something in a checkpoint, by name, with what that is made of."""
    shapes = {spec.name: spec.state_shape(plan.key_groups) for spec in plan.operators}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def fingerprint(plan: PhysicalPlan) -> str:
    """A short hash of the description; equal for plans that can take over each other's state."""
    text = json.dumps(describe_state(plan), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def state_difference(old: Mapping[str, Json], new: Mapping[str, Json]) -> str | None:
    """Why state as in ``old`` does not fit a plan as in ``new``: one sentence, or ``None`` when it fits."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            return _lacking(name, old, new)
        if name not in old:
            continue
        changed = _changed(old[name], new[name])
        if changed:
            return f"the state of operator {name!r} does not fit: {changed}; {_ADVICE}"
    added = sorted(new.keys() - old.keys())
    if added:
        return f"the checkpoint has no state of {_kind(new[added[0]])} {added[0]!r}, which is new; {_ADVICE}"
    return None


def _lacking(name: str, old: Mapping[str, Json], new: Mapping[str, Json]) -> str:
    kind = _kind(old[name])
    instead = sorted(each for each in new.keys() - old.keys() if _kind(new[each]) == kind)
    hint = f" but has {instead[0]!r} instead, so something above it changed" if instead else ""
    return f"the checkpoint has state of {kind} {name!r}, which the pipeline lacks{hint}; {_ADVICE}"


def _kind(shape: Json) -> str:
    return str(shape.get("kind", "operator")) if isinstance(shape, dict) else "operator"


def _changed(old: Json, new: Json) -> str | None:
    """The first field that differs, with both values."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None if old == new else f"it was {_text(old)} and is now {_text(new)}"
    for field in sorted(old.keys() | new.keys()):
        if old.get(field) != new.get(field):
            return f"{field} was {_text(old.get(field))} and is now {_text(new.get(field))}"
    return None


def _text(value: Json) -> str:
    return json.dumps(value)
