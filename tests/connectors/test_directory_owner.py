"""A sink's directory belongs to one run: who may take it, who is told to stop, and what nobody can show any more."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors import owner as owner_module
from tidegate.connectors.collect import CollectSink
from tidegate.connectors.foreach import ForEachBatchSink
from tidegate.connectors.owner import holder, read_owner
from tidegate.connectors.parquet_sink import ParquetSink
from tidegate.core.log.owner import Claim, Owner
from tidegate.errors import FencedError, InvalidUseError, RetryableError
from tidegate.plan.connector import Committable, WriterContext

SCHEMA = pa.schema([("n", pa.int64())])
ONE = Owner(sink="s", job="j", log="one/1", term=0, run="one", host="here", pid=7, since="today", store=None)
TWO = replace(ONE, log="two/1", run="two")

SINKS: dict[str, Callable[[Path], Any]] = {
    "parquet": ParquetSink,
    "collect": lambda path: CollectSink("c", str(path)),
    "for_each": lambda path: ForEachBatchSink(lambda batch, epoch: None, str(path)),
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return SINKS[request.param](tmp_path / "out")


def staged(sink: Any, gang: int = 0) -> Committable:
    writer = sink.writer(WriterContext("sink", 0, gang, SCHEMA))
    writer.write(pa.record_batch({"n": [1]}, schema=SCHEMA))
    found = writer.prepare(3)
    writer.close()
    assert found is not None
    return found  # type: ignore[no-any-return]


def test_while_a_run_lives_no_run_of_another_log_takes_its_directory(sink: Any, tmp_path: Path) -> None:
    lease = sink.claim(Claim(mine=ONE))
    for take in (False, True):
        with pytest.raises(InvalidUseError, match=r"sink 's' of job 'j' is running .*host=here pid=7 since=today"):
            sink.check_claim(Claim(mine=TWO, take=take))
        with pytest.raises(InvalidUseError, match="is running"):
            sink.claim(Claim(mine=TWO, take=take))
    assert sink.holder().alive and not list((tmp_path / "out").glob("_run-two"))
    lease.release()
    lease.release()
    assert not sink.holder().alive
    sink.claim(Claim(mine=TWO)).release()


def test_a_run_that_was_replaced_is_told_by_whom(sink: Any) -> None:
    lease = sink.claim(Claim(mine=ONE))
    sink.claim(Claim(mine=replace(ONE, run="later", term=4))).release()
    for call in (lease.check, lambda: lease.about_to_publish(1, 1)):
        with pytest.raises(FencedError, match=r"another run has taken this sink over.*term=4 host=here pid=7 since=today"):
            call()


def test_a_new_owner_of_another_log_leaves_nothing_to_show_for_the_one_before(sink: Any, tmp_path: Path) -> None:
    lease = sink.claim(Claim(mine=ONE))
    committable = staged(sink)
    lease.release()  # it is paused and counts as dead, and has looked whose directory it is
    sink.claim(Claim(mine=TWO)).release()
    assert not list((tmp_path / "out" / "_pending").iterdir())
    assert len(list((tmp_path / "out" / "_hidden").iterdir())) == 1, "the rows are kept"
    if not isinstance(sink, ForEachBatchSink):
        with pytest.raises(Exception, match="a staged file is gone"):
            sink.commit(1, [committable])
    with pytest.raises(FencedError):
        lease.check()


def test_a_later_leader_of_the_same_log_leaves_staged_files_where_they_are(sink: Any, tmp_path: Path) -> None:
    lease = sink.claim(Claim(mine=ONE))
    staged(sink)
    sink.claim(Claim(mine=replace(ONE, run="later", term=4))).release()
    assert len(list((tmp_path / "out" / "_pending").iterdir())) == 1
    lease.release()


def test_what_a_run_was_about_to_publish_outlives_it(sink: Any) -> None:
    lease = sink.claim(Claim(mine=ONE))
    lease.about_to_publish(5, 9)
    lease.about_to_publish(4, 8)
    lease.release()
    assert (sink.holder().epoch, sink.holder().checkpoint_id) == (5, 9)


def test_a_note_that_the_user_deleted_takes_nothing_from_a_run(sink: Any, tmp_path: Path) -> None:
    lease = sink.claim(Claim(mine=ONE))
    (tmp_path / "out" / "_owner").unlink()
    lease.check()
    lease.release()
    assert sink.holder() is None


def test_a_killed_run_is_dead_at_once(tmp_path: Path) -> None:
    """The lock goes with the process, whatever ended it; the note and what it had published stay."""
    program = (
        "import os, signal, sys\n"
        "from tidegate.connectors.parquet_sink import ParquetSink\n"
        "from tidegate.core.log.owner import Claim, Owner\n"
        "mine = Owner(sink='s', job='j', log='l', term=0, run='r', host='h', pid=1, since='t', store=None)\n"
        "lease = ParquetSink(sys.argv[1]).claim(Claim(mine=mine))\n"
        "lease.about_to_publish(2, 3)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        assert (found := holder(str(tmp_path))) is not None and found.alive
        child.kill()
    assert (found := holder(str(tmp_path))) is not None and not found.alive and found.epoch == 2


def test_a_forked_child_does_not_keep_its_parents_directory(sink: Any) -> None:
    lease = sink.claim(Claim(mine=ONE))
    ready, told = os.pipe()
    read, write = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover: another process
        os.close(write)
        os.write(told, b"x")
        os.read(read, 1)  # ends when the parent closes its end
        os._exit(0)
    os.read(ready, 1)
    lease.release()
    alive = sink.holder().alive
    for end in (write, read, ready, told):
        os.close(end)
    os.waitpid(child, 0)
    assert not alive


def test_a_note_of_an_earlier_version_counts_by_its_name(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    (tmp_path / "_owner").write_text("sink 's' of job 'j'")
    with pytest.raises(InvalidUseError, match="belongs to the sink 's' of job 'j'"):
        sink.check_claim(Claim(mine=replace(ONE, job="k")))
    sink.claim(Claim(mine=ONE)).release()
    assert read_owner(str(tmp_path)) == ONE


def test_a_note_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "_owner").write_text("{")
    with pytest.raises(InvalidUseError, match=r"can't be read whose directory this is.*_owner"):
        holder(str(tmp_path))


def test_two_sinks_of_one_run_do_not_share_a_directory(tmp_path: Path) -> None:
    lease = ParquetSink(tmp_path).claim(Claim(mine=ONE))
    with pytest.raises(InvalidUseError, match=r"is running|has the directory already"):
        ParquetSink(tmp_path).claim(Claim(mine=ONE))
    lease.release()


def test_a_start_that_hangs_while_it_takes_a_directory_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "TAKING_LIMIT_S", 0.05)
    with (tmp_path / "_lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="another start has been taking this directory"):
            ParquetSink(tmp_path).claim(Claim(mine=ONE))


@pytest.mark.parametrize(("number", "works"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_without_locks_the_note_alone_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, works: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", broken)
    if not works:
        with pytest.raises(RetryableError):
            ParquetSink(tmp_path).claim(Claim(mine=ONE))
        return
    lease = ParquetSink(tmp_path).claim(Claim(mine=ONE))
    lease.check()
    lease.release()
    assert "has no locks" in caplog.text


def test_what_the_former_run_of_another_log_was_merging_can_not_be_shown_by_it(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    lease = sink.claim(Claim(mine=ONE))
    gathered = sink.gather([staged(sink), staged(sink)])
    lease.release()  # it is paused between merging and showing
    with pytest.raises(InvalidUseError, match="belongs to"):
        sink.check_claim(Claim(mine=replace(TWO, job="k")))
    sink.claim(Claim(mine=TWO)).release()
    with pytest.raises(RetryableError, match="another driver"):
        gathered.show()
    assert sink.is_empty() and len(list((tmp_path / "_hidden").iterdir())) == 2
