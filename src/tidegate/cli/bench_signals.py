"""``tidegate bench signals``: how long a signal takes through a job at full load."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tidegate.cli.console import Console


def execute(output: Console, *, signals: int = 50, parallelism: int = 2) -> int:
    """Blocks for a few seconds. A missed target is a finding, not a failure: exit code 0."""
    from tidegate.bench import signals as bench
    from tidegate.cli.bench import machine

    load_before = os.getloadavg()[0]
    work = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    try:
        found = bench.run(work, signals=signals, parallelism=parallelism)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    output.document({"suite": "signals", "machine": {**machine(), "load_before": load_before}, **found})
    output.say(
        f"SyncTest through {parallelism} nodes on threads at {found['rows_per_second']:,} rows/s: median "
        f"{found['median_ms']:g} ms, 95 % {found['p95_ms']:g} ms, longest {found['longest_ms']} ms of {signals}; "
        f"target: median below {found['target_ms']} ms"
    )
    return 0
