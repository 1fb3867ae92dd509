"""What the directory store promises beyond the contract: nothing half written, everything synced, no leftovers."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path

import pytest

from tidegate.errors import InvalidUseError, RetryableError, StorageRefused, StorageUnavailable
from tidegate.store import durable
from tidegate.store.durable import (
    AROUND_CACHE_MIN,
    BLOCK_BYTES,
    LUMP_BYTES,
    TEMPORARY_PREFIX,
    DurableFileStore,
)


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


# -- around the cache --------------------------------------------------------------------------------------------------

SIZES = [
    (AROUND_CACHE_MIN - 1,),
    (AROUND_CACHE_MIN,),
    (AROUND_CACHE_MIN + 1,),
    (1, LUMP_BYTES, 4095),
    (LUMP_BYTES - 1, 1, 0, 2 * LUMP_BYTES + BLOCK_BYTES),
    (3 * LUMP_BYTES + 5, 7),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_objects_of_any_size_are_stored_to_the_byte(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    store = DurableFileStore(tmp_path)
    store.put("a", b"something longer than what replaces it" * (4 << 16))
    store.put("a", *pieces)
    assert store.get("a") == b"".join(pieces)


def test_threads_that_write_at_the_same_time_keep_their_bytes_apart(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path)
    objects = {f"o{number}": bytes([number]) * (5 * LUMP_BYTES + number) for number in range(8)}
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda item: store.put(*item), objects.items()))
    assert all(store.get(name) == data for name, data in objects.items())


@pytest.fixture
def direct_files(tmp_path: Path) -> Path:
    """A directory whose file system has what it takes."""
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        # Some file systems have none, tmpfs before Linux 6.6 among them: there the store writes as ever, which other tests see.
        pytest.skip(f"the file system of {tmp_path} has no O_DIRECT")
    return tmp_path


@pytest.fixture
def direct_writes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every write: did it go around the cache?"""
    seen: list[bool] = []
    real = os.writev

    def writev(descriptor: int, pieces: list[memoryview]) -> int:
        seen.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", writev)
    return seen


def test_only_large_objects_that_are_synced_go_around_the_cache(direct_files: Path, direct_writes: list[bool]) -> None:
    large = bytes(AROUND_CACHE_MIN)
    DurableFileStore(direct_files).put("small", large[1:])
    DurableFileStore(direct_files, durable=False).put("not synced", large)
    DurableFileStore(direct_files).put("large", large)
    assert direct_writes == [False, False, True]


@pytest.mark.parametrize("refuses", ["flag", "write"])
def test_a_file_system_that_will_not_is_written_as_ever(direct_files: Path, monkeypatch, refuses: str) -> None:
    fcntl_, writev = fcntl.fcntl, os.writev
    refused = []

    def refuse_flag(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            refused.append(command)
            raise OSError(errno.EINVAL, "invalid argument")
        return fcntl_(descriptor, command, flags)

    def refuse_write(descriptor: int, pieces: list[memoryview]) -> int:
        if fcntl_(descriptor, fcntl.F_GETFL) & os.O_DIRECT and os.lseek(descriptor, 0, os.SEEK_CUR):
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "invalid argument")
        return writev(descriptor, pieces)

    if refuses == "flag":
        monkeypatch.setattr(fcntl, "fcntl", refuse_flag)
    else:
        monkeypatch.setattr(os, "writev", refuse_write)
    data = os.urandom(2 * LUMP_BYTES + 3)
    store = DurableFileStore(direct_files)
    store.put("a", data)
    assert store.get("a") == data
    assert len(refused) == 1


def test_a_disk_that_is_full_half_way_is_retryable_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    real = os.writev

    def full(descriptor: int, pieces: list[memoryview]) -> int:
        if os.lseek(descriptor, 0, os.SEEK_CUR):
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(RetryableError, match="no space"):
        DurableFileStore(tmp_path).put("a", bytes(3 * LUMP_BYTES))
    assert os.listdir(tmp_path) == []


# -- directories come and go -------------------------------------------------------------------------------------------


def test_a_directory_goes_with_its_last_object_and_the_store_stays(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path / "s")
    for path in ("top", "a/1/x", "a/1/y", "a/2/z"):
        store.put(path, b"")
    store.delete(["a/1/x"])
    assert (tmp_path / "s/a/1").is_dir()
    store.delete(["a/1/y", "a/2/z", "top"])
    assert sorted(path.name for path in (tmp_path / "s").rglob("*")) == ["a"]


def test_an_object_is_written_though_its_directory_is_taken_away_meanwhile(tmp_path: Path, monkeypatch) -> None:
    store = DurableFileStore(tmp_path)
    store.put("a/b/x", b"old")
    real, taken = FileIO, []

    def take_away_first(path: Path, mode: str) -> FileIO:
        if len(taken) < 2:
            taken.append(path)
            store.delete(["a/b/x"])
            with suppress(FileNotFoundError):
                path.parent.rmdir()
        return real(path, mode)

    monkeypatch.setattr(durable, "FileIO", take_away_first)
    store.put("a/b/y", b"new")
    assert (store.get("a/b/y"), len(taken)) == (b"new", 2)


