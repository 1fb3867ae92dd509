"""Heartbeats of leaders, where everybody who has to do with a job can read them: who leads, and where to find it.

The default keeps one small object per term beside the job's log. Safety never depends on it: see ``core.failure.election``.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from functools import cache
from pathlib import Path
from typing import Protocol

from tidegate.core.failure.election import (
    LEADER_TIMEOUT_MS,
    Alive,
    LeaderBeat,
    LeaderWatch,
    Silent,
    Unsure,
    Vacant,
)
from tidegate.core.log.codec import decode, encode
from tidegate.core.log.paths import JobPaths, LeaderObject
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import Term
from tidegate.runtime.etcd import is_etcd, parse_etcd
from tidegate.store.durable import DurableFileStore
from tidegate.store.interface import Store
from tidegate.store.open import local_path, open_store

LOOK_S = 0.1
IN_STORE = "store"


class Election(Protocol):
    """Where leaders say that they are there. Calls block; any thread."""

    @property
    def lease_ms(self) -> int | None:
        """How long what a leader says stays unless the leader renews it; ``None``: until somebody deletes it."""

    def newest(self) -> LeaderBeat | None:
        """The heartbeat of the highest term."""

    def announce(self, beat: LeaderBeat) -> None:
        """Say this, in place of what this term said before. What comes after a later beat of this process is dropped."""

    def forget(self, below: Term) -> None:
        """Delete what terms before this one said."""


class StoreElection:
    """One object per term in the job's store."""

    lease_ms = None

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._paths = JobPaths(job)
        self._lock = threading.Lock()
        self._last = (-1, 0)

    def newest(self) -> LeaderBeat | None:
        """List, then read the highest. One that was deleted meanwhile has a successor."""
        for term in sorted(self._terms(), reverse=True):
            path = self._paths.leader(term)
            try:
                return decode(LeaderBeat, self._store.get(path), path)
            except FileNotFoundError:
                continue
            except CorruptDataError:  # a hint that can't be read says nothing
                return None
        return None

    def announce(self, beat: LeaderBeat) -> None:
        """Overwrite this term's object. One thread's beat may be late: the last word of another must stay."""
        with self._lock:
            if beat.order >= self._last:
                self._last = beat.order
                self._store.put(self._paths.leader(beat.term), encode(beat))

    def forget(self, below: Term) -> None:
        """Delete the objects of lower terms."""
        self._store.delete([self._paths.leader(term) for term in self._terms() if term < below])

    def _terms(self) -> list[Term]:
        names = (self._paths.parse(info.path) for info in self._store.list(self._paths.leader_prefix))
        return [name.term for name in names if isinstance(name, LeaderObject)]


def open_election(url: str, job: str, lease_ms: int = LEADER_TIMEOUT_MS) -> Election:
    """The election at this URL: the job's own store, or etcd. Nothing is contacted yet.

    Where heartbeats expire, they do after ``lease_ms``.
    """
    if is_etcd(url):
        from tidegate.runtime.lease import LeaseElection  # late: most jobs never need it

        return LeaseElection(parse_etcd(url), job, lease_ms)
    path = local_path(url)
    # A heartbeat that a power cut takes away is of a leader that it took away too: nothing is synced.
    store = open_store(url) if path is None else DurableFileStore(Path(path), durable=False)
    return StoreElection(store, job)


def elected_at(given: str | None, described: str | None, store_url: str) -> str:
    """Where a job's leaders are to be found: where the caller says, else where its driver said, else in its store."""
    chosen = given if given is not None else described
    if chosen is None or chosen == IN_STORE:
        return store_url
    if not is_etcd(chosen):
        raise InvalidUseError(f"an election is 'store', etcd://… or etcds://… scheme={chosen.partition('://')[0][:20]!r}")
    return parse_etcd(chosen).complete


def to_describe(election_url: str) -> str | None:
    """The same for a job's description, which others read: without a password; ``None`` for the job's store."""
    return parse_etcd(election_url).public if is_etcd(election_url) else None


# -- this process and others on this machine --------------------------------------------------------------------------


@cache
def boot() -> str:
    """Which boot of which machine this is; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_name(pid: int) -> str:
    """A process beyond its number: the boot and the time of its start; empty when it has ended, or where nobody can tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{boot()}/{fields[19]}" if fields[0] not in ("Z", "X") else ""


def is_dead(beat: LeaderBeat) -> bool:
    """Its process ran on this machine, by this boot, and is no more."""
    here = bool(boot()) and beat.process.startswith(f"{boot()}/") and beat.host == socket.gethostname()
    return here and process_name(beat.pid) != beat.process


def watching(election: Election, timeout_ms: int) -> LeaderWatch:
    """A new watcher of this election."""
    return LeaderWatch(timeout_ms, lease_ms=election.lease_ms)


def await_sighting(election: Election, watch: LeaderWatch) -> Vacant | Alive | Silent:
    """Look until something is sure. ``Alive`` and ``Silent`` take up to the watcher's timeout. Blocks."""
    while True:
        beat = election.newest()
        dead = beat is not None and is_dead(beat)
        seen = watch.look(beat, int(time.monotonic() * 1000), dead=dead)
        if not isinstance(seen, Unsure):
            return seen
        time.sleep(LOOK_S)


def this_process() -> tuple[str, int, str]:
    """Host, pid and name of this process."""
    return socket.gethostname(), os.getpid(), process_name(os.getpid())
