"""What the stored runs of one subtask say, for readers of checkpoints that are no operators.

Runs of keyed state have rows that later runs replace or take away, runs of sessions have holes, and windows
that were on their way out have rows that were emitted. Whoever reads state as data must come through here; adding
up the runs as they are would count such rows twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidegate.state.operatorstate import StoredPiece, stored_pieces
from tidegate.state.ownership import EVERYTHING
from tidegate.state.panes import Panes
from tidegate.state.pending import PendingOutput, stored_runs
from tidegate.state.run import Restored, Run
from tidegate.state.sessionruns import SessionRuns, without_holes
from tidegate.state.table import KeyedTable
from tidegate.values import Json


def current_rows(
    keys: Sequence[str], runs: Sequence[pa.RecordBatch], meta: Mapping[str, Json], *, overlapping: bool = False
) -> list[pa.RecordBatch]:
    """The rows that are state now, of all runs of one subtask in their order; ``meta`` is what is stored beside them.

    Of several tables the first counts: the others have what was seen, not what is known of a key. Sessions of one key are not
    merged yet. Input that waits or was at work is left out. ``overlapping``: rows say their pane, so those of windows that were
    on their way out are left out.
    """
    found: list[pa.RecordBatch] = []
    stored = list(stored_pieces(meta, list(map(Run, runs))))
    table = next((piece for piece in stored if piece.kind == KeyedTable.kind), None)
    for piece in stored:
        match piece.kind:
            case KeyedTable.kind if piece is table:
                found += _newest(keys, piece)
            case SessionRuns.kind:
                found += [run.batch.filter(pa.array(there)) for run, there in without_holes(piece.runs)]
            case Panes.kind:
                found += [run.batch for run in piece.runs]
            case PendingOutput.kind if not overlapping:
                found += [emitted.rest(run.batch, keys) for run, emitted in stored_runs(piece.meta, piece.runs)]
            case _:
                pass  # shown by another piece, or no rows of the user's
    return [batch for batch in found if batch.num_rows]


def _newest(keys: Sequence[str], piece: StoredPiece) -> list[pa.RecordBatch]:
    """The newest row of every key that is not gone."""
    schema = next((run.batch.schema for run in piece.runs if run.batch.schema.names != list(keys)), None)
    if schema is None:
        return []
    table = KeyedTable(EVERYTHING, schema, keys)
    table.restore([Restored(0, piece.meta, piece.runs)])
    return table.read()