def test_writers_and_deleters_of_one_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = DurableFileStore(tmp_path, durable=False)

    def churn(writer: int) -> None:
        for number in range(200):
            store.put(f"d/{number % 3}/{writer}", b"x")
            store.delete([f"d/{number % 3}/{writer}"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(churn, range(4)))
    assert list(store.list("")) == []


def test_a_directory_that_always_vanishes_is_an_error_and_no_endless_loop(tmp_path: Path, monkeypatch) -> None:
    def gone(path: Path, mode: str) -> FileIO:
        raise FileNotFoundError(errno.ENOENT, "no such directory")

    monkeypatch.setattr(durable, "FileIO", gone)
    with pytest.raises(RetryableError, match="keeps vanishing"):
        DurableFileStore(tmp_path).put("a/b", b"x")


def test_a_name_that_is_taken_is_synced_before_anybody_acts_on_it(tmp_path: Path, monkeypatch) -> None:
    """The entry may be our own, from a try whose sync failed: then it must be on the disk before it counts as written."""
    store, real, directories = DurableFileStore(tmp_path), os.fsync, []

    def first_fails(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            directories.append(descriptor)
            if len(directories) == 1:
                raise OSError(errno.EIO, "input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", first_fails)
    with pytest.raises(StorageUnavailable):
        store.create("a", b"x")
    assert store.create("a", b"x") is False
    assert len(directories) == 2


def test_a_directory_whose_name_could_not_be_synced_is_synced_by_the_next_write(tmp_path: Path, monkeypatch) -> None:
    store, real, synced, broken = DurableFileStore(tmp_path), os.fsync, [], [True]

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        if name == tmp_path.name and broken:
            broken.clear()
            raise OSError(errno.EIO, "input/output error")
        synced.append(name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageUnavailable):
        store.put("log/0", b"x")
    store.put("log/0", b"x")
    store.put("log/1", b"x")
    assert synced.count(tmp_path.name) == 1


# -- what killed writers leave -------------------------------------------------------------------------------------


def abandoned(path: Path, age_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
    return path


def test_a_temporary_file_of_a_killed_writer_is_swept_and_its_empty_directory_goes_too(tmp_path: Path) -> None:
    program = f"""if True:
        import os, signal
        from pathlib import Path
        from tidegate.store.durable import DurableFileStore
        os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)
        DurableFileStore(Path({str(tmp_path)!r})).put("job/checkpoints/7/0.arrow", b"x" * 100)
    """
    subprocess.run([sys.executable, "-c", program], check=False)
    (left,) = [file for file in tmp_path.rglob("*") if file.is_file()]
    store = DurableFileStore(tmp_path)
    assert store.sweep("job") == 0, "it is too young to be judged"
    os.utime(left, (0, left.stat().st_mtime - 61))
    store.put("job/log/0", b"x")
    assert store.sweep("job") == 1
    assert not left.parent.exists()
    assert store.get("job/log/0") == b"x"


def test_what_a_live_writer_is_writing_is_not_swept_however_long_it_takes(tmp_path: Path, monkeypatch) -> None:
    store, real, swept = DurableFileStore(tmp_path), os.fsync, []

    def slow(descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.utime(descriptor, (0, 0))
            swept.append(DurableFileStore(tmp_path).sweep(""))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    store.put("a", b"x")
    assert store.create("b", b"y")
    assert swept == [0, 0] and store.get("a") == b"x"


@pytest.mark.parametrize(("age_s", "swept"), [(61, 0), (3_700, 1)])
def test_where_there_are_no_locks_only_age_counts(tmp_path: Path, monkeypatch, age_s: int, swept: int) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    abandoned(tmp_path / "job" / f"{TEMPORARY_PREFIX}1", age_s)
    store = DurableFileStore(tmp_path)
    store.put("job/a", b"x")
    assert store.sweep("job") == swept
    assert store.sweep("nothing/here") == 0


# -- what the system refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.EROFS, StorageRefused, "read-only"),
        (errno.EACCES, StorageRefused, "change its permissions"),
        (errno.EPERM, StorageRefused, "change its permissions"),
        (errno.ENOSPC, StorageUnavailable, "make room"),
        (errno.EDQUOT, StorageUnavailable, "quota"),
        (errno.EIO, StorageUnavailable, "input/output"),
        (errno.ESTALE, StorageUnavailable, "stale"),
        (errno.EHOSTDOWN, StorageUnavailable, "host is down"),
    ],
)
def test_an_error_of_the_file_system_says_whether_it_may_pass(tmp_path: Path, monkeypatch, number: int, kind, says: str) -> None:
    def fails(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fails)
    with pytest.raises(kind, match=says):
        DurableFileStore(tmp_path).create("a", b"x")
    assert os.listdir(tmp_path) == []
