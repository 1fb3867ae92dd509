"""The benchmarks of the suite `core` that need nodes: real coordinators, stores, sockets and jobs.

Nodes are threads of this process and share one interpreter, so a figure here is worse than that of processes would be. The
network is this machine's own, and the store a directory that is synced.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.api.job import Job
from tidegate.bench.timing import Reading, seconds
from tidegate.bench.unaligned import on_threads
from tidegate.core.barrier.messages import Barrier, CheckpointBarrier
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import (
    CommittableEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import ChannelRef, ChannelShape, PlanShape, PrepareAck, TaskReport
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.view import Commit
from tidegate.errors import JobFailedError, ThreadDied
from tidegate.ids import CheckpointId, Epoch, GangNumber, NodeId
from tidegate.plan.connector import Offset, Polled, Split
from tidegate.runtime.logstore import LogStore
from tidegate.store.open import open_store
from tidegate.wire.arrow import Message
from tidegate.wire.tcp import TcpTransport
from tidegate.wire.transport import ChannelId

NODES = 3
MANIFEST_NODES = 10
GANG = GangNumber(0)
RUNS = 64
PAYLOAD_BYTES = 1_000
BLOCK_ROWS = 1_000
WAIT_S = 60.0
INTERVAL = "1s"
BY_HAND = tg.CheckpointConfig(interval="1h", timeout="60s")
EVERY_200_MS = tg.CheckpointConfig(interval="200ms", timeout="60s")

# -- manifests -----------------------------------------------------------------------------------------------

_PATHS = JobPaths("bench")
_SHAPE = PlanShape(
    job="bench",
    parallelism=MANIFEST_NODES,
    tasks=frozenset({"read", "window"}),
    operators=frozenset({"window"}),
    sources=frozenset({"read"}),
    sinks=frozenset({"out"}),
    channels=frozenset({ChannelShape("read", "out", 0, "hash"), ChannelShape("window", "in", 0, "hash")}),
)


def manifests(work: Path, samples: int) -> list[Reading]:
    """The reports of ten nodes become a manifest, and the manifest an entry of the log."""
    log = LogStore(open_store(work), "bench")
    reign = Reign()
    taken = [reign.checkpoint(log) for _ in range(samples)]
    reports = f"{MANIFEST_NODES} reports of {RUNS} runs each"
    return [
        Reading(
            name="bench_manifest_aggregation_10_nodes",
            values=tuple(aggregated * 1e3 for aggregated, _ in taken),
            unit="ms",
            target=100,
            what=f"{reports}: decoded, checked, put together and encoded",
        ),
        Reading(
            name="bench_manifest_commit",
            values=tuple(committed * 1e3 for _, committed in taken),
            unit="ms",
            target=500,
            what="the same, and the entry created and synced in a directory",
        ),
    ]


class Reign:
    """A coordinator that leads ten nodes, which are only their reports."""

    def __init__(self) -> None:
        config = DistributedCheckpointConfig(checkpoint_interval_ms=None, base_every=1_000_000)  # commits alone are measured
        self._machine = DistributedCheckpointCoordinator(_SHAPE, config, "bench")
        everyone = frozenset(map(NodeId, range(MANIFEST_NODES)))
        self._answer(self._tell(events.LogRead(())))
        self._tell(events.LogChecked(0, events.Last()))
        self._tell(events.RestoreRequested(None))
        self._tell(events.GangRunning(GANG, everyone, everyone))

    def checkpoint(self, log: LogStore) -> tuple[float, float]:
        """Seconds from the first report to the effect that puts the manifest, and to its commit."""
        self._tell(events.TriggerRequested("bench"))
        assert self._machine.attempt is not None
        number = self._machine.attempt.checkpoint_id
        reports = [_report(NodeId(node), number).to_json() for node in range(MANIFEST_NODES)]
        begun = time.perf_counter()
        effects = [effect for report in reports for effect in self._prepared(report)]
        aggregated = time.perf_counter() - begun
        (put,) = (effect for effect in effects if isinstance(effect, do.PutEntry))
        assert isinstance(put.entry, Commit) and log.create(put.entry) is None
        after = self._answer([put])
        committed = time.perf_counter() - begun
        for effect in after:
            if isinstance(effect, do.Publish):
                self._tell(events.Published(effect.epoch))
        return aggregated, committed

    def _prepared(self, report: bytes) -> list[do.CoordinatorEffect]:
        return self._tell(events.NodePrepared(PrepareAck.from_json(report)))

    def _answer(self, effects: Sequence[do.CoordinatorEffect]) -> list[do.CoordinatorEffect]:
        (put,) = (effect for effect in effects if isinstance(effect, do.PutEntry))
        return self._tell(events.PutAnswered(put.slot, put.write_id, events.Written()))

    def _tell(self, event: events.CoordinatorEvent) -> list[do.CoordinatorEffect]:
        return self._machine.handle(event, 0, 1)


def _report(node: NodeId, number: int) -> PrepareAck:
    """What a node with one window operator and a full exchange reports."""
    paths = [_PATHS.shared(number, f"{node}-{run}") for run in range(RUNS)]
    ends = {"read": "out", "window": "in"}
    return PrepareAck(
        node=node,
        gang=GANG,
        term=CheckpointId(number).term,
        checkpoint_id=number,
        tasks=tuple(
            TaskReport(
                task,
                node,
                "fired",
                tuple(ChannelRef("out" if end == "out" else "in", 0, peer) for peer in range(MANIFEST_NODES)),
            )
            for task, end in ends.items()
        ),
        operators=(OperatorSnapshotEntry("window", node, {}, tuple(RunEntry(path, 0, 10, 1, 1) for path in paths)),),
        sources=(SourceOffsetEntry("read", node, {"offset": number}),),
        sinks=("out",),
        committables=(CommittableEntry("out", node, GANG, number, {"file": f"{number}-{node}"}),),
        objects=tuple(ObjectEntry(path, 10, 1) for path in paths),
        bytes_uploaded=10 * RUNS,
    )


# -- a barrier from node to node -----------------------------------------------------------------------------


class Arrivals:
    """What a transport reports: when the last message came."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.at = 0.0

    def received(self, channel: ChannelId, message: Message, size_bytes: int) -> None:
        self.at = time.perf_counter()
        self.came.set()

    def credited(self, channel: ChannelId, size_bytes: int) -> None:
        return None

    def sendable(self, channel: ChannelId) -> None:
        return None

    def broken(self, death: ThreadDied) -> None:
        raise death

    def closed(self, channel: ChannelId, error: Exception | None) -> None:
        return None


