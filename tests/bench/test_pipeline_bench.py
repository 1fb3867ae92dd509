"""What the suite `pipeline` promises about the directories it measures in."""

from __future__ import annotations

from pathlib import Path

from tidegate.bench.pipeline import fresh_folder


def test_a_run_does_not_find_what_an_earlier_one_writes_late(tmp_path: Path) -> None:
    """A state store of Structured Streaming once did that, and the next query refused to start."""
    with fresh_folder(tmp_path) as first:
        (first / "state").mkdir()
    assert not first.exists()
    (first / "state").mkdir(parents=True)
    with fresh_folder(tmp_path) as second:
        assert list(second.iterdir()) == []
        assert second != first
