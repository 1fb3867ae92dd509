"""Runs a physical plan in one thread, stage after stage: what the plan means, without channels or barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from specs import build
from tidegate.operators.map import MapBatches
from tidegate.operators.sink import Write
from tidegate.operators.source import Read
from tidegate.plan.operator import OperatorSpec
from tidegate.plan.physical import PhysicalPlan, Stage

END_OF_TIME = 1 << 60


def run(plan: PhysicalPlan) -> dict[str, pa.Table]:
    """The rows that reach every sink, by the sink's name."""
    emitted: dict[str, list[pa.RecordBatch]] = {}
    sinks: dict[str, pa.Table] = {}
    for stage in plan.stages:
        arriving = [(edge.port, batch) for edge in stage.inputs for batch in emitted[edge.source]]
        for edge in stage.inputs:
            assert all(batch.schema.equals(edge.schema) for batch in emitted[edge.source])
        emitted[stage.name] = _run_stage(stage, arriving)
        last = stage.operators[-1]
        if isinstance(last, Write):
            sinks[last.name] = pa.Table.from_batches(emitted[stage.name], last.schema)
    return sinks


def _run_stage(stage: Stage, arriving: list[tuple[int, pa.RecordBatch]]) -> list[pa.RecordBatch]:
    for spec in stage.operators:
        arriving = [(0, batch) for batch in _run_operator(spec, arriving)]
        assert all(batch.schema.names == spec.schema.names for _, batch in arriving), spec.name
    return [batch for _, batch in arriving]


def _run_operator(spec: OperatorSpec, arriving: list[tuple[int, pa.RecordBatch]]) -> Iterable[pa.RecordBatch]:
    match spec:
        case Read():
            return _read(spec)
        case Write():
            return [batch for _, batch in arriving]
        case MapBatches():
            return [spec.function(batch) for _, batch in arriving]
    operator = build(spec, 0, 1)
    found = [each for port, batch in arriving for each in operator.process(port, batch)]
    return [*found, *operator.watermark(END_OF_TIME), *operator.end()]


def _read(spec: Read) -> Iterator[pa.RecordBatch]:
    for split in spec.source.splits():
        reader = spec.source.open(split, None)
        while not (polled := reader.poll(1000)).finished:
            if polled.batch is not None:
                yield polled.batch
        if polled.batch is not None:
            yield polled.batch
        reader.close()
