"""How large a store gets: a small job's checkpoints in fast forward, by the real coordinator, log, trimmer and collector.

    python -m tidegate.bench.growth [checkpoints] [store] [picture.svg]

No Spark and no rows: nodes are made up, and report as soon as they are asked. A driver is killed now and then, so that
takeovers and restores are in the log, too.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.bench.plot import svg
from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events as ev
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import (
    CommittableEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck, TaskReport
from tidegate.ids import CheckpointId, NodeId
from tidegate.plan.physical import PhysicalPlan
from tidegate.runtime.blocking import BlockingWork
from tidegate.runtime.lifecycle import Spools
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.sinks import SinkPublisher
from tidegate.store.durable import DurableFileStore
from tidegate.store.interface import Store
from tidegate.store.open import open_store

NODES = 2
STATE_BYTES = 16 * 1024
SHAPE = PlanShape(
    job="job",
    parallelism=NODES,
    tasks=frozenset({"read", "window"}),
    operators=frozenset({"window"}),
    sources=frozenset({"read"}),
    sinks=frozenset({"out"}),
    fingerprint={"window": {"kind": "tumbling", "size_ms": 1000, "aggregates": ["n=count(None) int64"]}},
)
CONFIG = DistributedCheckpointConfig(checkpoint_interval_ms=None, gc_retain_count=5)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the store held after this many checkpoints."""

    checkpoints: int
    objects: int
    bytes: int
    log_entries: int
    log_bytes: int


class Driver:
    """One leader and its made-up gang, until it is killed. Every order is performed at once."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.log = LogStore(store, SHAPE.job)
        self.machine = DistributedCheckpointCoordinator(SHAPE, CONFIG, name, host="bench", pid=1)
        self._blocking = BlockingWork(self.log, SinkPublisher(PhysicalPlan(SHAPE.job, ())), Spools())
        self._now_ms = 0
        self.tell(self.log.recent())

    def checkpoint(self) -> None:
        """From the request to the commit, the collection and the trim."""
        self._now_ms += 1_000
        self.tell(ev.TriggerRequested("r"))

    def tell(self, event: ev.CoordinatorEvent) -> None:
        waiting = [event]
        while waiting:
            for order in self.machine.handle(waiting.pop(0), self._now_ms, 1_700_000_000_000 + self._now_ms):
                waiting += self._performed(order)

    def _performed(self, order: do.CoordinatorEffect) -> Iterator[ev.CoordinatorEvent]:
        match order:
            case do.PutEntry():
                yield self._blocking.put(order)
            case do.CheckLog(slot):
                yield self._blocking.check(slot)
            case do.ResolveRestore():
                yield ev.RestoreRequested(self.machine.log.head_epoch)
            case do.StartGang(gang=gang):
                everyone = frozenset(map(NodeId, range(NODES)))
                yield ev.GangRunning(gang, everyone, everyone)
            case do.SendInject(node=node, checkpoint_id=number):
                yield ev.NodePrepared(self._report(node, number))
            case do.Publish(epoch=epoch):
                yield ev.Published(epoch)
            case do.CollectGarbage() | do.TrimLog() if self._blocking.want_collected(order):
                self._blocking.collect_wanted(None)
            case do.StepDown(reason):
                raise AssertionError(reason)
            case _:
                pass

    def _report(self, node: NodeId, number: int) -> PrepareAck:
        path = self.log.paths.state(number, node)
        self.store.put(path, b"x" * STATE_BYTES)
        run = RunEntry(path, 0, STATE_BYTES, 1, 1_000)
        rows = {"files": [f"part-{number:016x}-{node}-g{self.machine.log.gang}-abcdef-0.parquet"], "rows": 4_000}
        return PrepareAck(
            node=node,
            gang=self.machine.log.gang,
            term=CheckpointId(number).term,
            checkpoint_id=number,
            tasks=(TaskReport("read", node, "fired"), TaskReport("window", node, "fired")),
            operators=(OperatorSnapshotEntry("window", node, {"closed": [[0, 63, 1_700_000_000_000]]}, (run,)),),
            sources=(SourceOffsetEntry("read", node, {"offset": number, "watermark": 1_700_000_000_000}),),
            sinks=("out",),
            committables=(CommittableEntry("out", node, self.machine.log.gang, number, rows),),
            objects=(ObjectEntry(path, STATE_BYTES, 1),),
            bytes_uploaded=STATE_BYTES,
        )


def grow(store: Store, checkpoints: int, *, every: int = 500, killed_every: int = 2_000) -> Iterator[Sample]:
    """Take this many checkpoints, and look now and then. A driver is killed as often as said and replaced."""
    driver = Driver(store, "leader-0")
    for number in range(1, checkpoints + 1):
        driver.checkpoint()
        if number % every == 0:
            yield look(store, number)
        if number % killed_every == 0:
            driver = Driver(store, f"leader-{number}")


def look(store: Store, checkpoints: int) -> Sample:
    """Everything the store holds now."""
    every = list(store.list(""))
    log = [info.size_bytes for info in every if "/log/" in info.path]
    return Sample(checkpoints, len(every), sum(info.size_bytes for info in every), len(log), sum(log))


def main(checkpoints: int = 20_000, url: str | None = None, picture: str | None = None) -> None:
    """Print the curve, and draw it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-growth-") as folder:
        store = DurableFileStore(Path(folder), durable=False) if url is None else open_store(url)
        samples = []
        print("checkpoints objects bytes log_entries log_bytes")
        for sample in grow(store, checkpoints):
            samples.append(sample)
            print(sample.checkpoints, sample.objects, sample.bytes, sample.log_entries, sample.log_bytes, flush=True)
    if picture is not None:
        lines = {
            "all objects": [(s.checkpoints, s.bytes / 1024) for s in samples],
            "of these the log": [(s.checkpoints, s.log_bytes / 1024) for s in samples],
        }
        Path(picture).write_text(svg("The store of a small job", "checkpoints", "KiB", lines))


if __name__ == "__main__":
    main(*(int(sys.argv[1]),) if len(sys.argv) > 1 else (), *sys.argv[2:])
