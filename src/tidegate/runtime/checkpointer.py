"""A node's part of a checkpoint: collects what its tasks froze, writes it in the background, and says Prepared.

All of it runs in the loop thread but ``_write``, which runs on the upload thread and touches only what is immutable by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from tidegate.core.barrier.effects import CheckpointFailed, SnapshotComplete
from tidegate.core.barrier.messages import CheckpointBarrier, Event, StreamMessage
from tidegate.core.checkpoint.manifest import (
    CommittableEntry,
    InFlightEntry,
    ObjectEntry,
    OperatorSnapshotEntry,
    RunEntry,
    SourceOffsetEntry,
    TaskStats,
    inline_bytes_max,
)
from tidegate.core.checkpoint.prepare import ChannelRef, PrepareAck, TaskReport
from tidegate.core.log.paths import Direction, JobPaths
from tidegate.errors import WAITED_FOR, CheckpointAbortedError, TidegateError
from tidegate.ids import Epoch, Term
from tidegate.operators.source import Read
from tidegate.plan.connector import Committable
from tidegate.plan.physical import Edge
from tidegate.runtime.route import receivers
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.snapshotfile import Encoded, encode_inflight, encode_run
from tidegate.runtime.task import StageTask
from tidegate.runtime.threads import Threads
from tidegate.state.run import Frozen, Run
from tidegate.store.interface import Store

UPLOAD_TRIES = 3
ATTEMPTS_KEPT = 8

Post = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class TaskPart:
    """What one task contributed."""

    frozen: Mapping[str, Frozen]
    fired_ms: int
    barrier_ms: int
    complete: SnapshotComplete[pa.RecordBatch] | None = None
    complete_ms: int = 0
    rows_out: int = 0


@dataclass(slots=True)
class NodeCheckpoint:
    """One checkpoint on this node."""

    checkpoint_id: int
    term: Term | None = None
    parent: Epoch | None = None
    compacts: bool = False
    begun_ms: int = 0
    parts: dict[str, TaskPart] = field(default_factory=dict)
    runs: dict[int, tuple[RunEntry, ObjectEntry | None]] = field(default_factory=dict)
    uploading: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """A committable that no manifest is known to name yet."""

    operator: str
    checkpoint_id: int
    future: Future[Committable | None]


class Checkpointer:
    """Every attempt from its first barrier to Prepared. Made even when checkpointing is off: the end of a job is a cut too."""

    def __init__(
        self,
        setup: NodeSetup,
        store: Store | None,
        threads: Threads,
        post: Post,
        now_ms: Callable[[], int],
        say_prepared: Callable[[bytes], None],
        decline: Callable[[int, TidegateError], None],
    ) -> None:
        self._setup = setup
        self._store = store
        self._threads = threads
        self._post = post
        self._now_ms = now_ms
        self._say_prepared = say_prepared
        self._decline = decline
        self._paths = JobPaths(setup.plan.job)
        self._attempts: dict[int, NodeCheckpoint] = {}
        self._dead = 0
        self._staged: list[Staged] = []
        self._known_epoch: int | None = None
        self._known: dict[int, tuple[RunEntry, ObjectEntry | None]] = {}
        self.upload_retries = 0
        self.tasks: Sequence[StageTask] = ()

    # -- facts -----------------------------------------------------------------------------------------------------

    def started(self, checkpoint_id: int, term: Term, parent: Epoch | None, *, compacts: bool = False) -> None:
        """The coordinator began this checkpoint; a barrier may have come before. ``compacts``: name nothing of earlier ones."""
        attempt = self._attempt(checkpoint_id)
        if attempt is not None:
            attempt.term, attempt.parent, attempt.compacts = term, parent, compacts
            self._upload_when_complete(attempt)

    def fired(
        self,
        task: StageTask,
        barrier: CheckpointBarrier,
        frozen: Mapping[str, Frozen],
        committables: Mapping[str, Future[Committable | None]],
    ) -> None:
        """A task's state at the cut. Its sinks' committables live on even if this attempt does not."""
        self._stage(barrier.checkpoint_id, committables)
        attempt = self._attempt(barrier.checkpoint_id)
        if attempt is not None:
            now_ms = self._now_ms()
            barrier_ms = task.first_barrier_ms(barrier.checkpoint_id) or now_ms
            attempt.parts[task.name] = TaskPart(frozen, now_ms, barrier_ms, rows_out=_rows_out(task))

    def completed(self, task: StageTask, effect: SnapshotComplete[pa.RecordBatch]) -> None:
        """A task's recordings are closed and its barrier is on the way."""
        attempt = self._attempt(effect.checkpoint_id)
        if attempt is None:
            return
        if effect.finished:
            self._stage(effect.checkpoint_id, task.prepare_sinks(effect.checkpoint_id))
            attempt.parts[task.name] = TaskPart(task.freeze(), self._now_ms(), self._now_ms(), rows_out=_rows_out(task))
        part = attempt.parts[task.name]
        part.complete, part.complete_ms = effect, self._now_ms()
        self._upload_when_complete(attempt)

    def failed(self, task: StageTask, effect: CheckpointFailed) -> None:
        """A task can't take part: the checkpoint is over."""
        self.abort(effect.checkpoint_id)
        error = CheckpointAbortedError(f"{task.name}: {effect.error}", checkpoint_id=effect.checkpoint_id)
        self._decline(effect.checkpoint_id, error)

    def abort(self, checkpoint_id: int) -> None:
        """Drop this attempt and all before it. What sinks staged stays: sources do not rewind."""
        self._dead = max(self._dead, checkpoint_id)
        for other in [other for other in self._attempts if other <= checkpoint_id]:
            del self._attempts[other]

    def is_live(self, checkpoint_id: int) -> bool:
        """The attempt is neither aborted nor committed."""
        return checkpoint_id in self._attempts

    def committed(self, epoch: Epoch, checkpoint_id: int) -> None:
        """The manifest is in the log: what this attempt uploaded may be named by the next."""
        attempt = self._attempts.pop(checkpoint_id, None)
        if attempt is not None:
            self._known_epoch, self._known = epoch, attempt.runs
        self._staged = [staged for staged in self._staged if staged.checkpoint_id > checkpoint_id]
        self.abort(checkpoint_id)

    # -- collecting ------------------------------------------------------------------------------------------------

    def _attempt(self, checkpoint_id: int) -> NodeCheckpoint | None:
        if checkpoint_id <= self._dead:
            return None
        if checkpoint_id not in self._attempts:
            if len(self._attempts) >= ATTEMPTS_KEPT:
                self.abort(min(self._attempts))
            self._attempts[checkpoint_id] = NodeCheckpoint(checkpoint_id, begun_ms=self._now_ms())
        return self._attempts[checkpoint_id]

    def _stage(self, checkpoint_id: int, committables: Mapping[str, Future[Committable | None]]) -> None:
        for name, future in committables.items():
            self._staged.append(Staged(name, checkpoint_id, future))
            future.add_done_callback(lambda done: self._post(partial(_check_staged, done)))

    def _upload_when_complete(self, attempt: NodeCheckpoint) -> None:
        complete = len(attempt.parts) == len(self.tasks) and all(part.complete for part in attempt.parts.values())
        if not complete or attempt.term is None or attempt.uploading:
            return
        attempt.uploading = True
        known = self._known if attempt.parent == self._known_epoch and not attempt.compacts else {}
        staged = [one for one in self._staged if one.checkpoint_id <= attempt.checkpoint_id]
        executor = self._threads.executor("upload")
        future = executor.submit(self._write_with_retries, attempt, known, staged)
        future.add_done_callback(lambda done: self._post(partial(self._written, attempt, done)))

    def _written(self, attempt: NodeCheckpoint, done: Future[PrepareAck]) -> None:
        if not self.is_live(attempt.checkpoint_id):
            return
        error = done.exception()
        if error is not None:
            wrapped = error if isinstance(error, TidegateError) else CheckpointAbortedError(repr(error))
            self.abort(attempt.checkpoint_id)
            self._decline(attempt.checkpoint_id, wrapped)
            return
        ack = done.result()
        self._say_prepared(ack.to_json())

    # -- writing: the upload thread --------------------------------------------------------------------------------

    def _write_with_retries(
        self, attempt: NodeCheckpoint, known: Mapping[int, tuple[RunEntry, ObjectEntry | None]], staged: Sequence[Staged]
    ) -> PrepareAck:
        for left in reversed(range(UPLOAD_TRIES)):
            try:
                return self._write(attempt, known, staged)
            except WAITED_FOR:
                self.upload_retries += 1
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _write(
        self, attempt: NodeCheckpoint, known: Mapping[int, tuple[RunEntry, ObjectEntry | None]], staged: Sequence[Staged]
    ) -> PrepareAck:
        state = StateObjectWriter(self._paths.state(attempt.checkpoint_id, self._setup.node), known)
        operators, sources = self._states(attempt, state)
        objects = state.finish(self._store, inline_bytes_max(self._setup.parallelism))
        attempt.runs = state.runs
        inflight = [entry for task in self.tasks for entry in self._flights(attempt, task)]
        objects += [ObjectEntry(flight.path, flight.length, flight.crc32c) for flight in inflight]
        assert attempt.term is not None
        return PrepareAck(
            node=self._setup.node,
            gang=self._setup.gang,
            term=attempt.term,
            checkpoint_id=attempt.checkpoint_id,
            tasks=tuple(self._report(attempt, task) for task in self.tasks),
            operators=tuple(state.resolve(entry) for entry in operators),
            sources=tuple(SourceOffsetEntry(name, self._setup.node, f.meta, state.entries(f)) for name, f in sources),
            sinks=tuple(name for task in self.tasks for name in task.sinks),
            inflight=tuple(inflight),
            committables=tuple(self._committables(staged)),
            objects=tuple(objects),
            bytes_uploaded=state.bytes_written + state.bytes_apart + sum(flight.length for flight in inflight),
            duration_ms=self._now_ms() - attempt.begun_ms,
            unaligned=any(part.complete is not None and part.complete.unaligned for part in attempt.parts.values()),
            stats=tuple(self._stats(attempt, task) for task in self.tasks),
            rows_out=sum(part.rows_out for part in attempt.parts.values()),
        )

    def _states(
        self, attempt: NodeCheckpoint, writer: StateObjectWriter
    ) -> tuple[list[tuple[str, Frozen]], list[tuple[str, Frozen]]]:
        operators: list[tuple[str, Frozen]] = []
        sources: list[tuple[str, Frozen]] = []
        source_names = {stage.operators[0].name for stage in self._setup.plan.stages if isinstance(stage.operators[0], Read)}
        for part in attempt.parts.values():
            for name, frozen in part.frozen.items():
                # Without a store nobody can ever restore this: the last cut of such a job is for its sinks alone.
                kept = frozen if self._store is not None else Frozen(frozen.meta)
                if name in source_names:
                    writer.add_apart(kept, partial(self._put_run, attempt.checkpoint_id))
                    sources.append((name, kept))
                else:
                    writer.add(kept)
                    operators.append((name, kept))
        writer.node = self._setup.node
        return operators, sources

    def _put_run(self, checkpoint_id: int, run: Run) -> tuple[RunEntry, ObjectEntry]:
        data = encode_run(run.batch)
        path = self._paths.shared(checkpoint_id, f"{self._setup.node}-{run.uid}")
        assert self._store is not None
        self._store.put(path, *data.pieces)
        checksum = data.crc32c()
        return RunEntry(path, 0, data.length, checksum, run.batch.num_rows), ObjectEntry(path, data.length, checksum)

    def _report(self, attempt: NodeCheckpoint, task: StageTask) -> TaskReport:
        complete = attempt.parts[task.name].complete
        finished = complete is not None and complete.finished
        channels = [*self._refs("in", task.stage.inputs), *self._refs("out", task.stage.outputs)]
        return TaskReport(task.name, self._setup.node, "finished" if finished else "fired", tuple(channels))

    def _stats(self, attempt: NodeCheckpoint, task: StageTask) -> TaskStats:
        part = attempt.parts[task.name]
        complete = part.complete
        assert complete is not None
        recorded = [*complete.inputs.values(), *complete.outputs.values()]
        refs = self._refs("in", task.stage.inputs)
        last = refs[complete.last_input] if complete.last_input is not None else None
        return TaskStats(
            task.name,
            self._setup.node,
            "finished" if complete.finished else "unaligned" if complete.unaligned else "aligned",
            start_delay_ms=max(0, part.barrier_ms - attempt.begun_ms),
            alignment_ms=max(0, part.fired_ms - part.barrier_ms),
            settle_ms=max(0, part.complete_ms - part.fired_ms),
            inflight_bytes=complete.inflight_bytes,
            inflight_events=sum(isinstance(message, Event) for messages in recorded for message in messages),
            last_channel=None if last is None else f"edge {last.edge} from subtask {last.peer}",
        )

    def _refs(self, direction: Direction, edges: Sequence[Edge]) -> list[ChannelRef]:
        node, parallelism = self._setup.node, self._setup.parallelism
        return [ChannelRef(direction, edge.id, peer) for edge in edges for peer in receivers(edge, node, parallelism)]

    def _flights(self, attempt: NodeCheckpoint, task: StageTask) -> list[InFlightEntry]:
        complete = attempt.parts[task.name].complete
        assert complete is not None
        entries = []
        for direction, edges, recorded in (
            ("in", task.stage.inputs, complete.inputs),
            ("out", task.stage.outputs, complete.outputs),
        ):
            refs = [(edge, ref) for edge in edges for ref in self._refs(direction, [edge])]  # type: ignore[arg-type]
            for channel_id, messages in recorded.items():
                edge, ref = refs[channel_id]
                entries.append(self._flight(attempt.checkpoint_id, task.name, edge, ref, messages))
        return entries

    def _flight(
        self,
        checkpoint_id: int,
        task: str,
        edge: Edge,
        ref: ChannelRef,
        messages: Sequence[StreamMessage[pa.RecordBatch]],
    ) -> InFlightEntry:
        node = self._setup.node
        name = self._paths.inflight if ref.direction == "in" else self._paths.outflight
        path = name(checkpoint_id, task, node, f"{ref.edge}-{ref.peer}")
        data = encode_inflight(messages, edge.schema, self._setup.compression)
        assert self._store is not None
        self._store.put(path, *data.pieces)
        events = [message for message in messages if isinstance(message, Event)]
        size = sum(event.size_bytes for event in events)
        return InFlightEntry(
            task, node, ref.direction, ref.edge, ref.peer, path, 0, data.length, data.crc32c(), len(events), size
        )

    def _committables(self, staged: Sequence[Staged]) -> list[CommittableEntry]:
        entries = []
        for one in staged:
            committable = one.future.result()
            if committable is not None:
                entries.append(CommittableEntry(one.operator, self._setup.node, self._setup.gang, one.checkpoint_id, committable))
        return entries


