"""Signals and parameters on Spark: real processes, one of them killed with kill -9."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from test_documented import blocks

import tidegate as tg
from conftest import Start
from tidegate.testing.crash import kill_node, read_output

ROWS = 200_000
LIMITS = [10_000.0, 5_000.0, 2_500.0, 1_250.0]


def judged_by(rules: tg.Parameter) -> Any:
    def judge(batch: pa.RecordBatch) -> pa.RecordBatch:
        rule = rules.value
        fraud = pc.greater(batch.column("value"), rule["limit"][0])
        version = pa.repeat(pa.scalar(rule["version"][0].as_py(), pa.int64()), batch.num_rows)
        return batch.append_column("fraud", fraud).append_column("rule", version)

    return judge


def test_a_rule_that_changes_under_load_judges_every_row_once_although_a_worker_is_killed(start: Start, tmp_path: Path) -> None:
    def rule(version: int) -> pa.Table:
        return pa.table({"version": [version], "limit": [LIMITS[version]]})

    rules = tg.Parameter("rules", rule(0))
    rows = tg.generate(rows=ROWS, rows_per_second=ROWS / 5)
    schema = pa.schema([*rows.schema, ("fraud", pa.bool_()), ("rule", pa.int64())])
    judged = rows.map_batches(judged_by(rules), schema=schema).write_parquet(tmp_path / "out")
    job = start(tg.Pipeline("fraud", judged))
    with ThreadPoolExecutor(1) as pool:
        job.set_parameter("rules", rule(1))
        while not job.metrics()["rows_out"]:
            time.sleep(0.02)
        job.checkpoint()  # rows that were judged by now stay so, whatever the kill takes back
        killing = pool.submit(kill_node, job)
        job.set_parameter("rules", rule(2))
        assert killing.result(60) is not None
        job.set_parameter("rules", rule(3))
    assert job.await_termination(90)
    counted = job.metrics()
    assert (counted["parameters"], counted["restarts"]) == ({"rules": 3}, 1)
    found = read_output(tmp_path / "out")
    assert found.num_rows == ROWS, "every row is judged once"
    wrong = [row for row in found.to_pylist() if row["fraud"] != (row["value"] > LIMITS[row["rule"]])]
    assert wrong == [], "by one version of the rule"
    assert len(Counter(found["rule"].to_pylist())) > 1, "the rule changed among the rows"


def test_the_page_about_signals_runs_as_it_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/signals.md")
    exec(program, {"spark": spark})
    assert capsys.readouterr().out.splitlines()[-1] == "{'rules': 3}"
    found = read_output("out/judged")
    assert found.num_rows == 300_000
    limits = {1: 10_000.0, 2: 5_000.0, 3: 2_500.0, 4: 1_000.0}
    assert all(row["fraud"] == (row["value"] > limits[row["rule"]]) for row in found.to_pylist())
    assert len(set(found["rule"].to_pylist())) > 1
