"""Many small staged files appear as few bigger ones, each by one rename, and can be cut again.

A merged file says in itself which staged files it is made of, its *members*, so that the rename that shows the
rows also records that they are shown. Its name is that of its last member with the id of the first added::

    part-{id}-{subtask}-g{gang}-{token}-{number}-m{id of the first, 16 hex digits}-{token}.parquet

More than one rename can't be atomic, so whoever needs several works in a directory of its own below
``_merging`` and moves there what it works on, by one rename each: a file is still in exactly one directory.
Whoever finds such a directory left takes it, again by one rename, after which its maker can do nothing more
with it, and finishes or undoes the work:

=====================  ==========================  ================================================
work                   found in its directory      then
=====================  ==========================  ================================================
merge, ``NAME``        ``*.pending`` (members)     NAME is shown or hidden: delete them; else back to ``_pending``
cut, rest is ``NAME``  ``rest.cut``, ``*.hide``    show the rest as NAME, hide the other
cut                    ``rest.cut``                delete it: nothing was changed
cut                    ``*.hide``                  hide it: the rest is shown
=====================  ==========================  ================================================

Knows no file format; ``parquet_merge`` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from tidegate.connectors.files import file_errors, file_names, moved, remove_file
from tidegate.connectors.staging import (
    ADOPTED,
    HIDDEN,
    MERGING,
    PENDING,
    StagedFile,
    StagingDirectory,
    files_of,
    gang_and_checkpoint,
)
from tidegate.errors import RetryableError, TidegateError
from tidegate.plan.connector import Committable

MERGED_BYTES_MAX = 64 << 20
"""No merged file is bigger than this; staged files of a quarter of it appear as they are."""
MERGED_AT_ONCE_MAX = 256 << 20
"""So much is merged in one go, which takes a second of CPU or two; the rest appears as it is."""
ROUNDS = 3
"""How often a call looks again when another driver is at work in the same directory."""

_MERGED_NAME = re.compile(r"part-(?P<last>[0-9a-f]{16})-.+-m(?P<first>[0-9a-f]{16})-[0-9a-f]{8}\.[a-z]+")
_DRAFT, _REST, _HIDE = "merged.draft", "rest.cut", ".hide"


@dataclass(frozen=True, slots=True)
class MergedPart:
    """A staged file within a merged one, by the name that it would have had."""

    final: str
    rows: int


class MergeFormat(Protocol):
    """What merging needs to know of a file format. Files are closed and complete, but not synced, when calls return."""

    def same_columns(self, paths: Sequence[str]) -> bool:
        """True when the rows of these files can be in one file as they are."""

    def merge(self, paths: Sequence[str], target: str, members: Sequence[MergedPart]) -> None:
        """Write the rows of these files, each of which has as many as its member says, and the list of members."""

    def cut(self, path: str, target: str, keep: Sequence[MergedPart]) -> None:
        """Write those rows of a merged file that belong to these of its members, and the list of them."""

    def members(self, path: str) -> tuple[MergedPart, ...]:
        """What a merged file is made of, in the order of its rows. ``FileNotFoundError`` when there is none."""


def groups_of(files: Sequence[StagedFile], file_bytes: int) -> list[list[StagedFile]]:
    """Which files become one: neighbours, as long as they are small. Together they stay in order."""
    limit = min(file_bytes, MERGED_BYTES_MAX)
    groups: list[list[StagedFile]] = []
    open_bytes, merged = limit, 0
    for file in files:
        small = 4 * file.bytes < limit and merged + file.bytes <= MERGED_AT_ONCE_MAX
        if small and open_bytes + file.bytes <= limit:
            groups[-1].append(file)
        else:
            groups.append([file])
            open_bytes = 0 if small else limit
        open_bytes += file.bytes
        merged += file.bytes if small else 0
    return groups


def merged_name(finals: Sequence[str]) -> str:
    """A new name for a file made of these, which sorts where the last of them would."""
    ids = [staged_by[1] for final in finals if (staged_by := gang_and_checkpoint(final)) is not None]
    stem, dot, suffix = finals[-1].rpartition(".")
    return f"{stem}-m{min(ids, default=0):016x}-{uuid4().hex[:8]}{dot}{suffix}"


@dataclass(frozen=True, slots=True)
class Show:
    """What is ready to be shown: files within ``work`` with their new names, and files that are shown as they are."""

    work: str
    moves: list[tuple[str, str]]
    plain: list[StagedFile]


class Shows:
    """A ``Gathered``."""

    def __init__(self, files: MergedFiles, shows: Sequence[Show]) -> None:
        self._files = files
        self._shows = shows

    def show(self) -> None:
        """Rename it all into sight, in order."""
        for show in self._shows:
            self._files.show(show)

    def release(self) -> None:
        """Sync the directory, then delete the members."""
        if self._shows:
            self._files.release([show.work for show in self._shows if show.work])


class MergedFiles:
    """The files of one staging directory, merged or not. Calls block on the file system; all are idempotent.

    One caller at a time, but for drivers that were replaced and do not know it yet: those may be anywhere in
    the middle of a call and go on at any time.
    """

    def __init__(self, directory: StagingDirectory, kind: MergeFormat, file_bytes: int) -> None:
        self._at = directory
        self._kind = kind
        self._file_bytes = file_bytes

    # -- publish

    def gather(self, committables: Iterable[Committable], *, merge: bool = True) -> Shows:
        """Merge what is small of these. Nothing is visible before ``show``."""
        files = sorted(files_of(committables), key=lambda file: file.final)
        groups = groups_of(files, self._file_bytes) if merge else [[file] for file in files]
        own: set[str] = set()
        return Shows(self, [self._ready(group, own) for group in groups])

    def _ready(self, group: list[StagedFile], own: set[str]) -> Show:
        if len(group) == 1:
            return Show("", [], group)
        name = merged_name([file.final for file in group])
        work = self._work(name)
        own.add(os.path.basename(work))
        claimed = [file for file in group if self._is_ours(file, os.path.join(work, file.pending), own)]
        paths = [os.path.join(work, file.pending) for file in claimed]
        with _undisturbed(work):
            if len(claimed) < 2 or not self._kind.same_columns(paths):
                return Show(work, [(path, file.final) for path, file in zip(paths, claimed, strict=True)], [])
            draft = os.path.join(work, _DRAFT)
            self._kind.merge(paths, draft, [MergedPart(file.final, file.rows) for file in claimed])
            self._at.sync(draft)
        return Show(work, [(draft, name)], [])

    def _is_ours(self, file: StagedFile, target: str, own: Iterable[str] = ()) -> bool:
        """Move a staged file to where only we can show it, or into sight. False: it was shown or hidden before."""
        for _ in range(ROUNDS):
            if moved(self._at.pending_path(file.pending), target):
                return True
            if self._has_passed(file.final):
                return False
            self.reclaim(own)
        raise self._at.gone(file)

    def _has_passed(self, final: str) -> bool:
        """True when this staged file was shown or hidden, by itself or within a merged one."""
        if os.path.exists(self._at.final_path(final)) or os.path.exists(self._at.hidden_path(final)):
            return True
        holders = self._holders(*_range_of(final), hidden=True)
        return any(final == member.final for _, members in holders for member in members)

    def show(self, show: Show) -> None:
        """Rename into sight."""
        for path, name in show.moves:
            with _undisturbed(show.work):
                os.rename(path, self._at.final_path(name))
        for file in show.plain:
            self._is_ours(file, self._at.final_path(file.final))

    def release(self, works: Sequence[str]) -> None:
        """What was shown is durable; only then let go of what it was made of."""
        self._at.sync(self._at.path)
        for work in works:
            self._discard(work)

    # -- hide

    def hide(self, committables: Sequence[Committable]) -> None:
        """Take these rows out of sight for good, wherever they are; those beside them in a merged file stay."""
        self.in_peace(lambda: self._at.hide(committables))
        finals = {file.final for file in files_of(committables)}
        gone = {final for final in finals if not os.path.exists(self._at.hidden_path(final))}
        if gone:
            self._hide_members(*_hull(map(_range_of, gone)), gone.__contains__)

    def hide_unnamed(self, gang: int, checkpoint_id: int, keep: Sequence[Committable]) -> None:
        """The same for all that gangs below this one staged after this checkpoint, except ``keep``."""
        self.in_peace(lambda: self._at.hide_unnamed(gang, checkpoint_id, keep))
        self.hide_after(checkpoint_id, lambda staged_by: staged_by < gang)

    def hide_after(self, checkpoint_id: int, gang: Callable[[int], bool] = lambda staged_by: True) -> None:
        """Take rows within merged files out of sight that such gangs staged after this checkpoint.

        What another job had published when this one began to add to it stays.
        """

        def is_newer(final: str) -> bool:
            found = gang_and_checkpoint(final)
            return found is not None and found[1] > checkpoint_id and gang(found[0])

        self._hide_members(checkpoint_id + 1, 1 << 64, is_newer)

    def newest_id(self) -> int:
        """The newest checkpoint with rows in a visible merged file that is this job's own; 0: there is none. Only reads."""
        adopted = set(file_names(os.path.join(self._at.path, ADOPTED)))
        own = [name for name in self._at.published() if f"{name}.adopted" not in adopted]
        return max((found[1] for name in own if (found := _merged_range(name))), default=0)

    def hides(self, committables: Sequence[Committable]) -> bool:
        """True when rows of these were within a merged file when they were taken out of sight. Only reads."""
        finals = {file.final for file in files_of(committables)}
        if not finals:
            return False
        spans = _hull(map(_range_of, finals))
        shown = {member.final for _, members in self._holders(*spans) for member in members}
        known = {member.final for _, members in self._holders(*spans, hidden=True) for member in members}
        return bool(finals & known - shown)

    def _hide_members(self, first: int, last: int, gone: Callable[[str], bool]) -> None:
        adopted = set(file_names(os.path.join(self._at.path, ADOPTED)))
        for name, members in self._holders(first, last):
            rest = [member for member in members if not gone(member.final)]
            if len(rest) < len(members) and f"{name}.adopted" not in adopted:
                self._cut(name, rest)

    def _cut(self, name: str, rest: list[MergedPart]) -> None:
        """Hide a merged file and show what stays of it. Between the two renames readers miss the rest for a moment."""
        if rest:
            self._show_rest(name, rest)
        else:
            moved(self._at.final_path(name), self._at.hidden_path(name))
        self._at.sync(os.path.join(self._at.path, HIDDEN))
        self._at.sync(self._at.path)

    def _show_rest(self, name: str, rest: list[MergedPart]) -> None:
        shown, rest_name = self._at.final_path(name), merged_name([member.final for member in rest])
        work = self._work(rest_name)
        with _undisturbed(work):
            draft, cut = os.path.join(work, _DRAFT), os.path.join(work, _REST)
            self._kind.cut(shown, draft, rest)
            self._at.sync(draft)
            os.rename(draft, cut)
            self._at.sync(work)
            os.rename(shown, os.path.join(work, name + _HIDE))
            self._at.sync(work)
        self._finish_cut(work, rest_name, [name + _HIDE])
        self._discard(work)

    def _finish_cut(self, work: str, rest_name: str, hides: list[str]) -> None:
        moved(os.path.join(work, _REST), self._at.final_path(rest_name))
        self._at.sync(self._at.path)
        for name in hides:
            moved(os.path.join(work, name), self._at.hidden_path(name.removesuffix(_HIDE)))

    # -- what others left

    def in_peace(self, action: Callable[[], object]) -> None:
        """Do something with the files that wait, while nobody else has any of them."""
        for _ in range(ROUNDS):
            self.reclaim()
            action()
            if not self._works():  # else a driver that was replaced may just have taken some of them
                return
        raise RetryableError(f"another driver is at work in this directory path={self._at.path}")

    def reclaim(self, own: Iterable[str] = ()) -> None:
        """Finish or undo what other calls left in the middle, and keep their makers from going on with it."""
        merging = os.path.join(self._at.path, MERGING)
        for name in self._works():
            stem = name.partition("~")[0]
            taken = os.path.join(merging, f"{stem}~{uuid4().hex[:8]}")
            if name not in own and moved(os.path.join(merging, name), taken):
                self._settle(f"{stem}{self._at.suffix}", taken)

    def _settle(self, result: str, work: str) -> None:
        names = file_names(work)
        hides = [name for name in names if name.endswith(_HIDE)]
        if hides:
            self._finish_cut(work, result, hides)
        if not (os.path.exists(self._at.final_path(result)) or os.path.exists(self._at.hidden_path(result))):
            for name in names:
                if name.endswith(".pending"):
                    moved(os.path.join(work, name), self._at.pending_path(name))
            self._at.sync(os.path.join(self._at.path, PENDING))
        self._at.sync(self._at.path)
        self._discard(work)

    def clear(self) -> None:
        """Delete all that is being worked on."""
        for name in self._works():
            self._discard(os.path.join(self._at.path, MERGING, name))

    # -- files

    def _holders(self, first: int, last: int, *, hidden: bool = False) -> list[tuple[str, tuple[MergedPart, ...]]]:
        """Merged files with members of checkpoints between these, and what they are made of; ``hidden`` ones too."""
        names = self._at.published()
        if hidden:
            names += [name.removesuffix(".hidden") for name in file_names(os.path.join(self._at.path, HIDDEN))]
        found = []
        for name in names:
            range_of = _merged_range(name)
            if range_of and range_of[0] <= last and first <= range_of[1]:
                found.append((name, self._members(name)))
        return found

    def _members(self, name: str) -> tuple[MergedPart, ...]:
        for path in (self._at.final_path(name), self._at.hidden_path(name)):  # the direction in which files move
            try:
                return self._kind.members(path)
            except FileNotFoundError:
                continue
        return ()

    def _works(self) -> list[str]:
        return file_names(os.path.join(self._at.path, MERGING), directories=True)

    def _work(self, result: str) -> str:
        """A new directory to work in. It is made once and never again: when it is gone, somebody has taken it."""
        work = os.path.join(self._at.path, MERGING, result.rpartition(".")[0])
        with file_errors(work):
            os.makedirs(work)
        return work

    def _discard(self, work: str) -> None:
        for name in file_names(work):
            remove_file(os.path.join(work, name))
        with file_errors(work):
            try:
                os.rmdir(work)
            except FileNotFoundError:
                return


@contextmanager
def _undisturbed(work: str) -> Iterator[None]:
    """Whatever fails because another driver has taken the directory is tried again later, from its start."""
    with file_errors(work):
        try:
            yield
        except (OSError, TidegateError) as error:
            if os.path.isdir(work) and not isinstance(error, FileNotFoundError):
                raise
            raise RetryableError(f"another driver is at work in this directory path={work}") from error


def _merged_range(name: str) -> tuple[int, int] | None:
    found = _MERGED_NAME.fullmatch(name)
    return (int(found["first"], 16), int(found["last"], 16)) if found else None


def _range_of(final: str) -> tuple[int, int]:
    """The checkpoint that staged this file, as the first and the last one. A name that does not say may be of any."""
    found = gang_and_checkpoint(final)
    return (found[1], found[1]) if found else (0, 1 << 64)


def _hull(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    firsts, lasts = zip(*ranges, strict=True)
    return min(firsts), max(lasts)
