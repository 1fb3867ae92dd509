"""How long a ``SyncTest`` takes through a job at full load: nodes on threads, real sockets."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import tidegate as tg
from tidegate.api.job import Job
from tidegate.runtime.local import ThreadGang
from tidegate.runtime.start import JobOptions, launch_job

TARGET_MS = 100
PAUSE_S = 0.05


def run(work: Path, *, signals: int = 50, parallelism: int = 2) -> dict[str, Any]:
    """Signals at regular times while the job reads as fast as it can. Blocks."""
    rows = tg.generate(keys=10_000)
    counted = rows.key_by("key").window(tg.tumbling("10s")).aggregate(n=tg.count(), total=tg.sum("value"))
    pipeline = tg.Pipeline("signals", counted.write_parquet(work / "out"))
    options = JobOptions(parallelism=parallelism, checkpoint=tg.CheckpointConfig(interval="1s"), store=str(work / "store"))
    job = Job(launch_job(pipeline.physical(parallelism), ThreadGang(parallelism), options))
    try:
        job.signal("SyncTest")
        begun, first = time.monotonic(), job.metrics()["rows_read"]
        took_ms = [_ping(job) for _ in range(signals)]
        rate = (job.metrics()["rows_read"] - first) / (time.monotonic() - begun)
    finally:
        job.stop()
    return {
        "signals": signals,
        "parallelism": parallelism,
        "rows_per_second": round(rate),
        "median_ms": median(took_ms),
        "p95_ms": quantiles(took_ms, n=20)[-1] if signals > 1 else took_ms[0],
        "longest_ms": max(took_ms),
        "target_ms": TARGET_MS,
    }


def _ping(job: Job) -> int:
    time.sleep(PAUSE_S)
    return job.signal("SyncTest").total_ms
