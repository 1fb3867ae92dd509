"""Every metric of a job, once: its name and type, its unit, what it means and what a recovery does to it.

``job.metrics()`` returns a ``JobMetrics``, a plain dict with exactly these keys. To add a metric, add its line here and the value
where it is measured: mypy refuses a name that is not listed, or a listed one without a value, and a test refuses a page
``docs/metrics.md`` that does not have it (``python tools/lists.py`` writes it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, cast, get_args, get_type_hints

from tidegate.errors import CorruptDataError

Kind = Literal["counter", "gauge", "info"]
Total = Literal["state", "cut", "work", "run", "now"]
TOTALS: dict[Total, str] = {
    "state": "each row once, since the job's first start; goes back to the checkpoint's value, then on, at a new start too",
    "cut": "each row once, in this run; goes back to the checkpoint's value, then on; a new start begins at 0",
    "work": "all work of this run, what was rolled back included; a recovery adds to it; a new start begins at 0",
    "run": "what happened in this run; a recovery adds to it; a new start begins at 0",
    "now": "what is so now",
}
"""What a number means when nodes are lost and the job goes back to its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What one is. ``unit`` is of a number, empty for what is no number."""

    unit: str
    meaning: str
    total: Total = "now"

    @property
    def kind(self) -> Kind:
        """A counter grows, but for recoveries; a gauge goes up and down."""
        if self.total != "now":
            return "counter"
        return "gauge" if self.unit else "info"


class OperatorMetrics(TypedDict):
    """Of one operator with state, all its subtasks together: ``job.metrics()["operators"][name]``."""

    late_rows: Annotated[int, Metric("rows", "dropped or sent away as late", "state")]
    state_rows: Annotated[int, Metric("rows", "held as state: keys, panes, buffered rows")]
    state_bytes: Annotated[int, Metric("bytes", "held for `state_rows`, indexes included")]


class NodeMetrics(TypedDict):
    """Of one node: an item of ``job.metrics()["nodes"]``."""

    node: Annotated[int, Metric("id", "the node's number, its Spark task")]
    pid: Annotated[int, Metric("id", "its process")]
    host: Annotated[str, Metric("", "where its process runs")]
    doing: Annotated[str | None, Metric("", "what it said last that it was in, and for how long")]


class Counts(TypedDict):
    """What every node counts and reports: all nodes together."""

    rows_in: Annotated[int, Metric("rows", "read by sources, before filters", "state")]
    rows_read: Annotated[int, Metric("rows", "read by sources; what is beyond the growth of `rows_in` was read again", "work")]
    rows_out: Annotated[int, Metric("rows", "taken by sinks, committed or not", "cut")]
    unaligned_count: Annotated[int, Metric("snapshots", "of fan-ins whose barrier overtook data", "work")]
    threshold_switches: Annotated[int, Metric("snapshots", "as `unaligned_count`, after `alignment_timeout` had passed", "work")]
    total_inflight_bytes: Annotated[int, Metric("bytes", "of overtaken data, stored with checkpoints", "work")]
    upload_retries: Annotated[int, Metric("tries", "to upload a part of a checkpoint, but the first", "work")]
    stale_commands: Annotated[int, Metric("messages", "of an earlier term or gang that nodes refused", "work")]


class NodeReport(Counts):
    """What a node says of itself twice a second: ``Counts`` and what is not a sum. JSON on the control line."""

    operators: dict[str, OperatorMetrics]
    is_in_unaligned_mode: bool


class CountsAddedUp(Counts):
    """The reports of all nodes together."""

    late_rows: Annotated[int, Metric("rows", "dropped or sent away as late by all operators", "state")]
    is_in_unaligned_mode: Annotated[bool, Metric("0 or 1", "barriers overtake data somewhere at this moment")]
    operators: Annotated[dict[str, OperatorMetrics], Metric("", "by operator, see below")]


class StorageMetrics(TypedDict):
    """Whether the store and the sinks can be used. ``None`` while all is well."""

    checkpoints_failing_since: Annotated[str | None, Metric("", "the time, UTC, of the oldest of `job.problems`")]
    checkpoints_failing_because: Annotated[str | None, Metric("", "the oldest of `job.problems`, in a sentence")]
    last_store_error: Annotated[str | None, Metric("", "the last error of the store, also one that has passed")]


class CheckpointMetrics(TypedDict):
    """What the coordinator has measured since this driver leads. ``last``: of the last committed checkpoint."""

    checkpoint_in_progress: Annotated[int | None, Metric("id", "of the attempt under way; `job.cancel_checkpoint` takes it")]
    checkpoints_aborted: Annotated[int, Metric("checkpoints", "given up", "run")]
    checkpoints_aborted_by_error: Annotated[dict[str, int], Metric("checkpoints", "given up, by the class of the error", "run")]
    checkpoints_unaligned: Annotated[int, Metric("checkpoints", "committed, in which a barrier overtook data somewhere", "run")]
    checkpoints_compacted: Annotated[int, Metric("checkpoints", "that wrote all state again for `max_checkpoint_size`", "run")]
    last_checkpoint_duration_ms: Annotated[int, Metric("ms", "from the trigger to the commit")]
    max_checkpoint_duration_ms: Annotated[int, Metric("ms", "the longest from a trigger to its commit")]
    total_checkpoint_duration_ms: Annotated[int, Metric("ms", "of all commits together", "run")]
    last_checkpoint_bytes: Annotated[int, Metric("bytes", "uploaded by all nodes")]
    last_checkpoint_stored_bytes: Annotated[int, Metric("bytes", "of its objects, those of earlier ones that it uses included")]
    total_checkpoint_bytes: Annotated[int, Metric("bytes", "uploaded by all nodes for all commits", "run")]
    last_checkpoint_node_durations_ms: Annotated[dict[int, int], Metric("ms", "until a node's part was durable, by node")]
    last_barrier_latency_ms: Annotated[int, Metric("ms", "from the notice of a checkpoint to the last subtask's cut")]
    max_barrier_latency_ms: Annotated[int, Metric("ms", "the longest from a notice to the last subtask's cut")]
    checkpoint_promotions: Annotated[int, Metric("checkpoints", "whose barriers were told to overtake", "run")]
    commit_notice_retries: Annotated[int, Metric("messages", "that told a node of a commit again, unacknowledged", "run")]
    duplicate_acks: Annotated[int, Metric("messages", "reports of nodes that had reported already", "run")]
    put_retries: Annotated[int, Metric("tries", "to write an entry of the log, but the first", "run")]
    publish_retries: Annotated[int, Metric("tries", "to make committed rows visible, but the first", "run")]
    leader_failovers: Annotated[int, Metric("takeovers", "1 when somebody else led this job before", "run")]


class JobMetrics(CountsAddedUp, StorageMetrics, CheckpointMetrics):
    """What ``job.metrics()`` returns."""

    status: Annotated[str, Metric("", "as `job.status`")]
    checkpoints_committed: Annotated[int, Metric("checkpoints", "committed by this driver", "run")]
    signals_answered: Annotated[int, Metric("signals", "that all terminal points have seen", "run")]
    parameters: Annotated[dict[str, int], Metric("versions", "version of each parameter by name; 0 is the initial value")]
    stale_messages: Annotated[int, Metric("messages", "of an earlier term, gang or checkpoint that the driver ignored", "run")]
    restarts: Annotated[int, Metric("gangs", "started after one was lost, waiting for storage included", "run")]
    recoveries_ms: Annotated[list[int], Metric("ms", "from each loss of a gang until all nodes of the next had joined", "run")]
    gang: Annotated[int | None, Metric("id", "the number of the gang that runs, its slot of the log")]
    nodes: Annotated[list[NodeMetrics], Metric("", "of the gang that runs, see below")]


def listed(metrics: type) -> Iterator[tuple[str, Metric]]:
    """The metrics of one of these classes by name."""
    for name, hint in get_type_hints(metrics, include_extras=True).items():
        yield from ((name, note) for note in get_args(hint) if isinstance(note, Metric))


MEASURED = tuple(name for name, _ in listed(OperatorMetrics))
COUNTS = tuple(name for name, _ in listed(Counts))
"""What nodes count, all of them together."""
WORK = tuple(name for name, metric in listed(Counts) if metric.total == "work")
"""What gangs have done, rolled back or not: those before the one under way count too."""


def read_report(said: object) -> NodeReport:
    """What a node said of itself, if it is what a node says."""
    if not isinstance(said, dict) or not _fits(said):
        raise CorruptDataError(f"a node's report lacks counts or has other values report={said!r:.100}", path="progress")
    return cast(NodeReport, said)


def _fits(said: Mapping[str, object]) -> bool:
    operators = said.get("operators")
    measured = operators.values() if isinstance(operators, dict) else (None,)
    return (
        said.keys() == NodeReport.__required_keys__
        and _are_counts(said, COUNTS)
        and isinstance(said["is_in_unaligned_mode"], bool)
        and all(isinstance(each, dict) and _are_counts(each, MEASURED) and len(each) == len(MEASURED) for each in measured)
    )


def _are_counts(said: Mapping[str, object], names: Collection[str]) -> bool:
    return all(type(said.get(name)) is int for name in names)
