"""The few verbs that tidegate needs of an object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

Piece: TypeAlias = "bytes | memoryview | pa.Buffer"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A listed object."""

    path: str
    size_bytes: int


class Store(Protocol):
    """Objects by path. Calls block and may come from any thread. A failing world raises ``RetryableError``; one that refuses
    us (credentials, permissions, a bucket that is not there) ``StorageRefused``; a wrong call ``InvalidUseError``.
    """

    @property
    def url(self) -> str:
        """Where this store is, without secrets."""

    def put(self, path: str, *pieces: Piece) -> None:
        """Write an object, complete or not at all: these pieces, one after the other. Overwrites."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist: False when it does. ``RetryableError`` means *unknown*: it may
        have landed, or may still land.
        """

    def get(self, path: str) -> bytes:
        """An object's bytes; ``FileNotFoundError`` when there is none."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Exactly these bytes of an object; ``FileNotFoundError`` when there is none, ``CorruptDataError``
        when it is too short.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose path begins with this prefix of complete path parts."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove these; those that are gone already don't matter."""


@runtime_checkable
class Sweepable(Protocol):
    """A store in which a writer that is killed leaves something behind."""

    def sweep(self, prefix: str) -> int:
        """Delete what dead writers left below this prefix; how many files. What live ones are writing stays."""
