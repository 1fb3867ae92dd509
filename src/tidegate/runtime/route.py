"""Which of a subtask's outputs a batch goes to: all of it over a forward edge, cut by key group over a hash edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidegate.plan.physical import Edge
from tidegate.state.keygroups import partition


class Outputs:
    """The outputs of one subtask, numbered edge by edge, receiver by receiver."""

    def __init__(self, edges: Sequence[Edge], subtask: int, parallelism: int, key_groups: int) -> None:
        self._parallelism = parallelism
        self._key_groups = key_groups
        self._edges: list[tuple[Edge, list[int]]] = []
        at = 0
        for edge in edges:
            width = len(receivers(edge, subtask, parallelism))
            self._edges.append((edge, list(range(at, at + width))))
            at += width

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The parts of a batch, each with its output."""
        for edge, ids in self._edges:
            if edge.kind == "forward" or self._parallelism == 1:
                yield ids[0], batch
                continue
            for output_id, part in zip(ids, partition(batch, edge.keys, self._parallelism, self._key_groups), strict=True):
                if part is not None and part.num_rows:
                    yield output_id, part


def receivers(edge: Edge, subtask: int, parallelism: int) -> range:
    """The subtasks that this subtask sends to over an edge; by symmetry also those that it receives from."""
    return range(subtask, subtask + 1) if edge.kind == "forward" else range(parallelism)
