"""Checkpoints as data: the log, operators' state and recorded in-flight data as Arrow tables. Reads only.

Safe beside a running job, except that a checkpoint may be collected while it is being read; then that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tidegate.core.checkpoint.manifest import (
    CheckpointManifest,
    InFlightEntry,
    OperatorSnapshotEntry,
    RunEntry,
)
from tidegate.core.log.paths import JobPaths, LogObject
from tidegate.core.log.view import Commit, Damaged, LogRecord, LogView
from tidegate.errors import (
    CheckpointNotFound,
    CorruptDataError,
    InFlightDeserializationFailed,
    InvalidUseError,
    NoCheckpoint,
)
from tidegate.ids import Epoch
from tidegate.operators.join import PANE_COLUMNS
from tidegate.operators.stored import current_rows
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.snapshotfile import WATERMARK_KEY, check_rows, crc32c, read_run
from tidegate.state.functions import AggregateColumn
from tidegate.state.partial import END, WINDOW, Layout, counted_partials, results
from tidegate.store.interface import Store
from tidegate.store.objects import bare_url
from tidegate.store.open import local_path, open_store
from tidegate.values import Json

CHECKPOINTS = pa.schema(
    [
        ("job", pa.string()),
        ("epoch", pa.int64()),
        ("checkpoint_id", pa.int64()),
        ("parent", pa.int64()),
        ("kind", pa.string()),
        ("unaligned", pa.bool_()),
        ("parallelism", pa.int64()),
        ("committed", pa.timestamp("ms", "UTC")),
        ("duration_ms", pa.int64()),
        ("bytes", pa.int64()),
        ("state_rows", pa.int64()),
        ("inflight_bytes", pa.int64()),
        ("restorable", pa.bool_()),
    ]
)
INFLIGHT = pa.schema(
    [
        ("job", pa.string()),
        ("epoch", pa.int64()),
        ("operator", pa.string()),
        ("subtask", pa.int64()),
        ("direction", pa.string()),
        ("channel", pa.int64()),
        ("peer", pa.int64()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
PANE_START = "pane_start"
_RESULT = re.compile(r"(?P<name>.*)=(?P<function>[a-z_]+)\((?P<column>.*)\) (?P<type>[^=()]+(\(\d+, \d+\))?.*)", re.DOTALL)
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint of one job, and the store it is in."""

    store: Store
    manifest: CheckpointManifest

    def entries(self, operator: str) -> list[OperatorSnapshotEntry]:
        """The state of an operator, by subtask; refuses an operator that has none, naming those that have."""
        mine = [entry for entry in self.manifest.operators if entry.operator == operator]
        if not mine:
            names = ", ".join(sorted({entry.operator for entry in self.manifest.operators})) or "none"
            raise InvalidUseError(f"no such operator has state here; there are: {names} operator={operator}")
        return mine


def existing_store(url: str | Path) -> Store:
    """The store at this address. A directory that is not there is an error, not a new store."""
    text = str(url)
    path = local_path(text)
    if path is not None and not Path(path).expanduser().is_dir():
        raise InvalidUseError(f"no such directory: give the store that the job was started with store={text}")
    return open_store(text)


def jobs_in(store: Store) -> list[str]:
    """The names of the jobs that have a log here."""
    heads = {info.path.partition("/")[0]: info.path for info in store.list("") if "/log/" in info.path}
    return sorted(job for job, path in heads.items() if isinstance(_parsed(job, path), LogObject))


def _parsed(job: str, path: str) -> object:
    try:
        return JobPaths(job).parse(path)
    except InvalidUseError:
        return None


