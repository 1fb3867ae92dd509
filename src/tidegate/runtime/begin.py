"""From a physical plan and settings to a running leader, wherever its nodes run."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.clock import SystemClock
from tidegate.core.adapt import UnalignedStreak
from tidegate.core.config import CheckpointConfig, UnalignedMode
from tidegate.core.coordinate import DistributedCheckpointCoordinator
from tidegate.core.policy import DistributedCheckpointConfig
from tidegate.core.resolve import RestoreChoice
from tidegate.core.restart import RestartPolicy
from tidegate.errors import InvalidUseError
from tidegate.plan.physical import PhysicalPlan, SinkSpec, SourceSpec, Stage
from tidegate.runtime.address import LOOPBACK, bracketed
from tidegate.runtime.gang import Launcher
from tidegate.runtime.host import Launch
from tidegate.runtime.interrupt import stop_at_exit
from tidegate.runtime.leader import Leader, LeaderSetup
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.savepoint import read_savepoint
from tidegate.runtime.security import Tls
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.shape import plan_shape
from tidegate.runtime.sinks import Publisher
from tidegate.runtime.splits import SplitList
from tidegate.runtime.supply import Feeds, Spools, supplied, temporary_directory
from tidegate.runtime.threads import ThreadPools
from tidegate.store.open import check_writable, local_path, open_store, settled

if TYPE_CHECKING:
    from tidegate.wire.control import ControlServer

TOLERATE_ANY = 1_000_000
LEADER_CLOSE_S = 10.0
"""A function of for_each_batch may never return: whoever waits for the job's end must not wait for that."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How to run a plan."""

    parallelism: int
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    store: str | None = field(default=None, repr=False)  # its query may have secrets
    restore: RestoreChoice = "latest"
    savepoint: str | None = None
    """Start from this savepoint unless the job has a checkpoint of its own."""
    overwrite: bool = False
    append: bool = False
    """From a savepoint: the sinks hold what its job had written by then, and no more."""
    bind: str = LOOPBACK
    """Where the driver listens for nodes."""
    advertise: str | None = None
    """The host that nodes dial, when it is not ``bind``."""
    tls: Tls | None = None
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    spool: str | None = None
    """Where collect and for_each_batch keep rows when the store is no local directory."""


