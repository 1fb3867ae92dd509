"""From the plan to one node's tasks and the channels between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from tidegate.core.barrier.align import UnalignedCheckpointConfig
from tidegate.core.barrier.inject import BarrierInjectorConfig, CheckpointBarrierInjector
from tidegate.core.barrier.subtask import Subtask
from tidegate.errors import ProtocolError
from tidegate.ids import NodeId
from tidegate.operators.sink import SinkOperator
from tidegate.operators.source import Read
from tidegate.plan.connector import SinkWriter
from tidegate.plan.operator import Measured, Operator, OperatorContext, OperatorSpec
from tidegate.plan.physical import Edge, Stage
from tidegate.runtime.chain import Chain
from tidegate.runtime.continuous import open_reader
from tidegate.runtime.link import Intake
from tidegate.runtime.metrics import NodeReport, OperatorMetrics
from tidegate.runtime.route import receivers
from tidegate.runtime.setup import NodeSetup
from tidegate.runtime.skew import InputSkew, SkewLimit
from tidegate.runtime.source import Reader
from tidegate.runtime.task import Snapshots, StageTask
from tidegate.runtime.threads import Threads
from tidegate.wire.transport import ChannelId

log = logging.getLogger("tidegate")

Post = Callable[[Callable[[], None]], None]


@dataclass
class Assembly:
    """One node's tasks, sources first, and where its channels begin and end."""

    setup: NodeSetup
    tasks: list[StageTask] = field(default_factory=list)
    inbound: dict[ChannelId, tuple[StageTask, int]] = field(default_factory=dict)
    outbound: dict[ChannelId, tuple[StageTask, int]] = field(default_factory=dict)
    schemas: dict[ChannelId, pa.Schema] = field(default_factory=dict)
    writers: list[SinkWriter] = field(default_factory=list)

    def inbound_remote(self) -> Iterator[tuple[ChannelId, pa.Schema]]:
        """The channels that other nodes will open to this one."""
        for channel in self.inbound:
            if channel.sender != self.setup.node:
                yield channel, self.schemas[channel]

    def on_consumed(self, intakes: Mapping[ChannelId, Intake]) -> None:
        """Let every task return credit where it takes from."""
        by_task: dict[str, dict[int, Intake]] = {}
        for channel, (task, input_id) in self.inbound.items():
            by_task.setdefault(task.name, {})[input_id] = intakes[channel]
        for task in self.tasks:
            task.intakes = by_task.get(task.name, {})

    def drained(self) -> bool:
        """Every task has ended and sent everything."""
        return all(task.ended and not any(map(len, task.protocol.outputs.values())) for task in self.tasks)

    def report(self, *, upload_retries: int, stale_commands: int) -> NodeReport:
        """What this node has done so far, for people."""
        operators: dict[str, OperatorMetrics] = {}
        for task in self.tasks:
            for name, operator in task.chain.named:
                if isinstance(operator, Measured):
                    operators[name] = {
                        "late_rows": operator.late_rows,
                        "state_rows": operator.state_rows,
                        "state_bytes": operator.state_bytes,
                    }
        fan_ins = [task.protocol.metrics() for task in self.tasks]
        return {
            "rows_in": sum(task.reader.rows for task in self.tasks if task.reader is not None),
            "rows_read": sum(task.reader.rows_read for task in self.tasks if task.reader is not None),
            "rows_out": sum(sink.rows for task in self.tasks for sink in task.sinks.values()),
            "unaligned_count": sum(fan_in.unaligned_count for fan_in in fan_ins),
            "threshold_switches": sum(fan_in.threshold_switches for fan_in in fan_ins),
            "total_inflight_bytes": sum(fan_in.total_inflight_bytes for fan_in in fan_ins),
            "upload_retries": upload_retries,
            "stale_commands": stale_commands,
            "operators": operators,
            "is_in_unaligned_mode": any(fan_in.is_in_unaligned_mode for fan_in in fan_ins),
        }

    def close(self) -> None:
        """Let go of readers."""
        for task in self.tasks:
            if task.reader is not None:
                self._close("a source's reader", task.reader)

    def close_writers(self) -> None:
        """Let go of writers, once their threads have ended. What they can't let go of is swept by the next gang."""
        for writer in self.writers:
            self._close("a sink's writer", writer)

    def _close(self, what: str, one: Reader | SinkWriter) -> None:
        try:
            one.close()
        except Exception as error:
            log.warning("%s could not be closed: %r job=%s", what, error, self.setup.plan.job)


