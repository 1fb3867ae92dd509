"""A small world for coordinators: a log with lost and late puts, nodes with rows, sinks, crashes, and named
checks.

Several leaders may think they lead. Whatever happens comes from ``World.actions``; who picks (a seed,
Hypothesis, a test) does not matter. The checks use a fold of their own over the stored log, never the code
under test.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.core.checkpoint import effects as do
from tidegate.core.checkpoint import events
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator, Mode
from tidegate.core.checkpoint.manifest import (
    CheckpointManifest,
    CommittableEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
)
from tidegate.core.checkpoint.mode import OVER
from tidegate.core.checkpoint.policy import DistributedCheckpointConfig
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck, TaskReport
from tidegate.core.log.paths import JobPaths
from tidegate.core.log.retain import garbage, may_be_trimmed, trimmable
from tidegate.core.log.view import Base, Commit, LogEntry, LogView, Restore, Takeover, decode_entry
from tidegate.errors import CorruptDataError

NODES = 2
JOB = "job"
PATHS = JobPaths(JOB)
SHAPE = PlanShape(
    job=JOB,
    parallelism=NODES,
    tasks=frozenset({"read"}),
    operators=frozenset({"window"}),
    sources=frozenset({"read"}),
    sinks=frozenset({"out"}),
    fingerprint={"window": {"kind": "tumbling"}},
)
CONFIG = DistributedCheckpointConfig(
    checkpoint_interval_ms=None,
    checkpoint_timeout_ms=1_000,
    barrier_injection_timeout_ms=400,
    node_snapshot_timeout_ms=600,
    unaligned_threshold_ms=300,
    gc_retain_count=2,
    retry_ms=50,
    tolerable_failures=3,
    put_retry_ms=10,
    storage_timeout_ms=100_000,
    publish_retry_ms=10,
    publish_tries_max=1_000,
)
TRIMMING = replace(CONFIG, base_every=4)


class Violation(AssertionError):
    """A check failed. ``check`` names it."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check


def require(holds: bool, check: str, detail: object = "") -> None:
    if not holds:
        raise Violation(check, str(detail))


@dataclass(frozen=True)
class Action:
    """Something that can happen now, and how often it should compared with the rest."""

    name: str
    weight: float
    act: Callable[[], None]


FATES = {"answered": 20, "lost": 2, "landed, answer lost": 4, "late": 3, "unreadable": 3}


# -- nodes ---------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """Reads rows 0, 1, 2 …; its sink stages them as ranges. Follows commands of the highest term it has seen."""

    world: World
    gang: int
    index: int
    offset: int = 0
    cut: int = 0
    term: int = -1
    dead: int = 0
    shared: str | None = None
    uploaded: dict[int, str] = field(default_factory=dict)
    staged: list[CommittableEntry] = field(default_factory=list)
    born: int = 0
    """The term of the leader that started it."""

    def command(self, leader: Reign, effect: Any) -> None:
        stamp = effect.stamp
        if stamp.gang != self.gang or stamp.term < self.term:
            return
        self.term = stamp.term
        self.committed(stamp.committed_id)
        if isinstance(effect, do.SendStarted):
            self.check_adopted(leader, stamp.term)
        match effect:
            case do.SendInject(checkpoint_id=number) | do.SendFinalize(checkpoint_id=number):
                if number > self.dead:
                    self.dead = number
                    self.fire(leader, number)
            case do.SendAbort(checkpoint_id=number):
                self.dead = max(self.dead, number)
            case do.SendCommitted(checkpoint_id=number):
                self.world.mail.append((leader, events.CommitAcked(self.index, self.gang, self.term, number)))
            case _:
                pass

    def check_adopted(self, leader: Reign, term: int) -> None:
        """Before a leader starts a checkpoint on the gang of another, nothing of the one before is left on its nodes."""
        if self.born < term:
            require(self.dead >= term << 32, "what is below the term is dead", (self.dead, term))
        named = self.world.truth.named() if leader.machine.term == self.world.truth.term else {}
        require(not any(c.key in named for c in self.staged), "nodes know what is committed", self.staged)

    def committed(self, number: int) -> None:
        self.staged = [c for c in self.staged if c.checkpoint_id > number]
        self.shared = self.uploaded.get(number, self.shared)

    def fire(self, leader: Reign, number: int) -> None:
        if self.offset > self.cut:
            rows = {"lo": self.cut, "hi": self.offset}
            self.staged.append(CommittableEntry("out", self.index, self.gang, number, rows))
            self.cut = self.offset
        mail = self.world.mail
        mail.append((leader, events.InjectionAcked(self.index, self.gang, self.term, number, 1)))
        mail.append((leader, events.NodePrepared(self.ack(number))))

    def ack(self, number: int) -> PrepareAck:
        own = [PATHS.state(number, self.index), PATHS.shared(number, f"n{self.index}")]
        self.world.objects.update(own)
        self.uploaded[number] = own[1]
        named = own + ([self.shared] if self.shared else [])
        runs = tuple(RunEntry(path, 0, 10, 1, 1) for path in named)
        meta = {"gang": self.gang, "id": number}
        return PrepareAck(
            node=self.index,
            gang=self.gang,
            term=self.term,
            checkpoint_id=number,
            tasks=(TaskReport("read", self.index, "fired"),),
            operators=(OperatorSnapshotEntry("window", self.index, meta, runs),),
            sources=(SourceOffsetEntry("read", self.index, {"offset": self.offset}),),
            sinks=("out",),
            committables=tuple(self.staged),
            objects=tuple(ObjectEntry(path, 10, 1) for path in named),
            bytes_uploaded=20,
        )