def _check_staged(done: Future[Committable | None]) -> None:
    """A sink that could not stage its rows ends the node: no later checkpoint could be complete without them."""
    if not done.cancelled():
        done.result()


class StateObjectWriter:
    """One node's state object: runs that the parent manifest has are named again, the others are written."""

    def __init__(self, path: str, known: Mapping[int, tuple[RunEntry, ObjectEntry | None]]) -> None:
        self._path = path
        self._known = known
        self._new: dict[int, tuple[Encoded, int, int]] = {}
        self._carried: dict[int, int] = {}
        self._frozen: list[Frozen] = []
        self.runs: dict[int, tuple[RunEntry, ObjectEntry | None]] = {}
        self.bytes_written = 0
        self.bytes_apart = 0
        self.node = 0

    def add(self, frozen: Frozen) -> None:
        """Take an operator's runs."""
        for run in frozen.runs:
            if run.uid in self._known:
                self.runs[run.uid] = self._known[run.uid]
                entry = self._known[run.uid][0]
                self._carried[run.uid] = 0 if entry.inline is None else entry.length
            elif run.uid not in self._new:
                data = encode_run(run.batch)
                self._new[run.uid] = (data, self.bytes_written, run.batch.num_rows)
                self.bytes_written += data.length

    def add_apart(self, frozen: Frozen, put: Callable[[Run], tuple[RunEntry, ObjectEntry]]) -> None:
        """Take a source's runs, an object each: manifests of weeks may name one, and must not keep anything else with it."""
        for run in frozen.runs:
            if run.uid not in self._known:
                self.runs[run.uid] = put(run)
                self.bytes_apart += self.runs[run.uid][0].length
            else:
                self.runs[run.uid] = self._known[run.uid]

    def finish(self, store: Store | None, inline_max: int) -> list[ObjectEntry]:
        """Write the object, or keep everything inline if it is small, together with what the parent has inline and this names
        again. Returns every object that the runs name."""
        inline = self.bytes_written + sum(self._carried.values())
        own = None if not self.bytes_written or store is None or inline <= inline_max else self._put(store)
        for uid, (data, offset, rows) in self._new.items():
            if own is None:
                self.runs[uid] = (RunEntry.of_bytes(data.joined, data.crc32c(), rows), None)
            else:
                self.runs[uid] = (RunEntry(self._path, offset, data.length, data.crc32c(), rows), own)
        return list({entry.path: entry for _, entry in self.runs.values() if entry is not None}.values())

    def _put(self, store: Store) -> ObjectEntry:
        encoded = Encoded(tuple(piece for data, _, _ in self._new.values() for piece in data.pieces))
        store.put(self._path, *encoded.pieces)
        return ObjectEntry(self._path, encoded.length, encoded.crc32c())

    def resolve(self, named: tuple[str, Frozen]) -> OperatorSnapshotEntry:
        """An operator's entry for the manifest."""
        name, frozen = named
        return OperatorSnapshotEntry(name, self.node, frozen.meta, self.entries(frozen))

    def entries(self, frozen: Frozen) -> tuple[RunEntry, ...]:
        """Where the runs are. AFTER ``finish``."""
        return tuple(self.runs[run.uid][0] for run in frozen.runs)


def _rows_out(task: StageTask) -> int:
    return sum(sink.rows for sink in task.sinks.values())
