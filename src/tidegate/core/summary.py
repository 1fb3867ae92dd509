"""What a prefix of the log adds up to, as a stored object: a shortcut for readers, never the truth.

A summary holds numbers only. Manifests stay in the log: the summary says in which slots, and a reader fetches
those. So damage is found where it is, and a summary that lies is found out by the entries that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tidegate.core.codec import decode, encode, seal, unsealed
from tidegate.errors import CorruptDataError, InvalidUseError

SUMMARY_VERSION = 1
SUMMARY_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KnownDamage:
    """What the damaged entry in this slot did to the log, told by the entries behind it.

    ``parent`` is that of a restore.
    """

    slot: int
    effect: Literal["takeover", "commit", "restore", "none"]
    parent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """A log view's state after all slots below ``next_slot``. All lists of slots ascend.

    ``lineage`` ends with the head; ``left`` is what restores left behind, ``held`` where the manifests are.
    ``write_id`` is that of the last entry: no other log has it, and it was put after all the others.
    """

    next_slot: int
    write_id: str
    term: int
    gang: int
    last_id: int
    oldest_restorable: int
    lineage: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    damage: tuple[KnownDamage, ...] = ()
    format_version: int = SUMMARY_VERSION

    def __post_init__(self) -> None:
        if self.format_version != SUMMARY_VERSION:
            raise InvalidUseError(
                f"written by another version of tidegate format_version={self.format_version}"
            )
        for rule, holds in self._rules().items():
            if not holds:
                raise InvalidUseError(f"{rule}: it does not hold here next_slot={self.next_slot}")

    @property
    def slots(self) -> tuple[int, ...]:
        """What to read of the log besides what comes behind it: manifests, damage, the last entry."""
        return tuple(sorted({*self.held, *self.damaged, self.next_slot - 1}))

    @property
    def damaged(self) -> tuple[int, ...]:
        """The slots whose entries could not be read."""
        return tuple(each.slot for each in self.damage)

    def _rules(self) -> dict[str, bool]:
        lists = (self.lineage, self.left, self.held, self.damaged)
        lost = {each.slot for each in self.damage if each.effect == "commit"}
        reach = {epoch for epoch in self.lineage if epoch >= self.oldest_restorable}
        return {
            "the last entry has a write id": bool(self.write_id),
            "term, gang and the oldest epoch have had their slots": max(
                self.term, self.gang, self.oldest_restorable
            )
            < self.next_slot,
            "slots ascend and are in the prefix": all(self._is_ascending(slots) for slots in lists),
            "an epoch is in the lineage or left behind": not set(self.lineage) & set(self.left),
            "a manifest that is held is not damaged": not set(self.held) & set(self.damaged),
            "what can be restored is held or damaged": reach <= {*self.held, *lost},
        }

    def _is_ascending(self, slots: Sequence[int]) -> bool:
        return all(a < b for a, b in pairwise((*slots, self.next_slot)))


def encode_summary(summary: LogSummary) -> bytes:
    """The stored form: JSON, sealed."""
    data = seal(encode(summary))
    if len(data) > SUMMARY_BYTES_MAX:
        raise InvalidUseError(
            f"a summary of the log is too long bytes={len(data)} bytes_max={SUMMARY_BYTES_MAX}"
        )
    return data


def decode_summary(data: bytes, path: str) -> LogSummary:
    """The summary in these bytes; anything else, one flipped bit too, is ``CorruptDataError``."""
    if len(data) > SUMMARY_BYTES_MAX:
        raise CorruptDataError(f"a summary of the log is too long bytes={len(data)} path={path}", path=path)
    body = unsealed(data)
    if body is None:
        raise CorruptDataError(f"the summary is damaged: its checksum differs path={path}", path=path)
    return decode(LogSummary, body, path)
