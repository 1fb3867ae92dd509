"""Whose directory a sink's is: the note ``_owner``, and the lock that says that its writer still runs.

    _owner        the run that publishes here, replaced atomically by whoever takes the directory
    _run-RUN      locked by the driver of that run as long as it lives, whatever kills it; in it, what it last began to publish
    _lock         locked for the moment of taking, so that of two starts one sees the other

A run looks into ``_owner`` before it publishes and when a staged file is gone. In between it may be overtaken, and then finds
nothing to rename: another log's run moves all staged files away, AFTER its name is in ``_owner``. Whether a run may take a
directory is decided in ``core.log.owner``.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import assert_never
from uuid import uuid4
from weakref import WeakSet

from tidegate.connectors.files import file_errors, remove_file, sync_file
from tidegate.core.log.codec import decode, encode
from tidegate.core.log.owner import Claim, Denied, Holder, Outrun, Owner, Take, judge, replaced
from tidegate.errors import CorruptDataError, FencedError, InvalidUseError, RetryableError
from tidegate.ids import Epoch, Term

OWNER = "_owner"
LOCK = "_lock"
RUN = "_run-"
TAKING_LIMIT_S = 10.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_NOTE = re.compile(rb"(?P<epoch>[0-9]{20}) (?P<id>[0-9a-f]{16})\n")
_OLD_NOTE = re.compile(r"sink '(?P<sink>.*)' of job '(?P<job>.*)'")

log = logging.getLogger("tidegate")
_leases: WeakSet[DirectoryLease]


class DirectoryLease:
    """A directory that is this run's, until ``release`` or the end of the process. Calls block on the file system."""

    def __init__(self, path: str, owner: Owner, descriptor: int) -> None:
        self._path = path
        self._owner = owner
        self._descriptor = descriptor
        self._noted = (0, 0)
        _leases.add(self)

    def check(self) -> None:
        """``FencedError`` when somebody else has taken the directory. A note that is gone says nothing."""
        found = read_owner(self._path)
        if found is not None and found.run != self._owner.run:
            raise FencedError(f"{replaced(found)} path={self._path}")

    def about_to_publish(self, epoch: int, checkpoint_id: int) -> None:
        """Check, and note how far this run has come: the log has this epoch. BEFORE anything of it is shown."""
        self.check()
        if (epoch, checkpoint_id) > self._noted:
            _write_note(os.path.join(self._path, f"{RUN}{self._owner.run}"), f"{epoch:020d} {checkpoint_id:016x}\n")
            self._noted = (epoch, checkpoint_id)

    def release(self) -> None:
        """Others may take it from now on. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


_leases = WeakSet()


def _forget_in_child() -> None:
    """A forked child must not keep its parent's directories when the parent dies."""
    for lease in list(_leases):
        lease.release()


os.register_at_fork(after_in_child=_forget_in_child)


def read_owner(path: str) -> Owner | None:
    """Who has this directory, if anybody. Only reads."""
    note = os.path.join(path, OWNER)
    with file_errors(note):
        try:
            with open(note, "rb") as file:
                data = file.read(10_000)
        except (FileNotFoundError, NotADirectoryError):
            return None
    if old := _OLD_NOTE.fullmatch(data.decode("utf-8", "replace")):
        return Owner(sink=old["sink"], job=old["job"], log="", term=Term(0), run="", host="", pid=0, since="", store=None)
    try:
        return decode(Owner, data, note)
    except CorruptDataError as error:
        raise InvalidUseError(
            f"it can't be read whose directory this is: choose another one, or delete this file if no job writes here path={note}"
        ) from error


def holder(path: str) -> Holder | None:
    """Who has this directory and whether it still runs. Only reads."""
    owner = read_owner(path)
    if owner is None:
        return None
    run = os.path.join(path, f"{RUN}{owner.run}")
    with file_errors(run):
        try:
            descriptor = os.open(run, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Holder(owner, alive=False)
        try:
            noted = _NOTE.match(os.pread(descriptor, 64, 0))
            alive = not _locked(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
    return Holder(owner, alive, Epoch(int(noted["epoch"])), int(noted["id"], 16)) if noted else Holder(owner, alive)


def check_claim(path: str, claim: Claim, *, idle: bool) -> Take:
    """Refuse a directory that this run may not have. Only reads."""
    verdict = judge(claim, holder(path), idle=idle)
    match verdict:
        case Take():
            return verdict
        case Denied(why):
            raise InvalidUseError(f"{why} path={path}")
        case Outrun(why):
            raise FencedError(f"{why} path={path}")
        case _:
            assert_never(verdict)


@contextmanager
def taken(path: str, claim: Claim, *, idle: bool) -> Iterator[tuple[DirectoryLease, Take]]:
    """Write this run's name into a directory that exists. Nobody else takes it before the block is left."""
    with _taking(path):
        verdict = check_claim(path, claim, idle=idle)
        former = read_owner(path)
        lease = _lease(path, claim.mine)
        try:
            _write_owner(path, claim.mine)
            if former is not None and former.run and former.run != claim.mine.run:
                remove_file(os.path.join(path, f"{RUN}{former.run}"))
            yield lease, verdict
        except BaseException:
            lease.release()
            raise


def _lease(path: str, owner: Owner) -> DirectoryLease:
    run = os.path.join(path, f"{RUN}{owner.run}")
    _write_note(run, "")
    with file_errors(run):
        # Not for writing: a file system on which a file is open for writing can't be made read-only.
        descriptor = os.open(run, os.O_RDONLY | os.O_CLOEXEC)
        if not _locked(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise InvalidUseError(f"this run has the directory already, give each sink its own path={path}")
    return DirectoryLease(path, owner, descriptor)


def _write_note(path: str, text: str) -> None:
    """In place: the lock is on this file."""
    with file_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, text.encode(), 0)
        finally:
            os.close(descriptor)


def _write_owner(path: str, owner: Owner) -> None:
    note = os.path.join(path, OWNER)
    draft = f"{note}-{uuid4().hex}"
    with file_errors(note):
        try:
            with open(draft, "xb") as file:
                file.write(encode(owner))
            sync_file(draft)
            os.replace(draft, note)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
        sync_file(path)


@contextmanager
def _taking(path: str) -> Iterator[None]:
    lock = os.path.join(path, LOCK)
    with file_errors(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + TAKING_LIMIT_S
        while not _locked_at(lock, descriptor):
            if time.monotonic() > deadline:
                raise RetryableError(f"another start has been taking this directory for {TAKING_LIMIT_S:.0f} s path={path}")
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _locked_at(path: str, descriptor: int) -> bool:
    with file_errors(path):
        return _locked(descriptor, fcntl.LOCK_EX)


def _locked(descriptor: int, how: int) -> bool:
    """Lock it, and say whether that went. Where there are no locks nobody is held up: ``_owner`` is still looked at."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            log.warning("this file system has no locks, two runs at once are noticed only when they publish: %s", error)
            return True
        if error.errno in _BUSY:
            return False
        raise
    return True
