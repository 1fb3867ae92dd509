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
from tidegate.plan.parameter import Parameter, united

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
class PhysicalBarrier:
    """Where channels come together: barriers and signals of all of them are aligned, then go on once.

    A forward edge is one channel, an exchange is one per subtask.
    """

    forwards: int = 0
    exchanges: int = 0

    def upstream_count(self, parallelism: int) -> int:
        """The channels that come together here."""
        return self.forwards + self.exchanges * parallelism


@dataclass(frozen=True, slots=True)
class Stage:
    """A chain of operators with the edges that come in and go out. It is named after the first operator that is keyed, a source
    or a sink, or else after its first. ``barrier``: what is between it and its inputs."""

    name: str
    operators: tuple[OperatorSpec, ...]
    inputs: tuple[Edge, ...] = ()
    outputs: tuple[Edge, ...] = ()
    barrier: PhysicalBarrier | None = None


@dataclass(frozen=True, slots=True)
class PhysicalResultCollect:
    """The end of the plan: the stages with sinks, in the user's order. A signal is answered when it has passed all of them."""

    sinks: tuple[str, ...] = ()
    barrier: PhysicalBarrier | None = None


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
    result: PhysicalResultCollect = field(default_factory=PhysicalResultCollect)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter that a function of the plan reads, by name."""
        return united(each for spec in self.operators for each in spec.parameters)

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
