"""A store that fails on purpose, the same way for the same seed.

Use it around any store to see how code behaves when the world lies. Whether a call fails depends on the seed,
the verb, the path and how often that was called before: not on the order in which threads happen to run.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Literal, TypeAlias

from tidegate.errors import InvalidUseError, RetryableError
from tidegate.store.interface import ObjectInfo, Piece, Store

Verb: TypeAlias = Literal["put", "create", "get", "get_range", "list", "delete"]


class Fault(Enum):
    """One way for a call to go wrong."""

    LOST_ANSWER = "lost_answer"
    """The write is done, but the caller is told of a time-out."""
    LATE_WRITE = "late_write"
    """The caller is told of a time-out, and the write lands some calls later (a create only if the name is
    still free).
    """
    HIDDEN = "hidden"
    """The write is done and answered, but reads and listings do not show it for some calls."""
    UNAVAILABLE = "unavailable"
    """Nothing is done: a 503."""
    PARTIAL = "partial"
    """Only the first half is written, and the caller is told of a time-out. Not for creates: they are
    atomic.
    """
    FLIPPED_BIT = "flipped_bit"
    """One bit of what is written, or of what is read, is the other way round. Nobody is told."""


_APPLIES: dict[Fault, frozenset[str]] = {
    Fault.LOST_ANSWER: frozenset({"put", "create", "delete"}),
    Fault.LATE_WRITE: frozenset({"put", "create"}),
    Fault.HIDDEN: frozenset({"put", "create"}),
    Fault.UNAVAILABLE: frozenset({"put", "create", "get", "get_range", "list", "delete"}),
    Fault.PARTIAL: frozenset({"put"}),
    Fault.FLIPPED_BIT: frozenset({"put", "create", "get", "get_range"}),
}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often each fault happens: chances from 0 to 1. ``storm`` makes calls number [start, end) all
    unavailable.
    """

    seed: int = 0
    lost_answer: float = 0.0
    late_write: float = 0.0
    hidden: float = 0.0
    unavailable: float = 0.0
    partial: float = 0.0
    flipped_bit: float = 0.0
    delay_calls: int = 5
    storm: tuple[int, int] | None = None
    only_below: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not 0.0 <= value <= 1.0:
                raise InvalidUseError(f"a chance lies between 0 and 1 {field.name}={value}")
        if self.delay_calls < 0:
            raise InvalidUseError(f"a delay is not negative delay_calls={self.delay_calls}")

    def chance(self, fault: Fault) -> float:
        """How likely a fault is, per call that it applies to."""
        return float(getattr(self, fault.value))


@dataclass(frozen=True, slots=True)
class _LateWrite:
    due_call: int
    verb: Verb
    path: str
    data: bytes


