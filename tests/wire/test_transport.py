"""What every transport must do, checked in process, over TCP, over TLS, and over TCP to the node itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, Watermark
from tidegate.errors import InvalidUseError, RetryableError
from tidegate.wire.arrow import event_of
from tidegate.wire.tcp import TcpSettings, TcpTransport
from tidegate.wire.transport import ChannelId, InProcessHub, InProcessTransport, Outbound, Transport

CHANNEL = ChannelId(edge=1, sender=0, receiver=1)
SECRET = b"0123456789abcdef"
QUICK = TcpSettings(connect_timeout_s=0.3, handshake_timeout_s=0.1)

pytestmark = pytest.mark.usefixtures("no_threads_left")


@dataclass
class Pair:
    """A sending and a receiving node with one channel between them."""

    sender: Transport
    receiver: Transport
    sent: Any
    got: Any

    def open(self, schema: pa.Schema) -> Outbound:
        self.receiver.expect(CHANNEL, schema)
        return self.sender.connect(CHANNEL, self.receiver.address)


@pytest.fixture(params=["in process", "tcp", "sealed", "tls"])
def pair(request: pytest.FixtureRequest, mailboxes) -> Iterator[Pair]:
    sent, got = mailboxes
    if request.param == "in process":
        hub = InProcessHub(connect_timeout_s=0.1)
        sender: Any
        receiver: Any
        sender, receiver = InProcessTransport(hub, sent), InProcessTransport(hub, got)
    else:
        tls = request.getfixturevalue("tls_contexts") if request.param == "tls" else None
        sealed = request.param == "sealed"
        sender = TcpTransport(sent, secret=SECRET, gang=3, tls=tls, sealed=sealed, settings=QUICK)
        receiver = TcpTransport(got, secret=SECRET, gang=3, tls=tls, sealed=sealed, settings=QUICK)
    yield Pair(sender, receiver, sent, got)
    sender.close()
    receiver.close()


def send(outbound: Outbound, message, deadline_s: float = 20.0) -> None:
    """Wait for room, as a loop would, then hand the message over."""
    end = time.monotonic() + deadline_s
    while not outbound.ready:
        assert time.monotonic() < end
        time.sleep(0.0005)
    outbound.send(message)


def test_messages_arrive_in_order_and_end_closes_both_ends(pair: Pair, batch: pa.RecordBatch) -> None:
    outbound = pair.open(batch.schema)
    messages: list[Any] = [
        event_of(batch),
        Watermark(5),
        Barrier(CheckpointBarrier(7, 1)),
        event_of(batch.slice(10, 20)),
        End(),
    ]
    for message in messages:
        send(outbound, message)
    assert pair.got.wait_messages(5) == messages
    assert [size for _, _, size in pair.got.received_] == [
        messages[0].size_bytes, 0, 0, messages[3].size_bytes, 0,
    ]  # fmt: skip
    assert pair.got.wait_closed() is None
    assert pair.sent.wait_closed() is None
    assert {channel for channel, _, _ in pair.got.received_} == {CHANNEL}


def test_large_batches_arrive_complete(pair: Pair) -> None:
    rows = range(400_000)
    large = pa.record_batch({"n": pa.array(rows), "s": pa.array(["x" * (i % 7) for i in rows])})
    outbound = pair.open(large.schema)
    for _ in range(4):
        send(outbound, event_of(large))
    for message in pair.got.wait_messages(4):
        assert isinstance(message, Event) and message.payload == large


def test_credit_goes_back_to_the_sender(pair: Pair, batch: pa.RecordBatch) -> None:
    outbound = pair.open(batch.schema)
    send(outbound, event_of(batch))
    pair.got.wait_messages(1)
    pair.receiver.credit(CHANNEL, 1000)
    pair.receiver.credit(CHANNEL, 1 << 40)
    pair.sent.wait(lambda: len(pair.sent.credited_) == 2)
    assert pair.sent.credited_ == [(CHANNEL, 1000), (CHANNEL, 1 << 40)]


def test_credit_after_the_end_does_no_harm(pair: Pair, batch: pa.RecordBatch) -> None:
    outbound = pair.open(batch.schema)
    send(outbound, End())
    assert pair.got.wait_closed() is None
    pair.receiver.credit(CHANNEL, 5)
    assert pair.sent.wait_closed() is None
    pair.receiver.credit(CHANNEL, 5)
    assert pair.sent.credited_ == []


def test_credit_for_a_strange_channel_is_refused(pair: Pair) -> None:
    with pytest.raises(InvalidUseError):
        pair.receiver.credit(ChannelId(9, 9, 9), 1)


def test_closing_before_the_end_breaks_the_channel_for_the_receiver_alone(pair: Pair, batch) -> None:
    outbound = pair.open(batch.schema)
    send(outbound, Watermark(1))
    outbound.close()
    outbound.close()
    assert isinstance(pair.got.wait_closed(), RetryableError)
    assert pair.got.messages == [Watermark(1)]
    assert not outbound.ready
    assert pair.sent.closed_ == []
    with pytest.raises(InvalidUseError):
        outbound.send(Watermark(2))


def test_closing_after_the_end_changes_nothing(pair: Pair, batch: pa.RecordBatch) -> None:
    outbound = pair.open(batch.schema)
    send(outbound, End())
    outbound.close()
    assert pair.got.wait_closed() is None
    assert pair.sent.wait_closed() is None
    with pytest.raises(InvalidUseError):
        outbound.send(Watermark(2))


def test_a_receiver_that_goes_away_breaks_the_channel_for_the_sender(pair: Pair, batch) -> None:
    outbound = pair.open(batch.schema)
    pair.receiver.close()
    assert isinstance(pair.sent.wait_closed(), RetryableError)
    assert not outbound.ready
    outbound.send(Watermark(1))
    assert pair.got.closed_ == []


def test_a_sender_that_goes_away_breaks_the_channel_for_the_receiver(pair: Pair, batch) -> None:
    pair.open(batch.schema)
    pair.sender.close()
    assert isinstance(pair.got.wait_closed(), RetryableError)
    assert pair.sent.closed_ == []


def test_a_channel_is_opened_once(pair: Pair, batch: pa.RecordBatch) -> None:
    pair.open(batch.schema)
    with pytest.raises(RetryableError):
        pair.sender.connect(CHANNEL, pair.receiver.address)
    with pytest.raises(InvalidUseError):
        pair.receiver.expect(CHANNEL, batch.schema)


def test_a_channel_that_nobody_expects_is_given_up_after_a_bounded_time(pair: Pair) -> None:
    started = time.monotonic()
    with pytest.raises(RetryableError):
        pair.sender.connect(CHANNEL, pair.receiver.address)
    assert time.monotonic() - started < 3.0


def test_a_schema_that_cannot_travel_is_refused(pair: Pair) -> None:
    with pytest.raises(InvalidUseError):
        pair.receiver.expect(CHANNEL, pa.schema({"d": pa.dictionary(pa.int8(), pa.string())}))


def test_close_may_be_called_twice_and_ends_what_follows(pair: Pair, batch: pa.RecordBatch) -> None:
    pair.open(batch.schema)
    pair.sender.close()
    pair.sender.close()
    with pytest.raises((RetryableError, InvalidUseError)):
        pair.sender.connect(ChannelId(2, 0, 1), pair.receiver.address)


def test_a_node_reaches_itself_without_a_socket(mailboxes, batch: pa.RecordBatch) -> None:
    mailbox, _ = mailboxes
    node = TcpTransport(mailbox, secret=SECRET, gang=1, settings=QUICK)
    try:
        node.expect(CHANNEL, batch.schema)
        outbound = node.connect(CHANNEL, node.address)
        event = event_of(batch)
        outbound.send(event)
        assert mailbox.messages[0] is event
        node.credit(CHANNEL, 5)
        assert mailbox.credited_ == [(CHANNEL, 5)]
        outbound.send(End())
        assert mailbox.closed_ == [(CHANNEL, None)]
        with pytest.raises(RetryableError):
            node.connect(ChannelId(8, 8, 8), node.address)
    finally:
        node.close()