def cross_node_barrier(samples: int) -> Reading:
    """A barrier over TCP, from being handed to the sender's transport to the report at the receiver's."""
    arrivals, secret, channel = Arrivals(), secrets.token_bytes(32), ChannelId(0, NodeId(0), NodeId(1))
    sender = TcpTransport(Arrivals(), secret=secret, gang=GANG)
    receiver = TcpTransport(arrivals, secret=secret, gang=GANG)
    try:
        receiver.expect(channel, pa.schema([("value", pa.int64())]))
        outbound = sender.connect(channel, receiver.address)
        values = []
        for number in range(1, samples + 1):
            arrivals.came.clear()
            begun = time.perf_counter()
            outbound.send(Barrier(CheckpointBarrier(number, Epoch(number))))
            if not arrivals.came.wait(WAIT_S):
                raise JobFailedError(f"a barrier did not come within {WAIT_S:.0f} s")
            values.append((arrivals.at - begun) * 1e3)
    finally:
        sender.close()
        receiver.close()
    what = "one hop over TCP on this machine: send() to received()"
    return Reading(name="bench_cross_node_barrier", values=tuple(values), unit="ms", target=10, what=what)


# -- jobs whose state is rows that wait for a match ----------------------------------------------------------

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("payload", pa.binary())])


class WaitingSource:
    """Rows that never match, in one split per node, and then nothing. Remembers when each split's offset was taken.

    An offset is taken in the step in which the barrier is emitted, and at no other time: that is when it was injected.
    """

    schema = SCHEMA
    event_time = "ts"
    out_of_orderness = 0
    bounded = False

    def __init__(self, state_bytes: int, nodes: int = NODES) -> None:
        self.nodes = nodes
        self.rows_per_split = state_bytes // PAYLOAD_BYTES // nodes
        self.emitted: dict[str, float] = {}

    @property
    def rows(self) -> int:
        """Of all splits."""
        return self.rows_per_split * self.nodes

    def splits(self) -> Sequence[Split]:
        return [Split(f"waiting-{node}", 0) for node in range(self.nodes)]

    def open(self, split: Split, offset: Offset) -> WaitingReader:
        return WaitingReader(self, split.id, int(str(offset or 0)))


