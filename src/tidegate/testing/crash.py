"""Crash-test your own pipeline: kill nodes of a running job, wait for what must follow, compare with a batch result.

Kills are real (kill -9) and reach only processes that the job itself names, on this machine. Every wait has a limit and raises
``AssertionError`` with what it saw last.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidegate.errors import InvalidUseError

T = TypeVar("T")

WAIT_S = 60.0
LOOK_S = 0.01
TOLERANCE = 1e-9
ENDED = ("FINISHED", "STOPPED", "FAILED")


class Watched(Protocol):
    """What these functions need of a job; a ``Job`` has it."""

    @property
    def status(self) -> str:
        """The job's status."""

    @property
    def error(self) -> Exception | None:
        """Why it failed, if it did."""

    def metrics(self) -> Mapping[str, Any]:
        """The job's metrics."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A node that was killed. ``recovered_s`` is the time until all nodes of a new gang were there."""

    node: int
    pid: int
    gang: int
    recovered_s: float | None


# -- waiting -------------------------------------------------------------------------------------------------------


def wait_until(what: str, look: Callable[[], T | None], timeout_s: float = WAIT_S) -> T:
    """Look until something is there and return it. ``what`` is named when the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(LOOK_S)


def wait_for_status(job: Watched, *statuses: str, timeout_s: float = WAIT_S) -> str:
    """Wait until the job has one of these statuses. Fails at once when it has ended with another."""

    def look() -> str | None:
        status = job.status
        if status not in statuses and status in ENDED:
            raise AssertionError(f"the job is {status}, expected {' or '.join(statuses)}: {job.error}")
        return status if status in statuses else None

    return wait_until(f"status {' or '.join(statuses)}", look, timeout_s)


def wait_for_checkpoints(job: Watched, count: int = 1, timeout_s: float = WAIT_S) -> int:
    """Wait until this run of the job has committed ``count`` checkpoints; returns how many there are."""
    return wait_until(f"{count} checkpoints", lambda: _at_least(job, "checkpoints_committed", count), timeout_s)


def wait_for_nodes(job: Watched, *, after_gang: int = -1, timeout_s: float = WAIT_S) -> Mapping[str, Any] | None:
    """Wait until all nodes of a gang newer than ``after_gang`` run; returns the metrics, or ``None`` if the job ended first."""

    def look() -> tuple[Mapping[str, Any] | None] | None:
        if job.status in ENDED:
            return (None,)
        metrics = job.metrics()
        newer = metrics["gang"] is not None and metrics["gang"] > after_gang
        return (metrics,) if newer and job.status == "RUNNING" and metrics["nodes"] else None

    return wait_until(f"a gang newer than {after_gang}", look, timeout_s)[0]


def _at_least(job: Watched, metric: str, count: int) -> int | None:
    found = int(job.metrics()[metric])
    if found < count and job.status in ENDED:
        raise AssertionError(f"the job is {job.status} with {metric}={found}, expected {count}")
    return found if found >= count else None


# -- killing -------------------------------------------------------------------------------------------------------


def kill_node(job: Watched, node: int | None = None, timeout_s: float = WAIT_S) -> Kill | None:
    """Kill -9 the process of one node (the last by default) and wait until the job runs again.

    ``None`` when the job ended before. Raises for a node on another machine: its pid means something else here.
    """
    metrics = wait_for_nodes(job, timeout_s=timeout_s)
    if metrics is None:
        return None
    chosen = _pick(metrics["nodes"], node)
    started = time.monotonic()
    try:
        os.kill(int(chosen["pid"]), signal.SIGKILL)
    except ProcessLookupError:
        return None
    again = wait_for_nodes(job, after_gang=metrics["gang"], timeout_s=timeout_s)
    recovered_s = None if again is None else time.monotonic() - started
    return Kill(int(chosen["node"]), int(chosen["pid"]), int(metrics["gang"]), recovered_s)


def kill_at_random(job: Watched, kills: int, seed: int, *, longest_wait_s: float = 0.5, timeout_s: float = WAIT_S) -> list[Kill]:
    """Kill random nodes at random moments, one after the other, the same choices for the same seed.

    Each wait of up to ``longest_wait_s`` begins when the job runs. Returns the kills that hit: fewer when the job ended first.
    """
    dice = random.Random(seed)
    done: list[Kill] = []
    for _ in range(kills):
        metrics = wait_for_nodes(job, timeout_s=timeout_s)
        if metrics is None:
            break
        time.sleep(dice.uniform(0, longest_wait_s))
        kill = kill_node(job, dice.randrange(len(metrics["nodes"])), timeout_s)
        if kill is None:
            break
        done.append(kill)
    return done


def _pick(nodes: Sequence[Mapping[str, Any]], node: int | None) -> Mapping[str, Any]:
    found = [each for each in nodes if node is None or each["node"] == node]
    if not found:
        raise InvalidUseError(f"the job has no such node node={node} nodes={[each['node'] for each in nodes]}")
    chosen = found[-1]
    if chosen["host"] not in (socket.gethostname(), socket.getfqdn()):
        raise InvalidUseError(f"the node is on another machine, kill it there host={chosen['host']}")
    return chosen


# -- comparing -----------------------------------------------------------------------------------------------------


def read_output(path: str | Path) -> pa.Table:
    """What any reader sees in a Parquet sink's directory now: the committed rows."""
    files = [str(file) for file in sorted(Path(path).glob("[!_.]*.parquet"))]
    if not files:
        raise AssertionError(f"nothing was committed path={path}")
    return ds.dataset(files, format="parquet").to_table()


