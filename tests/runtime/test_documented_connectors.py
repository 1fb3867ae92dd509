"""The source and the sink of docs/connectors.md: they keep the contracts and run."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from runtime_jobs import Jobs

import tidegate as tg
from tidegate.plan.capabilities import Hides, path_of
from tidegate.testing.connectors import check_sink, check_source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "connectors.md"
ROWS = [{"ts": 10 * n, "key": f"key {n % 3}"} for n in range(200)]


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What both programs of the page define, run in a directory with events."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events").mkdir()
    for part in range(4):
        lines = [json.dumps(row) + "\n" for row in ROWS[part * 50 : part * 50 + 50]]
        (tmp_path / "events" / f"{part}.jsonl").write_text("".join(lines))
    names: dict[str, Any] = {"__name__": "documented"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        exec(block, names)
    return names


def committed(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in path.glob("*.jsonl") for line in file.read_text().splitlines()]


def shown(sink: tg.Sink) -> pa.Table:
    return pa.Table.from_pylist(committed(Path(path_of(sink) or "")))


def test_the_documented_source_keeps_the_contract(documented: dict[str, Any]) -> None:
    check_source(documented["LinesSource"]("events"))


def test_the_documented_sink_keeps_the_contract_and_can_hide(documented: dict[str, Any], tmp_path: Path) -> None:
    number = count()
    new_sink = documented["LinesSink"]
    assert isinstance(new_sink("out"), Hides)
    check_sink(lambda: new_sink(str(tmp_path / f"sink-{next(number)}")), shown)


def test_the_documented_pipeline_copies_every_row_once(documented: dict[str, Any], tmp_path: Path) -> None:
    Jobs(tmp_path).finish(tg.Pipeline("copy", documented["output"]))
    found = sorted(committed(tmp_path / "out"), key=lambda row: row["ts"])
    assert found == ROWS
