"""From a physical plan and settings to a running leader, wherever its nodes run."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.clock import SystemClock
from tidegate.core.checkpoint.adapt import UnalignedStreak
from tidegate.core.checkpoint.config import CheckpointConfig, UnalignedMode
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.failure.election import LEADER_TIMEOUT_MS
from tidegate.core.failure.restart import RestartPolicy
from tidegate.core.log.resolve import Refuse, RestoreChoice, StartFresh
from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.ids import NO_TERM, GangNumber, NodeId, Term
from tidegate.operators.sink import Write
from tidegate.operators.source import Read
from tidegate.plan.capabilities import NeedsSpool, NeedsStore
from tidegate.plan.physical import PhysicalPlan, Stage
from tidegate.runtime.address import LOOPBACK, bracketed
from tidegate.runtime.contend import Contend, contend
from tidegate.runtime.description import JobDescription, read_description, write_description
from tidegate.runtime.election import Election, elected_at, open_election, to_describe
from tidegate.runtime.gang import Launcher, LocalHost
from tidegate.runtime.gangs import JOIN_TIMEOUT_MS, GangSetup
from tidegate.runtime.host import STALL_TIMEOUT_S, Launch, control_client, heartbeat_s
from tidegate.runtime.interrupt import stop_at_exit
from tidegate.runtime.jobs import check_directories
from tidegate.runtime.leader import Leader
from tidegate.runtime.leaderline import GRACE_S, OnLost, OnMessage
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.lifecycle import Feeds, Spools, check_stored_sources, temporary_directory, with_stored_sources
from tidegate.runtime.limits import allow_files
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.savepoint import Savepoint, read_savepoint
from tidegate.runtime.security import Tls, needs_seal
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.shape import plan_shape
from tidegate.runtime.signals import SignalSetup
from tidegate.runtime.sinks import SinkPublisher
from tidegate.runtime.splits import SplitList
from tidegate.runtime.threads import ThreadPools
from tidegate.runtime.token import SECRET_BYTES, job_secret, token_path
from tidegate.store.interface import Store
from tidegate.store.open import absolute_url, check_writable, local_path, open_store
from tidegate.supervise import supervised

if TYPE_CHECKING:
    from tidegate.wire.control import ControlClient, ControlServer
    from tidegate.wire.line import ControlSettings

TOLERATE_ANY = 1_000_000
log = logging.getLogger("tidegate")

SPARE_NODES = 16
FILES_OF_A_NODE = 3
"""A node's line has one descriptor at the port and two on the way to grpc."""
SPARE_FILES = 256
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
    allow_plaintext: bool = False
    """Let rows cross the network unencrypted where the job listens off loopback without TLS."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    stall_timeout_ms: int = int(1000 * STALL_TIMEOUT_S)
    """A node that says nothing for so long is lost."""
    join_timeout_ms: int = JOIN_TIMEOUT_MS
    """How long the driver waits for the next node of a gang that comes up."""
    contend: Contend = "refuse"
    """What to do about a leader that the job has already."""
    leader_timeout_ms: int = LEADER_TIMEOUT_MS
    """A leader that says nothing for so long may be replaced."""
    coordinator_grace_ms: int = int(1000 * GRACE_S)
    """How long nodes work without a leader."""
    election: str | None = field(default=None, repr=False)  # it may have a password
    """Where leaders say that they are there: ``store`` or etcd's address; ``None``: as the job's last driver had it."""
    token_file: str | None = None
    """Where the job's key is; ``None``: below the user's home."""
    spool: str | None = None
    """Where collect and for_each_batch keep rows when the store is no local directory."""


def launch_job(plan: PhysicalPlan, launcher: Launcher, options: JobOptions) -> Leader:
    """Check everything, then start the leader's thread. Raises before anything is started or changed. Blocks a while.

    What has to be changed before a gang can start is changed after the leader's takeover: spools are begun, sinks taken.
    """
    needs_seal(options.bind, options.tls, options.allow_plaintext)
    control = control_settings(options)
    chosen = None if options.store is None else absolute_url(options.store)
    url = _store_url(plan.job, chosen, options)
    store = open_store(url if url is not None else "memory://")
    if url is not None:
        check_writable(store)
    plan, keeps_spool = spooled(plan, url, options.spool)
    check_stored_sources(plan, url or chosen, fresh=options.restore == "none")
    splits = _splits(plan, lambda spec: not isinstance(spec.source, NeedsStore))
    _check_bounds(plan, options)
    publisher = SinkPublisher(plan)
    config = replace(coordinator_config(options.checkpoint), publish_budgets=publisher.budgets())
    check_directories(plan)
    shape = plan_shape(plan, options.parallelism)
    election_url = _election_url(plan.job, url, store, options)
    election = None if election_url is None else _stand(election_url, plan.job, options)

    def new_coordinator() -> DistributedCheckpointCoordinator:
        name, host = secrets.token_hex(8), socket.gethostname()
        return DistributedCheckpointCoordinator(shape, config, leader=name, host=host, pid=os.getpid())

    coordinator = new_coordinator()
    savepoint = None if options.savepoint is None else read_savepoint(absolute_url(options.savepoint), coordinator.shape)
    launches = _Launches(url, options, _secret(plan.job, url, options, election), election_url)
    setup = LeaderSetup(
        coordinator=coordinator,
        log=LogStore(store, plan.job),
        gangs=_gangs(LocalHost(launcher, launches.launch), publisher, savepoint, options),
        publisher=publisher,
        restore=options.restore,
        overwrite=options.overwrite,
        append=options.append,
        checkpointing=options.checkpoint.enabled,
        storage_timeout_ms=options.checkpoint.storage_timeout_ms,
        streak=UnalignedStreak(wanted=options.checkpoint.unaligned is UnalignedMode.ALWAYS),
        stays=url is not None and not url.startswith("memory:"),
        signals=SignalSetup.of(plan, None if url is None else store, saves=options.checkpoint.enabled),
        hold=True,
        election=election,
        leader_timeout_ms=options.leader_timeout_ms,
        again=new_coordinator,
        connect=None if election is None else launches.connect,
    )
    leader = Leader(setup, clock=SystemClock(), threads=ThreadPools("tidegate-leader", close_limit_s=LEADER_CLOSE_S))
    finished = leader.check()
    if leader.restored_from is not None and not keeps_spool:
        raise InvalidUseError(
            "collect() and for_each_batch() keep committed rows in a directory of the driver that ends with the process, so this "
            "job can't go on from a checkpoint: give spool= a directory that stays, or restore='none' "
            f"epoch={leader.restored_from}"
        )
    stop_at_exit(leader)
    supervised(f"tidegate-leader-{plan.job}", leader.run, leader.died).start()
    try:
        _prepare(leader, setup, plan, url or chosen, options, launches, splits, control)
    except BaseException:
        leader.stop()
        leader.ended.wait(LEADER_CLOSE_S)
        raise
    if finished:  # it only publishes once more
        leader.ended.wait(LEADER_CLOSE_S)
    return leader


def _prepare(
    leader: Leader,
    setup: LeaderSetup,
    plan: PhysicalPlan,
    url: str | None,
    options: JobOptions,
    launches: _Launches,
    splits: dict[str, SplitList],
    control: ControlSettings,
) -> None:
    """Take the sinks, begin the spools, feed and listen; then the gang may start."""
    decision = leader.take()
    manifest = None if isinstance(decision, StartFresh | Refuse) else decision.manifest
    if manifest is None and setup.gangs.savepoint is not None:
        manifest = setup.gangs.savepoint.manifest
        leader.signals.move(manifest, open_store(setup.gangs.savepoint.url))
    # Without a manifest nothing goes on: what earlier commits have read of a spool may be deleted.
    fresh = options.restore == "none" or (manifest is None and setup.coordinator.log.last_id > 0)
    plan = with_stored_sources(plan, url, fresh=fresh, manifest=manifest)
    pinned = None if setup.gangs.savepoint is None else setup.gangs.savepoint.manifest
    feeds = Feeds(plan)
    leader.on_end = feeds.stop
    feeds.start(leader.fail)
    server = _control_server(leader, launches.secret, options, control)
    leader.on_end = feeds.then(server.close)
    launches.led_from(server.address, leader.term)
    leader.succession.address, leader.succession.led_from = server.address, launches.led_from
    if setup.election is not None:
        write_description(setup.log.store, plan.job, leader.term, _description(setup, options, launches.election_url))
    launches.base = NodeSetup(
        plan=plan,
        node=NodeId(0),
        parallelism=options.parallelism,
        gang=GangNumber(0),
        splits=splits | _splits(plan, lambda spec: spec.name not in splits),
        checkpoints=options.checkpoint.unaligned_config() if options.checkpoint.enabled else None,
    )
    leader.proceed(decision, Spools.of(plan, pinned))


class _Launches:
    """What gangs are told. ``base`` and ``address`` are known before the first."""

    def __init__(self, url: str | None, options: JobOptions, secret: bytes, election_url: str | None) -> None:
        self._url = url
        self.election_url = election_url
        self._options = options
        self.secret = secret
        self._address, self._term = "", NO_TERM
        self.base: NodeSetup | None = None

    def led_from(self, address: str, term: Term) -> None:
        """Where the leader of the next gang is, and its term."""
        self._address, self._term = address, term

    def connect(self, address: str, on_message: OnMessage, on_lost: OnLost) -> ControlClient:
        """A line of this driver's own to a leader elsewhere."""
        return control_client(address, self.secret, on_message, on_lost, self._options.tls, self._options.stall_timeout_ms)

    def launch(self, gang: GangNumber, restore_url: str | None) -> Launch:
        """What one gang is told."""
        assert self.base is not None, "a gang starts after its spools are begun"
        options = self._options
        setup = replace(self.base, gang=gang)
        return Launch(
            setup,
            self._address,
            self.secret,
            self._url,
            restore_url,
            options.bind,
            options.tls,
            stall_timeout_s=options.stall_timeout_ms / 1000,
            election_url=self.election_url,
            term=self._term,
            coordinator_grace_s=options.coordinator_grace_ms / 1000,
            sealed=needs_seal(options.bind, options.tls, options.allow_plaintext),
        )