@dataclass
class Gang:
    number: int
    nodes: dict[int, Node]
    alive: bool = True


# -- leaders -------------------------------------------------------------------------------------------------


@dataclass
class Reign:
    """A coordinator with the effects that its shell still has to perform."""

    machine: DistributedCheckpointCoordinator
    todo: list[do.CoordinatorEffect] = field(default_factory=list)
    open_put: int | None = None
    last_id: int = 0
    told: set[int] = field(default_factory=set)
    at_ms: int | None = None
    done: list[do.CoordinatorEffect] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """The gangs that it was told are gone."""


@dataclass
class Truth:
    """What the stored log says, folded by the checks themselves."""

    term: int = -1
    gang: int = 0
    head: int | None = None
    commits: dict[int, CheckpointManifest] = field(default_factory=dict)
    oldest: int = 0
    written: dict[int, str] = field(default_factory=dict)
    """The write id of every slot ever filled, trimmed or not."""

    def lineage(self) -> list[int]:
        found, epoch = [], self.head
        while epoch is not None:
            found.append(epoch)
            epoch = self.commits[epoch].parent
        return found

    def named(self) -> dict[tuple[str, int, int, int], CommittableEntry]:
        """By the lineage, each with the epoch that named it first."""
        found: dict[tuple[str, int, int, int], CommittableEntry] = {}
        for epoch in reversed(self.lineage()):
            for entry in self.commits[epoch].committables:
                first = found.setdefault(entry.key, entry)
                require(first.epoch == entry.epoch, "I9 named once", entry)
        return found

    def retained(self) -> list[CheckpointManifest]:
        kept = {e for e in self.lineage() if e >= self.oldest}
        return [m for e, m in self.commits.items() if e in kept or m.savepoint is not None]


