"""From an exception to the kind of failure that it is, once, where it is caught; and what a node says about it."""

from __future__ import annotations

import traceback
from functools import cache

from tidegate.core.failure.restart import Failure, FailureKind
from tidegate.errors import FencedError, RetryableError, StorageRefused, StorageUnavailable, ThreadDied
from tidegate.ids import GangNumber, NodeId
from tidegate.operators.map import UserFunctionError
from tidegate.wire._gen import control_pb2 as pb

LAST_WORDS_MAX = 64 << 10
"""A traceback of deep recursion is cut: the control line has a limit, and its two ends say the most."""


class PeerLost(RetryableError):
    """A channel or the control line is gone: what follows from the end of whoever is at the other end."""


def kind_of(error: BaseException) -> FailureKind:
    """What reaction an exception asks for."""
    match error:
        case PeerLost():
            return FailureKind.PEER_LOST
        case UserFunctionError():
            return FailureKind.TRANSIENT if _passes(error.__cause__) else FailureKind.USER_FUNCTION
        case ThreadDied() if error.__cause__ is not None:
            return kind_of(error.__cause__)
        case StorageUnavailable():
            return FailureKind.STORAGE_UNAVAILABLE
        case StorageRefused():
            return FailureKind.STORAGE_REFUSED
        case RetryableError() | OSError() | MemoryError():
            return FailureKind.TRANSIENT
        case _:
            return FailureKind.DEFECT


def _passes(cause: BaseException | None) -> bool:
    """A user's function may say so itself, or a service that it calls did not answer."""
    return isinstance(cause, RetryableError | ConnectionError | TimeoutError)


def last_words(gang: GangNumber, error: BaseException) -> pb.Failed:
    """What a node says when it fails; the user's own traceback where it was the user's function."""
    cause = error.__cause__ if isinstance(error, UserFunctionError | ThreadDied) and error.__cause__ else error
    return pb.Failed(
        gang=gang,
        error_type=type(error).__name__,
        message=_cut(str(error) or repr(error)),
        traceback=_cut("".join(traceback.format_exception(cause))),
        kind=pb.CauseKind.Name(int(kind_of(error))),
        where=where_of(cause),
    )


def where_of(error: BaseException) -> str:
    """The innermost line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def failure_of(node: NodeId, who: str, failed: pb.Failed) -> Failure:
    """A node's last words, as the driver takes them. A kind that this version does not know is a defect."""
    kind = FailureKind(failed.kind) if failed.kind in _known() else FailureKind.DEFECT
    text = f"{who}: {failed.error_type}: {failed.message}"
    return Failure(kind, text, node, failed.error_type, failed.where, failed.traceback)


@cache
def _known() -> frozenset[int]:
    return frozenset(map(int, FailureKind))


def _cut(text: str) -> str:
    half = LAST_WORDS_MAX // 2
    return text if len(text) <= LAST_WORDS_MAX else f"{text[:half]}\n[...]\n{text[-half:]}"


def caused(what: str, error: BaseException) -> Failure:
    """Work on the driver failed. With the traceback: of ``for_each_batch`` and of own sinks it is the user's."""
    if isinstance(error, FencedError):  # it says all there is to say
        return Failure(FailureKind.DEFECT, str(error), None, type(error).__name__)
    cause = error.__cause__ if isinstance(error, ThreadDied) and error.__cause__ is not None else error
    lines = "".join(traceback.format_exception(cause))
    return Failure(kind_of(error), f"{what}: {error!r}", None, type(error).__name__, where_of(cause), lines)
