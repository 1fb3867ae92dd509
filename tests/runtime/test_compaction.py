"""``max_checkpoint_size``: the checkpoint after one that takes more of the store is written compacted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from runtime_jobs import GatedSource, Jobs, MemorySink, events, until

import tidegate as tg
from tidegate.core.checkpoint.size import stored_bytes, used_bytes
from tidegate.runtime.metrics import JobMetrics

ROWS, STEP, LATE_MS = 25_000, 5_000, 5_500


def windowed() -> tuple[GatedSource, MemorySink, tg.Pipeline]:
    """Rows a millisecond apart, each of a key of its own, in windows of a second that stay open for five and a half more.

    A checkpoint after every 5,000 rows uploads five windows; when the next one is made, four of them are closed.
    """
    source, sink = GatedSource(events(ROWS, keys=ROWS, step_ms=1), splits=1, rows_per_poll=500, allowed=0), MemorySink()
    source.out_of_orderness = LATE_MS
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("1s"))
    return source, sink, tg.Pipeline("w", keyed.aggregate(n=tg.count(), total=tg.sum("value")).write(sink))


def run(jobs: Jobs, size: int) -> tuple[MemorySink, list[tuple[int, int]], JobMetrics]:
    """Checkpoints while it reads; what each stored and used, and the metrics before its end."""
    source, sink, pipeline = windowed()
    job = jobs.start(pipeline, 1, max_checkpoint_size=size)
    for read in range(STEP, ROWS, STEP):
        source.allow(STEP)
        until(lambda read=read: source.emitted >= read, f"{read} rows")
        job.checkpoint()
    metrics = job.metrics()
    sizes = [(stored_bytes(manifest), used_bytes(manifest)) for manifest in jobs.manifests("w")]
    source.allow()
    assert job.await_termination(120)
    return sink, sizes, metrics


def is_wasteful(stored: int, used: int) -> bool:
    return 4 * (stored - used) >= stored > 0


def test_a_checkpoint_that_takes_too_much_is_followed_by_a_compacted_one(tmp_path: Path) -> None:
    roomy, as_it_is, without = run(Jobs(tmp_path / "roomy"), 1 << 30)
    tight, sizes, compacting = run(Jobs(tmp_path / "tight"), 1)
    assert any(is_wasteful(*size) for size in as_it_is), as_it_is
    assert without["checkpoints_compacted"] == 0 < compacting["checkpoints_compacted"]
    assert compacting["checkpoints_compacted"] == sum(is_wasteful(*size) for size in sizes[:-1])
    after = [size for before, size in pairwise(sizes) if is_wasteful(*before)]
    assert all(stored == used for stored, used in after), "all that is stored is used"
    assert tight.rows() == roomy.rows() and compacting["checkpoints_aborted"] == 0
