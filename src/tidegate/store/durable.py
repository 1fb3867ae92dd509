"""A store in a directory, made to survive a power cut: what a call has written is on the disk when it
returns.

An object appears complete or not at all, because it is written under a temporary name first. ``create`` links
that file to its final name, which the file system refuses when the name exists: that is the atomic create-
only put.

A writer holds a lock on its temporary file until that has its final name. One that nobody holds and that nobody has touched for
a while is of a writer that was killed, and ``sweep`` deletes it. If it was wrong about that, the writer's link or rename fails
and is tried again: nothing is lost.

Large objects go around the system's cache, as far as the file system lets them: they are synced at once and hardly
ever read again, so a copy there would only cost memory that somebody else can use.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import islice
from pathlib import Path
from uuid import uuid4

from tidegate.store.filesystem import storage_error
from tidegate.store.interface import ObjectInfo, Piece
from tidegate.store.paths import check_length, check_path, check_prefix, check_range

TEMPORARY_PREFIX = ".tmp-"
PIECES_AT_ONCE = 1024  # what the system takes in one call
CREATE_TRIES = 8
AROUND_CACHE_MIN = 1 << 20
LUMP_BYTES = 1 << 20
BLOCK_BYTES = 4096  # what disks want offsets, lengths and addresses to be multiples of
SWEEP_AGE_S = 60
"""A temporary file that changed more recently is left alone, locked or not: some network file systems lock per machine only."""
SWEEP_AGE_NO_LOCKS_S = 3_600
"""The same where there are no locks at all."""

_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DurableFileStore:
    """Objects are files below a directory. With ``durable=False`` nothing is synced: survives a crash of the
    process only, and is faster. ``create`` is synced either way: it carries the job's log.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self._root = root.absolute()
        self._durable = durable

    @property
    def url(self) -> str:
        """The directory as a file URL."""
        return self._root.as_uri()

    def put(self, path: str, *pieces: Piece) -> None:
        """Write beside, then rename over."""
        target = self._file(path)
        with _translated("write", path), self._staged(target, pieces, sync=self._durable) as staged:
            os.replace(staged, target)
            if self._durable:
                _sync_directory(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write beside, then link: False when the name is taken."""
        target = self._file(path)
        with _translated("create", path), self._staged(target, (data,), sync=True) as staged:
            try:
                os.link(staged, target)
            except FileExistsError:
                # It may be ours, from a try whose sync failed: whoever acts on it needs it to be there after a power cut.
                _sync_directory(target.parent)
                return False
            # From here on the name is taken: a failing sync must be reported as unknown, and is, as
            # RetryableError.
            _sync_directory(target.parent)
        return True

    def get(self, path: str) -> bytes:
        """The complete file."""
        file = self._file(path)
        with _translated("read", path):
            return file.read_bytes()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Part of the file."""
        check_range(path, start, length)
        file = self._file(path)
        with _translated("read", path), file.open("rb") as opened:
            opened.seek(start)
            return check_length(path, opened.read(length), length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Files below the prefix, in no promised order. One that vanishes meanwhile is left out."""
        start = self._root / check_prefix(prefix)
        with _translated("list", prefix):
            for folder, _, names in os.walk(start, onerror=_raise_unless_missing):
                for name in names:
                    if not name.startswith(TEMPORARY_PREFIX):
                        yield from self._info(os.path.join(folder, name))

    def delete(self, paths: Sequence[str]) -> None:
        """Unlink each file, and its directory with the last one: lists of a job of weeks would walk through all of them.

        Nothing is synced: what a power cut brings back is garbage, as it was before.
        """
        folders = set()
        for path in paths:
            file = self._file(path)
            with _translated("delete", path), suppress(FileNotFoundError, NotADirectoryError):
                file.unlink()
                folders.add(file.parent)
        for folder in folders - {self._root}:
            with suppress(OSError):  # not empty, or gone
                folder.rmdir()

    def sweep(self, prefix: str) -> int:
        """Delete what writers that were killed have left below this prefix; how many files."""
        swept = 0
        with _translated("sweep", prefix):
            for folder, _, names in os.walk(self._root / check_prefix(prefix), onerror=_raise_unless_missing):
                dead = [name for name in names if name.startswith(TEMPORARY_PREFIX) and _swept(os.path.join(folder, name))]
                if len(dead) == len(names) and dead and Path(folder) != self._root:
                    with suppress(OSError):  # not empty, or gone
                        os.rmdir(folder)
                swept += len(dead)
        return swept

    def _file(self, path: str) -> Path:
        return self._root / check_path(path)

    def _info(self, file: str) -> Iterator[ObjectInfo]:
        with suppress(FileNotFoundError):
            size = os.stat(file).st_size
            yield ObjectInfo(os.path.relpath(file, self._root).replace(os.sep, "/"), size)

    @contextmanager
    def _staged(self, target: Path, pieces: Sequence[Piece], *, sync: bool) -> Iterator[Path]:
        """A temporary file with these bytes beside the target; gone afterwards unless it was renamed."""
        staged = target.parent / f"{TEMPORARY_PREFIX}{uuid4().hex}"
        try:
            with _created(staged) as opened:
                if not sync or not _write_around_cache(opened.fileno(), pieces):
                    _write_all(opened.fileno(), pieces)
                if sync:
                    os.fsync(opened.fileno())
                yield staged  # still locked
        finally:
            with suppress(OSError):
                staged.unlink()


def _created(path: Path) -> FileIO:
    """A new file, locked. Its directory is made again when a delete takes it away in between."""
    for _ in range(CREATE_TRIES):
        with suppress(FileNotFoundError):
            _make_directories(path.parent)
            opened = FileIO(path, "xb")
            _lock(opened.fileno())
            return opened
    if not path.parent.is_dir():
        raise OSError(errno.ENOTSUP, "no directory can be made here", str(path))
    raise FileNotFoundError(errno.ENOENT, "its directory keeps vanishing", str(path))


def _lock(descriptor: int) -> bool | None:
    """Take the file's lock: False when somebody has it, ``None`` where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _swept(file: str) -> bool:
    """Delete this temporary file if its writer is dead."""
    with suppress(FileNotFoundError):
        age_s = time.time() - os.stat(file).st_mtime
        if age_s < SWEEP_AGE_S:
            return False
        with FileIO(file, "rb+") as opened:
            free = _lock(opened.fileno())
            if free or (free is None and age_s > SWEEP_AGE_NO_LOCKS_S):
                os.unlink(file)
                return True
    return False


def _write_all(descriptor: int, pieces: Iterable[Piece]) -> None:
    rest = deque(memoryview(piece).cast("B") for piece in pieces if len(piece))
    while rest:
        written = os.writev(descriptor, list(islice(rest, PIECES_AT_ONCE)))
        while rest and written >= len(rest[0]):
            written -= len(rest.popleft())
        if written:
            rest[0] = rest[0][written:]


class _OwnLump(threading.local):
    """Memory at a page's address, one per thread and used again: fresh memory would cost more than the copy."""

    def __init__(self) -> None:
        self.bytes = memoryview(mmap.mmap(-1, LUMP_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


_own_lump = _OwnLump()


def _write_around_cache(descriptor: int, pieces: Sequence[Piece]) -> bool:
    """Write an empty file without the system's cache. False, and the file is empty, where it is not worth it or not to be had."""
    length = sum(len(piece) for piece in pieces)
    if length < AROUND_CACHE_MIN or not _set_direct(descriptor, True):
        return False
    try:
        for lump in _lumps(pieces, _own_lump.bytes):
            _write_all(descriptor, (lump,))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        length = 0  # this disk wants larger blocks, or none of this at all
        os.lseek(descriptor, 0, os.SEEK_SET)
    _set_direct(descriptor, False)
    os.ftruncate(descriptor, length)
    return length > 0


def _set_direct(descriptor: int, wanted: bool) -> bool:
    direct = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    except OSError:
        return False
    return bool(direct)


def _lumps(pieces: Iterable[Piece], lump: memoryview) -> Iterator[memoryview]:
    """The bytes in full lumps, and at the end in full blocks: the padding after them is to be cut off."""
    filled = 0
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            part = rest[: len(lump) - filled]
            lump[filled : filled + len(part)] = part
            rest = rest[len(part) :]
            filled += len(part)
            if filled == len(lump):
                yield lump
                filled = 0
    if filled:
        yield lump[: -(-filled // BLOCK_BYTES) * BLOCK_BYTES]


_unsynced: set[Path] = set()
"""Directories that this process made or wanted, and whose names may not be on the disk."""


def _make_directories(folder: Path) -> None:
    """Make a directory and its parents, and sync each new name: else the file in it could vanish with it.

    One whose name could not be synced is synced by whoever comes next, or is there already.
    """
    if folder.is_dir() and folder not in _unsynced:
        return
    _make_directories(folder.parent)
    _unsynced.add(folder)
    try:
        folder.mkdir()
    except FileExistsError:
        with suppress(FileNotFoundError):  # somebody made it, and took it away since
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                raise
    except OSError:
        _unsynced.discard(folder)  # there is no such name
        raise
    _sync_directory(folder.parent)
    _unsynced.discard(folder)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def _translated(verb: str, path: str) -> Iterator[None]:
    """The only function where the file system's errors become ours."""
    try:
        yield
    except OSError as error:
        if verb == "read" and isinstance(error, _NO_SUCH_FILE):
            raise FileNotFoundError(f"there is no object path={path}") from error
        raise storage_error(error, f"cannot {verb} an object", path) from error