class WaitingReader:
    """Reads one split of ``WaitingSource``."""

    def __init__(self, source: WaitingSource, split: str, position: int) -> None:
        self._source, self._split, self._position = source, split, position

    @property
    def offset(self) -> Offset:
        self._source.emitted[self._split] = time.perf_counter()
        return self._position

    def poll(self, max_rows: int) -> Polled:
        block, start = divmod(self._position, BLOCK_ROWS)
        rows = min(max_rows, BLOCK_ROWS - start, self._source.rows_per_split - self._position)
        if rows <= 0:
            return Polled(None)
        node = int(self._split.rpartition("-")[2])
        self._position += rows
        return Polled(_block(node, block, self._source.nodes).slice(start, rows), rows, 0)

    def close(self) -> None:
        return None


def _block(node: int, block: int, nodes: int) -> pa.RecordBatch:
    """The same rows every time, with nothing in them that could be compressed."""
    noise = np.random.default_rng((node, block)).bytes(BLOCK_ROWS * PAYLOAD_BYTES)
    offsets = np.arange(0, (BLOCK_ROWS + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)
    payload = pa.Array.from_buffers(pa.binary(), BLOCK_ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(noise)])
    keys = (np.arange(BLOCK_ROWS, dtype=np.int64) + block * BLOCK_ROWS) * nodes + node
    times = pa.array(np.zeros(BLOCK_ROWS, np.int64))
    return pa.RecordBatch.from_arrays([times, pa.array(keys), payload], schema=SCHEMA)


def waiting_pipeline(source: WaitingSource, folder: Path) -> tg.Pipeline:
    """A join that keeps all rows of ``source``, because none ever finds a match."""
    left, right = tg.from_source(source), tg.from_source(WaitingSource(0, source.nodes))
    joined = left.join(right, on="key", window=tg.tumbling("1h"))
    return tg.Pipeline("bench", joined.write_parquet(folder / "out"))


def _start(source: WaitingSource, folder: Path, checkpoint: tg.CheckpointConfig = BY_HAND) -> Job:
    """A job that keeps all rows of ``source`` as state. Returns it when they are all in."""
    job = on_threads(waiting_pipeline(source, folder), NODES, str(folder / "store"), checkpoint)
    try:
        await_rows(job, source.rows)
    except BaseException:
        job.stop()
        raise
    return job


def await_rows(job: Job, rows: int, timeout_s: float = WAIT_S) -> None:
    """Wait until all nodes together have read so many rows."""
    deadline = time.monotonic() + timeout_s
    while job.status != "RUNNING" or job.metrics()["rows_in"] < rows:
        if job.error is not None:
            raise job.error
        if time.monotonic() > deadline:
            raise JobFailedError(f"the rows did not come in within {timeout_s:.0f} s job={job.name}")
        time.sleep(0.01)


def barrier_injection(folder: Path, samples: int) -> Reading:
    """From the request of a checkpoint until the sources of all nodes have put its barrier into the stream."""
    source = WaitingSource(0)
    job = _start(source, folder)
    values = []
    try:
        job.checkpoint(60_000)  # the first one finds nodes that are still opening channels
        for _ in range(samples):
            source.emitted.clear()
            begun = time.perf_counter()
            job.checkpoint(60_000)
            assert len(source.emitted) == NODES
            values.append((max(source.emitted.values()) - begun) * 1e3)
    finally:
        job.stop()
        shutil.rmtree(folder, ignore_errors=True)
    what = "checkpoint() until the sources of 3 idle nodes emitted the barrier"
    return Reading(name="bench_barrier_injection_3_nodes", values=tuple(values), unit="ms", target=50, what=what)


