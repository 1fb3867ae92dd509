"""The world of leaders: coordinators by name over one log, one object store and the sinks that readers see.

A checkpoint id is written ``term.counter``. A committable is written ``sink:node@id/gang``, with ``=epoch`` once a
manifest has named it. Two nodes, and a store that is asked to be slow, forgetful or late.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from play import step, words_of

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
from tidegate.core.checkpoint.prepare import PlanShape, PrepareAck, TaskReport
from tidegate.core.log.paths import JobPaths, SharedRun, StateObject
from tidegate.core.log.resolve import AlreadyFinished, FallBack, Refuse, RestoreFrom, StartFresh, resolve
from tidegate.core.log.retain import garbage
from tidegate.core.log.view import Base, Commit, LogEntry, LogView, Restore, Takeover, decode_entry
from tidegate.ids import CheckpointId

NODES = frozenset({0, 1})
PATHS = JobPaths("job")
CONFIG = DistributedCheckpointConfig(
    checkpoint_interval_ms=None,
    checkpoint_timeout_ms=60_000,
    barrier_injection_timeout_ms=10_000,
    node_snapshot_timeout_ms=40_000,
    unaligned_threshold_ms=30_000,
    gc_retain_count=2,
    put_retry_ms=200,
    publish_retry_ms=500,
)
SENDS = (do.SendStarted, do.SendInject, do.SendFinalize, do.SendPromote, do.SendAbort,
         do.SendCommitted)  # fmt: skip


# -- how things are written ----------------------------------------------------------------------------------


def show_id(number: int) -> str:
    return f"{number >> 32}.{number & 0xFFFFFFFF}"


def parse_id(text: str) -> int:
    term, counter = text.split(".")
    return CheckpointId.of(int(term), int(counter))


def show_committable(entry: CommittableEntry) -> str:
    named = f"={entry.epoch}" if entry.epoch else ""
    return f"{entry.operator}:{entry.subtask}@{show_id(entry.checkpoint_id)}/g{entry.gang}{named}"


def show_all(entries: Iterable[CommittableEntry]) -> str:
    return "[" + " ".join(sorted(show_committable(entry) for entry in entries)) + "]"


def show_path(path: str) -> str:
    match PATHS.parse(path):
        case StateObject(number, node):
            return f"{show_id(number)}/node{node}"
        case SharedRun(number, run):
            return f"{show_id(number)}-{run}"
        case _:
            return path


def show_paths(paths: Iterable[str]) -> str:
    return "[" + " ".join(sorted(show_path(path) for path in paths)) + "]"


def show_epoch(epoch: int | None) -> str:
    return "nothing" if epoch is None else f"epoch {epoch}"


def show_entry(entry: LogEntry) -> str:
    match entry:
        case Takeover(leader=leader):
            return f"takeover by {leader}"
        case Restore(parent=parent):
            return f"restore from {show_epoch(parent)}"
        case Commit(manifest=manifest):
            what = "final commit" if manifest.final else "savepoint" if manifest.is_savepoint else "commit"
            return f"{what} {show_id(manifest.checkpoint_id)} on {show_epoch(manifest.parent)}"
        case Base(held=held):
            return f"base, needs {list(held)}"


def show_effect(effect: do.CoordinatorEffect) -> str:
    match effect:
        case do.PutEntry(slot=slot, entry=entry):
            text = f"put slot {slot}: {show_entry(entry)}"
            if isinstance(entry, Commit):
                oldest = entry.manifest.oldest_restorable
                text += f", names {show_all(entry.manifest.committables)}, oldest restorable {oldest}"
            return text
        case do.ReadLog():
            return "read the log anew"
        case do.CheckLog(slot):
            return f"list the log: is slot {slot} the last?"
        case do.WriteLatestHint(epoch):
            return f"hint that epoch {epoch} is the latest"
        case do.TrimLog(below, keep):
            return f"trim the log below slot {below}, keep {sorted(keep)}"
        case do.CollectGarbage(bound, keep):
            return f"collect below {show_id(bound)}, keep {show_paths(keep)}"
        case do.ResolveRestore(reason):
            return f"decide what to start from ({reason})"
        case do.Hide(gang, entries, everything):
            return f"hide for gang {gang}: {show_all(entries)}{' and all that is older' if everything else ''}"
        case do.Publish(epoch, gang, entries):
            return f"publish epoch {epoch} as gang {gang}: {show_all(entries)}"
        case do.StartGang(gang, manifest):
            return f"start gang {gang} from {show_epoch(None if manifest is None else manifest.epoch)}"
        case do.StopGang(gang, reason):
            return f"stop gang {gang} ({reason})"
        case do.CheckpointCompleted(number, epoch, duration, _, requests):
            return f"completed {show_id(number)} as epoch {epoch} in {duration} ms for {list(requests)}"
        case do.CheckpointAborted(number, reason, requests, error):
            return f"aborted {show_id(number)} for {list(requests)}: {type(error).__name__}: {reason}"
        case do.RequestRefused(request, reason):
            return f"refuse request {request}: {reason}"
        case do.SetTimer(at_ms):
            return f"timer at {at_ms}"
        case do.StepDown(reason):
            return f"step down: {reason}"
        case do.JobFinished(manifest):
            return f"the job has finished with epoch {manifest.epoch}"
        case do.JobStopped():
            return "the job has stopped"
        case _:
            return show_send(effect)


def show_send(effect: Any) -> str:
    """A command, without the node that it goes to."""
    match effect:
        case do.SendStarted(started=started):
            limit = started.alignment_timeout_ms
            mode = "aligned" if started.aligned else f"aligned for {limit} ms"
            parent = show_epoch(started.parent)
            text = f"started {show_id(started.checkpoint_id)} for epoch {started.epoch} on {parent}, {mode}"
        case do.SendInject(checkpoint_id=number, unaligned=unaligned):
            text = f"inject {show_id(number)}{' unaligned' if unaligned else ''}"
        case do.SendFinalize(checkpoint_id=number):
            text = f"report the last state for {show_id(number)}"
        case do.SendPromote(checkpoint_id=number):
            text = f"promote {show_id(number)}"
        case do.SendAbort(checkpoint_id=number, reason=reason):
            text = f"abort all up to {show_id(number)} ({reason})"
        case do.SendCommitted(epoch=epoch, checkpoint_id=number):
            text = f"committed {show_id(number)} as epoch {epoch}"
        case _:
            raise AssertionError(effect)
    stamp = effect.stamp
    return f"{text} [gang {stamp.gang}, term {stamp.term}, last {show_epoch(stamp.committed_epoch)}]"


def show_effects(effects: list[do.CoordinatorEffect]) -> list[str]:
    """One line per order; the same command to several nodes is one line."""
    lines = []
    for text, same in groupby(effects, key=show_effect):
        nodes = [str(effect.node) for effect in same if isinstance(effect, SENDS)]
        lines.append(f"to {' '.join(nodes)}: {text}" if nodes else text)
    return lines


# -- the world -----------------------------------------------------------------------------------------------


@dataclass
class Reign:
    """One leader, and those of its effects that the file has not yet let happen."""

    machine: DistributedCheckpointCoordinator
    put: do.PutEntry | None = None
    sink: do.Publish | do.Hide | None = None
    collect: do.CollectGarbage | None = None
    listed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        machine = self.machine
        term = "no term yet" if machine.term is None else f"term {machine.term}"
        text = f"{machine.leader}: {machine.mode.value}, {term}, gang {machine.log.gang}"
        text += f", head {show_epoch(machine.log.head_epoch)}"
        attempt = machine.attempt
        if attempt is not None:
            text += f" | {show_id(attempt.checkpoint_id)} {attempt.phase.value}, reports from {sorted(attempt.acks)}"
        metrics = machine.metrics
        return f"{text} | stale {metrics.stale_messages}, doubled {metrics.duplicate_acks}"


class Leaders:
    """The log and the objects are what the store really holds; ``visible`` is what readers of the sinks see."""

    def __init__(self) -> None:
        self.words = words_of(Leaders)
        self.reigns: dict[str, Reign] = {}
        self.slots: dict[int, bytes] = {}
        self.objects: set[str] = set()
        self.visible: dict[Any, CommittableEntry] = {}
        self.hidden: set[Any] = set()
        self.fence = 0
        self.late: dict[str, do.PutEntry] = {}
        self.damaged: set[int] = set()
        self.sinks: tuple[str, ...] = ("out",)
        self.can_hide = True
        self.now_ms = 0
        self.requests = 0
        self.trace: list[str] = []

    def take_trace(self) -> list[str]:
        lines, self.trace = self.trace, []
        return lines

    @property
    def shape(self) -> PlanShape:
        return PlanShape(
            job="job",
            parallelism=len(NODES),
            tasks=frozenset({"read"}),
            operators=frozenset({"window"}),
            sources=frozenset({"read"}),
            sinks=frozenset(self.sinks),
        )

    def log(self) -> tuple[LogEntry, ...]:
        return tuple(decode_entry(data, f"slot {slot}", slot) for slot, data in sorted(self.slots.items()))

    def tell(self, name: str, event: events.CoordinatorEvent) -> None:
        reign = self.reigns[name]
        effects = self._confirmed(reign, reign.machine.handle(event, self.now_ms, self.now_ms))
        for effect in effects:
            if isinstance(effect, do.PutEntry):
                reign.put = effect
            elif isinstance(effect, do.Publish | do.Hide):
                reign.sink = effect
            elif isinstance(effect, do.CollectGarbage):
                reign.collect = effect
        self.trace += [*show_effects(effects), str(reign)]

    def _confirmed(self, reign: Reign, effects: list[do.CoordinatorEffect]) -> list[do.CoordinatorEffect]:
        """A leader that reads the log, or looks whether it still ends with its entry, is answered at once."""
        asked = next((effect for effect in effects if isinstance(effect, do.CheckLog | do.ReadLog)), None)
        if asked is None:
            return effects
        answer: events.CoordinatorEvent = events.LogRead(self.log())
        if isinstance(asked, do.CheckLog):
            answer = events.LogChecked(asked.slot, events.Last() if max(self.slots) == asked.slot else events.Followed())
        told = [effect for effect in effects if effect is not asked and not isinstance(effect, do.SetTimer)]
        shown = [asked] if answer != events.LogChecked(getattr(asked, "slot", 0), events.Last()) else []
        return [*told, *shown, *self._confirmed(reign, reign.machine.handle(answer, self.now_ms, self.now_ms))]

    # -- electing and the log

    @step(r"the sinks are ([\w ]+?)(, which cannot hide)?")
    def set_sinks(self, names: str, stubborn: str | None) -> None:
        self.sinks, self.can_hide = tuple(names.split()), stubborn is None

    @step(r"(\w+) reads the log")
    def elect(self, name: str) -> None:
        self.reigns[name] = Reign(DistributedCheckpointCoordinator(self.shape, CONFIG, name))
        self.tell(name, events.LogRead(self.log()))

    @step(r"(\w+)'s put is answered")
    def answer(self, name: str) -> None:
        """The store does what it should and says so."""
        effect = self._put_of(name)
        created = self._create(effect)
        found = decode_entry(self.slots[effect.slot], "slot", effect.slot)
        answer = events.Written() if created else events.Conflict(found)
        self.trace.append("written" if created else f"conflict: slot {effect.slot} holds a {show_entry(found)}")
        self.tell(name, events.PutAnswered(effect.slot, effect.write_id, answer))

    @step(r"(\w+)'s put (lands|is lost|is delayed), its answer unknown")
    def lose_answer(self, name: str, fate: str) -> None:
        effect = self._put_of(name)
        if fate == "lands":
            self._create(effect)
        elif fate == "is delayed":
            self.late[name] = effect
        self.tell(name, events.PutAnswered(effect.slot, effect.write_id, events.Unknown(fate)))

    @step(r"(\w+)'s put (lands|is never made) and \w+ dies")
    def die_at_put(self, name: str, fate: str) -> None:
        if fate == "lands":
            self._create(self._put_of(name))
        del self.reigns[name]
        self.show_log()

    @step(r"(\w+) dies")
    def die(self, name: str) -> None:
        del self.reigns[name]

    @step(r"the delayed put of (\w+) lands")
    def land(self, name: str) -> None:
        created = self._create(self.late.pop(name))
        self.trace.append("it takes its slot" if created else "its slot is taken: nothing happens")

    @step(r"show the log")
    def show_log(self) -> None:
        self.trace += [f"{entry.slot} {show_entry(entry)}" for entry in self.log()]
        view = LogView(self.log())
        self.trace.append(f"head {show_epoch(view.head_epoch)}, lineage {list(view.lineage())}")

    def _put_of(self, name: str) -> do.PutEntry:
        effect = self.reigns[name].put
        assert effect is not None, f"{name} has no put open"
        self.reigns[name].put = None
        return effect

    def _create(self, effect: do.PutEntry) -> bool:
        created = effect.slot not in self.slots
        if created:
            self.slots[effect.slot] = effect.data
        return created

    # -- gangs

    @step(r"the objects of epoch (\d+) are damaged")
    def damage(self, epoch: str) -> None:
        self.damaged.add(int(epoch))

    @step(r"(\w+) starts from (the latest|nothing|epoch \d+)")
    def start(self, name: str, choice: str) -> None:
        """The driver's part: decide with the log and the store, then tell the leader."""
        wanted: Any = {"the latest": "latest", "nothing": "none"}.get(choice) or int(choice.split()[1])
        decision = resolve(self.reigns[name].machine.log, self.shape, self._fault, wanted, can_hide=self.can_hide)
        match decision:
            case StartFresh():
                epoch = None
            case RestoreFrom(manifest) | AlreadyFinished(manifest):
                epoch = manifest.epoch
            case FallBack(manifest, skipped):
                epoch = manifest.epoch
                self.trace += [f"skipped epoch {e}: {why}" for e, why in skipped]
            case Refuse(why):
                self.trace.append(f"refused: {why}")
                return
        self.trace.append(f"decision: {type(decision).__name__} {show_epoch(epoch)}")
        self.tell(name, events.RestoreRequested(epoch))

    def _fault(self, manifest: CheckpointManifest) -> str | None:
        return "wrong checksum" if manifest.epoch in self.damaged else None

    @step(r"(\w+) hears that gang (\d+) is (up|lost)")
    def gang(self, name: str, number: str, state: str) -> None:
        up = events.GangRunning(int(number), NODES, NODES)
        self.tell(name, up if state == "up" else events.GangLost(int(number), "node lost"))

    # -- checkpoints

    @step(r"(\w+) is asked for a (checkpoint|savepoint)")
    def trigger(self, name: str, kind: str) -> None:
        self.requests += 1
        path = f"s{self.requests}" if kind == "savepoint" else None
        self.tell(name, events.TriggerRequested(f"r{self.requests}", path))

    @step(r"(\w+) hears that node (\d+) has injected ([\d.]+)")
    def injected(self, name: str, node: str, number: str) -> None:
        gang, checkpoint_id = self.reigns[name].machine.log.gang, parse_id(number)
        self.tell(name, events.InjectionAcked(int(node), gang, checkpoint_id >> 32, checkpoint_id, 1))

    @step(r"(\w+) hears that node (\d+) knows of ([\d.]+)")
    def knows(self, name: str, node: str, number: str) -> None:
        gang, checkpoint_id = self.reigns[name].machine.log.gang, parse_id(number)
        self.tell(name, events.CommitAcked(int(node), gang, checkpoint_id >> 32, checkpoint_id))

    @step(r"(\w+) hears that node (\d+)(?: of gang (\d+))? has prepared ([\d.]+)(?:, (.+))?")
    def prepared(self, name: str, node: str, gang: str | None, number: str, how: str | None) -> None:
        number_of_gang = self.reigns[name].machine.log.gang if gang is None else int(gang)
        self.tell(name, events.NodePrepared(self.report(int(node), number_of_gang, parse_id(number), how or "")))

    def report(self, node: int, gang: int, number: int, how: str) -> PrepareAck:
        """A complete report, or one ``without operator``, ``with run 0.1``, ``still staging 0.1`` (may be combined)."""
        path = PATHS.state(number, node)
        reused = re.search(r"with run ([\d.]+)", how)
        run = PATHS.shared(parse_id(reused[1]) if reused else number, f"run{node}")
        staged = [number, *(parse_id(text) for text in re.findall(r"still staging ([\d.]+)", how))]
        self.objects |= {path} if reused else {path, run}
        state = OperatorSnapshotEntry("window", node, {}, (RunEntry(path, 0, 8, 1, 1), RunEntry(run, 0, 8, 1, 1)))
        ack = PrepareAck(
            node=node,
            gang=gang,
            term=number >> 32,
            checkpoint_id=number,
            tasks=(TaskReport("read", node, "fired"),),
            operators=(state,),
            sources=(SourceOffsetEntry("read", node, {"offset": number & 0xFFFF}),),
            sinks=self.sinks,
            committables=tuple(
                CommittableEntry(sink, node, gang, cut, {"file": f"{sink}-{node}-{gang}-{cut}"})
                for sink in self.sinks
                for cut in staged
            ),
            objects=(ObjectEntry(path, 8, 1), ObjectEntry(run, 8, 1)),
            bytes_uploaded=16,
        )
        return replace(ack, operators=()) if "without operator" in how else ack

    @step(r"(\w+) hears that both nodes have prepared ([\d.]+)(?:, (.+))?")
    def both_prepared(self, name: str, number: str, how: str | None) -> None:
        for node in sorted(NODES):
            self.prepared(name, str(node), None, number, how)

    @step(r"(\w+) makes a complete (checkpoint|savepoint)(?:, (.+))?")
    def complete(self, name: str, kind: str, how: str | None) -> None:
        """From the request to the confirmed publish; only the end of it is written down."""
        self.trigger(name, kind)
        attempt = self.reigns[name].machine.attempt
        assert attempt is not None
        self.both_prepared(name, show_id(attempt.checkpoint_id), how)
        self.answer(name)
        committed = [line for line in self.trace if line.startswith("completed")]
        self.sink_works(name)
        self.trace = [*committed, *self.trace[-1:]]

    @step(r"(\w+) hears that both nodes are drained")
    def drained(self, name: str) -> None:
        for node in sorted(NODES):
            self.tell(name, events.NodeDrained(node, self.reigns[name].machine.log.gang))

    @step(r"(\w+) hears that node (\d+) declines ([\d.]+)")
    def declined(self, name: str, node: str, number: str) -> None:
        gang = self.reigns[name].machine.log.gang
        self.tell(name, events.NodeDeclined(int(node), gang, parse_id(number), "its disk is full"))

    @step(r"(\d+) ms pass at (\w+)")
    def tick(self, ms: str, name: str) -> None:
        self.now_ms += int(ms)
        self.tell(name, events.Tick())

    @step(r"(\d+) checkpoints in a row of (\w+) are cancelled")
    def cancel_many(self, count: str, name: str) -> None:
        """Each with its uploads made; every collection that is ordered is carried out."""
        most = 0
        for _ in range(int(count)):
            self.trigger(name, "checkpoint")
            attempt = self.reigns[name].machine.attempt
            assert attempt is not None
            self.prepared(name, "0", None, show_id(attempt.checkpoint_id), None)
            self.tell(name, events.CancelRequested(attempt.checkpoint_id))
            most = max(most, len(self.objects))
            if self.reigns[name].collect is not None:
                self.list_objects(name)
                self.delete(name)
        self.trace = [f"at most {most} objects at any time, now {len(self.objects)}", str(self.reigns[name])]

    # -- sinks

    @step(r"(\w+)'s sinks do it")
    def sink_works(self, name: str) -> None:
        effect = self.reigns[name].sink
        assert effect is not None, f"{name} has ordered nothing of its sinks"
        self.reigns[name].sink = None
        self._do(effect, len(effect.committables))
        done = events.Published(effect.epoch) if isinstance(effect, do.Publish) else events.Hidden(effect.gang)
        self.tell(name, done)
        self.show_sinks()

    @step(r"(\w+)'s sinks do (\d+) of it(?:, (then fail))?")
    def sink_fails(self, name: str, count: str, fails: str | None) -> None:
        effect = self.reigns[name].sink
        assert effect is not None, f"{name} has ordered nothing of its sinks"
        self._do(effect, int(count))
        if fails and isinstance(effect, do.Publish):
            self.reigns[name].sink = None
            self.tell(name, events.PublishFailed(effect.epoch, "the sink is away"))
        self.show_sinks()

    @step(r"(\w+) hears that epoch (\d+) is published")
    def published(self, name: str, epoch: str) -> None:
        self.tell(name, events.Published(int(epoch)))

    def _do(self, effect: do.Publish | do.Hide, count: int) -> None:
        for entry in effect.committables[:count]:
            if isinstance(effect, do.Hide):
                self.hidden.add(entry.key)
                self.visible.pop(entry.key, None)
            elif entry.key not in self.hidden and entry.gang >= self.fence:
                self.visible[entry.key] = entry
        if isinstance(effect, do.Hide) and effect.everything:
            self.fence = effect.gang
            self.visible = {key: entry for key, entry in self.visible.items() if entry.gang >= self.fence}

    @step(r"show the sinks")
    def show_sinks(self) -> None:
        self.trace.append(f"readers see {show_all(self.visible.values())}")

    # -- garbage

    @step(r"(\w+)'s collector lists the objects")
    def list_objects(self, name: str) -> None:
        self.reigns[name].listed = sorted(self.objects)
        self.trace.append(f"listed {show_paths(self.objects)}")

    @step(r"(\w+)'s collector deletes")
    def delete(self, name: str) -> None:
        effect = self.reigns[name].collect
        assert effect is not None, f"{name} has ordered no collection"
        self.reigns[name].collect = None
        doomed = garbage(PATHS, self.reigns[name].listed, effect.keep, effect.bound)
        self.objects -= set(doomed)
        self.trace.append(f"deleted {show_paths(doomed)}, left {show_paths(self.objects)}")
