"""The handshake: only who knows the secret gets in, and nothing can be replayed or changed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged
from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError, TidegateError
from tidegate.wire.handshake import (
    Answer,
    HandshakeVerdict,
    PeerClaim,
    check_challenge,
    open_claim,
    open_verdict,
    pack_challenge,
    pack_claim,
    pack_verdict,
)
from tidegate.wire.seal import NONCE_BYTES, check_secret
from tidegate.wire.transport import ChannelId

SECRET = b"s" * 32
CHALLENGE = pack_challenge(b"a" * NONCE_BYTES)
CLAIM = PeerClaim(7, ChannelId(1, 2, 3))
PACKED = pack_claim(SECRET, CHALLENGE, b"c" * NONCE_BYTES, CLAIM)
VERDICT = pack_verdict(SECRET, CHALLENGE, PACKED, HandshakeVerdict(Answer.WRONG_GANG, 9))


def test_a_claim_and_its_verdict_are_understood() -> None:
    assert check_challenge(CHALLENGE) == CHALLENGE
    assert open_claim(SECRET, CHALLENGE, PACKED) == CLAIM
    assert open_verdict(SECRET, CHALLENGE, PACKED, VERDICT) == HandshakeVerdict(Answer.WRONG_GANG, 9)


def test_the_secret_does_not_travel() -> None:
    assert SECRET not in CHALLENGE + PACKED + VERDICT


def test_another_secret_is_refused_by_both_sides() -> None:
    with pytest.raises(ProtocolError, match="secret"):
        open_claim(b"t" * 32, CHALLENGE, PACKED)
    with pytest.raises(ProtocolError, match="secret"):
        open_verdict(b"t" * 32, CHALLENGE, PACKED, VERDICT)


def test_a_recorded_claim_does_not_answer_a_new_challenge() -> None:
    with pytest.raises(ProtocolError):
        open_claim(SECRET, pack_challenge(b"b" * NONCE_BYTES), PACKED)


def test_a_verdict_belongs_to_one_claim() -> None:
    other = pack_claim(SECRET, CHALLENGE, b"d" * NONCE_BYTES, CLAIM)
    with pytest.raises(ProtocolError):
        open_verdict(SECRET, CHALLENGE, other, VERDICT)


@pytest.mark.parametrize("at", range(len(PACKED)))
def test_no_bit_of_a_claim_can_be_changed(at: int) -> None:
    changed = bytearray(PACKED)
    changed[at] ^= 1
    with pytest.raises(ProtocolError):
        open_claim(SECRET, CHALLENGE, bytes(changed))


@pytest.mark.parametrize("length", [0, len(PACKED) - 1, len(PACKED) + 1])
def test_a_claim_of_another_length_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptDataError):
        open_claim(SECRET, CHALLENGE, (PACKED + b"x")[:length])


def test_a_verdict_of_another_length_is_corrupt() -> None:
    with pytest.raises(CorruptDataError):
        open_verdict(SECRET, CHALLENGE, PACKED, VERDICT[:-1])


@pytest.mark.parametrize("challenge", [b"", b"HTTP/1.1 200 OK", CHALLENGE[:-1], b"x" + CHALLENGE[1:]])
def test_a_stranger_is_no_acceptor(challenge: bytes) -> None:
    with pytest.raises(ProtocolError):
        check_challenge(challenge)


@pytest.mark.parametrize(
    "call",
    [
        lambda: check_secret(b"short"),
        lambda: pack_challenge(b"short"),
        lambda: pack_claim(SECRET, CHALLENGE, b"short", CLAIM),
        lambda: pack_claim(SECRET, CHALLENGE, b"c" * NONCE_BYTES, PeerClaim(-1, ChannelId(0, 0, 0))),
        lambda: pack_claim(SECRET, CHALLENGE, b"c" * NONCE_BYTES, PeerClaim(1, ChannelId(1 << 32, 0, 0))),
    ],
)
def test_senseless_arguments_are_refused(call) -> None:
    with pytest.raises(InvalidUseError):
        call()


@given(st.binary(max_size=120))
def test_arbitrary_bytes_raise_only_tidegate_errors(data: bytes) -> None:
    for call in (
        lambda: check_challenge(data),
        lambda: open_claim(SECRET, CHALLENGE, data),
        lambda: open_verdict(SECRET, CHALLENGE, PACKED, data),
    ):
        with pytest.raises(TidegateError):
            call()


@given(st.data())
def test_damaged_messages_are_what_they_were_or_refused(data: st.DataObject) -> None:
    for whole, call in (
        (CHALLENGE, check_challenge),
        (PACKED, lambda sent: open_claim(SECRET, CHALLENGE, sent)),
        (VERDICT, lambda sent: open_verdict(SECRET, CHALLENGE, PACKED, sent)),
    ):
        sent = data.draw(damaged(whole))
        if sent != whole and whole is not CHALLENGE:  # a challenge is random: any of the right form will do
            with pytest.raises(TidegateError):
                call(sent)
        else:
            with suppress(TidegateError):
                call(sent)