def distributed_checkpoint(folder: Path, jobs: int, state_bytes: int) -> Reading:
    """The first checkpoint of a job with this much state, which uploads all of it. A new job for every round."""
    values, uploaded = [], 0
    for _ in range(jobs):
        job = _start(WaitingSource(state_bytes), folder)
        try:
            values.append(seconds(partial(job.checkpoint, 60_000)))
            uploaded = job.checkpoints()[-1]["bytes"]
        finally:
            job.stop()
            shutil.rmtree(folder, ignore_errors=True)
    return Reading(
        name="bench_distributed_checkpoint_3_nodes_100mb",
        values=tuple(values),
        unit="s",
        target=15,
        what=f"the first checkpoint of 3 nodes, {uploaded / 1e6:.1f} MB uploaded to a synced directory",
    )


def leader_failover(folder: Path, takeovers: int) -> Reading:
    """A coordinator that leads is killed: from the kill to the next commit, with the same gang."""
    log = LogStore(open_store(str(folder / "store")), "bench")
    job = _start(WaitingSource(0), folder, EVERY_200_MS)
    values = []
    try:
        for _ in range(takeovers):
            before = log.view().term or 0
            asked = ["coordinator", str(folder / "store"), "--job", "bench", "--takeover"]
            command = [sys.executable, "-m", "tidegate.cli.main", *asked]
            coordinator = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                term = _await_commit(log, before)
                begun = time.perf_counter()
            finally:
                coordinator.kill()
                coordinator.wait()
            _await_commit(log, term)
            values.append(time.perf_counter() - begun)
    finally:
        job.stop()
        shutil.rmtree(folder, ignore_errors=True)
    what = "kill -9 of a leading coordinator to the next commit, 3 nodes as threads that go on; the loss is noticed too"
    return Reading(name="bench_leader_failover", values=tuple(values), unit="s", target=5, what=what)


def _await_commit(log: LogStore, term: int) -> int:
    """Wait for a commit of a later term than this; gives its term."""
    deadline = time.monotonic() + WAIT_S
    while (head := log.view().head) is None or head.term <= term:
        if time.monotonic() > deadline:
            raise JobFailedError(f"no leader committed within {WAIT_S:.0f} s job={log.paths.job}")
        time.sleep(0.01)
    return head.term


# -- rows with and without checkpoints -----------------------------------------------------------------------


def hot_path(folder: Path, pairs: int, rows: int) -> list[Reading]:
    """The same job without checkpoints and with one every second, in turns. The cost is taken pair by pair."""
    _complete_run(folder, max(1, rows // 20), None)
    baseline, costs, checkpoints = [], [], []
    for number in range(pairs):
        order = (None, INTERVAL) if number % 2 else (INTERVAL, None)  # whoever goes second meets a warmer machine
        runs = {interval: _complete_run(folder, rows, interval) for interval in order}
        (off_s, _), (on_s, committed) = runs[None], runs[INTERVAL]
        baseline.append(rows / off_s / 1e6)
        costs.append((1 - off_s / on_s) * 100)
        checkpoints.append(committed)
    return [
        Reading(
            name="bench_hot_path_no_checkpoint",
            values=tuple(baseline),
            unit="M rows/s",
            what=f"{rows:,} made-up rows in windows per key, one node as a thread, from start to end",
        ),
        Reading(
            name="bench_hot_path_with_checkpoint",
            values=tuple(costs),
            unit="%",
            target=1,
            what=f"how much slower with a checkpoint every {INTERVAL} (the target is for every 10 s); "
            f"{' + '.join(map(str, checkpoints))} checkpoints in {pairs} runs",
        ),
    ]


def _complete_run(folder: Path, rows: int, interval: str | None) -> tuple[float, int]:
    """Seconds from the start to the end of a job, and its checkpoints, the last one included."""
    windows = tg.generate(rows, keys=1_000).key_by("key").window(tg.tumbling("10s"))
    results = windows.aggregate(n=tg.count(), total=tg.sum("value"))
    pipeline = tg.Pipeline("rows", results.write_parquet(folder / "out"))
    begun = time.perf_counter()
    job = on_threads(pipeline, 1, str(folder / "store"), tg.CheckpointConfig(interval=interval))
    try:
        if not job.await_termination(WAIT_S):
            job.stop()
            raise JobFailedError(f"the rows took longer than {WAIT_S:.0f} s")
        return time.perf_counter() - begun, len(job.checkpoints())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