def find(url: str | Path, *, job: str | None = None, epoch: Epoch | None = None, operator: str | None = None) -> Found:
    """A checkpoint of this epoch, or the one that the next start would begin from.

    Of this job; else of the only one, or of the only one that has such an operator.
    """
    store = existing_store(url)
    name = job if job is not None else _only_job(store, operator)
    if epoch is None:
        return Found(store, _next_start(LogStore(store, name).view(), name, store))
    entries = LogStore(store, name).read()
    for damaged in (entry for entry in entries if isinstance(entry, Damaged) and entry.slot == epoch):
        raise CorruptDataError(damaged.why, path=damaged.path)
    manifests = {entry.manifest.epoch: entry.manifest for entry in entries if isinstance(entry, Commit)}
    if epoch not in manifests:
        there = ", ".join(map(str, sorted(manifests)[-12:])) or "none"
        raise CheckpointNotFound(f"no checkpoint with this epoch; there are: {there} epoch={epoch} job={name}")
    return Found(store, manifests[epoch])


def _next_start(view: LogView, job: str, store: Store) -> CheckpointManifest:
    if view.unclear is not None:
        raise CorruptDataError(view.unclear.why, path=view.unclear.path)
    for manifest in view.restorables():
        return manifest
    if view.head_is_lost:
        raise CorruptDataError(f"every retained checkpoint is damaged job={job}", path=view.damage[-1].path)
    raise NoCheckpoint(f"the job has no checkpoint yet job={job} store={store.url}")


def _only_job(store: Store, operator: str | None) -> str:
    names = jobs_in(store)
    if len(names) > 1 and operator is not None:
        heads = {name: LogStore(store, name).view().head for name in names}
        names = [name for name, head in heads.items() if head is not None and operator in head.plan] or names
    if len(names) != 1:
        there = ", ".join(names) if names else "none"
        raise InvalidUseError(f"name the job; in this store there are: {there} store={store.url}")
    return names[0]


# -- state -------------------------------------------------------------------------------------------------------------


def read_state(found: Found, operator: str, subtasks: Iterable[int] | None = None) -> pa.Table:
    """An operator's state as rows. Keys never span subtasks, so the tables of subtasks add up to the whole."""
    chosen = None if subtasks is None else set(subtasks)
    shape = _shape(found.manifest, operator)
    entries = [e for e in found.entries(operator) if chosen is None or e.subtask in chosen]
    runs = [batch for entry in entries for batch in _current(found, entry, shape)]
    if not runs:
        return _planned(shape).empty_table()
    layout = _layout(shape, runs[0].schema)
    if layout is not None:
        return _decoded(runs, layout, shape)
    return pa.concat_tables([_plain(run, shape) for run in runs], promote_options="default")


def _current(found: Found, entry: OperatorSnapshotEntry, shape: dict[str, Any]) -> list[pa.RecordBatch]:
    """The rows of one subtask that are state now: later runs may replace or take away rows of earlier ones."""
    runs = [_run(found.store, run) for run in entry.runs]
    columns = [name for run in runs for name in run.schema.names]
    keys = _names_of(shape.get("keys", []), columns)
    meta = cast("Mapping[str, Json]", entry.meta)
    overlapping = _time_name(WINDOW, shape) == PANE_START
    return current_rows(keys, runs, meta, overlapping=overlapping)


def state_schema(found: Found, operator: str) -> pa.Schema:
    """The columns of an operator's state, from the first subtask that has any or, where it is empty, from the plan."""
    for entry in found.entries(operator):
        if entry.runs:
            return read_state(found, operator, [entry.subtask]).schema
    return _planned(_shape(found.manifest, operator))


def _shape(manifest: CheckpointManifest, operator: str) -> dict[str, Any]:
    shape = manifest.plan.get(operator)
    return shape if isinstance(shape, dict) else {}


def _run(store: Store, entry: RunEntry) -> pa.RecordBatch:
    path = entry.path or "inline"
    data = entry.inline_bytes() if entry.path is None else _bytes(store, entry.path, entry.offset, entry.length)
    if crc32c(data) != entry.crc32c:
        raise CorruptDataError(f"the checksum differs: the checkpoint is corrupt path={path}", path=path)
    return read_run(data, path)


