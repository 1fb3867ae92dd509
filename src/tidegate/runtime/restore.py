"""A node takes its part of a checkpoint: the runs of its key groups, its share of the sources, and what was in flight.

In-flight data is replayed where it is received: per channel first what the receiver had recorded, then what the sender had, both
before anything new. At another parallelism each recorded row goes to whoever owns its key group now; recorded watermarks are
left out then, because they spoke for a channel that is no more, and sources send theirs again after the replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa

from tidegate.core.barrier.messages import Event, StreamMessage
from tidegate.core.checkpoint.manifest import CheckpointManifest, InFlightEntry, RunEntry
from tidegate.errors import CorruptDataError, ProtocolError
from tidegate.ids import NodeId
from tidegate.plan.physical import Edge
from tidegate.runtime.assemble import Assembly
from tidegate.runtime.nodesignals import restore_parameters
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.shape import edge_text
from tidegate.runtime.snapshotfile import crc32c, read_inflight, read_run
from tidegate.runtime.task import StageTask
from tidegate.state.keygroups import partition, range_of
from tidegate.state.run import Restored, Run
from tidegate.store.interface import Store
from tidegate.values import Json
from tidegate.wire.arrow import event_of
from tidegate.wire.transport import ChannelId

Message = StreamMessage[pa.RecordBatch]


class RestorePlan:
    """What one node loads from one manifest."""

    def __init__(self, manifest: CheckpointManifest, setup: NodeSetup, store: Store | None) -> None:
        self._manifest = manifest
        self._setup = setup
        self._store = store

    @classmethod
    def load(cls, data: bytes, setup: NodeSetup, store: Store | None) -> RestorePlan:
        """The manifest as the coordinator sent it."""
        return cls(CheckpointManifest.from_json(data, "welcome"), setup, store)

    def apply(self, assembly: Assembly) -> dict[ChannelId, int]:
        """Restore every task's state and queue what was in flight. Returns how many events were replayed per channel."""
        restore_parameters(self._manifest.parameters, assembly.tasks, self._store)
        for task in assembly.tasks:
            self._restore_source(task)
            self._restore_operators(task)
            task.resume()
        return self._replay(assembly)

    # -- state -----------------------------------------------------------------------------------------------------

    def _restore_source(self, task: StageTask) -> None:
        if task.reader is None:
            return
        name = task.stage.operators[0].name
        entries = [entry for entry in self._manifest.sources if entry.operator == name]
        same = self._manifest.parallelism == self._setup.parallelism  # then the runs of others say nothing about our splits
        pieces = [
            Restored(
                entry.subtask,
                cast("dict[str, Json]", entry.state),
                tuple(Run(self._run(run)) for run in entry.runs if not same or entry.subtask == self._setup.node),
            )
            for entry in entries
        ]
        task.reader.restore(pieces)

    def _restore_operators(self, task: StageTask) -> None:
        specs = {spec.name: spec for spec in task.stage.operators}
        for name, operator in task.chain.named:
            keyed = name in specs and specs[name].description.keyed
            entries = [
                entry for entry in self._manifest.operators if entry.operator == name and self._is_ours(entry.subtask, keyed)
            ]
            pieces = [
                Restored(
                    entry.subtask,
                    cast("dict[str, Json]", dict(entry.meta)),
                    tuple(Run(self._run(run)) for run in entry.runs),
                )
                for entry in entries
            ]
            if pieces:
                operator.restore(pieces)

    def _is_ours(self, subtask: int, keyed: bool) -> bool:
        """Keyed state goes by key group; anything else to the node with the same number, modulo ours."""
        if not keyed:
            return subtask % self._setup.parallelism == self._setup.node
        groups = self._setup.plan.key_groups
        theirs = range_of(subtask, self._manifest.parallelism, groups)
        ours = range_of(self._setup.node, self._setup.parallelism, groups)
        return theirs.start < ours.stop and ours.start < theirs.stop

    def _run(self, entry: RunEntry) -> pa.RecordBatch:
        if entry.path is None:
            return read_run(self._checked(entry.inline_bytes(), entry.crc32c, "inline"), "inline")
        assert self._store is not None
        data = self._store.get_range(entry.path, entry.offset, entry.length)
        return read_run(self._checked(data, entry.crc32c, entry.path), entry.path)

    def _checked(self, data: bytes, checksum: int, path: str) -> bytes:
        if crc32c(data) != checksum:
            raise CorruptDataError(f"the checksum differs: epoch {self._manifest.epoch} is corrupt path={path}", path=path)
        return data

    # -- in-flight data --------------------------------------------------------------------------------------------

    def _replay(self, assembly: Assembly) -> dict[ChannelId, int]:
        replayed: dict[ChannelId, int] = {}
        # Receivers' recordings first: a channel's input was before its output.
        for entry in sorted(self._manifest.inflight, key=lambda e: (e.channel, e.direction, e.subtask, e.peer)):
            edge = self._edge(entry.channel)
            for channel, messages in self._route(edge, entry):
                task, input_id = assembly.inbound[channel]
                for message in messages:
                    task.receive(input_id, message)
                events = sum(isinstance(message, Event) for message in messages)
                replayed[channel] = replayed.get(channel, 0) + events
        return replayed

    def _edge(self, number: int) -> Edge:
        """The edge on which this was recorded: by what it connects, because the plan may have numbered its edges anew."""
        text = self._manifest.edges.get(str(number))
        for edge in self._setup.plan.edges:
            if edge_text(edge) == text or (text is None and edge.id == number):
                return edge
        raise ProtocolError(f"in-flight data of an edge that the plan does not have edge={number} connects={text}")

    def _route(self, edge: Edge, entry: InFlightEntry) -> Iterator[tuple[ChannelId, Sequence[Message]]]:
        """The channels of this node that replay this entry, with what they replay of it."""
        node, parallelism = self._setup.node, self._setup.parallelism
        sender, receiver = (entry.peer, entry.subtask) if entry.direction == "in" else (entry.subtask, entry.peer)
        if parallelism == self._manifest.parallelism:
            if receiver == node:
                yield ChannelId(edge.id, NodeId(sender), node), self._messages(edge, entry)
            return
        if edge.kind == "forward":
            if receiver % parallelism == node:
                yield ChannelId(edge.id, node, node), _events(self._messages(edge, entry))
            return
        groups = self._setup.plan.key_groups
        rows = [self._own_rows(edge, message, groups) for message in _events(self._messages(edge, entry))]
        yield ChannelId(edge.id, node, node), [event_of(batch) for batch in rows if batch is not None]

    def _own_rows(self, edge: Edge, event: Event[pa.RecordBatch], groups: int) -> pa.RecordBatch | None:
        parts = partition(event.payload, edge.keys, self._setup.parallelism, groups)
        part = parts[self._setup.node]
        return part if part is not None and part.num_rows else None

    def _messages(self, edge: Edge, entry: InFlightEntry) -> list[Message]:
        assert self._store is not None
        data = self._store.get_range(entry.path, entry.offset, entry.length)
        return read_inflight(self._checked(data, entry.crc32c, entry.path), edge.schema, entry.path)


def _events(messages: Sequence[Message]) -> list[Event[pa.RecordBatch]]:
    return [message for message in messages if isinstance(message, Event)]


def states_of(manifest: CheckpointManifest) -> Mapping[str, int]:
    """How many rows of state each operator has in this manifest, for people."""
    rows: dict[str, int] = {}
    for entry in manifest.operators:
        rows[entry.operator] = rows.get(entry.operator, 0) + sum(run.rows for run in entry.runs)
    return rows
