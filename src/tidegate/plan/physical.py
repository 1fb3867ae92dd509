"""The physical plan: what the nodes of a gang run. Data only; the planner makes it, ``explain`` shows it, the runtime builds it.

A stage is a chain of operators that hand batches to each other by plain calls. Between stages are edges; every node hosts one
subtask of every stage. A *forward* edge connects subtask i with subtask i on the same node. A *hash* edge connects every
subtask with every other, by key group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from tidegate.plan.operator import OperatorSpec

KEY_GROUPS = 128


@dataclass(frozen=True, slots=True)
class Edge:
    """From one stage to a port of another. ``aligned_only`` is the reason why barriers never overtake here, if so."""

    id: int
    source: str
    target: str
    port: int
    kind: Literal["forward", "hash"]
    schema: pa.Schema
    keys: tuple[str, ...] = ()
    aligned_only: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A chain of operators with the edges that come in and go out. It is named after the first operator that is keyed, a source
    or a sink, or else after its first."""

    name: str
    operators: tuple[OperatorSpec, ...]
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[Edge, ...] = ()


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Stages in topological order, sources first.

    ``notes`` are for people: ``sinks`` (names in the user's order) and ``sources`` (what was pushed into each).
    """

    job: str
    stages: tuple[Stage, ...]
    key_groups: int = KEY_GROUPS
    notes: dict[str, Any] = field(default_factory=dict)
    parallelism: int = 1

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge once, in the order of its target stage and port."""
        return tuple(edge for stage in self.stages for edge in stage.inputs)

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        """Every operator once, in the order of stages."""
        return tuple(spec for stage in self.stages for spec in stage.operators)

    def stage(self, name: str) -> Stage:
        """The stage with this name."""
        return next(stage for stage in self.stages if stage.name == name)
