"""A directory in which finished files appear at once, and the fence that keeps late calls out of it.

A staged file is in exactly one directory, and moves in one direction only::

    _pending/NAME.pending  --publish-->  FINAL (a reader sees it)  --hide-->  _hidden/FINAL.hidden
            |                                                                        ^
            +---------------------------- hide -------------------------------------+

Every step is one rename within one file system, which POSIX makes atomic. That is all of the fence: once a
file has been hidden there is nothing left that a late ``publish`` of an old leader could rename, so it
changes nothing. No file is ever renamed back. One directory belongs to one sink of one run, because each sweeps away what it
does not know; ``owner`` says how. A job that adds to what another has published notes those names below ``_adopted``,
because its own numbers begin anew.

Names below ``_pending``, ``_hidden`` and ``_adopted`` end neither in ``.parquet`` nor in ``.arrow``, so that even a
recursive glob over the directory finds published files only.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from tidegate.connectors.files import file_errors, file_names, moved, remove_file, sync_file
from tidegate.connectors.owner import DirectoryLease, check_claim, holder, taken
from tidegate.core.log.owner import Claim, Holder
from tidegate.errors import CorruptDataError
from tidegate.plan.connector import Committable, WriterContext

PENDING = "_pending"
HIDDEN = "_hidden"
ADOPTED = "_adopted"
MERGING = "_merging"

_UNSAFE = re.compile(r"[^A-Za-z0-9_.]+")
_PENDING_NAME = re.compile(r"[A-Za-z0-9_.]+-[0-9]{4,}-g(?P<gang>[0-9]+)-[0-9a-f]{8}-[0-9]+\.pending")
_FINAL_NAME = re.compile(r"part-(?P<id>[0-9a-f]{16})-[0-9]{4,}-g(?P<gang>[0-9]+)-[0-9a-f]{8}-[0-9]+\.[a-z]+")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One finished file: its name while it waits and its name once it is published.

    Neither depends on the epoch.
    """

    pending: str
    final: str
    rows: int
    bytes: int


def pending_name(context: WriterContext, token: str, number: int) -> str:
    """The name of a writer's file while it waits; ``token`` keeps writers apart that share the rest."""
    operator = _UNSAFE.sub("_", context.operator)[:64] or "sink"
    return f"{operator}-{context.subtask:04d}-g{context.gang}-{token}-{number}.pending"


def final_name(context: WriterContext, checkpoint_id: int, token: str, number: int, suffix: str) -> str:
    """The name that readers see: by it files sort in the order of their checkpoints."""
    return f"part-{checkpoint_id:016x}-{context.subtask:04d}-g{context.gang}-{token}-{number:06d}{suffix}"


def gang_and_checkpoint(final: str) -> tuple[int, int] | None:
    """Who staged the file with this final name, and at which checkpoint; ``None`` for another name."""
    found = _FINAL_NAME.fullmatch(final)
    return (int(found["gang"]), int(found["id"], 16)) if found else None


def committable_of(context: WriterContext, files: Sequence[StagedFile]) -> Committable:
    """What the manifest keeps of these files."""
    return {"subtask": context.subtask, "gang": context.gang, "files": [asdict(file) for file in files]}


def files_of(committables: Iterable[Committable]) -> Iterator[StagedFile]:
    """The files that committables name, checked: they may come from a damaged or foreign manifest."""
    for committable in committables:
        files = committable.get("files") if isinstance(committable, dict) else None
        if not isinstance(files, list | tuple):
            raise CorruptDataError(f"this committable has no list of files committable={committable!r:.200}")
        yield from map(_checked_file, files)


def _checked_file(entry: Any) -> StagedFile:
    match entry:
        case {"pending": str(pending), "final": str(final), "rows": int(rows), "bytes": int(size)} if _PENDING_NAME.fullmatch(
            pending
        ) and _PLAIN_NAME.fullmatch(final):
            return StagedFile(pending, final, rows, size)
        case _:
            raise CorruptDataError(f"this committable names a file in a wrong way file={entry!r:.200}")


