"""What a leader is made of. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.checkpoint.adapt import UnalignedStreak
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.failure.election import LEADER_TIMEOUT_MS
from tidegate.core.log.resolve import RestoreChoice
from tidegate.runtime.election import Election
from tidegate.runtime.gangs import GangSetup
from tidegate.runtime.leaderline import Connect
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.signals import SignalSetup
from tidegate.runtime.sinks import SinkPublisher


@dataclass(frozen=True, slots=True)
class LeaderSetup:
    """What a leader needs."""

    coordinator: DistributedCheckpointCoordinator
    log: LogStore
    gangs: GangSetup
    publisher: SinkPublisher | RemoteDriver
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
    signals: SignalSetup = field(default_factory=SignalSetup)
    hold: bool = False
    """Nothing is started after the takeover until ``proceed`` says so."""
    election: Election | None = None
    """Where this leader says that it is there; ``None``: nobody could take over from it."""
    leader_timeout_ms: int = LEADER_TIMEOUT_MS
    again: Callable[[], DistributedCheckpointCoordinator] | None = None
    """A driver that is led from elsewhere makes a new coordinator when it leads again."""
    connect: Connect | None = None
    """How a driver reaches a leader elsewhere."""
