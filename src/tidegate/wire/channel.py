"""The two ends of a data channel over one connection: the threads that encode, send, receive and decode.

The receiver answers ``End`` with an end frame of its own, so a sender knows that all it sent was taken. The
receiving end always reads: holding back is the credits' business, so a full node never blocks its peer's
sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import pyarrow as pa

from tidegate.core.barrier.messages import End
from tidegate.errors import (
    ChannelFull,
    InvalidUseError,
    ProtocolError,
    RetryableError,
    ThreadDied,
    TidegateError,
)
from tidegate.wire.arrow import Message, allocate, decode_message, encode_message
from tidegate.wire.connection import Connection
from tidegate.wire.frames import (
    MAX_REASON_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    header,
    pack_frame,
    pack_reason,
    pack_u64,
    unpack_reason,
    unpack_u64,
)
from tidegate.wire.transport import MAX_HANDED, ChannelId, Events

ABORT_LINGER_S = 1.0
WRITER_JOIN_S = 5.0


def _died(who: str, channel: ChannelId, error: BaseException) -> ThreadDied:
    death = ThreadDied(f"the {who} of a channel died of {error!r} channel={channel}")
    death.__cause__ = error
    return death


class InboundChannel:
    """The receiving end. Its reader thread runs ``run``; the loop thread returns credit."""

    def __init__(
        self, channel: ChannelId, schema: pa.Schema, connection: Connection, events: Events, max_frame_bytes: int
    ) -> None:
        self._channel = channel
        self._schema = schema
        self._connection = connection
        self._events = events
        self._max_frame_bytes = max_frame_bytes
        self._credit_lost = False

    def run(self) -> Exception | None:
        """Report every message until ``End`` or the break: why it broke. Blocks for all of the channel's
        life.
        """
        try:
            self._read()
            self._connection.send(pack_frame(FrameType.END))
        except (OSError, RetryableError) as error:
            return self._lost(error)
        except TidegateError as error:
            self._abort(str(error))
            return error
        except Exception as error:  # memory included: a reader that died unheard would leave both ends waiting for ever
            death = _died("reader", self._channel, error)
            self._abort(str(death))
            return death
        return None

    def credit(self, size_bytes: int) -> None:
        """Send credit back without blocking. A peer that leaves thousands of credits unread is closed."""
        try:
            sent = self._connection.send_now(pack_frame(FrameType.CREDIT, pack_u64(size_bytes)))
        except OSError:
            return  # the reader thread sees the same break and reports it
        if not sent:
            self._credit_lost = True
            self._connection.cut()

    def _read(self) -> None:
        decoder = FrameDecoder(max_frame_bytes=self._max_frame_bytes, allocate=allocate)
        while True:
            count = self._connection.receive_into(decoder.space(), decoder.inside_payload)
            if count == 0:
                raise RetryableError(f"the peer closed the channel before its end channel={self._channel}")
            for frame in decoder.filled(count):
                if self._deliver(frame):
                    return

    def _deliver(self, frame: Frame) -> bool:
        if frame.kind is FrameType.ABORT:
            reason = unpack_reason(frame.payload)
            raise RetryableError(f"the sender closed the channel: {reason} channel={self._channel}")
        message = decode_message(frame, self._schema)
        size = len(frame.payload) if frame.kind is FrameType.EVENT else 0
        self._events.received(self._channel, message, size)
        return frame.kind is FrameType.END

    def _lost(self, error: Exception) -> Exception:
        if self._credit_lost:
            return RetryableError(f"the sender does not read its credits channel={self._channel}")
        if isinstance(error, TidegateError):
            return error
        return RetryableError(f"the channel broke: {error} channel={self._channel}")

    def _abort(self, reason: str) -> None:
        """Tell the sender why, then read for a moment: closing with unread data would destroy the message."""
        try:
            self._connection.set_deadline(time.monotonic() + ABORT_LINGER_S)
            self._connection.send(pack_frame(FrameType.ABORT, pack_reason(reason)))
            self._connection.finish()
            waste = memoryview(bytearray(1 << 16))
            while self._connection.receive_into(waste, False):
                pass
        except (OSError, MemoryError):
            pass  # time is up or the peer is gone: it notices the break by itself


class TcpOutbound:
    """The sending end: a writer thread, and a reader thread that takes credits and owns the connection."""

    def __init__(self, channel: ChannelId, connection: Connection, events: Events, release: Callable[[], None]) -> None:
        self._channel = channel
        self._connection = connection
        self._events = events
        self._release = release
        self._handed: SimpleQueue[Message | None] = SimpleQueue()
        # Each counter has one writer (loop thread, writer thread), so no lock is needed to compare them.
        self._handed_count = 0
        self._sent_count = 0
        self._end_handed = False
        self._end_taken = False
        self._closed = False
        self._broken = False
        self._write_error: Exception | None = None

    @property
    def ready(self) -> bool:
        """Another message may be handed over now."""
        if self._broken or self._closed or self._end_handed:
            return False
        return self._handed_count - self._sent_count < MAX_HANDED

    def send(self, message: Message) -> None:
        """Hand a message to the writer thread."""
        if self._closed or self._end_handed:
            raise InvalidUseError(f"sent on a channel that this side ended channel={self._channel}")
        if self._broken:
            return
        if self._handed_count - self._sent_count >= MAX_HANDED:
            raise ChannelFull(f"wait until the channel is sendable channel={self._channel}")
        self._end_handed = isinstance(message, End)
        self._handed_count += 1
        self._handed.put(message)

    def close(self) -> None:
        """Let the writer finish what it has; before ``End`` it then tells the receiver that the channel is
        closed.
        """
        if self._closed or self._end_handed:
            return
        self._closed = True
        self._handed.put(None)

    def start(self, spawn: Callable[[str, Callable[[], None]], threading.Thread]) -> None:
        """Start the two threads."""
        writer = spawn(f"tidegate-write-{self._channel}", self._write)
        spawn(f"tidegate-credit-{self._channel}", lambda: self._read(writer))

    # -- writer thread --------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while (message := self._handed.get()) is not None and not self._broken:
                self._write_message(message)
                if isinstance(message, End):
                    return self._connection.finish()
            self._write_abort("closed before the end")
        except TidegateError as error:
            self._write_error = error
            self._write_abort(str(error))
        except OSError as error:
            self._write_error = RetryableError(f"the channel broke: {error} channel={self._channel}")
            self._connection.cut()
        except BaseException as error:
            self._write_error = _died("writer", self._channel, error)
            self._write_abort(str(self._write_error))

    def _write_message(self, message: Message) -> None:
        kind, payload = encode_message(message)
        self._connection.send(header(kind, len(payload)), payload)
        self._sent_count += 1
        if self._handed_count - self._sent_count == MAX_HANDED - 1:
            self._events.sendable(self._channel)

    def _write_abort(self, reason: str) -> None:
        try:
            self._connection.send(pack_frame(FrameType.ABORT, pack_reason(reason)))
            self._connection.finish()
        except OSError:
            self._connection.cut()

    # -- reader thread --------------------------------------------------------------------------

    def _read(self, writer: threading.Thread) -> None:
        error = self._read_credits()
        self._broken = True
        self._connection.cut()
        self._handed.put(None)
        writer.join(WRITER_JOIN_S)
        self._release()
        if not self._closed:
            self._events.closed(self._channel, self._write_error or error)

    def _read_credits(self) -> Exception | None:
        decoder = FrameDecoder(max_frame_bytes=MAX_REASON_BYTES)
        try:
            while count := self._connection.receive_into(decoder.space(), decoder.inside_payload):
                for frame in decoder.filled(count):
                    self._take(frame)
        except TidegateError as error:
            return error
        except OSError as error:
            return RetryableError(f"the channel broke: {error} channel={self._channel}")
        except Exception as error:
            return _died("credit reader", self._channel, error)
        if self._end_taken:
            return None
        return RetryableError(f"the receiver closed the channel before its end channel={self._channel}")

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameType.CREDIT:
            self._events.credited(self._channel, unpack_u64(frame.payload))
        elif frame.kind is FrameType.END and self._end_handed:
            self._end_taken = True
        elif frame.kind is FrameType.ABORT:
            reason = unpack_reason(frame.payload)
            raise RetryableError(f"the receiver closed the channel: {reason} channel={self._channel}")
        else:
            raise ProtocolError(f"no frame of a receiver kind={frame.kind.name} channel={self._channel}")
