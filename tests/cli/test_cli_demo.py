"""The demo's parts: whom it kills, what it notices, and that its proof can fail."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli_follow import Scripted

from job_metrics import job_metrics
from tidegate.bench.data import DataSpec, ensure
from tidegate.cli import demo
from tidegate.cli.console import Console
from tidegate.cli.crash import descends_from, kill_worker
from tidegate.cli.demo import Result, Story, claims, pipeline, watch_and_kill
from tidegate.cli.main import main
from tidegate.cli.proof import ExpectedOutput, Proof, comparison
from tidegate.runtime.metrics import JobMetrics

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours to be killed."""
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


def node(pid: int, host: str | None = None) -> dict[str, object]:
    return {"node": 0, "pid": pid, "host": socket.gethostname() if host is None else host}


def test_a_worker_of_ours_is_killed(worker: subprocess.Popen[bytes]) -> None:
    assert kill_worker({"nodes": [node(worker.pid)]}) == worker.pid
    assert worker.wait(10) == -9


def test_nothing_but_a_worker_of_ours_is_killed(worker: subprocess.Popen[bytes]) -> None:
    assert kill_worker({"nodes": [node(worker.pid, "another-machine")]}) is None
    assert kill_worker({"nodes": [node(os.getppid()), node(os.getpid()), node(1), node(2**22 + 1)]}) is None
    assert kill_worker({"nodes": []}) is None
    assert kill_worker({}) is None
    assert worker.poll() is None


def test_a_grandchild_descends_from_us() -> None:
    code = f"import subprocess, sys; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert descends_from(grandchild, os.getpid())
        assert not descends_from(os.getpid(), grandchild)
        assert kill_worker({"nodes": [node(grandchild)]}) == grandchild


def running(gang: int, committed: int, nodes: list[dict[str, object]], **counts: int) -> tuple[str, dict[str, Any]]:
    return "RUNNING", {
        "gang": gang,
        "checkpoints_committed": committed,
        "nodes": nodes,
        "rows_in": 50,
        **counts,
    }


def test_the_kill_waits_for_a_checkpoint_and_for_rows(worker: subprocess.Popen[bytes]) -> None:
    mine, alive = [node(worker.pid)], []

    class Job(Scripted):
        def metrics(self) -> JobMetrics:
            alive.append(worker.poll() is None)
            return super().metrics()

    looks = [
        running(0, 0, mine),
        ("STARTING", {"checkpoints_committed": 1, "nodes": mine, "rows_in": 50}),
        running(0, 1, mine, rows_in=24),
        running(0, 2, mine, rows_in=25),
    ]
    story = watch_and_kill(Job(looks), 100, Console(False, io.StringIO()))
    assert alive[:4] == [True] * 4
    assert story.killed == worker.pid
    assert worker.wait(10) == -9


def test_the_job_has_recovered_when_all_nodes_of_a_new_gang_read_on(worker: subprocess.Popen[bytes]) -> None:
    one, printed = [node(worker.pid)], io.StringIO()
    again = [
        running(0, 2, one, restarts=1, rows_read=60),  # the old gang still speaks
        ("RESTARTING", {"restarts": 1, "gang": None, "rows_read": 60}),
        running(4, 2, one * 2, restarts=1, rows_read=60),  # what the old gang said last
        running(4, 2, one * 2, restarts=1, rows_read=0),
        running(4, 2, one, restarts=1, rows_read=7),
    ]
    story = watch_and_kill(Scripted([running(0, 2, one), *again]), 100, Console(False, printed))
    assert story.recovered_s is None
    done = running(4, 3, one * 2, restarts=1, rows_read=9)
    story = Story(killed=7, gang_before=0)
    job = Scripted([*again, done])
    seen = []
    while not job.await_termination():
        seen.append(demo._running_again(story, job, job.metrics()))
    assert seen == [False] * 5 + [True]


def test_a_job_that_was_done_too_soon_tells_nothing() -> None:
    story = watch_and_kill(Scripted([running(0, 0, [])]), 100, Console(False, io.StringIO()))
    assert not story.tells_something
    assert not Story(killed=7, final=job_metrics(restarts=0)).tells_something


# -- the proof, on an engine that starts faster than Spark and speaks enough of the same SQL ----------------


Change = Callable[[pa.Table], pa.Table]