class World:
    """Everything outside the coordinators, and the checks."""

    overwrites = False

    def __init__(
        self,
        make: type[DistributedCheckpointCoordinator] = DistributedCheckpointCoordinator,
        collect: Callable[..., list[str]] = garbage,
        config: DistributedCheckpointConfig = TRIMMING,
    ) -> None:
        self.make, self.collect, self.config = make, collect, config
        self.trimmable, self.may_go = trimmable, may_be_trimmed
        self.trims: list[tuple[Reign, list[int]]] = []
        self.trimmed = 0
        self.kinds: Counter[str] = Counter()
        self.now_ms = 0
        self.slots: dict[int, bytes] = {}
        self.truth = Truth()
        self.limbo: list[do.PutEntry] = []
        self.objects: set[str] = set()
        self.visible: dict[tuple[str, int, int, int], CommittableEntry] = {}
        self.hidden: set[tuple[str, int, int, int]] = set()
        self.fence = 0
        self.reigns: list[Reign] = []
        self.gangs: list[Gang] = []
        self.mail: list[tuple[Reign, events.CoordinatorEvent]] = []
        self.deletions: list[tuple[Reign, list[str]]] = []
        self.issued: set[int] = set()
        self.elections = 0
        self.requests = 0
        self.commits_landed = 0

    # -- the store

    def create(self, effect: do.PutEntry) -> bool:
        if effect.slot in self.slots and not self.overwrites:
            return False
        require(effect.slot not in self.slots, "I5 create-only", effect.slot)
        self.slots[effect.slot] = effect.data
        self.landed(self.read(effect.slot))
        return True

    def read(self, slot: int) -> LogEntry:
        return decode_entry(self.slots[slot], PATHS.log_entry(slot), slot)

    def log(self) -> tuple[LogEntry, ...]:
        return tuple(self.read(slot) for slot in sorted(self.slots))

    def landed(self, entry: LogEntry) -> None:
        truth = self.truth
        if entry.slot <= max(truth.written, default=-1):  # the slot was trimmed: this is nobody's history
            again = truth.written.get(entry.slot) == entry.write_id
            require(again or isinstance(entry, Takeover), "trimming forks no history", entry)
            return
        truth.written[entry.slot] = entry.write_id
        self.kinds[entry.kind] += 1
        match entry:
            case Base():
                require(entry.term == truth.term, "I7 fencing", entry)
            case Takeover():
                truth.term = entry.slot
            case Restore():
                require(entry.term == truth.term, "I7 fencing", entry)
                reach = [epoch for epoch in truth.lineage() if epoch >= truth.oldest]
                reachable = entry.parent is None or entry.parent in reach
                require(reachable, "I10 restorable", entry)
                truth.gang, truth.head = entry.slot, entry.parent
            case Commit(manifest=manifest):
                self.check_commit(manifest)
                truth.commits[manifest.epoch] = manifest
                truth.head = manifest.epoch
                truth.oldest = max(truth.oldest, manifest.oldest_restorable)
                self.commits_landed += 1
                truth.named()

    def check_commit(self, manifest: CheckpointManifest) -> None:
        truth = self.truth
        require(manifest.term == truth.term, "I7 fencing", (manifest.term, truth.term))
        require(manifest.gang == truth.gang, "I8 acks by gang", (manifest.gang, truth.gang))
        require(manifest.parent == truth.head, "I5 parent is the head", (manifest.parent, truth.head))
        require({o.path for o in manifest.objects} <= self.objects, "I5 durable", manifest.epoch)
        stated = {(e.operator, e.subtask) for e in manifest.operators}
        require(stated == {("window", n) for n in range(NODES)}, "I5 complete", stated)
        for entry in manifest.operators:
            made = {"gang": manifest.gang, "id": manifest.checkpoint_id}
            require(entry.meta == made, "I8 acks by gang", (entry.meta, made))

    # -- leaders

    def elect(self) -> Reign:
        self.elections += 1
        reign = Reign(self.make(SHAPE, self.config, f"leader{self.elections}"))
        self.reigns.append(reign)
        self.tell(reign, self.start_of_log())
        return reign

    def start_of_log(self) -> events.LogRead:
        """All that is left of it. Whoever reads it must see what is true, whatever was trimmed."""
        truth = self.truth
        try:
            view = LogView(self.log())
        except CorruptDataError as error:
            raise Violation("a reader sees the head", str(error)) from error
        require(view.head_epoch == truth.head, "a reader sees the head", (view.head_epoch, truth.head))
        kept = {manifest.epoch for manifest in truth.retained()}
        require(kept == {m.epoch for m in view.retained()}, "a reader sees what is retained", kept)
        return events.LogRead(self.log())

    def check_log(self, reign: Reign, effect: do.CheckLog) -> None:
        reign.todo.remove(effect)
        followed = any(slot > effect.slot for slot in self.slots)
        self.tell(reign, events.LogChecked(effect.slot, events.Followed() if followed else events.Last()))

    def look_at_log(self, reign: Reign, effect: do.TrimLog) -> None:
        """The trimmer lists, and looks at what it is about to delete."""
        reign.todo.remove(effect)
        slots = self.trimmable(self.slots, effect.below, effect.keep)
        self.trims.append((reign, [slot for slot in slots if self.may_go(self.slots[slot])]))

    def trim(self, trim: tuple[Reign, list[int]]) -> None:
        """One slot is deleted; the rest may take its time."""
        if trim[1]:
            self.trimmed += self.slots.pop(trim[1].pop(), None) is not None
        else:
            self.trims.remove(trim)
            self.start_of_log()

    def trim_all(self) -> None:
        while self.trims:
            self.trim(self.trims[0])

    def crash(self, reign: Reign, *, with_gang: bool) -> None:
        self.limbo += [effect for effect in reign.todo if isinstance(effect, do.PutEntry)]
        self.reigns.remove(reign)
        self.mail = [(to, event) for to, event in self.mail if to is not reign]
        self.deletions = [(of, paths) for of, paths in self.deletions if of is not reign]
        self.trims = [(of, slots) for of, slots in self.trims if of is not reign]
        if with_gang:
            for gang in self.gangs:
                gang.alive = False

    def tell(self, reign: Reign, event: events.CoordinatorEvent) -> None:
        if reign not in self.reigns:
            return
        definite = isinstance(event, events.PutAnswered) and not isinstance(event.answer, events.Unknown)
        if isinstance(event, events.PutAnswered) and event.answer == events.Conflict(None):
            definite = False
        if definite or isinstance(event, events.LogRead):
            reign.open_put = None
        was = reign.machine.mode
        effects = reign.machine.handle(event, self.now_ms, 1_700_000_000_000 + self.now_ms)
        if was is not Mode.RUNNING and reign.machine.mode is Mode.RUNNING:
            self.check_members(reign, event)
        if isinstance(event, events.GangLost):
            reign.lost.add(event.gang)
        for effect in effects:
            self.performed(reign, effect)

    def check_members(self, reign: Reign, event: events.CoordinatorEvent) -> None:
        """Whoever runs a gang runs the log's, and none that it was told is gone."""
        assert isinstance(event, events.GangRunning)
        require(event.gang == reign.machine.log.gang, "the gang is the log's", event)
        require(event.gang not in reign.lost, "a lost gang is not taken back", event)

    def performed(self, reign: Reign, effect: do.CoordinatorEffect) -> None:
        disturbing = do.SendAbort | do.StartGang | do.StopGang | do.CollectGarbage
        if isinstance(effect, disturbing):
            require(reign.open_put is None, "I5 quiet while a put is open", effect)
        match effect:
            case do.PutEntry():
                reign.open_put = effect.slot
                reign.todo.append(effect)
            case do.SendStarted(started=started):
                self.check_id(reign, effect.node, started.checkpoint_id)
                self.send(reign, effect)
            case do.SendInject() | do.SendFinalize() | do.SendPromote() | do.SendAbort() | do.SendCommitted():
                self.send(reign, effect)
            case do.StartGang():
                self.start_gang(reign, effect)
            case do.StopGang(gang=number):
                self.kill(number, "stopped")
            case do.SetTimer(at_ms=at_ms):
                reign.at_ms = at_ms
            case do.Publish() | do.Hide() | do.ResolveRestore() | do.CollectGarbage():
                reign.todo.append(effect)
            case do.ReadLog() | do.CheckLog() | do.TrimLog():
                reign.todo.append(effect)
            case _:
                reign.done.append(effect)

    def check_id(self, reign: Reign, node: int, number: int) -> None:
        if number != reign.last_id:
            require(number not in self.issued and number > reign.last_id, "I6 ids are new", number)
            self.issued.add(number)
            reign.last_id = number
            reign.told = set()
        require(node not in reign.told, "I6 ids are new", number)
        reign.told.add(node)

    def send(self, reign: Reign, effect: Any) -> None:
        for gang in self.gangs:
            if gang.alive and gang.number == effect.stamp.gang and effect.node in gang.nodes:
                gang.nodes[effect.node].command(reign, effect)

    def start_gang(self, reign: Reign, effect: do.StartGang) -> None:
        current = reign.machine.term == self.truth.term
        require(effect.gang not in [g.number for g in self.gangs], "I8 one start per gang", effect.gang)
        if current:
            require(effect.gang == self.truth.gang, "gang follows the log", (effect.gang, self.truth.gang))
            epoch = None if effect.manifest is None else effect.manifest.epoch
            require(epoch == self.truth.head, "restore follows the log", (epoch, self.truth.head))
            self.check_exact()
        nodes = {n: self.restored(effect, n, reign.machine.leadership.own_term) for n in range(NODES)}
        self.gangs.append(Gang(effect.gang, nodes))
        everyone = frozenset(nodes)
        self.mail.append((reign, events.GangRunning(effect.gang, everyone, everyone)))

    def restored(self, effect: do.StartGang, index: int, term: int) -> Node:
        node = Node(self, effect.gang, index, born=term)
        if effect.manifest is not None:
            state: Any = next(e.state for e in effect.manifest.sources if e.subtask == index)
            node.offset = node.cut = state["offset"]
            runs = next(e.runs for e in effect.manifest.operators if e.subtask == index)
            node.shared = runs[1].path
        return node

    def kill(self, number: int, reason: str) -> None:
        for gang in self.gangs:
            if gang.number == number and gang.alive:
                gang.alive = False
                self.mail += [(reign, events.GangLost(number, reason)) for reign in self.reigns]

    # -- performing effects

    def put(self, reign: Reign, effect: do.PutEntry, fate: str) -> None:
        reign.todo.remove(effect)
        if fate == "late":
            self.limbo.append(effect)
        landed = self.create(effect) if fate in ("answered", "landed, answer lost", "unreadable") else False
        answer: events.PutAnswer = events.Unknown(fate)
        if fate in ("answered", "unreadable"):
            found = None if fate == "unreadable" else self.read(effect.slot)
            answer = events.Written() if landed else events.Conflict(found)
        self.tell(reign, events.PutAnswered(effect.slot, effect.write_id, answer))

    def land(self, effect: do.PutEntry) -> None:
        self.limbo.remove(effect)
        self.create(effect)

    def publish(self, reign: Reign, effect: do.Publish | do.Hide, *, works: bool) -> None:
        reign.todo.remove(effect)
        if isinstance(effect, do.Hide):
            for entry in effect.committables if works else effect.committables[:1]:
                self.hidden.add(entry.key)
                self.visible.pop(entry.key, None)
            if effect.everything and works:
                self.fence = max(self.fence, effect.gang)
                self.visible = {key: c for key, c in self.visible.items() if c.gang >= effect.gang}
            failed = events.HideFailed(effect.gang, "sink")
            self.tell(reign, events.Hidden(effect.gang) if works else failed)
            return
        for entry in effect.committables if works else effect.committables[:1]:
            self.show(entry)
        if works:
            self.check_order(effect.epoch)
        self.tell(reign, events.Published(effect.epoch) if works else events.PublishFailed(effect.epoch, "sink"))

    def show(self, entry: CommittableEntry) -> None:
        commits = self.truth.commits
        named = any(entry in manifest.committables for manifest in commits.values())
        require(named, "I9 visible only after the manifest", entry)
        if entry.key not in self.hidden and entry.gang >= self.fence:
            self.visible[entry.key] = entry

    def check_order(self, epoch: int) -> None:
        """When an epoch is published, so is everything that its lineage named before."""
        if epoch in self.truth.lineage():
            before = [c for c in self.truth.named().values() if c.epoch < epoch]
            require(all(c.key in self.visible for c in before), "I9 epoch order", epoch)

    def resolve(self, reign: Reign, effect: do.ResolveRestore, epoch: int | None) -> None:
        reign.todo.remove(effect)
        self.tell(reign, events.RestoreRequested(epoch))

    def list_objects(self, reign: Reign, effect: do.CollectGarbage) -> None:
        reign.todo.remove(effect)
        doomed = self.collect(PATHS, sorted(self.objects), effect.keep, effect.bound)
        self.deletions.append((reign, doomed))

    def delete(self, deletion: tuple[Reign, list[str]]) -> None:
        self.deletions.remove(deletion)
        self.objects -= set(deletion[1])
        for manifest in self.truth.retained():
            require({o.path for o in manifest.objects} <= self.objects, "I10 garbage", manifest.epoch)
        for reign in self.reigns:
            attempt = reign.machine.attempt
            if attempt is not None and reign.machine.term == self.truth.term:
                own = {o.path for ack in attempt.acks.values() for o in ack.objects}
                require(own <= self.objects, "I10 garbage", attempt.checkpoint_id)

    # -- exactness

    def check_exact(self) -> None:
        """The sinks show exactly what the lineage named, and that is every row up to the head's offsets,
        once."""
        named = self.truth.named()
        require(set(self.visible) == set(named), "I9 exact", set(self.visible) ^ set(named))
        head = self.truth.commits[self.truth.head] if self.truth.head is not None else None
        for index in range(NODES):
            state: Any = {} if head is None else next(e.state for e in head.sources if e.subtask == index)
            rows: list[int] = []
            for key, entry in named.items():
                if key[1] == index:
                    span: Any = entry.committable
                    rows += range(span["lo"], span["hi"])
            require(sorted(rows) == list(range(state.get("offset", 0))), "I9 every row once", (index, rows))

    # -- what may happen

    def running(self) -> list[Gang]:
        return [gang for gang in self.gangs if gang.alive]

    def active(self) -> list[Reign]:
        return [reign for reign in self.reigns if reign.machine.mode not in OVER]

    def actions(self) -> list[Action]:
        """All that can happen now."""
        found = [
            Action("tick", 4, lambda: self.tick(60)),
            Action("long silence", 0.7, lambda: self.tick(1_100)),
        ]
        for gang in self.running():
            found.append(Action("read rows", 8, lambda g=gang: self.read_rows(g)))
            found.append(Action("drain", 0.3, lambda g=gang: self.drain(g)))
            found.append(Action("lose the gang", 1, lambda g=gang: self.kill(g.number, "node lost")))
        if len(self.active()) < 2 and self.elections < 12:
            found.append(Action("elect", 1 if self.active() else 20, lambda: void(self.elect())))
        for letter in self.mail:
            found.append(Action("deliver", 20, lambda m=letter: self.deliver(m)))
            found.append(Action("deliver twice", 1, lambda m=letter: self.tell(*m)))
        found += [Action("land late", 4, lambda o=effect: self.land(o)) for effect in self.limbo]
        found += [Action("delete", 10, lambda d=deletion: self.delete(d)) for deletion in self.deletions]
        found += [Action("trim", 10, lambda t=trim: self.trim(t)) for trim in self.trims]
        for reign in self.active():
            found += self.leader_actions(reign)
        return found

    def leader_actions(self, reign: Reign) -> list[Action]:
        found = [Action("request", 8, lambda: self.request(reign))]
        found.append(Action("crash", 0.5, lambda: self.crash(reign, with_gang=False)))
        found.append(Action("crash all", 0.5, lambda: self.crash(reign, with_gang=True)))
        for effect in reign.todo:
            match effect:
                case do.PutEntry():
                    for fate, weight in FATES.items():
                        found.append(Action(f"put {fate}", weight, lambda o=effect, f=fate: self.put(reign, o, f)))
                case do.Publish() | do.Hide():
                    for works in (True, False):
                        act = lambda o=effect, w=works: self.publish(reign, o, works=w)  # noqa: E731
                        found.append(Action("publish", 10 if works else 5, act))
                case do.ResolveRestore():
                    found += self.resolve_actions(reign, effect)
                case do.CollectGarbage():
                    found.append(Action("list", 10, lambda o=effect: self.list_objects(reign, o)))
                case do.ReadLog():
                    found.append(Action("read log", 20, lambda o=effect: self.reread(reign, o)))
                case do.CheckLog():
                    found.append(Action("check log", 15, lambda o=effect: self.check_log(reign, o)))
                case do.TrimLog():
                    found.append(Action("look at log", 10, lambda o=effect: self.look_at_log(reign, o)))
        return found

    def resolve_actions(self, reign: Reign, effect: do.ResolveRestore) -> list[Action]:
        """What a driver might answer: mostly the head, sometimes an older epoch or a fresh start."""
        log = reign.machine.log
        older = [m.epoch for m in log.restorables()]
        weights = {log.head_epoch: 15.0, None: 0.3} | {epoch: 2.0 for epoch in older if epoch != log.head_epoch}
        if log.head_epoch is None:
            weights = {None: 15.0}
        answers = [Action("resolve", w, lambda e=epoch: self.resolve(reign, effect, e)) for epoch, w in weights.items()]
        adopts = [Action("adopt", 10, lambda g=gang: self.adopt(reign, effect, g)) for gang in self.running()]
        return answers + adopts

    def adopt(self, reign: Reign, effect: do.ResolveRestore, gang: Gang) -> None:
        everyone = frozenset(gang.nodes)
        self.tell(reign, events.GangRunning(gang.number, everyone, everyone))
        if reign.machine.mode is not Mode.READY:
            reign.todo.remove(effect)

    def reread(self, reign: Reign, effect: do.ReadLog) -> None:
        reign.todo.remove(effect)
        self.tell(reign, self.start_of_log())

    def read_rows(self, gang: Gang) -> None:
        for node in gang.nodes.values():
            node.offset += 1 + node.index

    def drain(self, gang: Gang) -> None:
        for index in gang.nodes:
            self.mail += [(reign, events.NodeDrained(index, gang.number)) for reign in self.reigns]

    def deliver(self, letter: tuple[Reign, events.CoordinatorEvent]) -> None:
        self.mail.remove(letter)
        self.tell(*letter)

    def request(self, reign: Reign) -> None:
        self.requests += 1
        savepoint = f"s{self.requests}" if self.requests % 7 == 0 else None
        self.tell(reign, events.TriggerRequested(f"r{self.requests}", savepoint))

    def tick(self, step_ms: int) -> None:
        self.now_ms += step_ms
        for reign in list(self.reigns):
            self.tell(reign, events.Tick())

    # -- ending well

    def settle(self) -> None:
        """From any state: one new leader, a world that works, two checkpoints; then everything must be exact."""
        for effect in list(self.limbo):
            self.land(effect)
        for reign in list(self.reigns):
            self.crash(reign, with_gang=True)
        self.limbo.clear()
        reign = self.elect()
        target = self.commits_landed + 2
        for _ in range(200):
            if self.commits_landed >= target and not reign.todo and not self.mail:
                break
            self.settle_step(reign, target)
        done = self.commits_landed >= target or reign.machine.mode is Mode.FINISHED
        require(done, "a good world makes progress", reign.machine.mode)
        self.check_exact()

    def settle_step(self, reign: Reign, target: int) -> None:
        for deletion in list(self.deletions):
            self.delete(deletion)
        self.trim_all()
        self.go_well(reign, ask=self.commits_landed < target)

    def go_well(self, reign: Reign, *, ask: bool = True) -> None:
        """One leader's world works for a moment: rows flow, effects are performed, mail arrives."""
        self.now_ms += 20
        for gang in self.running():
            self.read_rows(gang)
        if ask and reign.machine.mode is Mode.RUNNING and not reign.machine.attempt:
            self.request(reign)
        for effect in list(reign.todo):
            self.perform_well(reign, effect)
        for letter in list(self.mail):
            if letter in self.mail and letter[0] is reign:
                self.deliver(letter)
        self.tell(reign, events.Tick())

    def perform_well(self, reign: Reign, effect: do.CoordinatorEffect) -> None:
        match effect:
            case do.PutEntry():
                self.put(reign, effect, "answered")
            case do.Publish() | do.Hide():
                self.publish(reign, effect, works=True)
            case do.ResolveRestore():
                self.resolve(reign, effect, reign.machine.log.head_epoch)
            case do.CollectGarbage():
                self.list_objects(reign, effect)
            case do.ReadLog():
                self.reread(reign, effect)
            case do.CheckLog():
                self.check_log(reign, effect)
            case do.TrimLog():
                self.look_at_log(reign, effect)
            case _:
                raise AssertionError(effect)


