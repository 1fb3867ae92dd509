"""The functions for crash tests, without a cluster: a job that is a script, a victim that is a sleeping process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.errors import InvalidUseError
from tidegate.testing.crash import (
    assert_same_rows,
    kill_at_random,
    kill_node,
    read_output,
    wait_for_checkpoints,
    wait_for_nodes,
    wait_for_status,
    wait_until,
)

ROWS = {"key": [1, 2, 2], "total": [0.3, 5.0, 7.0]}


class ScriptedJob:
    """A job with one real process. When that dies, the next gang is there at once, or the job has ended."""

    error = None

    def __init__(self, victim: subprocess.Popen[bytes], *, host: str | None = None, ends: bool = False) -> None:
        self._victim = victim
        self._host = host or socket.gethostname()
        self._ends = ends

    @property
    def status(self) -> str:
        return "FINISHED" if self._ends and self._dead else "RUNNING"

    @property
    def _dead(self) -> bool:
        return self._victim.poll() is not None

    def metrics(self) -> dict[str, Any]:
        node = {"node": 0, "pid": self._victim.pid, "host": self._host}
        return {"gang": 4 if self._dead else 0, "nodes": [node], "checkpoints_committed": 2}


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


# -- killing -------------------------------------------------------------------------------------------------------


def test_a_node_is_killed_and_the_next_gang_awaited(victim: subprocess.Popen[bytes]) -> None:
    kill = kill_node(ScriptedJob(victim), 0)
    assert kill is not None
    assert (kill.node, kill.pid, kill.gang) == (0, victim.pid, 0)
    assert kill.recovered_s is not None
    assert victim.wait(10) == -signal.SIGKILL


def test_a_job_that_ends_instead_of_recovering_has_no_recovery_time(victim: subprocess.Popen[bytes]) -> None:
    kill = kill_node(ScriptedJob(victim, ends=True))
    assert kill is not None
    assert kill.recovered_s is None


def test_random_kills_stop_when_the_job_has_ended(victim: subprocess.Popen[bytes]) -> None:
    kills = kill_at_random(ScriptedJob(victim, ends=True), 5, seed=1, longest_wait_s=0.01)
    assert [kill.pid for kill in kills] == [victim.pid]


@pytest.mark.parametrize(("host", "node", "words"), [("elsewhere.example", 0, "another machine"), (None, 7, "no such node")])
def test_what_is_not_a_node_on_this_machine_is_not_killed(
    victim: subprocess.Popen[bytes], host: str | None, node: int, words: str
) -> None:
    with pytest.raises(InvalidUseError, match=words):
        kill_node(ScriptedJob(victim, host=host), node)
    assert victim.poll() is None


# -- waiting -------------------------------------------------------------------------------------------------------


def test_waiting_has_a_limit_and_says_for_what(victim: subprocess.Popen[bytes]) -> None:
    job = ScriptedJob(victim)
    for wait, words in (
        (lambda: wait_until("a miracle", lambda: None, 0.05), "a miracle"),
        (lambda: wait_for_status(job, "STOPPED", timeout_s=0.05), "status STOPPED"),
        (lambda: wait_for_checkpoints(job, 3, timeout_s=0.05), "3 checkpoints"),
        (lambda: wait_for_nodes(job, after_gang=0, timeout_s=0.05), "newer than 0"),
    ):
        with pytest.raises(AssertionError, match=f"in vain for .*{words}"):
            wait()


def test_waiting_for_what_can_no_longer_come_fails_at_once(victim: subprocess.Popen[bytes]) -> None:
    job = ScriptedJob(victim, ends=True)
    victim.kill()
    victim.wait(10)
    with pytest.raises(AssertionError, match="the job is FINISHED, expected RUNNING"):
        wait_for_status(job, "RUNNING")
    with pytest.raises(AssertionError, match="the job is FINISHED with checkpoints_committed=2"):
        wait_for_checkpoints(job, 3)
    assert wait_for_nodes(job) is None


# -- comparing -----------------------------------------------------------------------------------------------------


def test_the_same_rows_in_another_order_are_the_same() -> None:
    expected = pa.table(ROWS)
    assert_same_rows(expected.take([2, 0, 1]).select(["total", "key"]), expected)


def test_float_rounding_is_forgiven_only_where_asked() -> None:
    expected, found = pa.table(ROWS), pa.table({**ROWS, "total": [0.1 + 0.2, 5.0, 7.0]})
    assert_same_rows(found, expected, close=["total"])
    with pytest.raises(AssertionError, match="'total' differs"):
        assert_same_rows(found, expected)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"key": [1, 2], "total": [0.3, 5.0]}, r"found=2 expected=3; too many: \[\]; missing: .*'key': 2"),
        ({"key": [1, 2, 2, 2], "total": [0.3, 5.0, 7.0, 7.0]}, "found=4 expected=3; too many: .*'key': 2"),
        ({"key": [1, 2, 3], "total": [0.3, 5.0, 7.0]}, "'key' differs"),
        ({"key": [1, 2, 2], "total": [0.3, 5.0, 7.1]}, "1 of 3 values of 'total' differ"),
        ({"key": [1, 2, 2], "total": [None, 5.0, 7.0]}, "1 of 3 values of 'total' differ"),
        ({"key": [1, 2, 2], "total": [float("nan"), 5.0, 7.0]}, "1 of 3 values of 'total' differ"),
        ({"key": [1, 2, 2]}, "the columns differ"),
    ],
    ids=["lost", "doubled", "other key", "other sum", "null", "not a number", "column"],
)
def test_a_difference_is_found_and_shown(rows: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_same_rows(pa.table(rows), pa.table(ROWS), close=["total"])


def test_only_committed_files_of_an_output_are_read(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing was committed"):
        read_output(tmp_path)
    pq.write_table(pa.table(ROWS), tmp_path / "part-1.parquet")
    pq.write_table(pa.table(ROWS), tmp_path / "_pending.parquet")
    assert read_output(tmp_path).num_rows == 3
