"""Drives one coordinator by hand: short words for the facts that tests tell it, and a memory of its effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from coordination import CONFIG, NODES, PATHS, SHAPE

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.checkpoint.manifest import (
    CheckpointManifest,
    CommittableEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PrepareAck, TaskReport
from tidegate.core.log.view import LogRecord

E = TypeVar("E")
EVERYONE = frozenset(range(NODES))
UUID = "01890a5d-ac96-774b-bcce-b302099a8057"


def kinds(given: list[do.CoordinatorEffect]) -> list[type]:
    """What was ordered, timers left out."""
    return [type(order) for order in given if not isinstance(order, do.SetTimer)]


def make_ack(node: int, checkpoint_id: int, gang: int = 0, *, rows: bool = True, **changes: Any) -> PrepareAck:
    """A complete report with one uploaded object and, by default, one committable."""
    path = PATHS.state(checkpoint_id, node)
    staged = CommittableEntry("out", node, gang, checkpoint_id, {"file": f"{gang}-{checkpoint_id}-{node}"})
    ack = PrepareAck(
        node=node,
        gang=gang,
        term=checkpoint_id >> 32,
        checkpoint_id=checkpoint_id,
        tasks=(TaskReport("read", node, "fired"),),
        operators=(OperatorSnapshotEntry("window", node, {}, (RunEntry(path, 0, 10, 1, 1),)),),
        sources=(SourceOffsetEntry("read", node, {"offset": 1}),),
        sinks=("out",),
        committables=(staged,) if rows else (),
        objects=(ObjectEntry(path, 10, 1),),
        bytes_uploaded=10,
    )
    return replace(ack, **changes)


def make_manifest(epoch: int, *, term: int = 0, counter: int | None = None, **changes: Any) -> CheckpointManifest:
    """A manifest with one object of its own."""
    number = (term << 32) | (counter or epoch)
    path = PATHS.state(number, 0)
    fields: dict[str, Any] = {
        "job": "job",
        "checkpoint_id": number,
        "epoch": epoch,
        "parent": None,
        "gang": 0,
        "term": term,
        "uuid": UUID,
        "parallelism": NODES,
        "key_groups": 128,
        "plan": dict(SHAPE.fingerprint),
        "oldest_restorable": 0,
        "operators": (OperatorSnapshotEntry("window", 0, {}, (RunEntry(path, 0, 10, 1, 1),)),),
        "objects": (ObjectEntry(path, 10, 1),),
    }
    return CheckpointManifest(**(fields | changes))


class Driver:
    """One coordinator. Every method tells it something and returns its effects."""

    def __init__(self, config: DistributedCheckpointConfig = CONFIG, log: tuple[LogRecord, ...] = (), **changes: Any):
        self.machine = DistributedCheckpointCoordinator(SHAPE, replace(config, **changes), "me")
        self.now_ms = 0
        self.effects: list[do.CoordinatorEffect] = []
        self.log = log
        self.confirms = True
        """Whether the log ends with our entry is asked often, and here the answer is yes."""
        self.acks_commits = True
        """Nodes that are told of a commit say that they know."""

    def tell(self, event: events.CoordinatorEvent, at_ms: int | None = None) -> list[do.CoordinatorEffect]:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        effects = self.machine.handle(event, self.now_ms, 1_700_000_000_000 + self.now_ms)
        if self.confirms:
            for check in [effect for effect in effects if isinstance(effect, do.CheckLog)]:
                effects = [effect for effect in effects if effect is not check]
                effects += self.machine.handle(events.LogChecked(check.slot, events.Last()), self.now_ms, 1_700_000_000_000)
        for told in [effect for effect in effects if isinstance(effect, do.SendCommitted) and self.acks_commits]:
            effects += self.machine.handle(
                events.CommitAcked(told.node, told.stamp.gang, told.stamp.term, told.checkpoint_id), self.now_ms
            )
        self.effects += effects
        return effects

    def tick(self, at_ms: int) -> list[do.CoordinatorEffect]:
        return self.tell(events.Tick(), at_ms)

    def last(self, kind: type[E]) -> E:
        return next(effect for effect in reversed(self.effects) if isinstance(effect, kind))

    def every(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def answer(self, answer: events.PutAnswer | None = None) -> list[do.CoordinatorEffect]:
        """Answer the last put; written unless said otherwise."""
        effect = self.last(do.PutEntry)
        return self.tell(events.PutAnswered(effect.slot, effect.write_id, answer or events.Written()))

    def lead(self) -> Driver:
        self.tell(events.LogRead(self.log))
        self.answer()
        return self

    def start(self, epoch: int | None = None) -> Driver:
        """Lead and bring up a gang, answering whatever is asked on the way."""
        self.lead()
        self.restore(epoch)
        return self

    def restore(self, epoch: int | None) -> None:
        effects = self.tell(events.RestoreRequested(epoch))
        while not any(isinstance(effect, do.StartGang | do.JobFinished | do.JobStopped) for effect in effects):
            effects = self.obey(effects)
        if any(isinstance(effect, do.StartGang) for effect in effects):
            self.gang_up()

    def obey(self, effects: list[do.CoordinatorEffect]) -> list[do.CoordinatorEffect]:
        for effect in effects:
            match effect:
                case do.PutEntry():
                    return self.answer()
                case do.Hide(gang=gang):
                    return self.tell(events.Hidden(gang))
                case do.Publish(epoch=epoch):
                    return self.tell(events.Published(epoch))
                case _:
                    pass
        raise AssertionError(effects)

    def gang_up(self) -> list[do.CoordinatorEffect]:
        return self.tell(events.GangRunning(self.machine.log.gang, EVERYONE, EVERYONE))

    def lose_gang(self, reason: str = "node lost") -> list[do.CoordinatorEffect]:
        return self.tell(events.GangLost(self.machine.log.gang, reason))

    def trigger(self, name: str = "r", savepoint: str | None = None) -> int:
        self.tell(events.TriggerRequested(name, savepoint))
        return self.live

    @property
    def live(self) -> int:
        attempt = self.machine.attempt
        assert attempt is not None
        return attempt.checkpoint_id

    def inject_acked(self, node: int) -> list[do.CoordinatorEffect]:
        gang, term = self.machine.log.gang, self.machine.term
        assert term is not None
        return self.tell(events.InjectionAcked(node, gang, term, self.live, 1))

    def prepared(self, node: int, **changes: Any) -> list[do.CoordinatorEffect]:
        return self.tell(events.NodePrepared(make_ack(node, self.live, self.machine.log.gang, **changes)))

    def prepare_all(self, **changes: Any) -> list[do.CoordinatorEffect]:
        effects: list[do.CoordinatorEffect] = []
        for node in sorted(EVERYONE):
            effects = self.prepared(node, **changes)
        return effects

    def checkpoint(self, *, publish: bool = True, savepoint: str | None = None) -> CheckpointManifest:
        """A whole checkpoint from request to commit, published unless said otherwise."""
        self.trigger(savepoint=savepoint)
        self.prepare_all()
        self.answer()
        completed = self.last(do.CheckpointCompleted)
        if publish:
            self.tell(events.Published(completed.epoch))
        return completed.manifest

    def drain(self) -> list[do.CoordinatorEffect]:
        effects: list[do.CoordinatorEffect] = []
        for node in sorted(EVERYONE):
            effects = self.tell(events.NodeDrained(node, self.machine.log.gang))
        return effects