class FaultyStore:
    """Wraps a store and breaks calls by plan, or the next one on request. ``story`` tells what was done to
    whom.
    """

    def __init__(self, store: Store, plan: FaultPlan | None = None) -> None:
        self._store = store
        self._plan = plan or FaultPlan()
        self._lock = threading.RLock()
        self._calls = 0
        self._seen: Counter[tuple[str, str]] = Counter()
        self._forced: list[tuple[Verb, Fault, str]] = []
        self._late: list[_LateWrite] = []
        self._hidden_until: dict[str, int] = {}
        self.story: list[str] = []

    @property
    def url(self) -> str:
        """The wrapped store's."""
        return self._store.url

    # -- directed faults ---------------------------------------------------------------------------------

    def fail_next(self, verb: Verb, fault: Fault, *, below: str = "") -> None:
        """The next call of this verb, to a path that begins with ``below``, fails this way."""
        if verb not in _APPLIES[fault]:
            raise InvalidUseError(f"this verb cannot fail this way verb={verb} fault={fault.value}")
        with self._lock:
            self._forced.append((verb, fault, below))

    def flip_bit(self, path: str, bit: int | None = None) -> None:
        """Damage a stored object. Without a number the seed chooses the bit."""
        self._store.put(path, self._flipped(self._store.get(path), path, bit))

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut a stored object short."""
        self._store.put(path, self._store.get(path)[:size_bytes])

    def settle(self) -> None:
        """Let every late write land and every hidden object be seen."""
        with self._lock:
            self._hidden_until.clear()
            late, self._late = self._late, []
            for write in late:
                self._land(write)

    # -- the store's verbs -------------------------------------------------------------------------------

    def put(self, path: str, *pieces: Piece) -> None:
        """Overwrite, maybe."""
        data = b"".join(pieces)
        fault = self._next("put", path)
        match fault:
            case Fault.PARTIAL:
                self._store.put(path, data[: len(data) // 2])
                raise RetryableError(f"time-out of a write path={path}")
            case Fault.LATE_WRITE:
                self._delay(_LateWrite(0, "put", path, data))
            case Fault.FLIPPED_BIT:
                data = self._flipped(data, path)
            case _:
                pass  # the others come before or after the write
        self._store.put(path, data)
        self._after_write(fault, path)

    def create(self, path: str, data: bytes) -> bool:
        """Create, maybe. The wrapped store keeps it atomic whatever happens."""
        fault = self._next("create", path)
        match fault:
            case Fault.LATE_WRITE:
                self._delay(_LateWrite(0, "create", path, data))
            case Fault.FLIPPED_BIT:
                data = self._flipped(data, path)
            case _:
                pass  # the others come before or after the write
        created = self._store.create(path, data)
        self._after_write(fault if created or fault is Fault.LOST_ANSWER else None, path)
        return created

    def get(self, path: str) -> bytes:
        """Read, maybe."""
        fault = self._next("get", path)
        self._check_visible(path)
        data = self._store.get(path)
        return self._flipped(data, path) if fault is Fault.FLIPPED_BIT else data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part, maybe."""
        fault = self._next("get_range", path)
        self._check_visible(path)
        data = self._store.get_range(path, start, length)
        return self._flipped(data, path) if fault is Fault.FLIPPED_BIT else data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List what is visible, maybe. Decided when called, not while iterating."""
        self._next("list", prefix)
        found = tuple(self._store.list(prefix))
        return iter([info for info in found if not self._is_hidden(info.path)])

    def delete(self, paths: Sequence[str]) -> None:
        """Delete, maybe."""
        fault = self._next("delete", paths[0] if paths else "")
        self._store.delete(paths)
        if fault is Fault.LOST_ANSWER:
            raise RetryableError("time-out of a delete")

    # -- decisions ---------------------------------------------------------------------------------------

    def _next(self, verb: Verb, path: str) -> Fault | None:
        with self._lock:
            self._calls += 1
            self._land_due()
            attempt = self._seen[verb, path]
            self._seen[verb, path] += 1
            fault = self._take_forced(verb, path) or self._planned(verb, path, attempt)
            if fault is not None:
                self.story.append(f"{self._calls} {verb} {path} {fault.value}")
        if fault is Fault.UNAVAILABLE:
            raise RetryableError(f"503 service unavailable verb={verb} path={path}")
        return fault

    def _take_forced(self, verb: Verb, path: str) -> Fault | None:
        for index, (wanted, fault, below) in enumerate(self._forced):
            if wanted == verb and path.startswith(below):
                del self._forced[index]
                return fault
        return None

    def _planned(self, verb: Verb, path: str, attempt: int) -> Fault | None:
        storm = self._plan.storm
        if storm is not None and storm[0] <= self._calls < storm[1]:
            return Fault.UNAVAILABLE
        if not path.startswith(self._plan.only_below):
            return None
        for fault in Fault:
            chance = self._plan.chance(fault) if verb in _APPLIES[fault] else 0.0
            if self._draw(fault.value, verb, path, attempt) < chance:
                return fault
        return None

    def _draw(self, *what: object) -> float:
        """A number in [0, 1) that depends on nothing but the seed and these."""
        digest = hashlib.blake2b(repr((self._plan.seed, *what)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / (1 << 64)

    # -- effects -----------------------------------------------------------------------------------------

    def _delay(self, write: _LateWrite) -> None:
        with self._lock:
            due = self._calls + self._plan.delay_calls
            self._late.append(_LateWrite(due, write.verb, write.path, write.data))
        raise RetryableError(f"time-out of a write path={write.path}")

    def _land_due(self) -> None:
        due = [write for write in self._late if write.due_call < self._calls]
        self._late = [write for write in self._late if write.due_call >= self._calls]
        for write in due:
            self._land(write)

    def _land(self, write: _LateWrite) -> None:
        if write.verb == "create":
            landed = self._store.create(write.path, write.data)
        else:
            self._store.put(write.path, write.data)
            landed = True
        outcome = "landed late" if landed else "came too late"
        self.story.append(f"{self._calls} {write.verb} {write.path} {outcome}")

    def _after_write(self, fault: Fault | None, path: str) -> None:
        with self._lock:
            self._hidden_until.pop(path, None)
            if fault is Fault.HIDDEN:
                self._hidden_until[path] = self._calls + self._plan.delay_calls
        if fault is Fault.LOST_ANSWER:
            raise RetryableError(f"time-out of a write path={path}")

    def _check_visible(self, path: str) -> None:
        if self._is_hidden(path):
            raise FileNotFoundError(f"there is no object path={path}")

    def _is_hidden(self, path: str) -> bool:
        with self._lock:
            return self._hidden_until.get(path, 0) >= self._calls

    def _flipped(self, data: bytes, path: str, bit: int | None = None) -> bytes:
        if not data:
            return data
        bit = int(self._draw("bit", path) * len(data) * 8) if bit is None else bit % (len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        return bytes(damaged)
