"""What is particular to TCP: strangers, other gangs, damaged streams, slow readers, and what stays behind."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, Watermark
from tidegate.errors import (
    ChannelFull,
    CorruptDataError,
    FencedError,
    InvalidUseError,
    NodeUnreachable,
    ProtocolError,
    RetryableError,
    ThreadDied,
)
from tidegate.wire.arrow import event_of
from tidegate.wire.connection import TlsContexts
from tidegate.wire.frames import FrameDecoder, FrameType, header, pack_frame, pack_u64, unpack_reason
from tidegate.wire.handshake import PeerClaim, pack_claim
from tidegate.wire.seal import NONCE_BYTES
from tidegate.wire.tcp import TcpSettings, TcpTransport
from tidegate.wire.transport import MAX_HANDED, ChannelId

CHANNEL = ChannelId(1, 0, 1)
SECRET = b"0123456789abcdef"
OTHER_SECRET = b"fedcba9876543210"
QUICK = TcpSettings(connect_timeout_s=0.4, handshake_timeout_s=0.2)

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def node() -> Iterator[Callable[..., TcpTransport]]:
    """Makes transports and closes them."""
    made: list[TcpTransport] = []

    def make(mailbox, *, secret: bytes = SECRET, gang: int = 3, settings: TcpSettings = QUICK, tls=None, sealed=False):
        made.append(TcpTransport(mailbox, secret=secret, gang=gang, settings=settings, tls=tls, sealed=sealed))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


class Peer:
    """The other end of a connection, in the test's own hands."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.socket.settimeout(20)
        self.decoder = FrameDecoder()

    def frame(self):
        while True:
            data = self.socket.recv(1)
            if not data:
                return None
            if frames := self.decoder.feed(data):
                return frames[0]

    def claim(self, channel: ChannelId = CHANNEL, gang: int = 3, secret: bytes = SECRET) -> object:
        challenge = bytes(self.frame().payload)
        claim = pack_claim(secret, challenge, b"n" * NONCE_BYTES, PeerClaim(gang, channel))
        self.socket.sendall(pack_frame(FrameType.HELLO, claim))
        return self.frame()


@pytest.fixture
def dial() -> Iterator[Callable[[TcpTransport], Peer]]:
    peers: list[Peer] = []

    def connect(transport: TcpTransport) -> Peer:
        host, port = transport.address.split(":")
        peers.append(Peer(socket.create_connection((host, int(port)))))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.socket.close()


def test_another_secret_is_refused_and_no_secret_is_logged(node, mailboxes, batch, caplog) -> None:
    receiver = node(mailboxes[1])
    receiver.expect(CHANNEL, batch.schema)
    with caplog.at_level(logging.DEBUG, "tidegate"), pytest.raises(RetryableError, match="secret"):
        node(mailboxes[0], secret=OTHER_SECRET).connect(CHANNEL, receiver.address)
    receiver.close()
    assert "refused a data connection" in caplog.text
    for secret in (SECRET, OTHER_SECRET):
        assert secret.decode() not in caplog.text and secret.hex() not in caplog.text
    assert mailboxes[1].closed_ == []


def test_a_newer_gang_fences_the_connector(node, mailboxes, batch: pa.RecordBatch) -> None:
    receiver = node(mailboxes[1], gang=4)
    receiver.expect(CHANNEL, batch.schema)
    with pytest.raises(FencedError, match="newer=4"):
        node(mailboxes[0], gang=3).connect(CHANNEL, receiver.address)


def test_an_older_gang_is_not_joined(node, mailboxes, batch: pa.RecordBatch) -> None:
    receiver = node(mailboxes[1], gang=2)
    receiver.expect(CHANNEL, batch.schema)
    with pytest.raises(RetryableError, match="older=2"):
        node(mailboxes[0], gang=3).connect(CHANNEL, receiver.address)


def test_a_sender_that_comes_too_early_waits_until_it_is_expected(node, mailboxes, batch) -> None:
    patient = TcpSettings(connect_timeout_s=20.0, handshake_timeout_s=10.0)
    receiver, sender = node(mailboxes[1], settings=patient), node(mailboxes[0], settings=patient)
    timer = threading.Timer(0.1, lambda: receiver.expect(CHANNEL, batch.schema))
    timer.start()
    sender.connect(CHANNEL, receiver.address).send(End())
    assert mailboxes[1].wait_closed() is None
    timer.join()


