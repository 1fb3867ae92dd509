"""How a node and the driver prove to each other, on every control line anew, that they know the job's secret.

The node sends a random number; the driver answers with one of its own and a proof over both; the node sends its proof.
The two proofs differ by role, so neither can be sent back as the other, and a recorded one is of no use for new random
numbers. From then on every message of the line is sealed with keys of this line alone: a node's hello, which says which
node of which gang it is, is the first. Pure: the random numbers come in as arguments.
"""

from __future__ import annotations

from tidegate.errors import ProtocolError
from tidegate.wire.seal import NONCE_BYTES, TAG_BYTES, SealPair, check_nonce, check_secret, is_signed, sign

MAGIC = b"tidegate control 2"


class NodeProof:
    """The node's side of one line."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        check_secret(secret)
        check_nonce(nonce)
        self._secret = secret
        self.hello = MAGIC + nonce
        """The first message."""

    def answered(self, answer: bytes) -> tuple[bytes, SealPair]:
        """The driver's answer: the second message and the line's keys. ``ProtocolError`` when it does not know the secret."""
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if len(answer) != NONCE_BYTES + TAG_BYTES or not is_signed(proof, self._secret, b"driver", self.hello, nonce):
            raise ProtocolError("who answers there does not know the job's secret")
        transcript = self.hello + answer
        return sign(self._secret, b"node", transcript), SealPair.of(self._secret, b"control", transcript, dialled=True)


class DriverProof:
    """The driver's side of one line."""

    def __init__(self, secret: bytes, nonce: bytes, hello: bytes) -> None:
        check_nonce(nonce)
        if len(hello) != len(MAGIC) + NONCE_BYTES or not hello.startswith(MAGIC):
            raise ProtocolError("the peer is no node of this version")
        self._secret = secret
        self.answer = nonce + sign(secret, b"driver", hello, nonce)
        """The reply to the hello."""
        self._transcript = hello + self.answer

    def proved(self, proof: bytes) -> SealPair:
        """The node's second message: the line's keys. ``ProtocolError`` when it does not know the secret."""
        if not is_signed(proof, self._secret, b"node", self._transcript):
            raise ProtocolError("the peer does not know the job's secret")
        return SealPair.of(self._secret, b"control", self._transcript, dialled=False)