def void(_: object) -> None:
    """Forget a result."""


def play(world: World, seed: int, steps: int = 250) -> None:
    """A random run from a seed, ended well. A failing check names the seed's steps in its trace."""
    chance = random.Random(seed)
    world.elect()
    for _ in range(steps):
        actions = world.actions()
        chance.choices(actions, [action.weight for action in actions])[0].act()
    world.settle()


def asleep(world: World, _: int = 0) -> tuple[Reign, Reign]:
    """A candidate reads the log and sleeps until the slot that it aims for was filled and trimmed; then it wakes up."""
    leader = world.elect()
    lead_on(world, leader, 30)
    candidates = [world.elect() for _ in range(3) if not lead_on(world, leader, 3)]
    lead_on(world, leader, 120)
    candidate = next(each for each in candidates if each.open_put not in world.slots)
    lead_on(world, candidate, 40)
    lead_on(world, leader, 20)
    return leader, candidate


def paused(world: World, _: int = 0) -> tuple[Reign, Reign]:
    """A leader is paused before a put; another takes over its slot and trims for long; then the first one wakes up."""
    first = world.elect()
    lead_on(world, first, 30)
    while not any(isinstance(effect, do.PutEntry) for effect in first.todo):
        world.request(first)
        for letter in [letter for letter in world.mail if letter[0] is first]:
            world.deliver(letter)
    second = world.elect()
    lead_on(world, second, 200)
    lead_on(world, first, 10)
    lead_on(world, second, 20)
    return first, second


def lead_on(world: World, reign: Reign, moments: int) -> None:
    """One leader's world works for so long, and the other's stands still."""
    for _ in range(moments):
        if reign in world.reigns:
            world.go_well(reign)
        world.trim_all()
