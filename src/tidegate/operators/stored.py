"""What the stored runs of one subtask say, for readers of checkpoints that are no operators.

Runs of keyed state have rows that later runs replace or take away, runs of sessions have holes, and windows
that were on their way out have rows that were emitted. Whoever reads state as data must come through here; adding
up the runs as they are would count such rows twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.process import HELD, INPUT
from tidegate.plan.schemas import KEYED_TABLE
from tidegate.state.ownership import keyed_table
from tidegate.state.pending import PENDING, StoredRuns
from tidegate.state.run import Restored, Run
from tidegate.state.sessionruns import HOLES, holes_of
from tidegate.values import Json


def current_rows(
    layout: str | None,
    keys: Sequence[str],
    runs: Sequence[pa.RecordBatch],
    meta: Mapping[str, Json] | None = None,
    *,
    overlapping: bool = False,
) -> list[pa.RecordBatch]:
    """The rows that are state now, of all runs of one subtask in their order.

    ``layout`` is that of the stored state's description, ``meta`` what is stored beside the runs. Running aggregates
    have one row per key, with distinct values counted already; sessions of one key are not merged yet; other
    operators' runs come as they are. ``overlapping``: rows say their pane, so those of windows that were on their
    way out are left out.
    """
    if layout == KEYED_TABLE:
        return _newest(keys, runs)
    if meta is not None and isinstance(meta.get(PENDING), dict):
        return _not_emitted(keys, Restored(0, dict(meta), tuple(map(Run, runs))), overlapping)
    holes = [run for run in runs if run.schema.equals(HOLES)]
    kept = [run for run in runs if not run.schema.equals(HOLES)]
    return [_filled(index, run, holes) for index, run in enumerate(kept)] if holes else kept


def _not_emitted(keys: Sequence[str], piece: Restored, overlapping: bool) -> list[pa.RecordBatch]:
    stored = StoredRuns.of(piece)
    pending = () if overlapping else (*stored.pending, *stored.rest)
    found = [run.batch for run in stored.panes] + [stored.still_pending(run, run.batch, keys) for run in pending]
    return [batch for batch in found if batch.num_rows]


def _newest(keys: Sequence[str], runs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The newest row of every key that is not gone. Pairs of key and value, and input that was at work, are
    no rows of keys."""
    table = None
    states = [run for run in runs if not {INPUT, HELD} & set(run.schema.metadata or {})]
    schema = next((run.schema for run in states if run.schema.names != list(keys)), None)
    if schema is not None:
        own = [run for run in states if run.schema.equals(schema) or run.schema.names == list(keys)]
        table = keyed_table(schema, keys)
        table.restore([(Run(run), run) for run in own], lambda rows: np.ones(rows.num_rows, np.bool_))
    return [] if table is None else list(table.live_batches())


def _filled(index: int, run: pa.RecordBatch, holes: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return run.filter(pa.array(~holes_of(index, run.num_rows, holes)))
