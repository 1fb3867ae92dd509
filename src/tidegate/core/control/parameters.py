"""The value of a parameter as a checkpoint has it. It knows nothing of what the bytes mean."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from tidegate.errors import InvalidUseError
from tidegate.ids import U32_LIMIT

INLINE_VALUE_BYTES = 64 * 1024
"""A longer value is an object of the store; so are many shorter ones, because every later manifest carries it again."""


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """A parameter that was set: how often, and its value, inline as base64 or in an object of the store."""

    name: str
    version: int
    path: str | None
    size_bytes: int
    crc32c: int
    inline: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.version or not 0 <= self.crc32c < U32_LIMIT:
            raise InvalidUseError(f"a parameter in a checkpoint has a name, a version from 1 and a CRC-32C name={self.name!r}")
        if (self.path is None) == (self.inline is None):
            raise InvalidUseError(f"a parameter's value is either in an object or inline name={self.name!r}")
        if self.inline is not None and len(self.inline_bytes()) != self.size_bytes:
            raise InvalidUseError(f"a parameter's inline value has another length name={self.name!r}")

    @classmethod
    def of_bytes(cls, name: str, version: int, data: bytes, crc32c: int) -> ParameterEntry:
        """A small value, inline."""
        return cls(name, version, None, len(data), crc32c, base64.b64encode(data).decode())

    def inline_bytes(self) -> bytes:
        """The bytes of an inline value."""
        if len(self.inline or "") > 2 * INLINE_VALUE_BYTES:
            raise InvalidUseError(f"an inline value is too long, use an object name={self.name!r}")
        try:
            return base64.b64decode(self.inline or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidUseError(f"an inline value is not base64: {error} name={self.name!r}") from error
