"""An entry of the log that says what all entries before it add up to, so that they need not be kept.

A base holds numbers only. The manifests that may still be restored stay in their slots: the base names them, so damage is
found where it is. What lies below a base and is not named by it has no effect any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tidegate.core.checkpoint.manifest import FORMAT_VERSION
from tidegate.errors import InvalidUseError
from tidegate.ids import Epoch, GangNumber, Slot, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A log view's state after all slots below this one. All lists of slots ascend.

    ``lineage`` ends with the head; ``left`` is what restores left behind, ``held`` where the manifests are. ``lost`` are
    commits that can't be read, ``unread`` entries of which nobody knows any more whether they were commits.
    """

    kind: Literal["base"] = "base"
    slot: Slot
    term: Term
    write_id: str
    gang: GangNumber
    last_id: int
    oldest_restorable: Epoch
    lineage: tuple[Epoch, ...] = ()
    left: tuple[Epoch, ...] = ()
    held: tuple[Epoch, ...] = ()
    lost: tuple[Epoch, ...] = ()
    unread: tuple[Slot, ...] = ()
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise InvalidUseError(f"written by another version of tidegate format_version={self.format_version}")
        for rule, holds in self._rules().items():
            if not holds:
                raise InvalidUseError(f"{rule}: it does not hold here slot={self.slot}")

    @property
    def needed(self) -> tuple[Slot, ...]:
        """The slots below it that a reader looks at: manifests, and what could not be read."""
        return tuple(sorted({*self.held, *self.lost, *self.unread}))

    def _rules(self) -> dict[str, bool]:
        lists = (self.lineage, self.left, self.held, self.lost, self.unread)
        reach = {epoch for epoch in self.lineage if epoch >= self.oldest_restorable}
        return {
            "an entry has a write id": bool(self.write_id),
            "term, gang and the oldest epoch have had their slots": max(self.term, self.gang, self.oldest_restorable) < self.slot,
            "slots ascend and are below the base": all(self._is_ascending(slots) for slots in lists),
            "an epoch is in the lineage or left behind": not set(self.lineage) & set(self.left),
            "a manifest that is held is not damaged": not set(self.held) & {*self.lost, *self.unread},
            "what can be restored is held or lost": reach <= {*self.held, *self.lost},
        }

    def _is_ascending(self, slots: Sequence[int]) -> bool:
        return all(a < b for a, b in pairwise((*slots, self.slot)))