def test_nobody_listens_there(node, mailboxes) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(NodeUnreachable):
            node(mailboxes[0]).connect(CHANNEL, f"127.0.0.1:{unused.getsockname()[1]}")


@pytest.mark.parametrize("address", ["", "host", "host:", ":5", "host:x", "host:0", "host:70000"])
def test_a_wrong_address_is_refused(node, mailboxes, address: str) -> None:
    with pytest.raises(InvalidUseError):
        node(mailboxes[0]).connect(CHANNEL, address)


def test_only_two_messages_are_handed_over_and_sendable_tells_when_there_is_room(node, mailboxes) -> None:
    sent, got = mailboxes
    large = pa.record_batch({"n": pa.array(range(2_000_000))})
    receiver, sender = node(got), node(sent)
    release = threading.Event()
    slow, real = got.received, got.received_

    def hold(*arguments) -> None:
        release.wait(20)
        slow(*arguments)

    got.received = hold  # a reader thread that is stuck, so that the network fills up
    receiver.expect(CHANNEL, large.schema)
    outbound = sender.connect(CHANNEL, receiver.address)
    event = event_of(large)
    handed = 0
    with pytest.raises(ChannelFull):
        for _ in range(100):
            outbound.send(event)
            handed += 1
    assert MAX_HANDED <= handed < 10 and not outbound.ready
    release.set()
    sent.wait(lambda: bool(sent.sendable_))
    got.wait(lambda: len(real) == handed)
    assert outbound.ready


def test_barriers_keep_their_position_in_the_channel(node, mailboxes, batch: pa.RecordBatch) -> None:
    sent, got = mailboxes
    receiver, sender = node(got), node(sent)
    receiver.expect(CHANNEL, batch.schema)
    outbound = sender.connect(CHANNEL, receiver.address)
    event, barrier = event_of(batch), Barrier(CheckpointBarrier.new_unaligned(1, 1))
    outbound.send(event)
    outbound.send(barrier)
    assert got.wait_messages(2) == [event, barrier]


def test_many_channels_share_a_node(node, mailboxes, batch: pa.RecordBatch) -> None:
    sent, got = mailboxes
    receiver, sender = node(got), node(sent)
    channels = [ChannelId(1, number, 0) for number in range(8)]
    for channel in channels:
        receiver.expect(channel, batch.schema)
    outbounds = [sender.connect(channel, receiver.address) for channel in channels]
    for number, outbound in enumerate(outbounds):
        outbound.send(Watermark(number))
        outbound.send(End())
    got.wait(lambda: len(got.closed_) == 8)
    sent.wait(lambda: len(sent.closed_) == 8)
    for number, channel in enumerate(channels):
        messages = [message for which, message, _ in got.received_ if which == channel]
        assert messages == [Watermark(number), End()]
    assert {error for _, error in got.closed_ + sent.closed_} == {None}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff\0\0\0\0", ProtocolError),
        (header(FrameType.EVENT, 1 << 31), CorruptDataError),
        (pack_frame(FrameType.EVENT, b"not arrow"), CorruptDataError),
        (pack_frame(FrameType.CONTROL, b"\xff\xff"), CorruptDataError),
        (pack_frame(FrameType.BARRIER, bytes(24)), CorruptDataError),
        (pack_frame(FrameType.HELLO, b""), ProtocolError),
        (pack_frame(FrameType.CREDIT, pack_u64(5)), ProtocolError),
    ],
)
def test_a_damaged_stream_closes_the_channel_and_tells_the_sender_why(
    node, mailboxes, dial, batch, data: bytes, error: type[Exception]
) -> None:
    got = mailboxes[1]
    receiver = node(got)
    receiver.expect(CHANNEL, batch.schema)
    peer = dial(receiver)
    assert peer.claim().kind is FrameType.HELLO
    peer.socket.sendall(pack_frame(FrameType.WATERMARK, bytes(8)) + data)
    abort = peer.frame()
    assert abort.kind is FrameType.ABORT and unpack_reason(abort.payload)
    peer.socket.close()
    assert isinstance(got.wait_closed(), error)
    assert got.messages == [Watermark(0)]


def test_a_sender_is_told_why_its_channel_was_given_up(node, mailboxes, batch: pa.RecordBatch) -> None:
    sent, got = mailboxes
    receiver, sender = node(got), node(sent)
    receiver.expect(CHANNEL, pa.schema({"only": pa.string()}))
    sender.connect(CHANNEL, receiver.address).send(event_of(batch))
    assert isinstance(got.wait_closed(), CorruptDataError)
    assert "not a record batch of this channel's schema" in str(sent.wait_closed())


