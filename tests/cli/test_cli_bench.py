"""What the benchmark says about its figures, and when it says that they are worth little."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tidegate.bench import switching
from tidegate.bench.compare import Comparison
from tidegate.bench.pipeline import PipelineSettings, _overhead, _result, engine_result
from tidegate.bench.workloads import RunResult, workloads
from tidegate.cli.bench import _print, machine, warnings
from tidegate.cli.console import Console
from tidegate.errors import InvalidUseError

W1 = workloads(1_000)[0]
EQUAL = Comparison(True, 10, 10)


def ran(*seconds: float, rows: int = 1_000) -> list[RunResult]:
    return [RunResult(rows, each, 10, 1) for each in seconds]


def document(
    ours: list[RunResult],
    theirs: list[RunResult],
    pairs: list[tuple[float, float]],
    load: float = 0.0,
    switched: list[tuple[float, float]] | None = None,
) -> dict[str, Any]:
    both = [(ran(on)[0], ran(off)[0]) for on, off in pairs]
    return {
        "suite": "pipeline",
        "machine": {**machine(), "cores": 2, "load_before": load, "load_after": load},
        "seconds": 1.0,
        "workloads": [_result(W1, {"tidegate": ours, "duckdb": theirs}, [EQUAL])],
        "checkpointing": _overhead(W1, 1, both, 60.0) if pairs else None,
        "checkpointing_within_one_job": {
            "workload": "w1_zipf",
            "interval": "1s",
            **switching.result(*map(list, zip(*switched, strict=True))),
        }
        if switched
        else None,
    }


def test_engines_are_compared_by_their_median_rates() -> None:
    result = _result(W1, {"tidegate": ran(2.0, 1.0, 4.0), "duckdb": ran(1.0, 1.0, 5.0)}, [EQUAL])
    assert result["engines"]["tidegate"]["rows_per_second"] == {"min": 250.0, "median": 500.0, "max": 1_000.0}
    assert result["times_faster_than"] == {"duckdb": 0.5}


def test_engines_that_read_fewer_rows_are_compared_by_rate_too() -> None:
    runs = {"tidegate": ran(1.0), "structured_streaming": ran(1.0, rows=100)}
    assert _result(W1, runs, [EQUAL])["times_faster_than"] == {"structured_streaming": 10.0}


def test_one_unequal_round_makes_the_result_unequal() -> None:
    result = _result(W1, {"tidegate": ran(1.0)}, [EQUAL, Comparison(False, 9, 10, 1)])
    assert result["equal"] is False
    assert result["comparison"] == "NOT EQUAL (9 rows, expected 10, 1 wrong or missing)"


def test_the_cost_is_taken_pair_by_pair() -> None:
    pairs = [(ran(2.0)[0], ran(1.0)[0]), (ran(1.0)[0], ran(1.0)[0]), (ran(1.0)[0], ran(1.25)[0])]
    result = _overhead(W1, 3, pairs, 60.0)
    assert result["cost_per_pair"] == pytest.approx([0.5, 0.0, -0.25])
    assert result["cost"] == pytest.approx({"min": -0.25, "median": 0.0, "max": 0.5})
    assert result["rows"] == 3_000


def test_quiet_figures_come_without_warnings() -> None:
    assert warnings(document(ran(1.0, 1.1), ran(1.0), [(61.0, 60.0), (61.1, 60.1)])) == []
    assert warnings(document(ran(1.0), ran(1.0), [])) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"load": 1.5}, "busy before the start"),
        ({"ours": ran(1.0, 2.0)}, "tidegate's runs are 2.0 x apart"),
        ({"pairs": [(66.0, 60.0), (60.0, 66.0)]}, "scatter by 19.1 points"),
        ({"pairs": [(6.1, 6.0), (6.1, 6.0)]}, "took 6.0 s only, not 60 s"),
    ],
)
def test_noise_is_said_aloud(given: dict[str, Any], sentence: str) -> None:
    quiet: dict[str, Any] = {"ours": ran(1.0), "theirs": ran(1.0), "pairs": [(61.0, 60.0)]}
    noisy = document(**{**quiet, **given})
    assert any(sentence in warning for warning in warnings(noisy)), warnings(noisy)
    printed = io.StringIO()
    _print(noisy, Console(False, printed))
    assert "NOTE: " in printed.getvalue()


def test_people_see_lowest_median_and_highest_and_programs_one_document() -> None:
    found = document(ran(1.0, 2.0, 4.0), ran(0.5), [(61.0, 60.0)])
    people, programs = io.StringIO(), io.StringIO()
    _print(found, Console(False, people))
    _print(found, Console(True, programs))
    text = people.getvalue()
    assert all(word in text for word in ("lowest", "median", "highest", "0.25 x as fast", "equal (10 rows)"))
    assert "cost: median 1.6%, lowest 1.6%, highest 1.6%" in text
    (line,) = programs.getvalue().splitlines()
    assert set(json.loads(line)) == {
        "suite",
        "machine",
        "seconds",
        "workloads",
        "checkpointing",
        "checkpointing_within_one_job",
        "warnings",
    }


@pytest.mark.parametrize(
    ("switched", "said"),
    [([(98.0, 100.0), (96.0, 100.0)], "3.0%, standard error 1.0%"), ([(98.0, 100.0)], "2.0%, standard error unknown")],
)
def test_the_cost_within_one_job_comes_with_its_standard_error(switched: list[tuple[float, float]], said: str) -> None:
    people = io.StringIO()
    _print(document(ran(1.0), ran(1.0), [], switched=switched), Console(False, people))
    assert f"cost: {said}" in people.getvalue()


def test_restarts_and_checkpoints_of_every_run_are_kept() -> None:
    result = engine_result([RunResult(10, 1.0, 5, 3, 0), RunResult(10, 1.0, 5, 4, 1)])
    assert (result["checkpoints"], result["restarts"]) == ([3, 4], [0, 1])


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"rows": 0}, "--rows"),
        ({"rounds": -1}, "--rounds"),
        ({"seconds": -1.0}, "--seconds"),
        ({"switches": -1}, "--switches"),
        ({"parallelism": 0}, "--par"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidUseError, match=option):
        PipelineSettings(**given)


def test_steps_count_what_the_bar_shows() -> None:
    assert PipelineSettings().steps == 1 + 4 * 3 + 1 + 5 + 1
    assert PipelineSettings(rounds=0, pairs=0, switches=0).steps == 1
    assert PipelineSettings(workloads=("w2_join",), pairs=0, switches=0).steps == 1 + 3
