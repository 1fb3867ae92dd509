"""Channels between subtasks: what the node's loop may ask of the network, and the network that is no network.

The loop thread hands messages to an ``Outbound`` and learns everything else through ``Events``. A transport
only moves messages: who may send how much (credits) and what a barrier means is decided elsewhere.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.core.barrier.messages import End, Event
from tidegate.errors import InvalidUseError, NodeUnreachable, RetryableError, ThreadDied
from tidegate.ids import NodeId
from tidegate.wire.arrow import Message, check_schema

MAX_HANDED = 2
CONNECT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """One channel of a job: an edge of the plan, from one subtask to another."""

    edge: int
    sender: NodeId
    receiver: NodeId

    def __str__(self) -> str:
        return f"{self.edge}:{self.sender}>{self.receiver}"


class Outbound(Protocol):
    """The sender's end of one channel. All calls come from the loop thread; none blocks. Messages keep their
    order.
    """

    @property
    def ready(self) -> bool:
        """Another message may be handed over now: fewer than ``MAX_HANDED`` are unsent and the channel
        stands.
        """

    def send(self, message: Message) -> None:
        """Hand a message over. ``ChannelFull`` when too many are unsent. On a channel that broke it is
        dropped: ``Events.closed`` says so. After ``close`` it is an ``InvalidUseError``.
        """

    def close(self) -> None:
        """No more messages come. Those handed over are still sent. Closing before ``End`` tells the receiver
        that the channel broke. Idempotent.
        """


class Events(Protocol):
    """What a transport reports, from network threads: be quick, be thread-safe, never raise (append to a
    mailbox).

    Per channel the calls are in order: messages as they were sent, then one ``closed`` and nothing after it.
    """

    def received(self, channel: ChannelId, message: Message, size_bytes: int) -> None:
        """A message came. ``size_bytes`` is what it cost in credit: an event's size, 0 for anything else."""

    def credited(self, channel: ChannelId, size_bytes: int) -> None:
        """The receiver of an outbound channel returned credit."""

    def sendable(self, channel: ChannelId) -> None:
        """An outbound channel that was not ready is ready again."""

    def closed(self, channel: ChannelId, error: Exception | None) -> None:
        """The channel is over: ``None`` after a regular ``End``, else why it broke. Not reported for what
        this side ended by ``close``; once, not twice, for a channel whose both ends are here.
        """

    def broken(self, death: ThreadDied) -> None:
        """A thread of the transport died outside any channel: it can't be relied on any more."""


class Transport(Protocol):
    """The channels of one node."""

    @property
    def address(self) -> str:
        """``host:port`` to be told to peers; empty in process."""

    def connect(self, channel: ChannelId, address: str) -> Outbound:
        """Open a channel to the node at ``address``. Blocks until the peer expects it; ``RetryableError``
        after a bounded time, ``FencedError`` when the peer belongs to a newer gang.
        """

    def expect(self, channel: ChannelId, schema: pa.Schema) -> None:
        """Let a peer open this inbound channel, once. Never blocks."""

    def credit(self, channel: ChannelId, size_bytes: int) -> None:
        """Return credit to the sender of an inbound channel. Never blocks; does nothing on a closed
        channel.
        """

    def give_up(self) -> None:
        """Let a ``connect`` that waits for its peer fail soon; only ``close`` may follow. Any thread; never blocks."""

    def close(self) -> None:
        """End every channel, thread and socket. Takes a bounded time; afterwards nothing is reported.
        Idempotent.
        """


@dataclass(slots=True)
class _Inbound:
    receiver: InProcessTransport
    sender: InProcessTransport | None = None
    over: bool = False