def test_an_event_with_a_wrong_size_breaks_its_channel_loudly(node, mailboxes, batch: pa.RecordBatch) -> None:
    sent, got = mailboxes
    receiver, sender = node(got), node(sent)
    receiver.expect(CHANNEL, batch.schema)
    sender.connect(CHANNEL, receiver.address).send(Event(batch, 1))
    assert isinstance(sent.wait_closed(), ProtocolError)
    assert "event_of" in str(got.wait_closed())


def test_half_a_frame_and_then_nothing_is_a_break(node, mailboxes, dial, batch: pa.RecordBatch) -> None:
    got = mailboxes[1]
    receiver = node(got)
    receiver.expect(CHANNEL, batch.schema)
    peer = dial(receiver)
    peer.claim()
    peer.socket.sendall(header(FrameType.EVENT, 1 << 20) + bytes(1000))
    peer.socket.close()
    assert isinstance(got.wait_closed(), RetryableError)


@pytest.mark.parametrize(
    "words", [b"", b"GET / HTTP/1.1\r\n\r\n", header(FrameType.EVENT, 1 << 28), pack_frame(FrameType.HELLO, b"hi")]
)
def test_a_stranger_gets_nothing_and_is_forgotten(node, mailboxes, dial, batch, words: bytes) -> None:
    sent, got = mailboxes
    receiver, sender = node(got), node(sent)
    receiver.expect(CHANNEL, batch.schema)
    stranger = dial(receiver)
    stranger.frame()
    stranger.socket.sendall(words)
    answer = stranger.frame()
    assert answer is None or answer.kind is FrameType.ABORT
    sender.connect(CHANNEL, receiver.address).send(End())
    assert got.wait_closed() is None


def test_a_claim_by_who_knows_the_secret_for_a_strange_channel_is_answered(node, mailboxes, dial) -> None:
    peer = dial(node(mailboxes[1]))
    answer = peer.claim(ChannelId(5, 5, 5))
    assert answer.kind is FrameType.HELLO
    assert peer.frame() is None


def test_too_many_strangers_do_not_keep_nodes_out(node, mailboxes, dial, batch: pa.RecordBatch) -> None:
    few = TcpSettings(connect_timeout_s=20.0, handshake_timeout_s=0.3, max_newcomers=2)
    sent, got = mailboxes
    receiver, sender = node(got, settings=few), node(sent, settings=few)
    receiver.expect(CHANNEL, batch.schema)
    strangers = [dial(receiver) for _ in range(4)]
    for pushed_out in strangers[:2]:
        assert pushed_out.frame().kind is FrameType.HELLO
        assert pushed_out.frame() is None
    sender.connect(CHANNEL, receiver.address).send(End())
    assert got.wait_closed() is None