def _bytes(store: Store, path: str, offset: int, length: int) -> bytes:
    try:
        return store.get_range(path, offset, length)
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"this checkpoint is no longer complete, it was collected path={path}") from error


def _layout(shape: dict[str, Any], schema: pa.Schema) -> Layout | None:
    """How partial aggregates are laid out here; ``None`` when these are no partial aggregates that we know."""
    if "aggregates" not in shape or "keys" not in shape:
        return None
    calls = [_RESULT.fullmatch(text) for text in shape["aggregates"]]
    time_columns = tuple(name for name in schema.names if name in (WINDOW, END))
    keys = tuple(_names_of(shape["keys"], schema.names))
    aggregates = tuple(
        AggregateColumn.of(call["name"], call["function"], call["column"] or None) for call in calls if call is not None
    )
    try:
        layout = Layout(keys, aggregates, time_columns)
        return layout if layout.names == schema.names and None not in calls else None
    except InvalidUseError:
        return None


def _names_of(columns: Sequence[str], among: Sequence[str]) -> list[str]:
    """Names out of ``name type`` texts; names may have spaces, so the stored columns decide."""
    return [max((n for n in among if text.startswith(f"{n} ")), key=len, default=text.partition(" ")[0]) for text in columns]


def _decoded(runs: Sequence[pa.RecordBatch], layout: Layout, shape: dict[str, Any]) -> pa.Table:
    """One row per key and window, with the aggregates as they stand."""
    merged = counted_partials(runs, layout)
    columns: dict[str, pa.Array] = {}
    for name in layout.time_columns:
        columns[_time_name(name, shape)] = merged.column(name).cast(_time_type(shape))
    columns |= {key: merged.column(key) for key in layout.keys}
    columns |= {
        aggregate.name: array for aggregate, array in zip(layout.aggregates, results(merged, layout.aggregates), strict=True)
    }
    return pa.table(columns)


def _plain(run: pa.RecordBatch, shape: dict[str, Any]) -> pa.Table:
    """The stored columns themselves; those that say where in time a row is get the names of results."""
    table = pa.Table.from_batches([run])
    if not shape.get("window"):
        return table
    first = table.column_names[0]  # later columns of that name are the user's
    side = first.removeprefix("__") if first in PANE_COLUMNS else None
    for at, name in enumerate(table.column_names):
        if name in (WINDOW, END) or (at == 0 and side is not None):
            table = table.set_column(at, _time_name(name, shape), table.column(at).cast(_time_type(shape)))
    return table if side is None else table.add_column(0, "side", pa.array([side] * len(table), pa.string()))


def _time_name(column: str, shape: dict[str, Any]) -> str:
    if column == END:
        return "window_end"
    window = shape.get("window") or {}
    return PANE_START if window.get("kind") == "sliding" and window.get("size") != window.get("slide") else "window_start"


def _time_type(shape: dict[str, Any]) -> pa.DataType:
    return type_of(str(shape.get("time", "int64")))


def _planned(shape: dict[str, Any]) -> pa.Schema:
    fields = [pa.field(_time_name(WINDOW, shape), _time_type(shape))] if shape.get("window") else []
    fields += [pa.field(name, type_of(kind)) for name, _, kind in (text.partition(" ") for text in shape.get("keys", ()))]
    calls = [_RESULT.fullmatch(text) for text in shape.get("aggregates", ())]
    fields += [pa.field(call["name"], type_of(call["type"])) for call in calls if call is not None]
    return pa.schema(fields or [pa.field("operator", pa.string())])


def type_of(text: str) -> pa.DataType:
    """The Arrow type that prints as this; text for those that have no short name."""
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    if found := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if found[1] == "128" else pa.decimal256
        return make(int(found[2]), int(found[3]))
    try:
        return pa.type_for_alias(text.partition("[")[0] if text.startswith("date") else text)
    except ValueError:
        return pa.string()


