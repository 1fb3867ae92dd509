"""How the two ends of a data connection prove that they belong to the same start of the same job.

Three hello frames: the acceptor's challenge, the connector's claim (which channel, which gang) and the
acceptor's verdict. Claim and verdict are signed with the job's secret over both sides' random numbers, so
nothing can be replayed and the secret never travels. Pure: the random numbers come in as arguments. The control line has
its own, in ``prove``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from tidegate.errors import CorruptDataError, InvalidUseError, ProtocolError
from tidegate.ids import U32_LIMIT, U64_LIMIT, GangNumber
from tidegate.wire.frames import Bytes
from tidegate.wire.seal import NONCE_BYTES, SealPair, check_nonce, is_signed, sign
from tidegate.wire.seal import TAG_BYTES as MAC_BYTES
from tidegate.wire.transport import ChannelId

MAGIC = b"tidegate1"

_CLAIM = struct.Struct("<QIII")
_VERDICT = struct.Struct("<BQ")
_CLAIM_BYTES = NONCE_BYTES + _CLAIM.size + MAC_BYTES
_VERDICT_BYTES = _VERDICT.size + MAC_BYTES


class Answer(IntEnum):
    """What the acceptor says to a claim whose signature is good."""

    ACCEPTED = 0
    WRONG_GANG = 1
    NOT_EXPECTED = 2
    TAKEN = 3


@dataclass(frozen=True, slots=True)
class PeerClaim:
    """Who the connector says it is."""

    gang: GangNumber
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class HandshakeVerdict:
    """What the acceptor decided, and the gang it belongs to."""

    answer: Answer
    gang: GangNumber


def pack_challenge(nonce: bytes) -> bytes:
    """The acceptor's first words."""
    check_nonce(nonce)
    return MAGIC + nonce


def check_challenge(data: Bytes) -> bytes:
    """The challenge, if it is one of this version."""
    challenge = bytes(data)
    if len(challenge) != len(MAGIC) + NONCE_BYTES or not challenge.startswith(MAGIC):
        raise ProtocolError("the peer is no data channel of this version")
    return challenge


def pack_claim(secret: bytes, challenge: bytes, nonce: bytes, claim: PeerClaim) -> bytes:
    """The connector's answer to a challenge."""
    check_nonce(nonce)
    channel = claim.channel
    if not 0 <= claim.gang < U64_LIMIT:
        raise InvalidUseError(f"a gang number has 64 bits gang={claim.gang}")
    if not all(0 <= number < U32_LIMIT for number in (channel.edge, channel.sender, channel.receiver)):
        raise InvalidUseError(f"a channel's numbers have 32 bits channel={channel}")
    body = nonce + _CLAIM.pack(claim.gang, channel.edge, channel.sender, channel.receiver)
    return body + sign(secret, b"claim", challenge, body)


def open_claim(secret: bytes, challenge: bytes, data: Bytes) -> PeerClaim:
    """The claim, once its signature is proved; ``ProtocolError`` when the peer does not know the secret."""
    claim = bytes(data)
    if len(claim) != _CLAIM_BYTES:
        raise CorruptDataError(f"a claim has {_CLAIM_BYTES} bytes length={len(claim)}")
    body, mac = claim[:-MAC_BYTES], claim[-MAC_BYTES:]
    if not is_signed(mac, secret, b"claim", challenge, body):
        raise ProtocolError("the peer does not know the job's secret")
    gang, edge, sender, receiver = _CLAIM.unpack(body[NONCE_BYTES:])
    return PeerClaim(gang, ChannelId(edge, sender, receiver))


def pack_verdict(secret: bytes, challenge: bytes, claim: bytes, verdict: HandshakeVerdict) -> bytes:
    """The acceptor's signed decision on a packed claim."""
    body = _VERDICT.pack(verdict.answer, verdict.gang)
    return body + sign(secret, b"verdict", challenge + claim, body)


def open_verdict(secret: bytes, challenge: bytes, claim: bytes, data: Bytes) -> HandshakeVerdict:
    """The decision, once its signature is proved; ``ProtocolError`` when the peer does not know the
    secret.
    """
    verdict = bytes(data)
    if len(verdict) != _VERDICT_BYTES:
        raise CorruptDataError(f"a verdict has {_VERDICT_BYTES} bytes length={len(verdict)}")
    body, mac = verdict[:-MAC_BYTES], verdict[-MAC_BYTES:]
    if not is_signed(mac, secret, b"verdict", challenge + claim, body):
        raise ProtocolError("the peer does not know the job's secret")
    number, gang = _VERDICT.unpack(body)
    try:
        return HandshakeVerdict(Answer(number), gang)
    except ValueError:
        raise ProtocolError(f"unknown answer answer={number}") from None


def data_session(secret: bytes, challenge: bytes, claim: bytes, *, dialled: bool) -> SealPair:
    """What tags the bytes of the channel that this challenge and this claim have opened."""
    return SealPair.of(secret, b"data", challenge + claim, dialled=dialled)
