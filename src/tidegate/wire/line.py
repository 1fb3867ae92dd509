"""What both ends of a control line share: its limits, the proof and the seal of its messages.

Like ``control``, to be imported only in the process that needs it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.wire._gen.control_pb2 import CoordinatorMessage, NodeMessage
from tidegate.wire.outbox import Outbox
from tidegate.wire.prove import NodeProof
from tidegate.wire.seal import NONCE_BYTES, SealPair

MAX_MESSAGE_BYTES = 64 << 20

M = TypeVar("M", NodeMessage, CoordinatorMessage)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The limits of the control plane. A side that hears nothing for ``silence_s`` closes the line."""

    heartbeat_s: float = 1.0
    silence_s: float = 10.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    outbox_max: int = 1024
    max_nodes: int = 256
    max_newcomers: int = 128
    """Connections that have not proved themselves; more push one another out."""
    handshake_s: float = 10.0
    """How long a connection may take to prove itself."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.silence_s:
            raise InvalidUseError(
                f"a heartbeat must come before silence is noticed heartbeat_s={self.heartbeat_s} silence_s={self.silence_s}"
            )
        if min(self.max_message_bytes, self.outbox_max, self.max_nodes, self.max_newcomers, self.handshake_s) <= 0:
            raise InvalidUseError("the limits of the control plane are positive")


class Line:
    """One try of a node to open its stream. Nothing leaves the outbox before the coordinator has proved itself."""

    def __init__(self, secret: bytes, outbox: Outbox[NodeMessage]) -> None:
        self._proof = NodeProof(secret, secrets.token_bytes(NONCE_BYTES))
        self._outbox = outbox
        self._second = b""
        self._settled = threading.Event()
        self.session: SealPair | None = None

    def answered(self, answer: bytes) -> SealPair:
        """The coordinator's first words: from here on both talk."""
        self._second, self.session = self._proof.answered(answer)
        self._settled.set()
        return self.session

    def over(self) -> None:
        """There will be no answer any more."""
        self._settled.set()

    def outgoing(self) -> Iterator[bytes]:
        """What grpc sends."""
        yield self._proof.hello
        self._settled.wait()
        if self.session is not None:
            yield self._second
            yield from sealed(iter(self._outbox), self.session)


def sealed(messages: Iterator[NodeMessage] | Iterator[CoordinatorMessage], session: SealPair) -> Iterator[bytes]:
    """What grpc sends for these messages."""
    for message in messages:
        yield session.outgoing.sealed(message.SerializeToString())


def opened(data: Iterator[bytes], session: SealPair, kind: type[M]) -> Iterator[M]:
    """The messages in what grpc received, each once its seal is proved."""
    for each in data:
        try:
            yield kind.FromString(session.incoming.opened(each))
        except DecodeError as error:
            raise CorruptDataError(f"not a message of the control line: {error}") from error