def fails_over(url: str | None, options: JobOptions) -> bool:
    """Somebody else could lead this job: its log is where others can read it."""
    return url is not None and not url.startswith("memory:") and options.checkpoint.enabled


def _election_url(job: str, store_url: str | None, store: Store, options: JobOptions) -> str | None:
    """Where leaders say that they are there; ``None``: nobody else could lead.

    A job stays with the election that it had unless another one is given. Then nobody may lead by the old one.
    """
    if store_url is None or not fails_over(store_url, options):
        if options.election is not None:
            raise InvalidUseError(
                "an election is for a job that others could lead: give checkpoint=tg.CheckpointConfig(interval='1s') and a store "
                "that outlives this process"
            )
        return None
    described = _described_election(job, store)
    url = elected_at(options.election, described, store_url)
    if to_describe(url) != described:
        _stand(elected_at(None, described, store_url), job, options)
    return url


def _described_election(job: str, store: Store) -> str | None:
    try:
        last = read_description(store, job)
    except CorruptDataError as error:
        log.warning("where this job's leaders were is not known: %s job=%s", error, job)
        return None
    return None if last is None else last.election


def _stand(election_url: str, job: str, options: JobOptions) -> Election:
    """The election, once this process may try to lead. Blocks as long as that takes."""
    election = open_election(election_url, job, options.leader_timeout_ms)
    contend(election, job, options.contend, options.leader_timeout_ms)
    return election


