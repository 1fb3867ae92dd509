"""A stage's operators in a row: what one emits, the next takes, by plain calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tidegate.plan.operator import Delaying, Judging, Operator, Stoppable, Waiting
from tidegate.plan.units import delayed
from tidegate.state.run import Frozen


class Chain:
    """Runs batches through operators. Everything it emits is lazy: nothing happens until the loop asks for the next piece."""

    def __init__(self, operators: Sequence[tuple[str, Operator]]) -> None:
        self.named = tuple(operators)
        self._operators = tuple(operator for _, operator in operators)
        self._stoppable = tuple(operator for operator in self._operators if isinstance(operator, Stoppable))
        self._judge = next((operator for operator in self._operators if isinstance(operator, Judging)), None)

    @property
    def has_pending(self) -> bool:
        """An operator has closed windows that it has not emitted: call ``watermark`` again before anything else."""
        return any(operator.has_pending for operator in self._stoppable)

    @property
    def waits_for_time(self) -> bool:
        """An operator keeps rows until event time has passed them."""
        return bool(self._stoppable) or any(
            isinstance(operator, Waiting) and operator.waits_for_time for operator in self._operators
        )

    def stop(self, stopping: bool) -> None:
        """From now on, or no longer, operators end after the step at hand what a watermark makes them emit."""
        for operator in self._stoppable:
            operator.stopping = stopping

    def promise(self, timestamp: int) -> None:
        """The first operator that judges rows learns by which time those to come are late; later ones get results, never late."""
        if self._judge is not None:
            self._judge.promise(timestamp)

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What comes out at the end of the chain for one batch at its beginning."""
        if not self._operators:
            return (batch,)
        first = self._operators[0].process(port, batch)
        return first if len(self._operators) == 1 else self._from(1, first)

    def after(self, index: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """What comes out at the end for a batch that the operator at ``index`` emitted."""
        return self._from(index + 1, (batch,))

    def watermark(self, timestamp: int) -> Iterator[pa.RecordBatch]:
        """Every operator learns the time, first to last, each after what those before it still emitted.

        After an operator that keeps windows open for late rows it is as much earlier. One that still has pending output holds it
        back.
        """
        for index, operator in enumerate(self._operators):
            for piece in operator.watermark(timestamp):
                yield from self._shown(index + 1, piece)
            if isinstance(operator, Stoppable) and operator.has_pending:
                return
            timestamp = delayed(timestamp, _delay(operator))

    def passed_on(self, timestamp: int) -> int:
        """The time at the end of the chain when it is ``timestamp`` at its beginning."""
        return delayed(timestamp, sum(map(_delay, self._operators)))

    def before_barrier(self) -> Iterator[pa.RecordBatch]:
        """Rows that go before a barrier."""
        for index, operator in enumerate(self._operators):
            yield from self._from(index + 1, operator.before_barrier())

    def end(self) -> Iterator[pa.RecordBatch]:
        """The last rows."""
        for index, operator in enumerate(self._operators):
            yield from self._from(index + 1, operator.end())

    def freeze(self) -> dict[str, Frozen]:
        """The state of every operator that has one, by reference."""
        frozen = {name: operator.freeze() for name, operator in self.named}
        return {name: state for name, state in frozen.items() if state is not None}

    def _shown(self, index: int, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of a piece; an empty one if nothing does, so that the loop can look up between any two."""
        came = False
        for batch in self._from(index, (piece,)) if piece.num_rows else ():
            came = True
            yield batch
        if not came:
            yield piece.slice(0, 0)

    def _from(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for operator in self._operators[index:]:
            batches = _through(operator, batches)
        return batches


def _delay(operator: Operator) -> int:
    return operator.watermark_delay if isinstance(operator, Delaying) else 0


def _through(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from operator.process(0, batch)
