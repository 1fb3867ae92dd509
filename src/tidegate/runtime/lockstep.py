"""One subtask's share of a source whose splits move through numbered batches together.

All splits of a subtask are in the same batch: nothing of the next one is read before the last row of this one. The watermark
moves only there, and is computed from all rows of the batch, whoever reads them. So every row comes after the watermark of the
batches before its own and before the watermark of its own, in every run, at any parallelism and after every restore.

Such a source is never idle. Its subtasks learn of the next batch one after the other, and one that counted as idle meanwhile
would let windows close over rows that it is about to read.
"""

from __future__ import annotations

from typing import Protocol, cast

from tidegate.plan.connector import Polled, SplitReader
from tidegate.runtime.continuous import ContinuousReader, OpenSplit
from tidegate.values import END_OF_TIME


class BatchReader(SplitReader, Protocol):
    """A reader of one split of a batched source."""

    @property
    def batch(self) -> int:
        """The batch that the next row is of. The poll that leaves one has no rows and reports the largest event time so far."""


class LockstepReader(ContinuousReader):
    """Reads one batch after the other. Used by the loop thread only."""

    exact = True
    idle = False

    def poll(self, max_rows: int) -> Polled:
        """The next rows of the batch under way; none where splits are opened or the watermark moves: that is to go first."""
        if not self._begun:
            self._take_new()
            return Polled(None, finished=self.finished)
        before = self.watermark
        for _ in range(len(self._turns)):
            self._turns.rotate(-self._earliest())
            polled = self._poll_next(max_rows)
            if polled.rows:
                return Polled(polled.batch, polled.rows, polled.highest, self.finished)
            if self.watermark > before:
                break
        return Polled(None, finished=self.finished)

    def _earliest(self) -> int:
        """The index of a split that is in the earliest batch. After a restore splits may be in different ones."""
        batches = [cast(BatchReader, each.reader).batch for each in self._turns]
        return batches.index(min(batches))

    def _note_time(self, current: OpenSplit, polled: Polled) -> None:
        """The times of single rows say nothing yet: other splits may have earlier ones of the same batch."""
        if not polled.rows:
            super()._note_time(current, polled)

    @property
    def watermark(self) -> int:
        """What all rows of the batches before the one under way say; it never goes back."""
        if self.finished:
            return END_OF_TIME
        if self._turns:
            self._reached = max(self._reached, min(map(self._time_of, self._turns)))
        return self._reached
