"""The numbers and names that tidegate's parts know each other by.

A checkpoint id is 64 bits: the leader's term in the high 32, a counter from 1 in the low 32. So ids are unique and grow
across restarts and failovers without any stored allocator.
"""

from __future__ import annotations

from typing import NewType, TypeAlias

from tidegate.errors import InvalidUseError

Slot: TypeAlias = int
"""A position of the job's log. An epoch, a term and a gang number are slots of a known kind of entry."""

Epoch = NewType("Epoch", int)
"""The slot of the log that a checkpoint aims for; it is committed there or not at all."""

Term = NewType("Term", int)
"""A leader's reign: the slot of its takeover entry."""

GangNumber = NewType("GangNumber", int)
"""The fencing token of one start of the gang: the slot of its restore entry, 0 before any."""

NO_TERM = Term(0)
"""Before any takeover is known; also the term of a log's first leader."""

NO_EPOCH = Epoch(0)
"""Before any commit: the first slot of a log is a takeover."""

NodeId = NewType("NodeId", int)
"""A node is one Spark task of the gang: its task index."""

OperatorId = NewType("OperatorId", str)
"""An operator's stable name in the plan."""

EPOCH_LIMIT = 1 << 48
U32_LIMIT = 1 << 32
U64_LIMIT = 1 << 64


class CheckpointId(int):
    """One attempt at a checkpoint. Never reused; 0 means none and is refused."""

    __slots__ = ()

    def __new__(cls, raw: int) -> CheckpointId:
        if not 0 < raw < U64_LIMIT:
            raise InvalidUseError(f"a checkpoint id is a positive 64-bit number checkpoint_id={raw}")
        return super().__new__(cls, raw)

    @classmethod
    def of(cls, term: int, counter: int) -> CheckpointId:
        """The counter-th checkpoint of a term."""
        if not 0 <= term < U32_LIMIT:
            raise InvalidUseError(f"a term is a 32-bit number term={term}")
        if not 0 < counter < U32_LIMIT:
            raise InvalidUseError(f"a checkpoint counter starts at 1 and has 32 bits counter={counter}")
        return cls((term << 32) | counter)

    @classmethod
    def from_raw(cls, raw: int) -> CheckpointId:
        """The id with this 64-bit value."""
        return cls(raw)

    @property
    def term(self) -> Term:
        """The term of the leader that allocated this id."""
        return Term(int(self) >> 32)

    @property
    def counter(self) -> int:
        """The number of this checkpoint within its term."""
        return int(self) & (U32_LIMIT - 1)