# -- checkpoints and in-flight data ------------------------------------------------------------------------------------


def read_checkpoints(url: str | Path, job: str | None = None) -> pa.Table:
    """Every committed checkpoint of every job, oldest first."""
    store = existing_store(url)
    names = [job] if job else jobs_in(store)
    rows = [row for name in names for row in _checkpoints(name, LogStore(store, name).read())]
    return pa.Table.from_pylist(rows, schema=CHECKPOINTS)


def _checkpoints(job: str, entries: Sequence[LogRecord]) -> Iterator[dict[str, Any]]:
    restorable = {manifest.epoch for manifest in LogView(entries).restorables()}
    for entry in entries:
        if isinstance(entry, Damaged) and entry.kind in ("commit", None):
            yield {"job": job, "epoch": entry.slot, "kind": "damaged", "restorable": False}
        if isinstance(entry, Commit):
            m = entry.manifest
            yield {
                "job": m.job,
                "epoch": m.epoch,
                "checkpoint_id": m.checkpoint_id,
                "parent": m.parent,
                "kind": "final" if m.final else "savepoint" if m.is_savepoint else "checkpoint",
                "unaligned": m.is_unaligned,
                "parallelism": m.parallelism,
                "committed": m.commit_wall_ms,
                "duration_ms": max(0, m.commit_wall_ms - m.trigger_wall_ms),
                "bytes": sum(each.size_bytes for each in m.objects),
                "state_rows": sum(run.rows for each in m.operators for run in each.runs),
                "inflight_bytes": sum(each.bytes for each in m.inflight),
                "restorable": m.epoch in restorable,
            }


def list_inflight(found: Found) -> pa.Table:
    """What was recorded where."""
    rows = [{**_place(entry, found), "events": entry.events, "bytes": entry.bytes} for entry in found.manifest.inflight]
    return pa.Table.from_pylist(rows, schema=INFLIGHT)


def read_inflight(found: Found, operator: str) -> pa.Table:
    """The recorded rows of an operator's channels, each with the channel it was on."""
    tables = [_recorded(found, entry) for entry in found.manifest.inflight if entry.operator == operator and entry.events]
    if not tables:
        there = sorted({entry.operator for entry in found.manifest.inflight}) or ["none"]
        raise InvalidUseError(f"nothing was in flight there; there are: {', '.join(there)} operator={operator}")
    return pa.concat_tables(tables, promote_options="default")


def _place(entry: InFlightEntry, found: Found) -> dict[str, Any]:
    return {
        "job": found.manifest.job,
        "epoch": found.manifest.epoch,
        "operator": entry.operator,
        "subtask": entry.subtask,
        "direction": entry.direction,
        "channel": entry.channel,
        "peer": entry.peer,
    }


def _recorded(found: Found, entry: InFlightEntry) -> pa.Table:
    data = _bytes(found.store, entry.path, entry.offset, entry.length)
    if crc32c(data) != entry.crc32c:
        raise CorruptDataError(f"the checksum differs: in-flight data is corrupt path={entry.path}", path=entry.path)
    table = _recorded_rows(data, entry.path)
    for at, name in enumerate(("subtask", "direction", "channel", "peer")):
        value = _place(entry, found)[name]
        table = table.add_column(at, f"inflight_{name}", pa.array([value] * len(table), INFLIGHT.field(name).type))
    return table


def _recorded_rows(data: bytes, path: str) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batches = [b for b, meta in reader.iter_batches_with_custom_metadata() if not meta or WATERMARK_KEY not in meta]
            for batch in batches:
                check_rows(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InFlightDeserializationFailed(f"in-flight data can't be read: {error} path={path}", path=path) from error


def shown(url: str | Path) -> str:
    """A store's address without secrets."""
    text = str(url)
    return bare_url(text) if "://" in text else text
