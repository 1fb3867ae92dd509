"""Running aggregates with many keys: rows per second, bytes per key, and the pause at a barrier.

    python tools/bench_running_keys.py [keys]

Times are CPU time of the one thread that works, so that a busy machine changes them little.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pyarrow as pa

from tidegate.operators.running import RunningAggregate
from tidegate.plan.operator import Operator, OperatorContext, Port
from tidegate.plan.schemas import running_schema
from tidegate.state.functions import COUNT, MAX, SUM, AggregateColumn
from tidegate.state.partial import partial_schema

BATCH_ROWS = 65_536
ROWS = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64())])
AGGREGATES = (AggregateColumn("n", COUNT), AggregateColumn("s", SUM, "value"), AggregateColumn("hi", MAX, "value"))
PARTIALS = partial_schema(("key",), AGGREGATES, ROWS, ())
RESULTS = running_schema(("key",), AGGREGATES, ROWS)


def partials(keys: np.ndarray, rng: np.random.Generator) -> pa.RecordBatch:
    """One row per key, as senders send them."""
    values = pa.array(rng.random(len(keys)))
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(np.ones(len(keys), np.int64)), values, values], schema=PARTIALS)


def timed(operator: Operator, batches: list[pa.RecordBatch]) -> str:
    """Feed the batches; rows per second and the longest step."""
    steps = []
    for batch in batches:
        start = time.process_time()
        list(operator.process(0, batch))
        steps.append(time.process_time() - start)
    rows = sum(batch.num_rows for batch in batches)
    return f"{rows / sum(steps) / 1e6:.2f} M rows/s, longest step {max(steps):.3f} s"


def barrier(operator: Operator) -> str:
    """Emit the changed keys, then freeze."""
    start = time.process_time()
    rows = sum(batch.num_rows for batch in operator.before_barrier())
    emitted = time.process_time()
    operator.freeze()
    return f"{rows} keys changed: emitted in {emitted - start:.4f} s, frozen in {time.process_time() - emitted:.4f} s"


def main(keys: int) -> None:
    pa.set_cpu_count(1)
    rng = np.random.default_rng(1)
    spec = RunningAggregate(
        schema=RESULTS, event_time=None, inputs=(Port(PARTIALS, "ts"),), name="bench", keys=("key",), aggregates=AGGREGATES
    )
    operator = spec.build(OperatorContext(subtask=0, parallelism=1, key_groups=128))
    every = rng.permutation(keys).astype(np.int64) * 7919
    print("new keys:", timed(operator, [partials(every[n : n + BATCH_ROWS], rng) for n in range(0, keys, BATCH_ROWS)]))
    print(barrier(operator))
    for changed in (1_000, 100_000, 1_000_000):
        rows = min(BATCH_ROWS, changed)
        batches = [partials(np.unique(rng.choice(every, rows)), rng) for _ in range(0, changed, BATCH_ROWS)]
        print("updates:", timed(operator, batches))
        print(barrier(operator))
    print(f"{operator.state_bytes / keys:.0f} bytes per key, index included")  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
