"""How long barriers wait for each other before they overtake data, learned from the checkpoints so far.

Waiting is free of bytes and costs time; overtaking is quick and stores what was in flight. The timeout goes
up when overtaking is frequent and costs more than waiting as long again would have. It goes down when aligned
checkpoints regularly take most of the timeout, unless overtaking has proved dearer than that. Whatever it
learns, it stays within its bounds. Time comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.errors import InvalidUseError, ThresholdTooLow

SHARE_FREQUENT = 0.5
NEAR_TIMEOUT = 0.8
NEW_WEIGHT = 0.3
RAISE = 1.5
LOWER = 0.8
BOUND_FACTOR = 10
STREAK_LENGTH = 5


@dataclass(frozen=True, slots=True)
class Observed:
    """One committed checkpoint: from its trigger to the last report of a node, writing included."""

    unaligned: bool
    took_ms: int
    alignment_timeout_ms: int


@dataclass(frozen=True, slots=True)
class AlignmentTimeout:
    """The timeout in force and what it was learned from. Averages are ``None`` before the first of their kind.

    ``aligned_ms`` is what aligned checkpoints take, ``overtaking_ms`` what unaligned ones take beyond the
    timeout: recording and writing.
    """

    ms: int
    least_ms: int
    most_ms: int
    share_unaligned: float = 0.0
    aligned_ms: float | None = None
    overtaking_ms: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least_ms <= self.ms <= self.most_ms:
            raise InvalidUseError(
                "an adaptive alignment timeout lies within its bounds"
                f" least_ms={self.least_ms} ms={self.ms} most_ms={self.most_ms}"
            )

    @classmethod
    def around(cls, ms: int, timeout_ms: int) -> AlignmentTimeout:
        """Start at the user's setting; bounds are a factor away from it, and the half of a checkpoint's timeout."""
        most_ms = max(ms, min(ms * BOUND_FACTOR, timeout_ms // 2))
        return cls(ms, max(1, ms // BOUND_FACTOR), most_ms)

    def learned(self, observed: Observed) -> AlignmentTimeout:
        """The timeout for the next checkpoint."""
        share = _average(self.share_unaligned, float(observed.unaligned))
        if observed.unaligned:
            beyond_ms = max(0, observed.took_ms - observed.alignment_timeout_ms)
            new = replace(self, share_unaligned=share, overtaking_ms=_average(self.overtaking_ms, beyond_ms))
            return new._moved(RAISE) if new._overtakes_too_often else new
        new = replace(self, share_unaligned=share, aligned_ms=_average(self.aligned_ms, observed.took_ms))
        return new._moved(LOWER) if new._waits_too_long else new

    @property
    def _overtakes_too_often(self) -> bool:
        is_dear = self.overtaking_ms is not None and self.overtaking_ms > self.ms
        return is_dear and self.share_unaligned >= SHARE_FREQUENT

    @property
    def _waits_too_long(self) -> bool:
        if self.aligned_ms is None or self.aligned_ms < NEAR_TIMEOUT * self.ms:
            return False
        return self.overtaking_ms is None or self.overtaking_ms < self.aligned_ms

    def _moved(self, factor: float) -> AlignmentTimeout:
        return replace(self, ms=min(self.most_ms, max(self.least_ms, round(self.ms * factor))))


class UnalignedStreak:
    """Notices when one checkpoint after the other goes unaligned, and says so once; never where that is ``wanted``."""

    def __init__(self, length: int = STREAK_LENGTH, *, wanted: bool = False) -> None:
        self._length = length
        self._run = 0
        self._said = wanted

    def committed(self, unaligned: bool) -> ThresholdTooLow | None:
        """A checkpoint was committed; the warning when it is time for it, once per job."""
        self._run = self._run + 1 if unaligned else 0
        if self._said or self._run < self._length:
            return None
        self._said = True
        return ThresholdTooLow(
            f"the last {self._run} checkpoints all went unaligned and stored data in flight: if that is not"
            " wanted, raise alignment_timeout or give the slow operator more room"
        )


def _average(old: float | None, new: float) -> float:
    """Moves a part of the way to the new value; the first one is taken as it is."""
    return float(new) if old is None else old + NEW_WEIGHT * (new - old)
