"""The suite `unaligned` measures what it says, and says when a target is missed."""

from __future__ import annotations

import json
import pickle
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tidegate.bench import unaligned
from tidegate.bench.backlog import Backlog, Flood, slow
from tidegate.bench.plot import svg
from tidegate.bench.unaligned import Figure, UnalignedBench, UnalignedSettings, on_threads, steps, summary
from tidegate.cli.main import main
from tidegate.errors import InvalidUseError
from tidegate.testing.connectors import check_source


def test_every_single_step_is_measured_beside_its_target() -> None:
    figures = {figure.name: figure for figure in steps(rounds=1)}
    assert set(figures) == {
        "bench_unaligned_trigger",
        "bench_inflight_capture_10k",
        "bench_inflight_serialize_1mb",
        "bench_inflight_serialize",
        "bench_mode_switch",
        "bench_unaligned_recovery_10k_inflight",
    }
    assert all(figure.value > 0 and figure.target is not None for figure in figures.values())


@pytest.mark.parametrize(
    ("figure", "met", "target"),
    [
        (Figure("a", 2.0, "ms", 1.0), False, "< 1 ms"),
        (Figure("a", 0.5, "ms", 1.0), True, "< 1 ms"),
        (Figure("a", 150.0, "MB/s", 200.0, higher=True), False, "> 200 MB/s"),
        (Figure("a", 250.0, "MB/s", 200.0, higher=True), True, "> 200 MB/s"),
        (Figure("a", 250.0, "ms"), True, None),
    ],
)
def test_a_missed_target_is_said(figure: Figure, met: bool, target: str | None) -> None:
    assert (figure.row()["met"], figure.row()["target"]) == (met, target)


def test_an_aligned_checkpoint_waits_for_the_backlog_and_an_unaligned_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unaligned, "ALIGNMENT_TIMEOUT_MS", 100)
    notes: list[str] = []
    bench = UnalignedBench(UnalignedSettings(parallelism=1), tmp_path, on_threads, notes.append)
    aligned, overtaking = (bench.checkpoint(mode, 40) for mode in ("never", "auto"))
    assert (aligned["unaligned"], aligned["inflight_events"], aligned["limit_ms"]) == (False, 0, None)
    assert overtaking["unaligned"] and overtaking["inflight_events"] > 0, "it did not wait for what it stored"
    assert overtaking["limit_ms"] == 1_100
    assert overtaking["duration_ms"] < aligned["duration_ms"], "which waits for two seconds of sleep, on any machine"
    (row,) = summary([aligned, overtaking])
    assert (row["aligned_ms"], row["unaligned_ms"]) == (aligned["duration_ms"], overtaking["duration_ms"])
    assert notes == ["aligned, 40 batches waiting", "unaligned, 40 batches waiting"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_the_sources_keep_their_contract_and_cross_spark(tmp_path: Path) -> None:
    check_source(Flood(50, at_once=True), rows_max=50)
    source = pickle.loads(pickle.dumps(Backlog(2, 3, tmp_path / "gate")))
    reader = source.open(source.splits()[1], None)
    read = [reader.poll(1 << 17) for _ in range(4)]
    assert 2 * sum(polled.rows for polled in read) == source.rows_open
    source.gate.touch()
    assert 2 * (sum(polled.rows for polled in read) + reader.poll(1 << 17).rows) == source.rows
    assert reader.poll(1 << 17).batch is None
    assert pickle.loads(pickle.dumps(slow)) is slow


@pytest.mark.parametrize("wrong", [{"backlog": ()}, {"backlog": (0,)}, {"parallelism": 0}, {"rounds": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidUseError, match="at least 1"):
        UnalignedSettings(**wrong)  # type: ignore[arg-type]


def test_a_plot_has_a_point_per_value_inside_the_picture() -> None:
    root = ElementTree.fromstring(svg("a < b", "x", "y", {"one": [(0, 0), (10, 500)], "two": [(5, 250)]}))
    dots = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(dots) == 3
    assert all(0 <= float(dot.attrib["cx"]) <= 640 and 0 <= float(dot.attrib["cy"]) <= 400 for dot in dots)
    heights = [float(dot.attrib["cy"]) for dot in dots]
    assert heights[0] > heights[2] > heights[1], "more is higher up"


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "unaligned", "--plot", str(tmp_path / "none" / "plot.svg")]) == 2
    assert "--plot needs a file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("over_ms", "bounded"), [(60_000, True), (-unaligned.ALIGNMENT_TIMEOUT_MS, False)])
def test_the_suite_gives_one_document_and_a_plot_and_says_when_a_checkpoint_took_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, over_ms: int, bounded: bool
) -> None:
    """A limit that any machine keeps, and one that none can: how long it really takes depends on what else the machine does."""
    monkeypatch.setattr(unaligned, "OVER_TIMEOUT_MS_MAX", over_ms)
    plot = tmp_path / "plot.svg"
    argv = ["bench", "unaligned", "--backlog", "30", "--parallelism", "1", "--plot", str(plot), "--json"]
    assert main(argv) == (0 if bounded else 1)
    document = json.loads(capsys.readouterr().out)
    assert (document["suite"], document["bounded"]) == ("unaligned", bounded)
    assert [c["mode"] for c in document["checkpoints"]] == ["never", "auto"]
    assert "polyline" in plot.read_text()
