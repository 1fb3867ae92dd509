"""What an operator's stored state is made of, so that a checkpoint that does not fit a pipeline is refused.

The description is JSON and goes into the manifest. It says nothing of parallelism: state is cut anew by key
group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidegate.plan.connector import Json
from tidegate.plan.physical import (
    AggregateSpec,
    JoinSpec,
    OperatorSpec,
    PhysicalPlan,
    ProcessSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
    Window,
)

_ADVICE = (
    "name operators with .named() to keep their state across changes, or start afresh with restore='none'"
)


def describe_state(plan: PhysicalPlan) -> dict[str, Json]:
    """Every operator that leaves something in a checkpoint, by name, with what that is made of."""
    specs = [spec for stage in plan.stages for spec in stage.operators]
    shapes = {spec.name: _shape(spec, plan.key_groups) for spec in specs}
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


def _shape(spec: OperatorSpec, key_groups: int) -> Json:
    match spec:
        case SourceSpec():
            return {"kind": "source", "event_time": spec.source.event_time}
        case AggregateSpec():
            aggregate = _keyed("aggregate", spec, spec.output, key_groups) | {"aggregates": _results(spec)}
            # In-flight data on the way to it are raw rows then, not partials.
            return aggregate | {"late_rows": True} if spec.late else aggregate
        case RunningAggregateSpec():
            running = _per_key("running aggregate", spec.keys, spec.output, key_groups)
            return running | {"aggregates": _results(spec)}
        case ProcessSpec():
            # The input counts too: a batch that was at work is stored as it came.
            columns: dict[str, Json] = {"state": _columns(spec.state), "input": _columns(spec.input)}
            return _per_key("process", spec.keys, spec.state, key_groups) | columns
        case JoinSpec():
            sides: dict[str, Json] = {"left": _columns(spec.left), "right": _columns(spec.right)}
            return _keyed("join", spec, spec.left, key_groups) | sides
        case SinkSpec():
            return {"kind": "sink", "columns": _columns(spec.output)}
        case _:
            return None


def _keyed(kind: str, spec: AggregateSpec | JoinSpec, schema: pa.Schema, key_groups: int) -> dict[str, Json]:
    time = str(spec.output.field("window_end").type)
    window: dict[str, Json] = {"window": _window(spec.window), "time": time}
    return _per_key(kind, spec.keys, schema, key_groups) | window


def _per_key(kind: str, keys: Sequence[str], schema: pa.Schema, key_groups: int) -> dict[str, Json]:
    typed: list[Json] = [f"{key} {schema.field(key).type}" for key in keys]
    return {"kind": kind, "keys": typed, "key_groups": key_groups}


def _window(window: Window) -> dict[str, Json]:
    """Lateness counts: with more of it than before, late rows would open windows that were given already."""
    shape: dict[str, Json] = {"kind": window.kind, "size": window.size, "slide": window.slide}
    return shape | {"allowed_lateness": window.allowed_lateness} if window.allowed_lateness else shape


def _results(spec: AggregateSpec | RunningAggregateSpec) -> list[Json]:
    return [
        f"{each.name}={each.function}({each.column or ''}) {spec.output.field(each.name).type}"
        for each in spec.aggregates
    ]


def _columns(schema: pa.Schema) -> list[Json]:
    return [f"{field.name} {field.type}" for field in schema]
