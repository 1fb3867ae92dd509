"""What checkpoints cost within one running job: a few seconds with them, a few without, and so on.

Complete runs with and without checkpoints differ by more than that on a machine with neighbours. Two short stretches
that follow each other meet the same machine, the same memory and the same warm processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, stdev
from typing import Any, Protocol

import numpy as np

from tidegate.bench.workloads import spread
from tidegate.errors import JobFailedError

STRETCH_S = 4
FIRST_S = 0.2
"""The checkpoints of a stretch come this long after each of its seconds: they are over before it ends."""
LOOK_S = 0.05
WARM_UP_S = 5.0


class SwitchedJob(Protocol):
    """What is needed of a job that takes no checkpoints by itself."""

    @property
    def status(self) -> str:
        """RUNNING as long as there are rows."""

    def metrics(self) -> Mapping[str, Any]:
        """``rows_in`` among them."""

    def checkpoint(self) -> int:
        """Take one and wait for it."""


@dataclass(slots=True)
class Switching:
    """Switches, and remembers what was read when. Clock, sleep and the thread that waits for checkpoints are parameters."""

    job: SwitchedJob
    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    thread: Executor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _seen: list[tuple[float, int]] = field(default_factory=list)

    def run(self, switches: int) -> dict[str, Any]:
        """That many pairs of stretches, in turns with checkpoints first and without first. Blocks."""
        with self.thread as asking:
            self._stretch(WARM_UP_S, None)
            stretches = [
                (is_on, *self._stretch(STRETCH_S, asking if is_on else None))
                for pair in range(switches)
                for is_on in ((True, False) if pair % 2 else (False, True))
            ]
            self._stretch(1.0, None)  # what the last one read is reported after it
        speeds = [(is_on, self._speed(begun, ended)) for is_on, begun, ended in stretches]
        return result([speed for is_on, speed in speeds if is_on], [speed for is_on, speed in speeds if not is_on])

    def _stretch(self, seconds: float, asking: Executor | None) -> tuple[float, float]:
        begun = self.now()
        due = count(FIRST_S)
        next_due, asked = next(due), list[Future[int]]()
        while (passed := self.now() - begun) < seconds:
            if asking is not None and passed >= next_due:
                asked.append(asking.submit(self.job.checkpoint))
                next_due = next(due)
            self._look()
            self.sleep(LOOK_S)
        ended = self.now()
        for one in asked:
            one.result()
        return begun, ended

    def _look(self) -> None:
        if self.job.status != "RUNNING":
            raise JobFailedError(f"the job must run on while it is measured status={self.job.status}")
        rows = int(self.job.metrics().get("rows_in", 0))
        if not self._seen or rows != self._seen[-1][1]:
            self._seen.append((self.now(), rows))

    def _speed(self, begun: float, ended: float) -> float:
        """Rows per second: nodes say now and then how far they are, and in between they went on evenly."""
        at, rows = zip(*self._seen, strict=True)
        first, last = np.interp([begun, ended], at, rows)
        return float(last - first) / (ended - begun)


def result(on: list[float], off: list[float]) -> dict[str, Any]:
    """What checkpoints cost, of the speeds of stretches that belong together."""
    costs = [1.0 - with_them / without for with_them, without in zip(on, off, strict=True)]
    return {
        "seconds": STRETCH_S,
        "on": spread(on),
        "off": spread(off),
        "cost_per_pair": costs,
        "cost": 1.0 - fmean(on) / fmean(off),
        "standard_error": stdev(costs) / len(costs) ** 0.5 if len(costs) > 1 else None,
    }
