"""The settings of checkpointing, checked when they are made. Data only: nothing is opened or started.

Whether there is a store to write to is asked later, by whoever starts: a store may be passed there instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.duration import Duration, parse_duration_ms
from tidegate.core.options import strict_fields
from tidegate.errors import DataDirRequired, InvalidUseError, WalRequiresCheckpoint

GIB = 1 << 30
MIB = 1 << 20


@runtime_checkable
class PathLike(Protocol):
    """Anything that names a path, such as ``pathlib.Path``."""

    def __fspath__(self) -> str: ...


class WalMode(StrEnum):
    """When the write-ahead log is flushed."""

    ASYNC = "async"
    """In the background: quicker, and a crash of the machine may lose the last moments."""

    SYNC = "sync"
    """Before a push is confirmed: slower, and nothing confirmed is lost."""


class UnalignedMode(StrEnum):
    """Whether barriers may overtake data."""

    AUTO = "auto"
    """Only when alignment takes longer than ``alignment_timeout``."""

    ALWAYS = "always"
    NEVER = "never"


@strict_fields
@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """How to checkpoint. Off unless ``interval`` is given. Durations: ``"10s"``, milliseconds, a timedelta.

    After ``alignment_timeout`` barriers overtake the data that holds them up: a slow function delays a commit by
    about that and not by its backlog. With ``adaptive_alignment`` it is where learning begins: it
    follows what checkpoints took, within a factor of ten. ``tolerable_failures`` is how many checkpoints in a row
    may fail before the job does (default: any). ``storage_timeout`` is how long a job waits for a store or a sink
    that it has run on and that can't be written now, because it is full, read-only, refuses us or does not answer.
    """

    interval: Duration | None = None
    data_dir: str | PathLike | None = None
    wal_mode: WalMode | str | None = None
    max_checkpoint_size: int = GIB
    timeout: Duration = "300s"
    unaligned: UnalignedMode | str = UnalignedMode.AUTO
    alignment_timeout: Duration = "1s"
    max_inflight_bytes: int = 512 * MIB
    adaptive_alignment: bool = False
    retain: int = 5
    min_pause: Duration = "0s"
    tolerable_failures: int | None = None
    storage_timeout: Duration = "600s"

    def __post_init__(self) -> None:
        self.validate()
        if self.wal_mode is not None:
            object.__setattr__(self, "wal_mode", _choice(WalMode, "wal_mode", self.wal_mode))
        object.__setattr__(self, "unaligned", _choice(UnalignedMode, "unaligned", self.unaligned))

    def validate(self) -> None:
        """Refuse settings that contradict each other or make no sense. Changes nothing."""
        if self.interval is not None:
            parse_duration_ms(self.interval, name="interval", minimum_ms=1)
        parse_duration_ms(self.timeout, name="timeout", minimum_ms=1)
        parse_duration_ms(self.alignment_timeout, name="alignment_timeout", minimum_ms=1)
        parse_duration_ms(self.min_pause, name="min_pause")
        parse_duration_ms(self.storage_timeout, name="storage_timeout", minimum_ms=1)
        _choice(UnalignedMode, "unaligned", self.unaligned)
        if not isinstance(self.adaptive_alignment, bool):
            raise InvalidUseError(f"adaptive_alignment is True or False adaptive_alignment={self.adaptive_alignment!r}")
        _check_url(self.data_dir)
        _whole("max_checkpoint_size", self.max_checkpoint_size, 1)
        _whole("max_inflight_bytes", self.max_inflight_bytes, 1)
        _whole("retain", self.retain, 1)
        if self.tolerable_failures is not None:
            _whole("tolerable_failures", self.tolerable_failures, 0)
        self._validate_wal()

    def _validate_wal(self) -> None:
        if self.wal_mode is None:
            return
        _choice(WalMode, "wal_mode", self.wal_mode)
        if self.interval is None:
            raise WalRequiresCheckpoint(
                f"a write-ahead log needs checkpoints: set interval as well wal_mode={str(self.wal_mode)!r}"
            )

    @property
    def enabled(self) -> bool:
        """True when checkpoints are taken at all."""
        return self.interval is not None

    @property
    def interval_ms(self) -> int | None:
        """Time from one checkpoint to the next; ``None`` when checkpointing is off."""
        return None if self.interval is None else parse_duration_ms(self.interval, name="interval")

    @property
    def timeout_ms(self) -> int:
        """How long one checkpoint may take."""
        return parse_duration_ms(self.timeout, name="timeout")

    @property
    def alignment_timeout_ms(self) -> int:
        """How long barriers wait for each other before they overtake data."""
        return parse_duration_ms(self.alignment_timeout, name="alignment_timeout")

    @property
    def min_pause_ms(self) -> int:
        """The shortest time between the end of one checkpoint and the start of the next."""
        return parse_duration_ms(self.min_pause, name="min_pause")

    @property
    def storage_timeout_ms(self) -> int:
        """How long a store or a sink that can't be written is waited for."""
        return parse_duration_ms(self.storage_timeout, name="storage_timeout")

    def unaligned_config(self) -> UnalignedCheckpointConfig:
        """The same settings as the fan-in reads them."""
        return UnalignedCheckpointConfig(
            enabled=self.unaligned != UnalignedMode.NEVER,
            alignment_timeout_threshold_ms=self.alignment_timeout_ms,
            max_inflight_buffer_bytes=self.max_inflight_bytes,
            force_unaligned=self.unaligned == UnalignedMode.ALWAYS,
        )

    def store_url(self, store: str | None = None) -> str | None:
        """Where checkpoints go: ``store`` or ``data_dir``, which must agree. ``None`` when it is off."""
        _check_url(store)
        if not self.enabled:
            return None
        if self.data_dir is None and store is None:
            raise DataDirRequired("checkpointing is on and there is no store to write to: set data_dir or store")
        if store is not None and self.data_dir is not None and _local(store) != _local(str(self.data_dir)):
            raise InvalidUseError(
                "store and data_dir name different stores: give only one "
                f"store={store.partition('?')[0]!r} data_dir={str(self.data_dir).partition('?')[0]!r}"
            )
        return store if store is not None else str(self.data_dir)


def _check_url(url: object) -> None:
    if url is None or isinstance(url, PathLike) or (isinstance(url, str) and url.strip()):
        return
    raise InvalidUseError(f"a store is a path or a URL store={url!r}")


def _choice(kind: type[WalMode] | type[UnalignedMode], name: str, value: object) -> WalMode | UnalignedMode:
    for member in kind:
        if value == member.value:
            return member
    options = " | ".join(repr(member.value) for member in kind)
    raise InvalidUseError(f"{name} is one of {options} {name}={value!r}")


def _whole(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidUseError(f"{name} must be a whole number of at least {minimum} {name}={value!r}")


def _local(url: str) -> str:
    """One spelling per store: a file URL and its path are the same."""
    path = url.removeprefix("file://")
    return path.rstrip("/") or path
