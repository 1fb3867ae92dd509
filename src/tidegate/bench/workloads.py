"""What is measured: one workload, the same question to every engine. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from tidegate.bench.data import DataSpec
from tidegate.errors import InvalidUseError

WINDOW_MS = 10_000
OUT_OF_ORDERNESS_MS = 2_000
KEYS_ZIPF = 100_000
KEYS_UNIFORM = 1_000_000

Shape = Literal["aggregate", "join", "stateless"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A question and the rows to ask it of. A join has two inputs, everything else one."""

    name: str
    title: str
    shape: Shape
    inputs: tuple[DataSpec, ...]

    @property
    def rows(self) -> int:
        """All rows of all inputs."""
        return sum(spec.rows for spec in self.inputs)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one engine: all of it, from the call that starts the work to its end."""

    rows: int
    seconds: float
    rows_out: int
    checkpoints: int = 0
    restarts: int = 0

    @property
    def rows_per_second(self) -> float:
        """What engines are compared by."""
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where one run finds its rows and leaves its results."""

    inputs: tuple[Path, ...]
    output: Path
    scratch: Path


def workloads(rows: int, names: Sequence[str] = ()) -> list[Workload]:
    """The suite at this size; ``names`` picks some of it. A join's sides have a quarter of the rows each."""
    side = max(1, rows // 4)
    found = [
        Workload(
            "w1_zipf",
            "10 s windows per key, Zipf over 100 k keys",
            "aggregate",
            (DataSpec("zipf", rows, KEYS_ZIPF, "zipf", seed=1),),
        ),
        Workload(
            "w1_uniform",
            "10 s windows per key, uniform over 1 M keys",
            "aggregate",
            (DataSpec("uniform", rows, KEYS_UNIFORM, "uniform", seed=2),),
        ),
        Workload(
            "w2_join",
            "join of two streams in 10 s windows",
            "join",
            (
                DataSpec("left", side, KEYS_UNIFORM, "uniform", seed=3),
                DataSpec("right", side, KEYS_UNIFORM, "uniform", seed=4),
            ),
        ),
        Workload(
            "w3_stateless",
            "filter and one new column",
            "stateless",
            (DataSpec("zipf", rows, KEYS_ZIPF, "zipf", seed=1),),
        ),
    ]
    unknown = set(names) - {workload.name for workload in found}
    if unknown:
        known = ", ".join(workload.name for workload in found)
        raise InvalidUseError(f"no such workload: choose from {known} workload={','.join(sorted(unknown))}")
    return [workload for workload in found if not names or workload.name in names]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Lowest, middle and highest: how noisy a figure is, beside what it is."""
    return {"min": min(values), "median": median(values), "max": max(values)}