class InProcessHub:
    """Joins the ``InProcessTransport``s of one process. Channel ids are unique in it."""

    def __init__(self, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._changed = threading.Condition()
        self._channels: dict[ChannelId, _Inbound] = {}

    def expect(self, channel: ChannelId, receiver: InProcessTransport) -> None:
        """Note who receives this channel."""
        with self._changed:
            if channel in self._channels:
                raise InvalidUseError(f"this channel is expected already channel={channel}")
            self._channels[channel] = _Inbound(receiver)
            self._changed.notify_all()

    def join(self, channel: ChannelId, sender: InProcessTransport) -> _Inbound:
        """Wait until the channel is expected, then take its sending end."""
        deadline = time.monotonic() + self._connect_timeout_s
        with self._changed:
            while channel not in self._channels:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise NodeUnreachable(f"nobody expects this channel channel={channel}")
            inbound = self._channels[channel]
            if inbound.sender is not None or inbound.over:
                raise RetryableError(f"this channel was opened before channel={channel}")
            inbound.sender = sender
            return inbound

    def inbound(self, channel: ChannelId) -> _Inbound | None:
        """The channel with this id, if anybody expects it."""
        return self._channels.get(channel)

    def leave(self, transport: InProcessTransport) -> list[tuple[ChannelId, _Inbound]]:
        """End all channels of a transport: those that were still open."""
        with self._changed:
            ended = [
                (channel, inbound)
                for channel, inbound in self._channels.items()
                if not inbound.over and transport in (inbound.receiver, inbound.sender)
            ]
            for _, inbound in ended:
                inbound.over = True
            return ended


class InProcessTransport:
    """A transport without threads and sockets: every call runs the peer's callback at once, in the caller's
    thread.
    """

    def __init__(self, hub: InProcessHub, events: Events) -> None:
        self._hub = hub
        self.events = events
        self.is_closed = False

    @property
    def address(self) -> str:
        """Always empty: channels find each other by id."""
        return ""

    def connect(self, channel: ChannelId, address: str = "") -> InProcessOutbound:
        """Open a channel; the address does not matter. Waits until some transport of the hub expects it."""
        if self.is_closed:
            raise InvalidUseError("this transport is closed")
        return InProcessOutbound(channel, self, self._hub.join(channel, self))

    def expect(self, channel: ChannelId, schema: pa.Schema) -> None:
        """Let a transport of the same hub open this channel."""
        check_schema(schema)
        if self.is_closed:
            raise InvalidUseError("this transport is closed")
        self._hub.expect(channel, self)

    def credit(self, channel: ChannelId, size_bytes: int) -> None:
        """Call the sender's ``credited`` at once."""
        inbound = self._hub.inbound(channel)
        if inbound is None or inbound.receiver is not self:
            raise InvalidUseError(f"not an inbound channel of this node channel={channel}")
        if inbound.sender is not None and not inbound.over:
            inbound.sender.events.credited(channel, size_bytes)

    def give_up(self) -> None:
        """Nothing waits here for long."""

    def close(self) -> None:
        """Break all channels: peers are told at once."""
        if self.is_closed:
            return
        self.is_closed = True
        for channel, inbound in self._hub.leave(self):
            peer = inbound.sender if inbound.receiver is self else inbound.receiver
            if peer is not None and peer is not self:
                peer.events.closed(channel, RetryableError(f"the peer closed the channel channel={channel}"))


class InProcessOutbound:
    """The sending end of an in-process channel. What is sent is received before ``send`` returns."""

    def __init__(self, channel: ChannelId, transport: InProcessTransport, inbound: _Inbound) -> None:
        self._channel = channel
        self._transport = transport
        self._inbound = inbound
        self._ended = False
        self._closed = False

    @property
    def ready(self) -> bool:
        """True while the channel stands: nothing is ever unsent."""
        return not (self._closed or self._ended or self._inbound.over)

    def send(self, message: Message) -> None:
        """Deliver a message."""
        if self._closed or self._ended:
            raise InvalidUseError(f"sent on a channel that this side ended channel={self._channel}")
        if self._inbound.over:
            return
        size = message.size_bytes if isinstance(message, Event) else 0
        self._inbound.receiver.events.received(self._channel, message, size)
        if isinstance(message, End):
            self._ended = True
            self._finish()

    def close(self) -> None:
        """Break the channel unless ``End`` was sent."""
        if not (self._closed or self._inbound.over):
            self._inbound.over = True
            error = RetryableError(f"the sender closed the channel before its end channel={self._channel}")
            self._inbound.receiver.events.closed(self._channel, error)
        self._closed = True

    def _finish(self) -> None:
        self._inbound.over = True
        receiver, sender = self._inbound.receiver.events, self._transport.events
        receiver.closed(self._channel, None)
        if sender is not receiver:
            sender.closed(self._channel, None)
