"""What a leader is made of. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.core.checkpoint.adapt import UnalignedStreak
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.log.resolve import RestoreChoice
from tidegate.runtime.gangs import GangSetup
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.sinks import SinkPublisher


@dataclass(frozen=True, slots=True)
class LeaderSetup:
    """What a leader needs."""

    coordinator: DistributedCheckpointCoordinator
    log: LogStore
    gangs: GangSetup
    publisher: SinkPublisher
    restore: RestoreChoice
    overwrite: bool
    checkpointing: bool
    append: bool = False
    streak: UnalignedStreak = field(default_factory=UnalignedStreak)
    spools: Spools = field(default_factory=Spools)
    storage_timeout_ms: int = 600_000
    """How long a store or a sink that can't be read or written is waited for."""
    stays: bool = True
    """The log outlives this process."""
    hold: bool = False
    """Nothing is started after the takeover until ``proceed`` says so."""