def test_a_receiver_that_sends_nonsense_breaks_the_channel(node, mailboxes, batch: pa.RecordBatch) -> None:
    sent, _ = mailboxes
    sender = node(sent)
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def impostor() -> None:
        sock, _ = listener.accept()
        accepted.append(sock)
        sock.sendall(pack_frame(FrameType.HELLO, b"tidegate1" + bytes(NONCE_BYTES)))
        sock.recv(1000)
        sock.sendall(pack_frame(FrameType.HELLO, bytes(41)))

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(RetryableError, match="secret"):
        sender.connect(CHANNEL, f"127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    accepted[0].close()
    listener.close()


def test_a_peer_that_never_reads_its_credits_is_given_up(node, mailboxes, dial, batch) -> None:
    got = mailboxes[1]
    receiver = node(got)
    receiver.expect(CHANNEL, batch.schema)
    peer = dial(receiver)
    peer.claim()
    peer.socket.sendall(pack_frame(FrameType.WATERMARK, bytes(8)))
    got.wait_messages(1)
    end = time.monotonic() + 60
    while not got.closed_ and time.monotonic() < end:
        receiver.credit(CHANNEL, 1)
    assert "credits" in str(got.wait_closed())


def test_a_node_that_is_closed_while_it_connects_gives_up_at_once(node, mailboxes) -> None:
    slow = TcpSettings(connect_timeout_s=60.0)
    sender = node(mailboxes[0], settings=slow)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        timer = threading.Timer(0.1, sender.close)
        timer.start()
        with pytest.raises(NodeUnreachable):
            sender.connect(CHANNEL, address)
        timer.join()


def test_close_is_quick_with_a_full_channel(node, mailboxes) -> None:
    sent, got = mailboxes
    large = pa.record_batch({"n": pa.array(range(2_000_000))})
    receiver, sender = node(got), node(sent)
    release = threading.Event()
    got.received = lambda *_: release.wait(20) and None
    receiver.expect(CHANNEL, large.schema)
    outbound = sender.connect(CHANNEL, receiver.address)
    event = event_of(large)
    with pytest.raises(ChannelFull):
        for _ in range(100):
            outbound.send(event)
    started = time.monotonic()
    sender.close()
    assert time.monotonic() - started < 2.0
    release.set()


def test_an_untrusted_certificate_is_refused(node, mailboxes, tls_contexts: TlsContexts, batch) -> None:
    receiver = node(mailboxes[1], tls=tls_contexts)
    receiver.expect(CHANNEL, batch.schema)
    strict = TlsContexts(tls_contexts.server, ssl.create_default_context())
    with pytest.raises(RetryableError, match="trusted"):
        node(mailboxes[0], tls=strict).connect(CHANNEL, receiver.address)


def test_plain_and_encrypted_nodes_do_not_talk(node, mailboxes, tls_contexts: TlsContexts, batch) -> None:
    receiver = node(mailboxes[1], tls=tls_contexts)
    receiver.expect(CHANNEL, batch.schema)
    with pytest.raises(RetryableError):
        node(mailboxes[0]).connect(CHANNEL, receiver.address)


@pytest.mark.parametrize("call", [{"secret": b"short"}, {"secret": SECRET, "bind": "256.1.1.1"}])
def test_senseless_arguments_are_refused(mailboxes, call) -> None:
    with pytest.raises(InvalidUseError):
        TcpTransport(mailboxes[0], gang=1, **call)


@pytest.mark.parametrize("error", [MemoryError("800000 bytes"), ValueError("x"), RecursionError("deep")])
@pytest.mark.parametrize("rows", [10, 100_000])
def test_a_reader_that_dies_is_told_at_both_ends_within_a_second(node, mailboxes, error: Exception, rows: int) -> None:
    """Whether the frame fits into the kernel's buffers or not: else both ends would wait for ever."""
    sender, receiver = mailboxes
    data = pa.record_batch({"n": pa.array(range(rows))})

    def raises(channel: ChannelId, message: object, size_bytes: int) -> None:
        raise error

    receiver.received = raises
    there = node(receiver)
    there.expect(CHANNEL, data.schema)
    outbound = node(sender).connect(CHANNEL, there.address)
    began = time.monotonic()
    outbound.send(event_of(data))
    death, broke = receiver.wait_closed(), sender.wait_closed()
    assert time.monotonic() - began < 2.0
    assert isinstance(death, ThreadDied) and death.__cause__ is error and type(error).__name__ in str(death)
    assert isinstance(broke, RetryableError) and type(error).__name__ in str(broke)


@pytest.mark.parametrize("error", [MemoryError("x"), KeyError("x")])
def test_a_credit_reader_that_dies_is_told(node, mailboxes, error: Exception) -> None:
    sender, receiver = mailboxes
    data = pa.record_batch({"n": pa.array(range(10))})

    def raises(channel: ChannelId, size_bytes: int) -> None:
        raise error

    sender.credited = raises
    there = node(receiver)
    there.expect(CHANNEL, data.schema)
    outbound = node(sender).connect(CHANNEL, there.address)
    outbound.send(event_of(data))
    receiver.wait_messages(1)
    there.credit(CHANNEL, 1)
    death = sender.wait_closed()
    assert isinstance(death, ThreadDied) and death.__cause__ is error


def test_an_acceptor_that_dies_is_told(node, mailboxes) -> None:
    """No peer could open a channel any more."""
    mailbox, _ = mailboxes
    deaths: list[ThreadDied] = []
    mailbox.broken = deaths.append
    transport = node(mailbox)
    transport._gate._accept = None  # type: ignore[method-assign, assignment]
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", int(transport.address.rpartition(":")[2])), timeout=5):
        deadline = time.monotonic() + 5
        while not deaths and time.monotonic() < deadline:
            time.sleep(0.01)
    assert deaths and isinstance(deaths[0].__cause__, TypeError)
