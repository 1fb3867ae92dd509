"""Sealed messages: each once, in order, unchanged, from the other end; and the proofs that come before them."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidUseError, ProtocolError, RetryableError
from tidegate.wire.connection import PlainConnection
from tidegate.wire.frames import FrameType, pack_frame
from tidegate.wire.handshake import PeerClaim, data_session, pack_challenge, pack_claim
from tidegate.wire.prove import DriverProof, NodeProof
from tidegate.wire.seal import NONCE_BYTES, TAG_BYTES, SealPair, is_signed, sign
from tidegate.wire.sealed import RECORD_BYTES_MAX, SealedConnection
from tidegate.wire.transport import ChannelId

SECRET = b"s" * 32


def ends(transcript: bytes = b"both nonces") -> tuple[SealPair, SealPair]:
    first, second = (SealPair.of(SECRET, b"test", transcript, dialled=dialled) for dialled in (True, False))
    return first, second


def test_messages_in_order_are_opened() -> None:
    near, far = ends()
    for message in (b"", b"a", b"a", b"b" * 1000):
        assert far.incoming.opened(near.outgoing.sealed(message)) == message
    assert near.incoming.opened(far.outgoing.sealed(b"back")) == b"back"


@given(st.integers(0, TAG_BYTES + 4), st.integers(1, 255))
def test_no_byte_can_be_changed(at: int, by: int) -> None:
    near, far = ends()
    sealed = bytearray(near.outgoing.sealed(b"hello"))
    sealed[at] ^= by
    with pytest.raises(RetryableError, match="was changed, left out, repeated"):
        far.incoming.opened(bytes(sealed))


@pytest.mark.parametrize("what", ["repeated", "left out", "swapped", "cut", "sent back", "of another connection"])
def test_what_an_attacker_could_do_with_messages_is_noticed(what: str) -> None:
    near, far = ends()
    first, second = near.outgoing.sealed(b"first"), near.outgoing.sealed(b"second")
    with pytest.raises(RetryableError, match="comes from somebody else"):
        match what:
            case "repeated":
                far.incoming.opened(first)
                far.incoming.opened(first)
            case "left out" | "swapped":
                far.incoming.opened(second)
            case "cut":
                far.incoming.opened(first[:-1])
            case "sent back":
                near.incoming.opened(first)
            case "of another connection":
                ends(b"other nonces")[1].incoming.opened(first)


def test_a_proof_of_one_role_is_none_of_another() -> None:
    assert is_signed(sign(SECRET, b"node", b"c"), SECRET, b"node", b"c")
    assert not is_signed(sign(SECRET, b"node", b"c"), SECRET, b"driver", b"c")
    assert not is_signed(b"", SECRET, b"node", b"c")


# -- the control line's proof --------------------------------------------------------------------------------------


def proved(node_secret: bytes = SECRET, driver_secret: bytes = SECRET) -> tuple[SealPair, SealPair]:
    node = NodeProof(node_secret, b"n" * NONCE_BYTES)
    driver = DriverProof(driver_secret, b"d" * NONCE_BYTES, node.hello)
    second, near = node.answered(driver.answer)
    return near, driver.proved(second)


def test_both_ends_of_a_control_line_get_the_same_keys() -> None:
    node, driver = proved()
    assert driver.incoming.opened(node.outgoing.sealed(b"hello")) == b"hello"
    assert node.incoming.opened(driver.outgoing.sealed(b"welcome")) == b"welcome"


def test_a_node_believes_no_driver_with_another_secret() -> None:
    with pytest.raises(ProtocolError, match="does not know the job's secret"):
        proved(driver_secret=b"t" * 32)


def test_a_driver_believes_no_recorded_proof() -> None:
    node = NodeProof(SECRET, b"n" * NONCE_BYTES)
    second, _ = node.answered(DriverProof(SECRET, b"d" * NONCE_BYTES, node.hello).answer)
    with pytest.raises(ProtocolError, match="does not know"):
        DriverProof(SECRET, b"e" * NONCE_BYTES, node.hello).proved(second)


def test_a_node_believes_no_recorded_answer() -> None:
    answer = DriverProof(SECRET, b"d" * NONCE_BYTES, NodeProof(SECRET, b"n" * NONCE_BYTES).hello).answer
    with pytest.raises(ProtocolError, match="does not know"):
        NodeProof(SECRET, b"m" * NONCE_BYTES).answered(answer)


def test_the_drivers_own_proof_sent_back_proves_nothing() -> None:
    driver = DriverProof(SECRET, b"d" * NONCE_BYTES, NodeProof(SECRET, b"n" * NONCE_BYTES).hello)
    with pytest.raises(ProtocolError, match="does not know"):
        driver.proved(driver.answer[NONCE_BYTES:])


@pytest.mark.parametrize("words", [b"", b"tidegate control 1" + bytes(32), NodeProof(SECRET, bytes(32)).hello + b"x"])
def test_a_hello_of_another_version_is_refused(words: bytes) -> None:
    with pytest.raises(ProtocolError, match="no node of this version"):
        DriverProof(SECRET, b"d" * NONCE_BYTES, words)


@pytest.mark.parametrize("words", [b"", bytes(63), bytes(65)])
def test_an_answer_of_another_length_is_refused(words: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not know"):
        NodeProof(SECRET, bytes(32)).answered(words)


def test_short_secrets_and_nonces_are_refused() -> None:
    with pytest.raises(InvalidUseError, match="too short"):
        NodeProof(b"short", bytes(32))
    with pytest.raises(InvalidUseError, match="a nonce has 32 bytes"):
        NodeProof(SECRET, bytes(31))


# -- data channels -------------------------------------------------------------------------------------------------


def wired() -> tuple[SealedConnection, SealedConnection, socket.socket, socket.socket]:
    """Both ends of a sealed connection, with the bytes between them in the test's hands."""
    challenge = pack_challenge(b"a" * NONCE_BYTES)
    claim = pack_claim(SECRET, challenge, b"c" * NONCE_BYTES, PeerClaim(7, ChannelId(1, 2, 3)))
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = []
    for _ in range(2):
        dialled = socket.create_connection(listener.getsockname())
        sockets.append((dialled, listener.accept()[0]))
    listener.close()
    (near, tap_near), (tap_far, far) = sockets
    connections = [
        SealedConnection(PlainConnection(sock), data_session(SECRET, challenge, claim, dialled=dialled))
        for sock, dialled in ((near, True), (far, False))
    ]
    return connections[0], connections[1], tap_near, tap_far


