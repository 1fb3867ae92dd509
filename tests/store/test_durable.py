"""What the directory store promises beyond the contract: nothing half written, everything synced, no leftovers."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tidegate.errors import InvalidUseError, RetryableError
from tidegate.store.durable import TEMPORARY_PREFIX, DurableFileStore


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which files and directories were synced, in order."""
    names: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        names.append(f"{kind} {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}".split(TEMPORARY_PREFIX)[0])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_create_syncs_new_directories_the_file_and_its_name(tmp_path: Path, synced: list[str]) -> None:
    DurableFileStore(tmp_path / "s").create("log/0", b"x")
    assert synced == [f"directory {tmp_path.name}", "directory s", "file ", "directory log"]


def test_put_syncs_only_a_durable_store(tmp_path: Path, synced: list[str]) -> None:
    DurableFileStore(tmp_path, durable=False).put("a", b"x")
    assert synced == []
    DurableFileStore(tmp_path).put("a", b"x")
    assert synced == ["file ", f"directory {tmp_path.name}"]


def test_create_syncs_even_a_store_that_is_not_durable(tmp_path: Path, synced: list[str]) -> None:
    DurableFileStore(tmp_path, durable=False).create("a", b"x")
    assert synced == ["file ", f"directory {tmp_path.name}"]


@pytest.mark.parametrize("call", ["put", "create"])
def test_a_full_disk_is_retryable_and_leaves_nothing(tmp_path: Path, monkeypatch, call: str) -> None:
    def full(descriptor: int, pieces: list[memoryview]) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    store = DurableFileStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        with pytest.raises(RetryableError, match="no space"):
            getattr(store, call)("a", b"x")
    assert os.listdir(tmp_path) == []


def test_a_failing_sync_after_the_link_is_unknown_because_the_name_is_taken(tmp_path: Path, monkeypatch) -> None:
    real, calls = os.fsync, []

    def fail_on_directory(descriptor: int) -> None:
        calls.append(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "input/output error")
        real(descriptor)

    store = DurableFileStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_on_directory)
        with pytest.raises(RetryableError):
            store.create("a", b"x")
    assert store.create("a", b"y") is False
    assert store.get("a") == b"x"


def test_a_losing_create_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path)
    store.create("a", b"x")
    store.create("a", b"y")
    assert os.listdir(tmp_path) == ["a"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, pieces: real(descriptor, [pieces[0][:3]]))
    store = DurableFileStore(tmp_path)
    store.put("a", b"0123456789")
    assert store.get("a") == b"0123456789"


def test_temporary_files_of_a_dead_process_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY_PREFIX}dead").write_bytes(b"half")
    assert list(DurableFileStore(tmp_path).list("")) == []


def test_an_object_below_an_object_is_refused(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path)
    store.put("a", b"x")
    with pytest.raises(InvalidUseError):
        store.put("a/b", b"x")
    with pytest.raises(FileNotFoundError):
        store.get("a/b")
    store.delete(["a/b"])
    assert list(store.list("a/b")) == []


def test_a_directory_is_no_object(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path)
    store.put("a/b", b"x")
    with pytest.raises(FileNotFoundError):
        store.get("a")
    with pytest.raises(InvalidUseError):
        store.put("a", b"x")
    assert store.create("a", b"x") is False