def assemble(setup: NodeSetup, snapshots: Snapshots, threads: Threads, post: Post, now_ms: Callable[[], int]) -> Assembly:
    """Build one subtask of every stage and number its channels."""
    assembly = Assembly(setup)
    exact: set[str] = set()
    for stage in setup.plan.stages:
        inputs = _channels(stage.inputs, setup, incoming=True)
        outputs = _channels(stage.outputs, setup, incoming=False)
        chain, reader = _chain(stage, setup, threads, post, assembly, now_ms)
        task = StageTask(
            stage,
            _protocol(stage, setup, len(inputs), len(outputs)),
            chain,
            subtask=setup.node,
            parallelism=setup.parallelism,
            key_groups=setup.plan.key_groups,
            ports=[edge.port for edge, _ in inputs],
            reader=reader,
            injector=_injector(stage, setup) if reader is not None else None,
            snapshots=snapshots,
            now_ms=now_ms,
        )
        task.exact_inputs = frozenset(i for i, (edge, _) in enumerate(inputs) if edge.source in exact)
        if _is_exact(stage, reader, exact):
            exact.add(stage.name)
        assembly.tasks.append(task)
        for input_id, (edge, channel) in enumerate(inputs):
            assembly.inbound[channel] = (task, input_id)
            assembly.schemas[channel] = edge.schema
        for output_id, (_, channel) in enumerate(outputs):
            assembly.outbound[channel] = (task, output_id)
    for task in assembly.tasks:
        if task.reader is not None:
            task.pace = _pace(task, assembly)
    return assembly


def _is_exact(stage: Stage, reader: Reader | None, exact: Collection[str]) -> bool:
    """Is the watermark between the same rows in every run? From a single input it is passed on where it came."""
    if reader is not None:
        return reader.exact
    return len(stage.inputs) == 1 and stage.inputs[0].kind == "forward" and stage.inputs[0].source in exact


def _pace(source: StageTask, assembly: Assembly) -> SkewLimit:
    """Where the source feeds anything else than windows its rows are wanted at once: then it never waits."""
    me = assembly.setup.node
    mine = (channel for channel, (task, _) in assembly.outbound.items() if task is source and channel.receiver == me)
    fed = [assembly.inbound[channel] for channel in mine]
    if not all(task.chain.waits_for_time for task, _ in fed):
        return SkewLimit()
    return SkewLimit([InputSkew(task.protocol, input_id) for task, input_id in fed])


def _channels(edges: Sequence[Edge], setup: NodeSetup, *, incoming: bool) -> list[tuple[Edge, ChannelId]]:
    me = setup.node
    return [
        (edge, ChannelId(edge.id, peer, me) if incoming else ChannelId(edge.id, me, peer))
        for edge in edges
        for peer in map(NodeId, receivers(edge, me, setup.parallelism))
    ]


def _protocol(stage: Stage, setup: NodeSetup, inputs: int, outputs: int) -> Subtask[pa.RecordBatch]:
    ids = iter(range(outputs))
    aligned_only = {
        output_id
        for edge in stage.outputs
        for _, output_id in zip(receivers(edge, setup.node, setup.parallelism), ids, strict=False)
        if edge.aligned_only
    }
    upstreams = inputs if stage.barrier is None else stage.barrier.upstream_count(setup.parallelism)
    if upstreams != inputs:
        raise ProtocolError(f"the barrier is not of this stage stage={stage.name} upstream_count={upstreams} channels={inputs}")
    return Subtask(
        range(upstreams),
        range(outputs),
        setup.checkpoints or UnalignedCheckpointConfig(),
        aligned_only_inputs=any(edge.aligned_only for edge in stage.inputs),
        aligned_only_outputs=aligned_only,
    )


def _injector(stage: Stage, setup: NodeSetup) -> CheckpointBarrierInjector | None:
    """With checkpointing off there is none."""
    if setup.checkpoints is None:
        return None
    return CheckpointBarrierInjector(BarrierInjectorConfig(periodic_interval_ms=None, source_id=stage.name))


def _chain(
    stage: Stage, setup: NodeSetup, threads: Threads, post: Post, assembly: Assembly, now_ms: Callable[[], int]
) -> tuple[Chain, Reader | None]:
    specs = list(stage.operators)
    operators: list[tuple[str, Operator]] = []
    reader = None
    head = specs[0]
    if isinstance(head, Read):
        del specs[0]
        splits = setup.splits[head.name]
        ordered = any(spec.orders_by_time for spec in setup.plan.operators)
        reader = open_reader(head.name, head.source, splits, setup.node, setup.parallelism, now_ms, side_by_side=ordered)
        operators.append((head.name, head.admit()))
    context = OperatorContext(
        subtask=setup.node,
        parallelism=setup.parallelism,
        key_groups=setup.plan.key_groups,
        gang=setup.gang,
        checkpointing=setup.checkpoints is not None,
        executor=threads.executor,
        wake=partial(post, _nothing),
    )
    operators += [(first.name, first.build_fused(rest, context)) for first, *rest in fused(specs)]
    assembly.writers += [operator.writer for _, operator in operators if isinstance(operator, SinkOperator)]
    return Chain(operators), reader


def fused(specs: Sequence[OperatorSpec]) -> list[list[OperatorSpec]]:
    """The operators of a chain; neighbours that are built as one are together."""
    together: list[list[OperatorSpec]] = []
    for spec in specs:
        word = spec.description.fused
        if together and word is not None and together[-1][-1].description.fused == word:
            together[-1].append(spec)
        else:
            together.append([spec])
    return together


def _nothing() -> None:
    """Wakes the loop."""
