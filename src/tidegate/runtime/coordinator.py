"""A leader outside of the driver: a standby for the coordinator alone. The data goes on while it takes over.

It needs the job's store, which has all that leading takes as data, and the job's key. It has no pipeline, no Spark and no sinks:
those stay with the driver, which does what this leader orders.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from tidegate.clock import SystemClock
from tidegate.core.checkpoint.adapt import UnalignedStreak
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.failure.election import Alive, LeaderBeat, Silent, Vacant
from tidegate.errors import WAITED_FOR, InvalidUseError
from tidegate.runtime.address import LOOPBACK, bracketed
from tidegate.runtime.contend import STANDBY_LOOK_S, patient_sighting
from tidegate.runtime.description import JobDescription, read_description
from tidegate.runtime.election import Election, elected_at, open_election, watching
from tidegate.runtime.gangs import GangSetup
from tidegate.runtime.host import heartbeat_s
from tidegate.runtime.leader import Leader
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.savepoint import read_savepoint
from tidegate.runtime.security import Tls, needs_seal
from tidegate.runtime.signals import SignalSetup
from tidegate.runtime.threads import ThreadPools
from tidegate.store.open import open_store

log = logging.getLogger("tidegate")

SPARE_NODES = 16


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Where a coordinator listens, and where it looks for other leaders if not where the job's driver says."""

    bind: str = LOOPBACK
    advertise: str | None = None
    tls: Tls | None = None
    allow_plaintext: bool = False
    election: str | None = field(default=None, repr=False)  # it may have a password


class Coordinator:
    """Stands by, leads, stands by again. One thread."""

    def __init__(self, store_url: str, job: str, secret: bytes, options: CoordinatorOptions | None = None) -> None:
        self._options = options or CoordinatorOptions()
        needs_seal(self._options.bind, self._options.tls, self._options.allow_plaintext)
        self._store_url = store_url
        self._job = job
        self._secret = secret
        self._stopping = False
        self.leader: Leader | None = None
        """The leader that this process is now, or was last."""

    def run(self, *, takeover: bool = False, say: Callable[[str], None] = lambda text: None) -> str:
        """Lead whenever nobody else does; gives how the job ended. With ``takeover`` begin at once. Blocks."""
        while not self._stopping:
            over = None if takeover else self._stand_by(say)
            takeover = False
            if over is not None:
                return over
            leader = self._lead(say)
            if leader.succession.replaced_by is None:
                return leader.status
            by = leader.succession.replaced_by
            say(f"replaced by the {by.role} process {by.pid} on {by.host}, standing by again job={self._job} term={by.term}")
        return "STOPPED"

    def _stand_by(self, say: Callable[[str], None]) -> str | None:
        """Wait until nobody leads; gives how the job ended, if it did."""
        description = self._description()
        election = self._election(description)
        watch = watching(election, description.leader_timeout_ms)
        said: tuple[int, str] | None = None
        while not self._stopping:
            try:
                seen = patient_sighting(election, watch, self._job, lambda: self._stopping)
            except WAITED_FOR:
                break
            match seen:
                case Silent(beat):
                    if self._description().election != description.election:
                        return self._stand_by(say)  # a driver has moved the election
                    say(f"the leader is silent, taking over job={self._job} leader={beat.whereabouts}")
                    return None
                case Vacant(LeaderBeat(status="STOPPED" | "FINISHED" as status)):
                    return status
                case Alive(beat):
                    if said != (said := (beat.term, beat.leader)):
                        say(f"standing by job={self._job} leader={beat.whereabouts}")
                case Vacant():
                    pass  # one that failed may be started again
                case _:
                    assert_never(seen)
            time.sleep(STANDBY_LOOK_S)
        return "STOPPED"

    def _election(self, description: JobDescription) -> Election:
        url = elected_at(self._options.election, description.election, self._store_url)
        return open_election(url, self._job, description.leader_timeout_ms)

    def _description(self) -> JobDescription:
        found = read_description(open_store(self._store_url), self._job)
        if found is None:
            raise InvalidUseError(
                "no driver has run this job with checkpoints in this store yet: start it once, then a coordinator can stand by "
                f"job={self._job} store={open_store(self._store_url).url}"
            )
        return found

    def _lead(self, say: Callable[[str], None]) -> Leader:
        from tidegate.wire.control import ControlServer
        from tidegate.wire.line import ControlSettings

        description, options = self._description(), self._options
        driver = RemoteDriver(dict(description.hiding))
        leader = self.leader = Leader(
            self._setup(description, driver), clock=SystemClock(), threads=ThreadPools("tidegate-coordinator")
        )
        driver.on_change = leader.succession.driver_changed
        stall_s = description.stall_timeout_ms / 1000
        settings = ControlSettings(
            heartbeat_s=heartbeat_s(stall_s), silence_s=stall_s, max_nodes=2 * description.shape.parallelism + SPARE_NODES
        )
        server = ControlServer(
            leader,
            self._secret,
            bracketed(options.bind),
            advertise=None if options.advertise is None else bracketed(options.advertise),
            settings=settings,
            credentials=None if options.tls is None else options.tls.server_credentials(),
        )
        leader.succession.address = server.address
        leader.on_end = server.close
        leader.opening.read = leader.log.recent()
        leader.run()
        say(f"this coordinator leads no more job={self._job} status={leader.status}")
        return leader

    def _setup(self, description: JobDescription, driver: RemoteDriver) -> LeaderSetup:
        shape, url = description.shape, description.savepoint
        return LeaderSetup(
            coordinator=DistributedCheckpointCoordinator(
                shape,
                description.config,
                leader=secrets.token_hex(8),
                host=socket.gethostname(),
                pid=os.getpid(),
                role="coordinator",
            ),
            log=LogStore(open_store(self._store_url), self._job),
            gangs=GangSetup(
                host=driver,
                publisher=driver,
                parallelism=shape.parallelism,
                savepoint=None if url is None else read_savepoint(url, shape),
                restarts=description.restarts,
                join_timeout_ms=description.join_timeout_ms,
                stall_timeout_ms=description.stall_timeout_ms,
            ),
            publisher=driver,
            restore="latest",
            overwrite=False,
            checkpointing=True,
            storage_timeout_ms=description.storage_timeout_ms,
            streak=UnalignedStreak(wanted=description.wants_unaligned),
            signals=SignalSetup(store=open_store(self._store_url)),
            election=self._election(description),
            leader_timeout_ms=description.leader_timeout_ms,
        )

    def stop(self) -> None:
        """Lead no more, without ending the job: whoever stands by takes over. Any thread."""
        self._stopping = True
        if (leader := self.leader) is not None:
            leader.succession.resign()
