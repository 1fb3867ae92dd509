"""The metrics of a job are those that are listed, with values of the types that are listed, and all of them are documented."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, until

import tidegate as tg
from tidegate.errors import CorruptDataError
from tidegate.runtime.metrics import COUNTS, WORK, JobMetrics, NodeMetrics, NodeReport, OperatorMetrics, listed, read_report
from tidegate.runtime.report import Totals

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
SHOWN = (JobMetrics, OperatorMetrics, NodeMetrics)


def assert_fits(found: Mapping[str, Any], of: type) -> None:
    """The keys of a class, no more and no fewer, each with a value of its type."""
    hints = get_type_hints(of)
    assert found.keys() == hints.keys()
    for name, hint in hints.items():
        allowed = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
        assert isinstance(found[name], allowed), f"{name} is {found[name]!r}, listed as {hint}"


def report(rows: int, *, late: int = 0) -> NodeReport:
    """A node that has counted so much of everything."""
    operators = {"w": {"late_rows": late, "state_rows": 1, "state_bytes": 8}}
    return read_report({**dict.fromkeys(COUNTS, rows), "operators": operators, "is_in_unaligned_mode": False})


def test_a_running_job_says_exactly_what_is_listed(tmp_path: Path) -> None:
    source, jobs = GatedSource(events(), allowed=1_000), Jobs(tmp_path)
    job = jobs.start(tg.Pipeline("m", counts(tg.from_source(source)).write(MemorySink())))
    try:
        until(lambda: job.metrics()["operators"] and job.metrics()["rows_in"] == 1_000, "reports of both nodes")
        found = job.metrics()
        assert_fits(found, JobMetrics)
        (measured,) = found["operators"].values()
        assert_fits(measured, OperatorMetrics)
        assert [node["node"] for node in found["nodes"]] == [0, 1]
        for node in found["nodes"]:
            assert_fits(node, NodeMetrics)
    finally:
        jobs.stop_all()


def test_a_job_that_has_not_heard_of_its_nodes_says_them_too() -> None:
    assert Totals().added_up().keys() < get_type_hints(JobMetrics).keys()
    assert {Totals().added_up()[name] for name in COUNTS} == {0}  # type: ignore[literal-required]


@pytest.mark.parametrize("of", SHOWN)
def test_every_value_is_listed_with_what_it_means(of: type) -> None:
    assert dict(listed(of)).keys() == get_type_hints(of).keys()
    for name, metric in listed(of):
        assert metric.meaning and not metric.meaning.endswith("."), name
        numbers = {int, bool} & {*get_args(get_type_hints(of)[name]), get_type_hints(of)[name]}
        assert (metric.kind != "info") == bool(numbers), name


def test_every_listed_metric_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert documented == {name for of in SHOWN for name, _ in listed(of)}


def test_work_adds_up_over_gangs_and_state_does_not() -> None:
    totals = Totals()
    totals.report(1, 0, report(10, late=4))
    totals.report(1, 1, report(5))
    totals.report(2, 0, report(3, late=4))
    found = totals.added_up()
    assert {name: found[name] for name in WORK} == dict.fromkeys(WORK, 18)  # type: ignore[literal-required]
    assert (found["rows_in"], found["late_rows"], found["operators"]["w"]["state_bytes"]) == (8, 4, 16)
    assert "stale_commands" in WORK


@pytest.mark.parametrize("name", sorted(NodeReport.__required_keys__))
def test_a_report_without_one_of_its_values_is_corrupt(name: str) -> None:
    said = {key: value for key, value in report(1).items() if key != name}
    with pytest.raises(CorruptDataError, match="a node's report lacks counts"):
        read_report(said)
    with pytest.raises(CorruptDataError, match="a node's report lacks counts"):
        read_report(said | {name: NoneType})
