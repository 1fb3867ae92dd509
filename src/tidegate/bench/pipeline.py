"""The suite `pipeline`: every workload on every engine in turn, then checkpoints on against off, in complete runs and within one.

Engines take turns within one process, so that a busy neighbour hits all of them alike. Every figure is reported
as lowest, middle and highest. A run is timed from the call that starts the work to its end, on a session
that is up and warm.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.bench import duckdb_side, structured_streaming, tidegate_side
from tidegate.bench.compare import Comparison, compare
from tidegate.bench.data import ensure, first_files
from tidegate.bench.switching import STRETCH_S, WARM_UP_S
from tidegate.bench.workloads import WINDOW_MS, RunPaths, RunResult, Workload, spread, workloads
from tidegate.errors import InvalidUseError, JobFailedError
from tidegate.spark.session import Session

INTERVAL = "1s"
WARM_UP_ROWS = 2_000_000
CALIBRATIONS_MAX = 3
NODE_ROWS_PER_SECOND_MAX = 40_000_000
"""No node is as fast: this many rows last long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How much to measure."""

    rows: int = 20_000_000
    rounds: int = 3
    pairs: int = 5
    seconds: float = 60.0
    switches: int = 16
    streaming_rows: int | None = None
    """For Structured Streaming: 0 leaves it out, ``None`` is the same rows as for everybody."""
    parallelism: int = 2
    workloads: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps a run has: the warm-up, every round, the calibration, every pair, and the switching."""
        chosen = workloads(self.rows, self.workloads)
        return 1 + len(chosen) * self.rounds + (1 + self.pairs if self.pairs else 0) + bool(self.switches)

    def __post_init__(self) -> None:
        for name, least in (
            ("rows", 1),
            ("rounds", 0),
            ("pairs", 0),
            ("switches", 0),
            ("streaming_rows", 0),
            ("parallelism", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidUseError(f"--{name.replace('_', '-')} is at least {least} {name}={value}")
        if self.seconds < 0:
            raise InvalidUseError(f"--seconds is at least 0 seconds={self.seconds}")
        workloads(self.rows, self.workloads)


@dataclass(frozen=True, slots=True)
class PipelineBench:
    """Where to work, and whom to tell what is going on: ``step`` once per step, ``tell`` in between."""

    spark: Session
    settings: PipelineSettings
    data: Path
    work: Path
    step: Callable[[str], None]
    tell: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Measure everything; returns one document. Blocks for minutes."""
        self._warm_up()
        chosen = workloads(self.settings.rows, self.settings.workloads)
        results = [self._workload(workload) for workload in chosen] if self.settings.rounds else []
        return {
            "workloads": results,
            "checkpointing": self._on_against_off() if self.settings.pairs else None,
            "checkpointing_within_one_job": self._within_one_job() if self.settings.switches else None,
        }

    # -- every workload on every engine --------------------------------------------------------------------

    def _workload(self, workload: Workload) -> dict[str, Any]:
        folders = self._folders(workload)
        runs: dict[str, list[RunResult]] = {"tidegate": [], "duckdb": [], "structured_streaming": []}
        comparisons = []
        for number in range(1, self.settings.rounds + 1):
            self.step(f"{workload.name}: round {number} of {self.settings.rounds}")
            with fresh_folder(self.work) as scratch:
                comparisons.append(self._round(workload, folders, scratch, runs))
        return _result(workload, {name: kept for name, kept in runs.items() if kept}, comparisons)

    def _round(
        self, workload: Workload, folders: tuple[Path, ...], scratch: Path, runs: dict[str, list[RunResult]]
    ) -> Comparison:
        threads = self.settings.parallelism
        ours = RunPaths(folders, scratch / "tidegate", scratch / "store")
        runs["tidegate"].append(self._tidegate(workload, ours, INTERVAL))
        theirs = RunPaths(folders, scratch / "duckdb", scratch / "none")
        runs["duckdb"].append(duckdb_side.run(workload.shape, theirs, workload.rows, threads))
        if self.settings.streaming_rows != 0:
            runs["structured_streaming"].append(self._streaming(workload, folders, scratch))
        return compare(workload.shape, ours.output, theirs.output, threads)

    def _tidegate(self, workload: Workload, paths: RunPaths, interval: str | None) -> RunResult:
        asked = tidegate_side.pipeline(workload.shape, paths, workload.name)
        return tidegate_side.run(self.spark, asked, paths, workload.rows, self.settings.parallelism, interval)

    def _streaming(self, workload: Workload, folders: tuple[Path, ...], scratch: Path) -> RunResult:
        """It takes minutes for all rows; whoever has less time passes it the first files only."""
        asked = workload.rows if self.settings.streaming_rows is None else self.settings.streaming_rows
        share = -(-asked // len(folders))
        chosen = [first_files(folder, share) for folder in folders]
        inputs = tuple(
            structured_streaming.link_files(files, scratch / f"input-{number}") for number, (files, _) in enumerate(chosen)
        )
        paths = RunPaths(inputs, scratch / "streaming", scratch / "streaming-checkpoint")
        rows = sum(found for _, found in chosen)
        return structured_streaming.run(self.spark, workload.shape, paths, rows, self.settings.parallelism)

    # -- checkpoints on against off ------------------------------------------------------------------------

    def _on_against_off(self) -> dict[str, Any]:
        workload = workloads(self.settings.rows)[0]
        folder = self._folders(workload)
        times = self._calibrate(workload, folder)
        pairs = []
        for number in range(1, self.settings.pairs + 1):
            self.step(f"checkpoints on against off: pair {number} of {self.settings.pairs}")
            # Whoever goes second meets a warmer machine: take turns.
            order = (INTERVAL, None) if number % 2 else (None, INTERVAL)
            runs = {interval: self._steady(workload, folder, times, interval) for interval in order}
            pairs.append((runs[INTERVAL], runs[None]))
        return _overhead(workload, times, pairs, self.settings.seconds)

    def _calibrate(self, workload: Workload, folder: tuple[Path, ...]) -> int:
        """How often to read the files so that a run lasts long enough."""
        times = 1
        self.step("checkpoints on against off: finding the right number of rows")
        for _ in range(CALIBRATIONS_MAX):
            self.tell(f"checkpoints on against off: how long do {times * workload.rows:,} rows take?")
            seconds = self._steady(workload, folder, times, None).seconds
            if seconds >= self.settings.seconds:
                return times
            # The start of a job takes a while too, so a short run promises less speed than a long one has.
            times = max(times + 1, int(times * self.settings.seconds / seconds * 1.1) + 1)
        return times

    def _steady(self, workload: Workload, folder: tuple[Path, ...], times: int, interval: str | None) -> RunResult:
        with fresh_folder(self.work) as scratch:
            paths = RunPaths(folder, scratch / "output", scratch / "store")
            asked = tidegate_side.steady(paths, "steady", times, _span_ms(workload))
            rows = workload.rows * times
            measured = tidegate_side.run(self.spark, asked, paths, rows, self.settings.parallelism, interval)
            _check_complete(paths, times)
            return measured

    def _within_one_job(self) -> dict[str, Any]:
        workload = workloads(self.settings.rows)[0]
        folder = self._folders(workload)
        self.step(f"checkpoints on and off within one job, {self.settings.switches} times")
        seconds = WARM_UP_S + 2 * STRETCH_S * (self.settings.switches + 1)
        times = math.ceil(seconds * NODE_ROWS_PER_SECOND_MAX * self.settings.parallelism / workload.rows)
        with fresh_folder(self.work) as scratch:
            paths = RunPaths(folder, scratch / "output", scratch / "store")
            asked = tidegate_side.steady(paths, "switching", times, _span_ms(workload))
            measured = tidegate_side.switched(self.spark, asked, paths, self.settings.parallelism, self.settings.switches)
        return {"workload": workload.name, "interval": INTERVAL, **measured}

    # -- around it -----------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Class loading, compilation and imports belong to nobody's figures."""
        self.step("warming up")
        chosen = self.settings.workloads if self.settings.rounds else ("w1_zipf",)
        for workload in workloads(min(WARM_UP_ROWS, self.settings.rows), chosen):
            folders = self._folders(workload)
            with fresh_folder(self.work) as scratch:
                self._tidegate(workload, RunPaths(folders, scratch / "tidegate", scratch / "store"), INTERVAL)
                paths = RunPaths(folders, scratch / "duckdb", scratch / "none")
                duckdb_side.run(workload.shape, paths, workload.rows, self.settings.parallelism)
                if self.settings.streaming_rows != 0:
                    self._streaming(workload, folders, scratch)

    def _folders(self, workload: Workload) -> tuple[Path, ...]:
        def tell(rows: int) -> None:
            self.tell(f"{workload.name}: making data, {rows:,} rows")

        return tuple(ensure(spec, self.data, tell) for spec in workload.inputs)


@contextmanager
def fresh_folder(work: Path) -> Iterator[Path]:
    """A directory that no run had before, gone afterwards.

    Not the same one anew: a state store of Structured Streaming may still write there after its query has ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _span_ms(workload: Workload) -> int:
    """A multiple of the window, and longer than the rows last: every reading of the files has windows of its own."""
    spec = workload.inputs[0]
    lasts_ms = spec.rows * 1_000 // spec.rows_per_second + spec.disorder_ms
    return (lasts_ms // WINDOW_MS + 1) * WINDOW_MS


def _check_complete(paths: RunPaths, times: int) -> None:
    """A run that left out rows is fast and worth nothing."""
    asked = tidegate_side.rows_asked(paths.inputs[0]) * times
    counted = tidegate_side.rows_counted(paths.output)
    if counted != asked:
        raise JobFailedError(f"the run's counts add up to {counted:,} rows, not to the {asked:,} of its input")


def _result(workload: Workload, runs: dict[str, list[RunResult]], comparisons: list[Comparison]) -> dict[str, Any]:
    engines = {name: engine_result(kept) for name, kept in runs.items()}
    ours = engines["tidegate"]["rows_per_second"]["median"]
    return {
        "name": workload.name,
        "title": workload.title,
        "rows": workload.rows,
        "engines": engines,
        "equal": all(comparison.equal for comparison in comparisons),
        "comparison": str(next((c for c in comparisons if not c.equal), comparisons[0])),
        "times_faster_than": {
            name: ours / engine["rows_per_second"]["median"] for name, engine in engines.items() if name != "tidegate"
        },
    }


def engine_result(runs: list[RunResult]) -> dict[str, Any]:
    """All runs of one engine at one workload."""
    return {
        "rows": runs[0].rows,
        "rows_out": runs[-1].rows_out,
        "rows_per_second": spread([run.rows_per_second for run in runs]),
        "seconds": spread([run.seconds for run in runs]),
        "checkpoints": [run.checkpoints for run in runs],
        "restarts": [run.restarts for run in runs],
    }


def _overhead(workload: Workload, times: int, pairs: list[tuple[RunResult, RunResult]], seconds: float) -> dict[str, Any]:
    """What checkpoints cost: one minus the speed with them over the speed without, pair by pair."""
    costs = [1.0 - on.rows_per_second / off.rows_per_second for on, off in pairs]
    return {
        "workload": workload.name,
        "interval": INTERVAL,
        "rows": workload.rows * times,
        "readings_of_the_files": times,
        "seconds_asked": seconds,
        "on": engine_result([on for on, _ in pairs]),
        "off": engine_result([off for _, off in pairs]),
        "cost_per_pair": costs,
        "cost": spread(costs),
    }