def begin(plan: PhysicalPlan, launcher: Launcher, options: JobOptions) -> Leader:
    """Check everything, then start the leader's thread. Raises before anything is started or changed. Blocks a while."""
    given = None if options.store is None else settled(options.store)
    place = _place(plan.job, given, options)
    store = open_store(place if place is not None else "memory://")
    if place is not None:
        check_writable(store)
    plan, keeps_spool = spooled(plan, place, options.spool)
    plan = supplied(plan, place or given, fresh=options.restore == "none")
    splits = {spec.name: SplitList.of(spec.source.splits()) for spec in _sources(plan)}
    _check_bounds(plan, options)
    secret = secrets.token_bytes(32)
    coordinator = DistributedCheckpointCoordinator(
        plan_shape(plan, options.parallelism),
        coordinator_config(options.checkpoint),
        leader=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    base = NodeSetup(
        plan=plan,
        node=0,
        parallelism=options.parallelism,
        gang=0,
        splits=splits,
        checkpoints=options.checkpoint.unaligned_config() if options.checkpoint.enabled else None,
    )
    address: list[str] = []

    def launch(gang: int, restore_url: str | None) -> Launch:
        return Launch(replace(base, gang=gang), address[0], secret, place, restore_url, options.bind, options.tls)

    savepoint = None if options.savepoint is None else read_savepoint(settled(options.savepoint), coordinator.shape)
    setup = LeaderSetup(
        coordinator=coordinator,
        log=LogStore(store, plan.job),
        launcher=launcher,
        launch=launch,
        publisher=Publisher(plan),
        parallelism=options.parallelism,
        restore=options.restore,
        overwrite=options.overwrite,
        append=options.append,
        checkpointing=options.checkpoint.enabled,
        restarts=options.restarts,
        streak=UnalignedStreak(wanted=options.checkpoint.unaligned is UnalignedMode.ALWAYS),
        savepoint=savepoint,
        spools=Spools.of(plan, None if savepoint is None else savepoint.manifest),
    )
    leader = Leader(setup, clock=SystemClock(), threads=ThreadPools("tidegate-leader", close_limit_s=LEADER_CLOSE_S))
    finished = leader.check()
    if leader.restored_from is not None and not keeps_spool:
        raise InvalidUseError(
            "collect() and for_each_batch() keep committed rows in a directory of the driver that ends with the process, so this "
            "job can't go on from a checkpoint: give spool= a directory that stays, or restore='none' "
            f"epoch={leader.restored_from}"
        )
    feeds = Feeds(plan)
    feeds.start(leader.fail)
    try:
        server = _control_server(leader, secret, options)
    except BaseException:
        feeds.stop()
        raise
    address.append(server.address)
    leader.on_end = feeds.then(server.close)
    stop_at_exit(leader)
    threading.Thread(target=leader.run, name=f"tidegate-leader-{plan.job}", daemon=True).start()
    if finished:  # it only publishes once more
        leader.ended.wait(LEADER_CLOSE_S)
    return leader


def _place(job: str, store: str | None, options: JobOptions) -> str | None:
    """Where the job lives. Without checkpoints it goes on from what its store has, else that stays untouched."""
    place = options.checkpoint.place(options.store)
    if place is not None:
        return settled(place)
    return store if store is not None and LogStore(open_store(store), job).begun() else None


def _control_server(leader: Leader, secret: bytes, options: JobOptions) -> ControlServer:
    # grpc's threads must not exist in a process that forks Spark's Python workers; the driver never does.
    from tidegate.wire.control import ControlServer

    return ControlServer(
        leader,
        secret,
        bracketed(options.bind),
        advertise=None if options.advertise is None else bracketed(options.advertise),
        credentials=None if options.tls is None else options.tls.server_credentials(),
    )


def coordinator_config(checkpoint: CheckpointConfig) -> DistributedCheckpointConfig:
    """The coordinator's settings from the user's."""
    always = checkpoint.unaligned == "always"
    never = checkpoint.unaligned == "never"
    timeout_ms = checkpoint.timeout_ms
    threshold_ms = 0 if always else checkpoint.alignment_timeout_ms
    return DistributedCheckpointConfig(
        checkpoint_interval_ms=checkpoint.interval_ms,
        checkpoint_timeout_ms=timeout_ms,
        barrier_injection_timeout_ms=min(10_000, timeout_ms),
        node_snapshot_timeout_ms=min(120_000, timeout_ms),
        enable_unaligned_fallback=not never and threshold_ms < timeout_ms,
        unaligned_threshold_ms=threshold_ms,
        adaptive_alignment=checkpoint.adaptive_alignment,
        gc_retain_count=checkpoint.retain,
        min_pause_ms=checkpoint.min_pause_ms,
        tolerable_failures=TOLERATE_ANY if checkpoint.tolerable_failures is None else checkpoint.tolerable_failures,
    )


def spooled(plan: PhysicalPlan, place: str | None, spool: str | None) -> tuple[PhysicalPlan, bool]:
    """Give the sinks that hand rows to the driver a directory to stage them in; False when that ends with this process."""
    needs = [s for stage in plan.stages for s in stage.operators if isinstance(s, SinkSpec) and _wants_spool(s)]
    if not needs:
        return plan, True
    kept = spool if spool is not None else place
    path = None if kept is None else local_path(settled(kept))
    if path is None and spool is not None:
        raise InvalidUseError(f"spool is a directory of the driver spool={spool}")
    root = Path(temporary_directory("spool") if path is None else path)
    return map_sinks(plan, lambda spec: _with_spool(spec, root / plan.job / "spool" / spec.name)), path is not None


def _wants_spool(spec: SinkSpec) -> bool:
    return hasattr(spec.sink, "with_spool")


def _with_spool(spec: SinkSpec, directory: Path) -> SinkSpec:
    if not _wants_spool(spec):
        return spec
    sink: Any = spec.sink
    return replace(spec, sink=sink.with_spool(str(directory), spec.output))


def map_sinks(plan: PhysicalPlan, change: Callable[[SinkSpec], SinkSpec]) -> PhysicalPlan:
    """The same plan with every sink changed."""

    def changed(stage: Stage) -> Stage:
        operators = tuple(change(spec) if isinstance(spec, SinkSpec) else spec for spec in stage.operators)
        return replace(stage, operators=operators)

    return replace(plan, stages=tuple(changed(stage) for stage in plan.stages))


def _sources(plan: PhysicalPlan) -> list[SourceSpec]:
    return [spec for stage in plan.stages for spec in stage.operators if isinstance(spec, SourceSpec)]


def _check_bounds(plan: PhysicalPlan, options: JobOptions) -> None:
    endless = [spec.name for spec in _sources(plan) if not spec.source.bounded]
    if endless and not options.checkpoint.enabled:
        raise InvalidUseError(
            f"the source {endless[0]!r} never ends and without checkpoints its rows would never become visible: give "
            "checkpoint=tg.CheckpointConfig(interval='1s')"
        )
