"""Ctrl-C, and a program that ends under its job: the job stops in good order, says one line, and the next run is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from interrupted_driver import ROWS, ROWS_PER_SECOND, pipeline

import tidegate as tg
from conftest import OFTEN, Start
from tidegate.connectors.generate import GenerateSource
from tidegate.runtime.interrupt import plain_interrupts
from tidegate.testing.crash import assert_same_rows, read_output, wait_until

HERE = Path(__file__).resolve().parent
START_LIMIT_S = 90.0
END_LIMIT_S = 20.0

PIPELINE = f"""
from pathlib import Path
import tidegate as tg
rows = tg.generate(rows={ROWS}, rows_per_second={ROWS_PER_SECOND})
pipeline = tg.Pipeline("interrupted", rows.write_parquet(Path(__file__).parent / "out"))
"""


class Program:
    """A process with a process group of its own, as a terminal's foreground job has one."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._said = folder / "said.txt"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen([sys.executable, *command], stdout=said, stderr=said, start_new_session=True)

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not is_ready():
            assert self._process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def interrupt(self) -> list[psutil.Process]:
        """Ctrl-C: the signal goes to the whole group. Gives all processes below the program, whatever their group."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGINT)
        return family

    def end(self, within_s: float = END_LIMIT_S) -> int:
        try:
            return self._process.wait(within_s)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def said(self) -> str:
        return self._said.read_text()


def script(folder: Path, then: str) -> Program:
    program = Program(folder, str(HERE / "interrupted_driver.py"), str(folder), then)
    program.wait_until_ready(lambda: "READY" in program.said)
    return program


def resume_and_check(start: Start, folder: Path) -> None:
    """What the program left behind is in order, and a new job makes of it exactly what should be there."""
    assert list((folder / "out").rglob("*.pending")) == []
    before = read_output(folder / "out").num_rows
    job = start(pipeline(folder / "out"), parallelism=1, store=folder / "store", checkpoint=OFTEN)
    assert job.restored_from is not None
    assert job.await_termination(60)
    assert 0 < before < job.metrics()["rows_in"] == ROWS
    source = GenerateSource(rows=ROWS, event_rate=ROWS_PER_SECOND)  # the same rows, at full speed
    made = [source.open(split, None).poll(ROWS).batch for split in source.splits()]
    assert_same_rows(read_output(folder / "out"), pa.Table.from_batches(made))


def test_a_waiting_script_that_is_interrupted_stops_its_job_and_says_so_in_one_line(start: Start, tmp_path: Path) -> None:
    program = script(tmp_path, "wait")
    family = program.interrupt()
    assert program.end() == -signal.SIGINT
    said = program.said.partition("READY")[2]
    assert said.count("Traceback") == said.count("KeyboardInterrupt: ") == 1
    last = said.splitlines()[-1]
    assert last.startswith("KeyboardInterrupt: interrupted: the job was stopped, the next start goes on from its last checkpoint")
    assert "starting again" not in said
    assert "org.apache" not in said
    assert psutil.wait_procs(family, timeout=END_LIMIT_S)[1] == []
    resume_and_check(start, tmp_path)


@pytest.mark.parametrize("then", ["sleep", "end"])
def test_a_script_that_ends_under_its_job_stops_it(start: Start, tmp_path: Path, then: str) -> None:
    """Interrupted while it does something else, when Spark cancels all jobs, or simply at its end."""
    program = script(tmp_path, then)
    if then == "sleep":
        program.interrupt()
    assert program.end() == (-signal.SIGINT if then == "sleep" else 0)
    said = program.said.partition("READY")[2]
    assert said.count("the program ends: stopping the job, the next start goes on from its last checkpoint job=interrupted") == 1
    assert "the leader failed" not in said
    assert said.count("Traceback") == (1 if then == "sleep" else 0)
    resume_and_check(start, tmp_path)


def test_tidegate_run_that_is_interrupted_says_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PIPELINE)
    options = ["--master", "local[2]", "--parallelism", "1", "--store", str(tmp_path / "store"), "--interval", "100ms"]
    program = Program(tmp_path, "-m", "tidegate.cli.main", "run", str(tmp_path / "job.py"), *options)
    program.wait_until_ready(lambda: len(list((tmp_path / "out").glob("part-*"))) >= 2)
    program.interrupt()
    assert program.end() == 130
    ours = [line for line in program.said.splitlines() if "WARN" not in line and "log" not in line]
    assert "Traceback" not in program.said
    assert ours[-1].startswith("tidegate: interrupted: the job was stopped, the next start goes on from its last checkpoint")
    resume_and_check(start, tmp_path)


def test_a_handler_of_the_user_is_left_alone_while_waiting(start: Start, tmp_path: Path) -> None:
    """It may be the user's own way to stop: only PySpark's handler, which cancels all jobs, is put aside."""
    sparks: Any = signal.getsignal(signal.SIGINT)
    assert sparks.__module__.startswith("pyspark")
    job = start(tg.Pipeline("endless", tg.generate(rows_per_second=1_000).write_parquet(tmp_path / "out")))
    wait_until("a running job", lambda: job.status == "RUNNING")
    called: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: called.append(number))
    try:
        with plain_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert not job.await_termination(0.2)
    finally:
        signal.signal(signal.SIGINT, sparks)
    assert (called, job.status) == ([signal.SIGINT], "RUNNING")
    with plain_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is sparks
