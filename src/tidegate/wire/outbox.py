"""What one end of a control stream runs on: a queue with heartbeats in it, and a thread that looks for silence."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidegate.errors import InvalidUseError
from tidegate.supervise import Died, supervised
from tidegate.wire._gen.control_pb2 import CoordinatorMessage, NodeMessage

LOOKS = 20
"""How often silence is looked for within the time that is allowed."""

M = TypeVar("M", NodeMessage, CoordinatorMessage)


class Outbox(Generic[M]):
    """What is still to be sent on one stream, bounded; as an iterator it blocks, and adds heartbeats at regular times."""

    def __init__(self, heartbeat: Callable[[], M], heartbeat_s: float, *, max_message_bytes: int, outbox_max: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._outbox_max = outbox_max
        self._heartbeat_s = heartbeat_s
        self._heartbeat: Callable[[], M] = heartbeat
        self._changed = threading.Condition()
        self._messages: deque[M] = deque()
        self._finished = False
        self._sent_all = False
        self._beat_at = time.monotonic() + heartbeat_s

    def put(self, message: M) -> bool:
        """Queue a message; False when there is no room. After the end it is dropped."""
        size = message.ByteSize()
        if size > self._max_message_bytes:
            raise InvalidUseError(f"a control message over its limit size_bytes={size} limit={self._max_message_bytes}")
        with self._changed:
            if len(self._messages) >= self._outbox_max:
                return False
            if not self._finished:
                self._messages.append(message)
                self._sent_all = False
                self._changed.notify_all()
            return True

    def beat(self, timeout_s: float) -> None:
        """Have a heartbeat sent now; waits until grpc has taken it."""
        with self._changed:
            self._beat_at = 0.0
            self._sent_all = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._finished or self._sent_all, timeout_s)

    def finish(self) -> None:
        """Nothing more comes: iteration ends after what is queued."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[M]:
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> M | None:
        """Whoever asks for the next has sent the one before."""
        with self._changed:
            while not self._messages and not self._finished:
                left_s = self._beat_at - time.monotonic()
                if left_s <= 0:
                    break
                self._sent_all = True
                self._changed.notify_all()
                self._changed.wait(left_s)
            if not self._finished and time.monotonic() >= self._beat_at:
                self._beat_at = time.monotonic() + self._heartbeat_s
            elif self._messages:
                return self._messages.popleft()
            else:
                return None
        return self._heartbeat()


class SilenceWatch:
    """A thread that looks for silence many times in each allowed span."""

    def __init__(self, name: str, silence_s: float, look: Callable[[float], None], died: Died) -> None:
        self._stop = threading.Event()
        self._pause_s = silence_s / LOOKS
        self._look = look
        self._thread = supervised(name, self._run, died)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._look(time.monotonic())

    def close(self, timeout_s: float) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
