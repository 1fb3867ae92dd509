"""Every error that tidegate raises on purpose: one class per reaction, the named causes as leaves below.

Messages are lower case, say what to do and end in ``key=value``. All of them survive pickling, because they cross Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TidegateError(Exception):
    """The root. ``story`` is the list of recent events that led here, newest last; it may be empty."""

    def __init__(self, message: str = "", *, story: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.story: tuple[str, ...] = tuple(story)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0] if self.args else "", dict(self.__dict__)))


def _rebuild(kind: type[TidegateError], message: str, fields: dict[str, object]) -> TidegateError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


# -- reactions ---------------------------------------------------------------------------------------------------------


class RetryableError(TidegateError):
    """The world failed for now: try again."""


class FencedError(TidegateError):
    """A newer term or gang owns the job: stop."""


class InvalidUseError(TidegateError, ValueError):
    """The call is wrong: fix it. Nothing was started or changed."""


class CorruptDataError(TidegateError):
    """Stored or received data is not what it should be. ``path`` names it."""

    def __init__(self, message: str = "", *, path: str = "", story: Sequence[str] = ()) -> None:
        super().__init__(message, story=story)
        self.path = path


class CheckpointAbortedError(TidegateError):
    """This checkpoint is over; the job goes on. ``failed_nodes`` are those that it failed on, each with its reason."""

    def __init__(
        self,
        message: str = "",
        *,
        checkpoint_id: int = 0,
        failed_nodes: Mapping[int, str] | None = None,
        story: Sequence[str] = (),
    ) -> None:
        super().__init__(message, story=story)
        self.checkpoint_id = checkpoint_id
        self.failed_nodes = dict(failed_nodes or {})


class ProtocolError(TidegateError):
    """An impossible message: a bug of ours or of a peer. The state is unchanged."""


class ThreadDied(TidegateError):
    """A thread that others depend on is gone: end what depends on it. The cause is what it died of."""


class JobFailedError(TidegateError):
    """The job ended in failure. The message carries the user's own traceback where there is one."""


# -- stores and sinks --------------------------------------------------------------------------------------------------


class StorageUnavailable(RetryableError):
    """The store or a sink's file system fails for now: full, slow, throttled, its clock or token out of date. It may pass."""


class StorageRefused(InvalidUseError):
    """The store or a sink's file system refuses us: read-only, not permitted, no such bucket. A start is refused; a job that
    has run there waits until somebody has fixed it.
    """


WAITED_FOR = (RetryableError, StorageRefused)
"""What a running job waits for, for a bounded time."""


# -- injection (F-DCKP-001) --------------------------------------------------------------------------------------------


class BarrierInjectionFailed(CheckpointAbortedError):
    """A source could not put the barrier on its outputs."""


class DuplicateBarrier(ProtocolError):
    """A second arrival of the same barrier from one input."""


class BarrierTimeout(CheckpointAbortedError):
    """A barrier was not acknowledged in time."""


class EpochMismatch(InvalidUseError):
    """A barrier command whose id is at or below one already taken."""


class ChannelFull(RetryableError):
    """No room for the message now."""


# -- unaligned checkpoints (F-DCKP-006) --------------------------------------------------------------------------------


class InFlightBufferTooLarge(CheckpointAbortedError):
    """More in-flight data than ``max_inflight_bytes`` on one channel."""


class InFlightSerializationFailed(CheckpointAbortedError):
    """In-flight data could not be written."""


class InFlightDeserializationFailed(CorruptDataError):
    """In-flight data of a checkpoint could not be read; the checkpoint is corrupt."""


class ThresholdTooLow(UserWarning):
    """Every checkpoint goes unaligned: the alignment timeout is too low for this load."""


class ChannelReadFailed(CheckpointAbortedError):
    """A channel broke while it was being recorded."""


class LateBarrierTimeout(CheckpointAbortedError):
    """A recorded input's barrier never came."""


# -- control signals ---------------------------------------------------------------------------------------------------


class BarrierOverlap(ProtocolError):
    """A different barrier arrived while one is still pending."""


class SignalLost(RetryableError):
    """A signal died with its gang, or its payload can't be read: nobody knows who has seen it. Send it again."""


class SignalTimeout(RetryableError):
    """A signal was not answered in the time given. It is still on its way, and can't be taken back."""


# -- coordination (F-DCKP-008) -----------------------------------------------------------------------------------------


class TooManyConcurrent(InvalidUseError):
    """A checkpoint was asked for while one is in flight."""


class CheckpointNotFound(InvalidUseError):
    """No checkpoint with this id is in flight or stored."""


class UnexpectedPhase(ProtocolError):
    """A message that does not belong to the checkpoint's phase."""


class ManifestSerializationFailed(CheckpointAbortedError):
    """The manifest could not be built from what the nodes reported."""


class NodeFailed(CheckpointAbortedError):
    """A node was lost or reported a failure during the checkpoint."""


class NodeRejected(NodeFailed):
    """A node answered that it can't take part in the checkpoint."""


class CheckpointTimeout(CheckpointAbortedError):
    """The checkpoint did not complete within its deadline."""


class NodeTimeout(CheckpointTimeout):
    """Nodes were asked and did not answer in time."""


class NodeUnreachable(RetryableError):
    """A node does not answer."""


class NodeStalled(NodeUnreachable):
    """A node's process is there and says nothing: it is stopped, or a function holds its interpreter."""


# -- streaming API (F-STREAM-013) --------------------------------------------------------------------------------------


class CheckpointDisabled(InvalidUseError):
    """Checkpointing is off."""


class DataDirRequired(InvalidUseError):
    """Checkpointing is on and there is no store to write to."""


class WalRequiresCheckpoint(InvalidUseError):
    """A write-ahead log without checkpoints."""


class NoCheckpoint(InvalidUseError):
    """Nothing to restore from."""
