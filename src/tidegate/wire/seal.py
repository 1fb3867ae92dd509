"""How two ends that share a secret make sure that every message is the other's, unchanged, in order and only once.

Each connection has two keys, one for each direction, made from the secret and both ends' random numbers. A message's
tag covers its number, so a message that is changed, left out, repeated, moved or sent back to its sender is noticed at
once. Nothing is hidden: who may read the network reads the messages. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from tidegate.errors import InvalidUseError, RetryableError
from tidegate.wire.frames import Bytes

TAG_BYTES = 32
NONCE_BYTES = 32
SECRET_BYTES_MIN = 16

_NUMBER = struct.Struct("<Q")


def check_secret(secret: bytes) -> None:
    """Refuse a secret that could be guessed."""
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidUseError(f"the job's secret is too short, use at least {SECRET_BYTES_MIN} random bytes")


def check_nonce(nonce: bytes) -> None:
    """Refuse a random number of the wrong length."""
    if len(nonce) != NONCE_BYTES:
        raise InvalidUseError(f"a nonce has {NONCE_BYTES} bytes length={len(nonce)}")


def sign(secret: bytes, role: bytes, context: bytes, body: bytes = b"") -> bytes:
    """A proof of the secret over what both ends have said."""
    # The role keeps one proof from passing as another; all parts but the body have a fixed length, so none can slide.
    return hmac.digest(secret, role + b"\0" + context + body, hashlib.sha256)


def is_signed(tag: bytes, secret: bytes, role: bytes, context: bytes, body: bytes = b"") -> bool:
    """True when the tag is this proof. Takes equally long for every wrong one."""
    return hmac.compare_digest(tag, sign(secret, role, context, body))


class Seal:
    """Tags messages of one direction, in order. One thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)
        self._number = 0

    def tag(self, *parts: Bytes) -> bytes:
        """The tag of the next message, which is these parts one after the other."""
        mac = self._keyed.copy()
        mac.update(_NUMBER.pack(self._number))
        for part in parts:
            mac.update(part)
        self._number += 1
        return mac.digest()

    def check(self, tag: Bytes, *parts: Bytes) -> None:
        """``RetryableError`` unless this is the tag of the next message: a broken network heals, an attacker stays."""
        number = self._number
        if not hmac.compare_digest(tag, self.tag(*parts)):
            raise RetryableError(
                "a message was changed, left out, repeated or comes from somebody else: the network between the nodes is "
                f"not to be trusted, use TLS message={number}"
            )

    def sealed(self, message: bytes) -> bytes:
        """The next message with its tag in front."""
        return self.tag(message) + message

    def opened(self, sealed: bytes) -> bytes:
        """The message, once its tag is proved to be the next."""
        message = sealed[TAG_BYTES:]
        self.check(sealed[:TAG_BYTES], message)
        return message


@dataclass(frozen=True, slots=True)
class SealPair:
    """One end's two directions of a connection."""

    outgoing: Seal
    incoming: Seal

    @staticmethod
    def of(secret: bytes, purpose: bytes, transcript: bytes, *, dialled: bool) -> SealPair:
        """The session of the end that dialled, or of the one that accepted. Both ends' random numbers are in the transcript."""
        keys = [sign(secret, purpose + b" " + side, transcript) for side in (b"dialler", b"acceptor")]
        outgoing, incoming = keys if dialled else reversed(keys)
        return SealPair(Seal(outgoing), Seal(incoming))
