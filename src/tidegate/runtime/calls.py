"""Questions and answers over a control line, in both directions: a leader's orders to its driver, and what people ask a leader.

A call is a verb with JSON. It is answered once: with JSON, or with an error that is raised on the other side under its own name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from tidegate import errors
from tidegate.core.log.codec import parse
from tidegate.errors import RetryableError, TidegateError
from tidegate.wire._gen import control_pb2 as pb


class Calls:
    """The open calls of one end of one line. ``send`` never blocks; any thread."""

    def __init__(self, send: Callable[[pb.Call], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._open: dict[int, Future[Any]] = {}
        self._lost: Exception | None = None

    def call(self, verb: str, **arguments: Any) -> Future[Any]:
        """Ask; the future gets the answer, or why there will be none."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            number = next(self._numbers)
            lost = self._lost
            if lost is None:
                self._open[number] = future
        if lost is not None:
            future.set_exception(lost)
        else:
            self._send(pb.Call(number=number, verb=verb, json=json.dumps(arguments).encode()))
        return future

    def replied(self, reply: pb.Reply) -> None:
        """The other side has answered. An answer to nothing is dropped."""
        with self._lock:
            future = self._open.pop(reply.number, None)
        if future is None:
            return
        if reply.error_type:
            future.set_exception(_error(reply))
            return
        try:
            future.set_result(parse(reply.json, "reply"))
        except TidegateError as error:
            future.set_exception(error)

    def lost(self, reason: Exception, *, heard: bool = True) -> None:
        """The line is gone: whoever waits is told that nobody knows whether it was done; unless there never was one."""
        known = f"the line was lost before an answer came, it may have been done: {reason}" if heard else str(reason)
        with self._lock:
            self._lost = RetryableError(known)
            waiting, self._open = list(self._open.values()), {}
        for future in waiting:
            future.set_exception(self._lost)


def _error(reply: pb.Reply) -> Exception:
    """The error under the name that it has on the other side, if it is one of ours."""
    kind = getattr(errors, reply.error_type, None)
    if isinstance(kind, type) and issubclass(kind, TidegateError):
        try:
            return kind(reply.error)
        except TypeError:
            pass
    return TidegateError(f"{reply.error_type}: {reply.error}")


def answer(call: pb.Call, result: object = None) -> pb.Reply:
    """It was done."""
    return pb.Reply(number=call.number, json=json.dumps(result).encode())


def refusal(call: pb.Call, error: BaseException) -> pb.Reply:
    """It was not."""
    return pb.Reply(number=call.number, error_type=type(error).__name__, error=str(error) or repr(error))


def arguments_of(call: pb.Call) -> dict[str, Any]:
    """What the call says."""
    plain = parse(call.json, "call")
    if not isinstance(plain, dict):
        raise errors.ProtocolError(f"a call has arguments by name verb={call.verb!r}")
    return plain
