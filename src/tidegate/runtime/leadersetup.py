"""What a leader is made of. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.adapt import UnalignedStreak
from tidegate.core.coordinate import DistributedCheckpointCoordinator
from tidegate.core.resolve import RestoreChoice
from tidegate.core.restart import RestartPolicy
from tidegate.runtime.gang import Launcher
from tidegate.runtime.host import Launch
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.savepoint import Savepoint
from tidegate.runtime.sinks import Publisher
from tidegate.runtime.supply import Spools


@dataclass(frozen=True, slots=True)
class LeaderSetup:
    """What a leader needs. ``launch`` makes what a gang's processes are told."""

    coordinator: DistributedCheckpointCoordinator
    log: LogStore
    launcher: Launcher
    launch: Callable[[int, str | None], Launch]
    publisher: Publisher
    parallelism: int
    restore: RestoreChoice
    overwrite: bool
    checkpointing: bool
    restarts: RestartPolicy
    append: bool = False
    streak: UnalignedStreak = field(default_factory=UnalignedStreak)
    savepoint: Savepoint | None = None
    """Where to start from while the log has no commit."""
    spools: Spools = field(default_factory=Spools)
    storage_timeout_ms: int = 600_000
    """How long a store or a sink that can't be read or written is waited for."""
    stays: bool = True
    """The log outlives this process."""
    hold: bool = False
    """Nothing is started after the takeover until ``proceed`` says so."""
