"""The measurement of signals answers what it was asked."""

from __future__ import annotations

import json

import pytest

from tidegate.cli import bench_signals
from tidegate.cli.console import Console


def test_a_few_signals_are_measured_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_signals.execute(Console(as_json=True), signals=3, parallelism=1) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["suite"], found["signals"], found["target_ms"]) == ("signals", 3, 100)
    assert 0 <= found["median_ms"] <= found["longest_ms"]
    assert found["rows_per_second"] >= 0