def _secret(job: str, url: str | None, options: JobOptions, election: Election | None) -> bytes:
    """The job's key: in a file where others may have to find it, else for this run alone."""
    if url is None or election is None:
        return secrets.token_bytes(SECRET_BYTES)
    path = token_path(url, job) if options.token_file is None else Path(options.token_file)
    try:
        return job_secret(path)
    except OSError as error:
        if options.token_file is not None:
            raise InvalidUseError(f"the token file can't be written: {error} token_file={path}") from error
        log.warning("no token file, so nobody else can operate or lead this job: %s job=%s", error, job)
        return secrets.token_bytes(SECRET_BYTES)


def _description(setup: LeaderSetup, options: JobOptions, election_url: str | None) -> JobDescription:
    savepoint, publisher = setup.gangs.savepoint, setup.publisher
    return JobDescription(
        shape=setup.coordinator.shape,
        config=setup.coordinator.config,
        hiding=publisher.hiding,
        savepoint=None if savepoint is None else savepoint.url,
        storage_timeout_ms=options.checkpoint.storage_timeout_ms,
        stall_timeout_ms=options.stall_timeout_ms,
        join_timeout_ms=options.join_timeout_ms,
        leader_timeout_ms=options.leader_timeout_ms,
        wants_unaligned=options.checkpoint.unaligned is UnalignedMode.ALWAYS,
        restarts=options.restarts,
        election=None if election_url is None else to_describe(election_url),
    )


def _splits(plan: PhysicalPlan, wanted: Callable[[Read], bool]) -> dict[str, SplitList]:
    return {spec.name: SplitList.of(spec.source.splits()) for spec in _sources(plan) if wanted(spec)}


def _store_url(job: str, store: str | None, options: JobOptions) -> str | None:
    """Where the job lives. Without checkpoints it goes on from what its store has, else that stays untouched."""
    url = options.checkpoint.store_url(options.store)
    if url is not None:
        return absolute_url(url)
    return store if store is not None and LogStore(open_store(store), job).begun() else None


def _gangs(
    host: LocalHost,
    publisher: SinkPublisher,
    savepoint: Savepoint | None,
    options: JobOptions,
) -> GangSetup:
    return GangSetup(
        host=host,
        publisher=publisher,
        parallelism=options.parallelism,
        savepoint=savepoint,
        restarts=options.restarts,
        join_timeout_ms=options.join_timeout_ms,
        stall_timeout_ms=options.stall_timeout_ms,
    )


