"""The whole driver is killed, Spark's streaming query and its JVM with it: every row still arrives once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
WAIT_S = 90.0


def drop(folder: Path, number: int, rows: int = 50) -> None:
    numbers = list(range(number * rows, (number + 1) * rows))
    pq.write_table(pa.table({"n": numbers, "ts": [n * 10 for n in numbers]}), folder / f"_{number}")
    os.rename(folder / f"_{number}", folder / f"{number:05d}.parquet")


def rows_in(out: Path) -> list[int]:
    return sorted(pq.read_table(out).column("n").to_pylist()) if any(out.glob("*.parquet")) else []


@contextmanager
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end, with all of its children."""
    places = [str(tmp_path / name) for name in ("in", "out", "store", "log")]
    process = subprocess.Popen([sys.executable, str(HERE / "streaming_driver.py"), *places])
    try:
        yield process
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(WAIT_S)
        # Without its driver the JVM ends by itself; meanwhile the next driver may start beside it.
        for child in psutil.wait_procs(family, timeout=1)[1]:
            with suppressed():
                child.kill()
        psutil.wait_procs(family, timeout=WAIT_S)


@contextmanager
def suppressed() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess:
        return


def wait_for(tmp_path: Path, process: subprocess.Popen[bytes], rows: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(rows_in(tmp_path / "out")) < rows:
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, f"only {len(rows_in(tmp_path / 'out'))} rows came"
        time.sleep(0.05)


def test_a_driver_killed_at_random_moments_delivers_every_row_of_a_streaming_frame_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    (tmp_path / "in").mkdir()
    for number in range(40):
        drop(tmp_path / "in", number)
    for run in range(2):
        with driver(tmp_path) as process:
            wait_for(tmp_path, process, 50 * (1 + 8 * run))
            time.sleep(chance.random())
        assert len(rows_in(tmp_path / "out")) < 2000, "it was killed on the way"
    for number in range(40, 50):
        drop(tmp_path / "in", number)
    with driver(tmp_path) as process:
        wait_for(tmp_path, process, 2500)
        time.sleep(0.5)
    assert rows_in(tmp_path / "out") == list(range(2500))
