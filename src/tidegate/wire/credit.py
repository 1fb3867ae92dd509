"""Flow control of the data channels, in bytes: who may send how much, and when credit is returned.

Pure arithmetic. Only events cost credit; barriers, watermarks, control signals and ends go without. Both ends
count the same number for an event, its serialised size, so a balance never drifts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import InvalidUseError, ProtocolError

RETURN_FRACTION = 4


class CreditWindow:
    """The sender's side of one channel: how many bytes may still go out before some come back.

    While the balance is positive one more message may go, whatever its size: so a message larger than the
    window passes, and the balance is overdrawn by one message at most.
    """

    __slots__ = ("_balance_bytes", "_window_bytes")

    def __init__(self, window_bytes: int) -> None:
        if window_bytes <= 0:
            raise InvalidUseError(f"a credit window is positive window_bytes={window_bytes}")
        self._window_bytes = window_bytes
        self._balance_bytes = window_bytes

    @property
    def may_send(self) -> bool:
        """True when one more message may go."""
        return self._balance_bytes > 0

    @property
    def balance_bytes(self) -> int:
        """What is left; zero or negative means wait."""
        return self._balance_bytes

    def spend(self, size_bytes: int) -> None:
        """A message of this size goes out. Refused, unchanged, when none may go."""
        if size_bytes < 0:
            raise InvalidUseError(f"a size is not negative size_bytes={size_bytes}")
        if self._balance_bytes <= 0:
            raise ProtocolError(f"sent without credit balance_bytes={self._balance_bytes} size_bytes={size_bytes}")
        self._balance_bytes -= size_bytes

    def credited(self, size_bytes: int) -> bool:
        """The receiver returned this. True when sending was impossible before and is possible now."""
        if size_bytes <= 0:
            raise ProtocolError(f"a credit is positive size_bytes={size_bytes}")
        if self._balance_bytes + size_bytes > self._window_bytes:
            raise ProtocolError(
                f"more credit came back than was spent size_bytes={size_bytes}"
                f" balance_bytes={self._balance_bytes} window_bytes={self._window_bytes}"
            )
        before = self._balance_bytes
        self._balance_bytes += size_bytes
        return before <= 0 < self._balance_bytes


class CreditReturn:
    """The receiver's side of one channel: returns credit on consumption, a quarter of the window at a
    time.

    What is held back is always less than a quarter of the window, so a sender whose messages are all consumed
    can send.
    """

    __slots__ = ("_held_bytes", "_threshold_bytes")

    def __init__(self, window_bytes: int) -> None:
        if window_bytes <= 0:
            raise InvalidUseError(f"a credit window is positive window_bytes={window_bytes}")
        self._threshold_bytes = max(1, window_bytes // RETURN_FRACTION)
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Consumed and not returned yet."""
        return self._held_bytes

    def consumed(self, size_bytes: int) -> int:
        """An event of this size has left the queue: how much to return now, 0 for nothing yet."""
        if size_bytes < 0:
            raise InvalidUseError(f"a size is not negative size_bytes={size_bytes}")
        self._held_bytes += size_bytes
        return self.flush() if self._held_bytes >= self._threshold_bytes else 0

    def flush(self) -> int:
        """Everything held back, to be returned now."""
        held = self._held_bytes
        self._held_bytes = 0
        return held


@dataclass(frozen=True, slots=True)
class CreditPool:
    """The memory that one node has for its inbound channels, shared out evenly."""

    total_bytes: int

    def __post_init__(self) -> None:
        if self.total_bytes <= 0:
            raise InvalidUseError(f"a credit pool is positive total_bytes={self.total_bytes}")

    def share(self, channels: int) -> int:
        """The window of each of ``channels`` channels: at least one byte, so that every channel moves, one message
        at a time.
        """
        if channels <= 0:
            raise InvalidUseError(f"a pool is shared by at least one channel channels={channels}")
        return max(1, self.total_bytes // channels)