def received(connection: SealedConnection, count: int) -> bytes:
    data = bytearray(count)
    done = 0
    while done < count and (got := connection.receive_into(memoryview(data)[done:], True)):
        done += got
    return bytes(data[:done])


@pytest.mark.parametrize("size", [0, 1, 5000, RECORD_BYTES_MAX - 5, RECORD_BYTES_MAX, 3 * RECORD_BYTES_MAX + 17])
def test_sealed_bytes_arrive(size: int) -> None:
    near, far, tap_near, tap_far = wired()
    payload = bytes(range(256)) * (size // 256 + 1)

    def pump() -> None:
        while data := tap_near.recv(1 << 16):
            tap_far.sendall(data)

    threads = [threading.Thread(target=pump), threading.Thread(target=near.send, args=(b"head ", payload[:size]))]
    for thread in threads:
        thread.start()
    assert received(far, 5 + size) == b"head " + payload[:size]
    near.finish()
    for thread in threads:
        thread.join()
    for connection in (near, far, tap_near, tap_far):
        connection.close()


@pytest.mark.parametrize("what", ["changed", "length", "repeated", "left out", "sent back"])
def test_an_attacker_between_two_nodes_changes_nothing_unnoticed(what: str) -> None:
    near, far, tap_near, tap_far = wired()
    frame = pack_frame(FrameType.WATERMARK, bytes(8))
    near.send(frame)
    near.send(frame)
    record = 4 + len(frame) + TAG_BYTES
    first, second = tap_near.recv(record, socket.MSG_WAITALL), tap_near.recv(record, socket.MSG_WAITALL)
    changed = bytearray(first)
    changed[0 if what == "length" else 10] ^= 1
    sent = {"changed": changed, "length": changed, "repeated": first + first, "left out": second, "sent back": first}[what]
    (tap_near if what == "sent back" else tap_far).sendall(bytes(sent))
    tap_far.shutdown(socket.SHUT_WR)
    victim = near if what == "sent back" else far
    if what == "repeated":
        assert received(victim, len(frame)) == frame
    with pytest.raises(RetryableError, match="comes from somebody else"):
        received(victim, len(frame))
    for connection in (near, far, tap_near, tap_far):
        connection.close()


def test_a_record_over_its_limit_is_refused_before_memory_is_taken() -> None:
    near, far, tap_near, tap_far = wired()
    tap_far.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(RetryableError, match="over its limit"):
        received(far, 1)
    for connection in (near, far, tap_near, tap_far):
        connection.close()