def assert_same_rows(found: pa.Table, expected: pa.Table, *, close: Sequence[str] = (), tolerance: float = TOLERANCE) -> None:
    """Both tables have the same rows, in any order, as often. Columns named in ``close`` may differ by float rounding.

    Rows are matched by all other columns; where several agree in those, by the order of the ``close`` ones.
    """
    names = sorted(expected.column_names)
    if sorted(found.column_names) != names:
        raise AssertionError(f"the columns differ found={sorted(found.column_names)} expected={names}")
    exact = [name for name in names if name not in close]
    if found.num_rows != expected.num_rows:
        raise AssertionError(f"rows found={found.num_rows} expected={expected.num_rows}{_example(found, expected, exact)}")
    order = [(name, "ascending") for name in [*exact, *close]]
    found, expected = found.select(names).sort_by(order), expected.select(names).sort_by(order)
    for name in exact:
        mine, theirs = found[name].cast(expected[name].type), expected[name]
        if not mine.combine_chunks().equals(theirs.combine_chunks()):
            raise AssertionError(f"the column {name!r} differs{_example(found, expected, exact)}")
    for name in close:
        _assert_close(name, found[name], expected[name], tolerance)


def _assert_close(name: str, found: pa.ChunkedArray, expected: pa.ChunkedArray, tolerance: float) -> None:
    mine, theirs = found.cast(pa.float64()), expected.cast(pa.float64())
    limit = pc.multiply(pc.abs(theirs), tolerance)
    near = pc.less_equal(pc.abs(pc.subtract(mine, theirs)), limit)
    same = pc.or_(near, pc.equal(mine, theirs))  # infinities have no difference
    nothing = pc.and_(pc.is_null(mine, nan_is_null=True), pc.is_null(theirs, nan_is_null=True))
    wrong = pc.sum(pc.invert(pc.or_(pc.fill_null(same, False), nothing))).as_py() or 0
    if wrong:
        raise AssertionError(f"{wrong} of {len(theirs)} values of {name!r} differ by more than {tolerance:g} relative")


def _example(found: pa.Table, expected: pa.Table, names: Sequence[str]) -> str:
    """Some rows that are only on one side, to see what went wrong."""
    mine, theirs = (Counter(map(str, table.select(names).to_pylist())) for table in (found, expected))
    too_many, missing = list((mine - theirs).items())[:3], list((theirs - mine).items())[:3]
    return f"; too many: {too_many}; missing: {missing}"
