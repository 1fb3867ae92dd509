"""The Python in the README and the docs runs as it is written there."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from certificates import Authority
from tidegate.testing.crash import read_output

ROOT = Path(__file__).resolve().parents[2]


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_runs_as_it_is_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example, sample = blocks("README.md")
    names: dict[str, Any] = {}
    exec(sample, {})
    exec(example, names)
    assert names["spark"] is spark, "getOrCreate gives the session that is there"
    assert "PhysicalBarrier" in capsys.readouterr().out
    per_key = read_output("out/per_key")
    bids = read_output("data/bids")
    assert pc.sum(per_key["n"]).as_py() == pc.sum(pc.not_equal(bids["kind"], 0)).as_py() > 0
    assert {"key", "window_start", "value", "value_right"} <= set(read_output("out/matched").column_names)


def test_the_function_with_state_of_the_docs_counts(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = blocks("docs/api.md")
    names: dict[str, Any] = {"stream": tg.generate(rows=5_000, keys=50)}
    exec(block, names)
    job = tg.Pipeline("tally", names["totals"].collect()).start(spark, parallelism=2)
    assert job.await_termination(60)
    last = job.collect().group_by("key").aggregate([("n", "max")])
    assert (last.num_rows, pc.sum(last["n_max"]).as_py()) == (50, 5_000)


def test_the_program_for_a_cluster_runs_where_its_directories_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this machine's directories and certificates instead of the shared ones, and as many nodes as there are slots."""
    made = tg.Pipeline("make", tg.generate(rows=2_000).write_parquet(tmp_path / "bids"))
    assert made.start(spark, parallelism=1).await_termination(60)
    tls = Authority().tls("127.0.0.1", socket.gethostname())
    for name, pem in (("node.pem", tls.certificate), ("node.key", tls.key), ("authority.pem", tls.authority)):
        assert isinstance(pem, bytes)
        (tmp_path / name).write_bytes(pem)
    program, _ = blocks("docs/clusters.md")
    here = program.replace("/mnt/lake", str(tmp_path)).replace("s3://lake/tidegate", f"{tmp_path}/store").replace("=8", "=4")
    here = here.replace("/etc/tls", str(tmp_path))
    exec(here, {"__name__": "__main__"})
    assert pc.sum(read_output(tmp_path / "out")["n"]).as_py() == 2_000