def control_settings(options: JobOptions) -> ControlSettings:
    """Room for every node, and for as many of a gang that is just leaving. Refuses what this process may not open."""
    from tidegate.wire.line import ControlSettings

    stall_s, parallelism = options.stall_timeout_ms / 1000, options.parallelism
    usual = ControlSettings(heartbeat_s=heartbeat_s(stall_s), silence_s=stall_s)
    nodes = max(usual.max_nodes, 2 * parallelism + SPARE_NODES)
    newcomers = max(usual.max_newcomers, parallelism)  # all may come at once
    allow_files(FILES_OF_A_NODE * (parallelism + newcomers) + SPARE_FILES, f"parallelism={parallelism}")
    return replace(usual, max_nodes=nodes, max_newcomers=newcomers)


def _control_server(leader: Leader, secret: bytes, options: JobOptions, settings: ControlSettings) -> ControlServer:
    # grpc's threads must not exist in a process that forks Spark's Python workers; the driver never does.
    from tidegate.wire.control import ControlServer

    return ControlServer(
        leader,
        secret,
        bracketed(options.bind),
        advertise=None if options.advertise is None else bracketed(options.advertise),
        settings=settings,
        credentials=None if options.tls is None else options.tls.server_credentials(),
    )


def coordinator_config(checkpoint: CheckpointConfig) -> DistributedCheckpointConfig:
    """The coordinator's settings from the user's."""
    always = checkpoint.unaligned == "always"
    never = checkpoint.unaligned == "never"
    timeout_ms = checkpoint.timeout_ms
    alignment_timeout_ms = 0 if always else checkpoint.alignment_timeout_ms
    return DistributedCheckpointConfig(
        checkpoint_interval_ms=checkpoint.interval_ms,
        checkpoint_timeout_ms=timeout_ms,
        barrier_injection_timeout_ms=min(10_000, timeout_ms),
        node_snapshot_timeout_ms=min(120_000, timeout_ms),
        enable_unaligned_fallback=not never and alignment_timeout_ms < timeout_ms,
        unaligned_threshold_ms=alignment_timeout_ms,
        adaptive_alignment=checkpoint.adaptive_alignment,
        gc_retain_count=checkpoint.retain,
        min_pause_ms=checkpoint.min_pause_ms,
        storage_timeout_ms=checkpoint.storage_timeout_ms,
        publish_tries_max=1,
        max_checkpoint_bytes=checkpoint.max_checkpoint_size,
        tolerable_failures=TOLERATE_ANY if checkpoint.tolerable_failures is None else checkpoint.tolerable_failures,
    )


def spooled(plan: PhysicalPlan, url: str | None, spool: str | None) -> tuple[PhysicalPlan, bool]:
    """Assign the sinks that hand rows to the driver a directory to stage them in; False when that ends with this process."""
    needs = [s for stage in plan.stages for s in stage.operators if isinstance(s, Write) and isinstance(s.sink, NeedsSpool)]
    if not needs:
        return plan, True
    kept = spool if spool is not None else url
    path = None if kept is None else local_path(absolute_url(kept))
    if path is None and spool is not None:
        raise InvalidUseError(f"spool is a directory of the driver spool={spool}")
    root = Path(temporary_directory("spool") if path is None else path)
    return map_sinks(plan, lambda spec: _with_spool(spec, root / plan.job / "spool" / spec.name)), path is not None


def _with_spool(spec: Write, directory: Path) -> Write:
    if not isinstance(spec.sink, NeedsSpool):
        return spec
    return replace(spec, sink=spec.sink.with_spool(str(directory), spec.schema))


def map_sinks(plan: PhysicalPlan, change: Callable[[Write], Write]) -> PhysicalPlan:
    """The same plan with every sink changed."""

    def changed(stage: Stage) -> Stage:
        operators = tuple(change(spec) if isinstance(spec, Write) else spec for spec in stage.operators)
        return replace(stage, operators=operators)

    return replace(plan, stages=tuple(changed(stage) for stage in plan.stages))


def _sources(plan: PhysicalPlan) -> list[Read]:
    return [spec for stage in plan.stages for spec in stage.operators if isinstance(spec, Read)]


def _check_bounds(plan: PhysicalPlan, options: JobOptions) -> None:
    endless = [spec.name for spec in _sources(plan) if not spec.source.bounded]
    if endless and not options.checkpoint.enabled:
        raise InvalidUseError(
            f"the source {endless[0]!r} never ends and without checkpoints its rows would never become visible: give "
            "checkpoint=tg.CheckpointConfig(interval='1s')"
        )
