"""All state of one operator: the pieces that it declared, by name, under one snapshot.

An operator declares its state when it is built and has freeze, restore, rescaling and size from here. The snapshot's JSON says
whose the runs are: ``states`` lists ``[name, kind, runs]`` in the order of the runs, and what a piece says of itself is under its
name, where it says something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.state.backend import MEMORY, Backend
from tidegate.state.closed import Closed, PendingGroups
from tidegate.state.interface import HeldState, Merge, PaneState, QueueState, SessionState, Snapshotted, TableState
from tidegate.state.ownership import EVERYTHING, Ownership
from tidegate.state.pending import PendingOutput, Steps
from tidegate.state.run import Frozen, Restored, Run, Size
from tidegate.state.sessionruns import MergeSessions
from tidegate.state.windows import Windows
from tidegate.values import Json

S = TypeVar("S", bound=Snapshotted)


class OperatorState:
    """The state of one subtask of an operator. ``ownership`` says which rows are its."""

    def __init__(self, ownership: Ownership = EVERYTHING, backend: Backend = MEMORY) -> None:
        self._ownership = ownership
        self._backend = backend
        self._pieces: dict[str, Snapshotted] = {}

    # -- declaring -------------------------------------------------------------------------------------------------

    def table(self, name: str, schema: pa.Schema, keys: Sequence[str]) -> TableState:
        """One row per key; the columns by which rows come to a subtask are among the keys."""
        return self._declared(name, self._backend.table(self._ownership, schema, keys))

    def panes(
        self,
        name: str,
        schema: pa.Schema,
        windows: Windows,
        closed: Closed,
        merge: Merge,
        rows_of: Callable[[pa.RecordBatch], int],
    ) -> PaneState:
        """Rows by pane; ``rows_of`` counts the source rows in a batch, where some are late."""
        return self._declared(name, self._backend.panes(self._ownership, schema, windows, closed, merge, rows_of))

    def sessions(self, name: str, schema: pa.Schema, merge: MergeSessions) -> SessionState:
        """Open sessions by key."""
        return self._declared(name, self._backend.sessions(self._ownership, schema, merge))

    def held(self, name: str, schema: pa.Schema, operator: str, event_time: str | None, bound: int) -> HeldState:
        """Rows that wait until the watermark is within ``bound`` of their time, if they have one."""
        return self._declared(name, self._backend.held(self._ownership, schema, operator, event_time, bound))

    def queue(self, name: str, schema: pa.Schema | None = None) -> QueueState:
        """Batches to process one after the other."""
        return self._declared(name, self._backend.queue(self._ownership, schema))

    def closed(self, name: str) -> Closed:
        """How far windows are closed."""
        return self._declared(name, Closed(self._ownership.own, self._ownership.groups))

    def pending(self, name: str, panes: Sequence[PaneState], steps: Steps) -> PendingOutput:
        """Windows of these panes on their way out."""
        return self._declared(name, PendingOutput(self._ownership.keys, panes, steps))

    def pending_groups(self, name: str) -> PendingGroups:
        """Key groups with sessions on their way out."""
        return self._declared(name, PendingGroups(self._ownership.own, self._ownership.groups))

    def _declared(self, name: str, piece: S) -> S:
        assert name not in (*self._pieces, "states", "key_groups"), f"two pieces of state have one name name={name}"
        self._pieces[name] = piece
        return piece

    # -- snapshots -------------------------------------------------------------------------------------------------

    def freeze(self) -> Frozen:
        """Every piece at this moment, by reference."""
        frozen = {name: piece.freeze() for name, piece in self._pieces.items()}
        states: list[Json] = [[name, self._pieces[name].kind, len(each.runs)] for name, each in frozen.items() if each.runs]
        said: dict[str, Json] = {name: each.meta for name, each in frozen.items() if each.meta}
        runs = tuple(run for each in frozen.values() for run in each.runs)
        return Frozen(said | {"key_groups": self._ownership.groups, "states": states}, runs)

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Every piece takes over what is its. Refuses state that was cut by another number of key groups."""
        stored = [_checked(piece, self._ownership.groups) for piece in pieces]
        for each in (each for parts in stored for each in parts):
            if each.name not in self._pieces:
                raise CorruptDataError(f"stored state has a piece that the operator does not have state={each.name!r:.100}")
        for name, piece in self._pieces.items():
            mine = [
                Restored(
                    whole.subtask, _said(whole.meta, name), tuple(run for each in parts if each.name == name for run in each.runs)
                )
                for whole, parts in zip(pieces, stored, strict=True)
            ]
            piece.restore(mine)

    def size(self) -> Size:
        """All pieces."""
        return sum((piece.size() for piece in self._pieces.values()), Size())


# -- what is stored --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """The runs of one piece of state, and what it says of itself."""

    name: str
    kind: str
    meta: dict[str, Json]
    runs: tuple[Run, ...]


def stored_pieces(meta: Mapping[str, Json], runs: Sequence[Run]) -> Iterator[StoredPiece]:
    """The pieces of one subtask's stored state that have runs."""
    start = 0
    states = meta.get("states")
    for entry in states if isinstance(states, list) else [states]:
        match entry:
            case [str(name), str(kind), int(count)] if 0 <= count <= len(runs) - start:
                yield StoredPiece(name, kind, _said(meta, name), tuple(runs[start : start + count]))
                start += count
            case _:
                raise CorruptDataError(f"stored state does not say whose its runs are states={states!r:.100}")
    if start != len(runs):
        raise CorruptDataError(f"stored state has runs of nobody runs={len(runs)} states={states!r:.100}")


def _checked(piece: Restored, groups: int) -> list[StoredPiece]:
    stored = piece.meta.get("key_groups")
    if stored != groups:
        raise InvalidUseError(
            f"the checkpoint has another number of key groups: start with that one checkpoint={stored!r:.100} plan={groups}"
        )
    return list(stored_pieces(piece.meta, piece.runs))


def _said(meta: Mapping[str, Json], name: str) -> dict[str, Json]:
    match meta.get(name):
        case None:
            return {}
        case dict() as said:
            return dict(said)
        case other:
            raise CorruptDataError(f"stored state is not as it was written state={name} said={other!r:.100}")