def proved(claim: ExpectedOutput, data: Path) -> Proof:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW events AS SELECT * FROM '{data}/*.parquet'")
        connection.execute(f"CREATE VIEW output AS SELECT * FROM '{claim.output}/*.parquet'")
        rows, expected, wrong = connection.execute(comparison(claim)).fetchone() or (0, 0, 0)
    return Proof(claim.name, rows, expected, wrong)


def answered(claim: ExpectedOutput, data: Path, change: Change) -> None:
    """Write the claim's own answer, changed a little, where the pipeline would have."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW events AS SELECT * FROM '{data}/*.parquet'")
        table = connection.sql(claim.query).to_arrow_table()
    claim.output.mkdir(parents=True, exist_ok=True)
    pq.write_table(change(table), claim.output / "part-0.parquet")


def with_value(table: pa.Table, column: str, row: int, factor: float) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = type(values[row])(values[row] * factor)
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values))


def without_value(table: pa.Table, column: str, row: int) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = None
    field = table.schema.field(column)
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, field.type))


@pytest.mark.parametrize(
    ("change", "exact", "wrong"),
    [
        (lambda table: table, True, 0),
        (lambda table: with_value(table, "total", 3, 1 + 1e-13), True, 0),
        (lambda table: with_value(table, "total", 3, 1 + 1e-6), False, 1),
        (lambda table: with_value(table, "n", 3, 2), False, 1),
        (lambda table: with_value(table, "peak", 3, 1 + 1e-13), False, 1),
        (lambda table: table.slice(1), False, 1),
        (lambda table: pa.concat_tables([table, table.slice(5, 2)]), False, 2),
        (lambda table: with_value(table, "window_end", 3, 2), False, 2),
        (lambda table: without_value(table, "total", 3), False, 1),
        (lambda table: without_value(table, "n", 3), False, 1),
    ],
    ids=[
        "same",
        "last digit of a sum",
        "sum",
        "count",
        "maximum",
        "missing",
        "doubled",
        "foreign",
        "no sum",
        "no count",
    ],
)
def test_the_proof_sees_every_difference(change: Change, exact: bool, wrong: int, tmp_path: Path) -> None:
    data = ensure(DataSpec("events", 2_000, 20), tmp_path)
    claim = claims(tmp_path)[0]
    answered(claim, data, change)
    proof = proved(claim, data)
    assert (proof.exact, proof.wrong) == (exact, wrong)


def test_both_claims_are_about_what_the_pipeline_writes(tmp_path: Path) -> None:
    data = ensure(DataSpec("events", 2_000, 20), tmp_path)
    plan = pipeline(data, tmp_path).explain()
    for claim in claims(tmp_path):
        answered(claim, data, lambda table: table)
        assert proved(claim, data).exact
        assert claim.output.name in plan


def test_the_last_line_has_the_promised_fields_first() -> None:
    fields = ["rows_in", "rows_out", "checkpoints_committed", "restarts", "exact", "seconds"]
    assert list(Result.__dataclass_fields__)[:6] == fields


@pytest.mark.parametrize(("wrong", "code"), [(0, 0), (3, 1)])
def test_the_screen_and_the_exit_code_say_whether_it_was_exact(
    wrong: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        def stop(self) -> None:
            pass

    story = Story(killed=7, recovered_s=1.5, final=job_metrics(restarts=1, checkpoints_committed=4, rows_read=130))
    proofs = [Proof("per key", 10, 10, wrong), Proof("per kind", 5, 5, 0)]
    monkeypatch.setattr("tidegate.spark.session.local_session", lambda *_, **__: Session())
    monkeypatch.setattr(demo, "_tell", lambda *_: (story, proofs, 100))
    assert main(["demo", "--json"]) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last.pop("seconds") >= 0
    assert last == {
        "rows_in": 100,
        "rows_out": 15,
        "checkpoints_committed": 4,
        "restarts": 1,
        "exact": wrong == 0,
        "recovery_seconds": 1.5,
    }
    assert main(["demo"]) == code
    printed = capsys.readouterr().out
    assert ("exact      yes" if wrong == 0 else "exact      NO") in printed
    assert "4 checkpoints committed, 1 restart; went on after 1.5 s from the checkpoint, 30 rows read again" in printed
    assert len(printed.splitlines()) < 20


def test_the_demo_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with demo._work_folder() as folder:
        assert folder.parent == tmp_path
        (folder / "x").write_text("y")
    assert list(tmp_path.iterdir()) == []