@dataclass(frozen=True, slots=True)
class StagingDirectory:
    """The three subdirectories of one directory. Calls block on the file system only; all are idempotent.

    ``durable`` syncs files and directories, so that what was prepared or published survives a power cut and
    not only the death of a process.
    """

    path: str
    suffix: str
    durable: bool = True

    def pending_path(self, name: str) -> str:
        """Where a file of this name waits."""
        return os.path.join(self.path, PENDING, name)

    def final_path(self, name: str) -> str:
        """Where readers find the file."""
        return os.path.join(self.path, name)

    def hidden_path(self, name: str) -> str:
        """Where the file with this final name lies hidden."""
        return os.path.join(self.path, HIDDEN, f"{name}.hidden")

    def create(self) -> None:
        """Make the directories, or say clearly why that can't be."""
        with file_errors(self.path):
            os.makedirs(os.path.join(self.path, PENDING), exist_ok=True)
            os.makedirs(os.path.join(self.path, HIDDEN), exist_ok=True)

    def check_writable(self) -> None:
        """Write, move and remove a small file where files will be. Leaves nothing behind, no directory either."""
        made = _made_directories(self.path)
        try:
            for folder in ("", PENDING, HIDDEN):
                directory = os.path.join(self.path, folder)
                if os.path.isdir(directory):
                    _probe(directory)
        finally:
            for directory in reversed(made):
                with suppress(OSError):  # somebody else has put something into it
                    os.rmdir(directory)

    def publish(self, committables: Sequence[Committable]) -> None:
        """Show exactly these files.

        Shown or hidden already: nothing happens. Nowhere: ``CorruptDataError``.
        """
        files = list(files_of(committables))
        for file in files:
            if not self._moved(self.pending_path(file.pending), self.final_path(file.final)):
                self._check_passed(file)
        if files:
            self.sync(self.path)

    def hide(self, committables: Sequence[Committable]) -> None:
        """Take these files out of sight for good, wherever they are. The data is kept."""
        self.create()
        for file in files_of(committables):
            hidden = self.hidden_path(file.final)
            # In the order in which files move: a file that is being published meanwhile is met at its next
            # directory.
            if not self._moved(self.pending_path(file.pending), hidden):
                self._moved(self.final_path(file.final), hidden)
        self.sync(os.path.join(self.path, HIDDEN))
        self.sync(self.path)

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        """Take out of sight all that gangs below this one finished after this checkpoint, except ``keep``.

        For a restore over a manifest that can't be read: the names tell what it may have published.
        """
        self.create()
        kept = {file.pending for file in files_of(keep)}
        # First what waits: a late publish of it must not get past the next step. It is kept: an entry of the log that is lost
        # now may have named it.
        self._set_aside(n for n in self._names(PENDING) if n not in kept and _gang_of(n, gang) < gang)
        for name, found in self._own_published():
            if int(found["gang"]) < gang and int(found["id"], 16) > checkpoint_id:
                self._moved(self.final_path(name), self.hidden_path(name))
        self.sync(os.path.join(self.path, HIDDEN))
        self.sync(self.path)

    def check_claim(self, claim: Claim) -> None:
        """Refuse a directory that this run may not have. Only reads."""
        check_claim(self.path, claim, idle=self._idle())

    def claim(self, claim: Claim, in_peace: Callable[[Callable[[], None]], None] = lambda action: action()) -> DirectoryLease:
        """Take the directory, or refuse. What another log's run has staged is moved away, so that it can't show it any more.

        ``in_peace`` does something with the staged files while nobody else has any of them in hand.
        """
        self.create()
        with taken(self.path, claim, idle=self._idle()) as (lease, verdict):
            if verdict.set_aside:
                in_peace(lambda: self._set_aside(self._names(PENDING)))
        return lease

    def holder(self) -> Holder | None:
        """Who has the directory. Only reads."""
        return holder(self.path)

    def newest_id(self) -> int:
        """The newest checkpoint id of the files that a reader sees and that are this job's own; 0: there is none."""
        return max((int(found["id"], 16) for _, found in self._own_published()), default=0)

    def hides(self, committables: Sequence[Committable]) -> bool:
        """True when any of these was taken out of sight. Only reads."""
        return any(os.path.exists(self.hidden_path(file.final)) for file in files_of(committables))

    def _idle(self) -> bool:
        merging = file_names(os.path.join(self.path, MERGING), directories=True)
        return not (self.published() or self._names(PENDING) or merging)

    def _set_aside(self, pending: Iterable[str]) -> None:
        for name in pending:
            self._moved(self.pending_path(name), self.hidden_path(name))

    def _own_published(self) -> Iterator[tuple[str, re.Match[str]]]:
        adopted = set(self._names(ADOPTED))
        for name in self.published():
            found = _FINAL_NAME.fullmatch(name)
            if found is not None and f"{name}.adopted" not in adopted:
                yield name, found

    def adopt(self) -> None:
        """Note that what is published now is another job's and stays."""
        directory = os.path.join(self.path, ADOPTED)
        with file_errors(directory):
            os.makedirs(directory, exist_ok=True)
            for name in self.published():
                with open(os.path.join(directory, f"{name}.adopted"), "wb"):
                    pass
        self.sync(directory)
        self.sync(self.path)

    def discard(self, committables: Sequence[Committable]) -> None:
        """Delete what waits of these. Published and hidden files are left alone."""
        for file in files_of(committables):
            remove_file(self.pending_path(file.pending))

    def sweep(self, gang: int, keep: Sequence[Committable]) -> list[str]:
        """Delete what gangs below this one left waiting and ``keep`` does not name; the names that went."""
        kept = {file.pending for file in files_of(keep)}
        gone = [name for name in self._names(PENDING) if name not in kept and _gang_of(name, gang) < gang]
        for name in gone:
            remove_file(self.pending_path(name))
        return gone

    def published(self) -> list[str]:
        """The names that a reader sees, sorted, which is the order of their checkpoints."""
        return [name for name in self._names("") if name.endswith(self.suffix) and name[0] not in "_."]

    def clear(self) -> None:
        """Delete everything: what is visible, what waits, what is hidden and notes. Other files stay."""
        for name in self.published():
            remove_file(self.final_path(name))
        for folder in (PENDING, HIDDEN, ADOPTED):
            for name in self._names(folder):
                remove_file(os.path.join(self.path, folder, name))

    def sync(self, path: str) -> None:
        """Make a file or a directory's names durable, if that was asked for."""
        if self.durable:
            with file_errors(path):
                sync_file(path)

    def _names(self, folder: str) -> list[str]:
        return file_names(os.path.join(self.path, folder))

    def _moved(self, source: str, target: str) -> bool:
        return moved(source, target)

    def _check_passed(self, file: StagedFile) -> None:
        # Hidden is asked last, because a file that is being hidden goes there.
        if os.path.exists(self.final_path(file.final)) or os.path.exists(self.hidden_path(file.final)):
            return
        raise self.gone(file)

    def gone(self, file: StagedFile) -> CorruptDataError:
        """Its rows are committed and lost."""
        path = self.final_path(file.final)
        return CorruptDataError(
            f"a staged file is gone: it is neither waiting nor published nor hidden pending={file.pending} path={path}",
            path=path,
        )


def _made_directories(path: str) -> list[str]:
    """Make this directory; those that were not there, outermost first."""
    missing = []
    with file_errors(path):
        at = path
        while not os.path.lexists(at):
            missing.append(at)
            at = os.path.dirname(at)
        for directory in reversed(missing):
            os.makedirs(directory, exist_ok=True)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return missing[::-1]


def _probe(directory: str) -> None:
    probe = os.path.join(directory, f"_probe-{uuid4().hex}")
    with file_errors(directory):
        try:
            with open(probe, "xb") as file:
                file.write(b"tidegate")
            os.replace(probe, f"{probe}.moved")
        finally:
            for left in (probe, f"{probe}.moved"):
                with suppress(OSError):
                    os.unlink(left)


def _gang_of(name: str, unknown: int) -> int:
    found = _PENDING_NAME.fullmatch(name)
    return int(found["gang"]) if found else unknown
