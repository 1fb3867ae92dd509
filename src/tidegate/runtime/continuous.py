"""One subtask's share of a source that never ends: several splits read in turn, new ones found on the way.

Splits are known by their ids, not by their index in a list: the list grows. A split with an end waits until those before it
have been read; splits without an end are all open at once and take turns.

What was read to its end is remembered by a hash of its id, for ever. Nothing shorter would do: a file may appear under any name,
and when it was written is not when it appeared, so neither names nor times have a mark below which all is known to be read. The
newest hashes are in the checkpoint's manifest; older ones are in runs, which are stored once and named again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from tidegate.errors import CorruptDataError, InvalidUseError
from tidegate.plan.capabilities import Batched, Discovering, TimesOutIdle
from tidegate.plan.connector import Offset, Polled, Source, Split, SplitReader
from tidegate.runtime.source import SIDE_BY_SIDE_MAX, Reader, SourceReader, reached
from tidegate.state.run import Frozen, Restored, Run
from tidegate.values import BEGINNING_OF_TIME, END_OF_TIME, Json

DISCOVERY_INTERVAL_MS = 200
IDLE_TIMEOUT_MS = 1_000
MARK_BYTES = 12
SEAL_MARKS = 256
MARK = pa.binary(MARK_BYTES)


def open_reader(
    name: str,
    source: Source,
    splits: Sequence[Split],
    subtask: int,
    parallelism: int,
    now_ms: Callable[[], int],
    *,
    side_by_side: bool = False,
) -> Reader:
    """The reader that suits the source. ``side_by_side``: splits of the same time by turns, since rows wait for the watermark."""
    if source.bounded:
        return SourceReader(name, source, splits, subtask, parallelism, open_max=SIDE_BY_SIDE_MAX if side_by_side else 1)
    if isinstance(source, Batched):
        from tidegate.runtime.lockstep import LockstepReader  # late: it is a continuous reader itself

        return LockstepReader(name, source, splits, subtask, parallelism, now_ms)
    return ContinuousReader(name, source, splits, subtask, parallelism, now_ms)


@dataclass(slots=True)
class OpenSplit:
    """A split that is being read. ``active_ms`` is when it last brought something, ``empty_ms`` when it last was asked in vain.

    One that was not asked is not idle, however long ago it brought something: the job may not have had room for its rows.
    """

    split: Split
    reader: SplitReader
    highest: int | None
    active_ms: int
    empty_ms: int


class ContinuousReader:
    """Takes turns between splits. Used by the loop thread only."""

    exact = False

    def __init__(
        self,
        name: str,
        source: Source,
        splits: Sequence[Split],
        subtask: int,
        parallelism: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._name = name
        self._source = source
        self._discovering = source if isinstance(source, Discovering) else None
        self._subtask = subtask
        self._parallelism = parallelism
        self._now_ms = now_ms
        self._idle_after_ms = source.idle_timeout_ms if isinstance(source, TimesOutIdle) else IDLE_TIMEOUT_MS
        self._given = splits
        # A list that never grows is dealt out evenly; one that grows goes by a hash, the same on every node.
        self._index = {mark(split.id): index for index, split in enumerate(splits)}
        self._seen: set[str] = set()
        self._done = bytearray()
        self._done_marks: set[bytes] = set()
        self._sealed: list[Run] = []
        self._resume: dict[str, tuple[Offset, int | None]] = {}
        self._turns: deque[OpenSplit] = deque()
        self._waiting: deque[Split] = deque()
        self._reached = BEGINNING_OF_TIME
        self._top: int | None = None
        self._active_ms = now_ms()
        self._discovery_due_ms = 0
        self._begun = False
        self._draining = False
        self._rows_before = 0
        self.rows_read = 0

    @property
    def rows(self) -> int:
        """Rows read for this subtask's part of the job, by earlier gangs too."""
        return self._rows_before + self.rows_read

    @property
    def finished(self) -> bool:
        """No more is to be read: the job drains, or a source whose splits are all known has returned everything."""
        if self._draining:
            return True
        return self._begun and self._discovering is None and not self._turns and not self._waiting

    @property
    def idle(self) -> bool:
        """Nothing has come for a while, so this subtask should not hold back the watermark of others."""
        if self._waiting or self.finished:
            return False
        return self._is_idle(self._active_ms) and all(map(self._is_split_idle, self._turns))

    def _is_idle(self, active_ms: int) -> bool:
        return self._now_ms() - active_ms >= self._idle_after_ms

    def _is_split_idle(self, each: OpenSplit) -> bool:
        return each.empty_ms - each.active_ms >= self._idle_after_ms

    def drain(self) -> None:
        """Read no more."""
        self._draining = True

    # -- reading ---------------------------------------------------------------------------------------------------

    def poll(self, max_rows: int) -> Polled:
        """The next rows of the split whose turn it is; without rows when no split has any now."""
        self._take_new()
        for _ in range(len(self._turns)):
            polled = self._poll_next(max_rows)
            if polled.rows:
                return Polled(polled.batch, polled.rows, polled.highest, self.finished)
        return Polled(None, finished=self.finished)

    def _poll_next(self, max_rows: int) -> Polled:
        current = self._turns.popleft()
        polled = current.reader.poll(max_rows)
        self.rows_read += polled.rows
        if polled.rows or polled.highest is not None:
            self._active_ms = current.active_ms = self._now_ms()
        else:
            current.empty_ms = self._now_ms()
        self._note_time(current, polled)
        if polled.finished:
            current.reader.close()
            self._remember(mark(current.split.id))
            self._seen.discard(current.split.id)  # a name takes more memory than its hash
            self._open_waiting()
        else:
            self._turns.append(current)
        return polled

    def _note_time(self, current: OpenSplit, polled: Polled) -> None:
        highest = polled.highest
        if highest is None:
            return
        current.highest = highest if current.highest is None else max(current.highest, highest)
        bound = reached(highest, self._source.out_of_orderness)
        self._top = bound if self._top is None else max(self._top, bound)

    def _take_new(self) -> None:
        now_ms = self._now_ms()
        if not self._begun:
            self._begun = True
            self._add(self._given)
        if self._discovering is not None and now_ms >= self._discovery_due_ms:
            self._add(self._discovering.discover(self._is_new))
            took_ms = self._now_ms() - now_ms
            # A large directory takes long to list: a tenth of the time is enough for that.
            self._discovery_due_ms = now_ms + took_ms + max(DISCOVERY_INTERVAL_MS, 10 * took_ms)
        self._refuse_lost()

    def _is_new(self, split_id: str) -> bool:
        return split_id not in self._seen and (name := mark(split_id)) not in self._done_marks and self._owns(name)

    def _owns(self, mark_: bytes) -> bool:
        index = self._index.get(mark_) if self._discovering is None else int.from_bytes(mark_[:8], "little")
        return index is not None and index % self._parallelism == self._subtask

    def _add(self, splits: Sequence[Split]) -> None:
        """Line up the splits that are ours and not read yet, those that a checkpoint was in the middle of first."""
        fresh = [split for split in splits if self._is_new(split.id)]
        self._seen.update(split.id for split in fresh)
        for split in sorted(fresh, key=lambda split: split.id not in self._resume):
            if split.rows is None:
                self._open(split)
            else:
                self._waiting.append(split)
        self._open_waiting()

    def _open_waiting(self) -> None:
        """Of the splits with an end, one is open at a time."""
        if self._waiting and not any(each.split.rows is not None for each in self._turns):
            self._open(self._waiting.popleft())

    def _open(self, split: Split) -> None:
        offset, highest = self._resume.pop(split.id, (None, None))
        self._turns.append(OpenSplit(split, self._source.open(split, offset), highest, self._now_ms(), self._now_ms()))

    def _refuse_lost(self) -> None:
        waiting = {split.id for split in self._waiting}
        lost = sorted(split_id for split_id in self._resume if split_id not in waiting)
        if lost:
            raise InvalidUseError(
                f"source {self._name!r} was in the middle of something that is no longer there: put it back, or start with "
                f"restore='none' split={lost[0]}"
            )

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """The minimum over the splits being read and waiting, idle ones left out; it never goes back."""
        if self.finished:
            return END_OF_TIME
        times = [self._time_of(each) for each in self._turns if not self._is_split_idle(each)]
        times += [_lowest(split) for split in self._waiting]
        if times:
            self._reached = max(self._reached, min(times))
        elif not self._turns and self._top is not None:
            self._reached = max(self._reached, self._top)
        return self._reached

    def _time_of(self, each: OpenSplit) -> int:
        if each.highest is None:
            return _lowest(each.split)
        return reached(each.highest, self._source.out_of_orderness)

    # -- state -----------------------------------------------------------------------------------------------------

    def freeze(self) -> Frozen:
        """Every split that is being read with its offset, and what was read to its end."""
        opened: dict[str, Json] = {each.split.id: [each.reader.offset, each.highest] for each in self._turns}
        opened |= {split_id: list(progress) for split_id, progress in self._resume.items()}
        return Frozen(
            {
                "continuous": True,
                "rows": self.rows,
                "open": opened,
                "done": base64.b64encode(self._done).decode(),
                "reached": self._reached,
                "top": self._top,
            },
            tuple(self._sealed),
        )

    def restore(self, pieces: Sequence[Restored]) -> None:
        """Go on where the subtasks of a checkpoint were, at whatever parallelism they had."""
        for piece in pieces:
            if piece.meta.get("continuous") is not True:
                raise InvalidUseError(
                    f"source {self._name!r} had an end in the checkpoint and has none now: start with restore='none'"
                )
            _check(self._name, piece.meta)
            self._restore_splits(piece)
        if self._subtask == 0:
            self._rows_before = sum(cast(int, piece.meta["rows"]) for piece in pieces)
        mine = [p for p in pieces if p.subtask == self._subtask] if len(pieces) == self._parallelism else pieces
        self._reached = min((cast(int, p.meta["reached"]) for p in mine), default=BEGINNING_OF_TIME)
        tops = [cast("int | None", p.meta["top"]) for p in mine]
        self._top = None if None in tops else min((top for top in tops if top is not None), default=None)

    def _restore_splits(self, piece: Restored) -> None:
        for split_id, progress in cast("dict[str, tuple[Offset, int | None]]", piece.meta["open"]).items():
            if self._discovering is None and mark(split_id) not in self._index:
                raise InvalidUseError(
                    f"the input of source {self._name!r} is not what the checkpoint was reading: put it back, or start with "
                    f"restore='none' split={split_id}"
                )
            if self._owns(mark(split_id)):
                offset, highest = progress
                self._resume[split_id] = (offset, highest)
        for each in (*marks(piece.meta["done"]), *sealed_marks(piece.runs)):
            if self._owns(each):
                self._remember(each)

    def _remember(self, mark_: bytes) -> None:
        self._done += mark_
        self._done_marks.add(mark_)
        if len(self._done) >= SEAL_MARKS * MARK_BYTES:
            self._seal()

    def _seal(self) -> None:
        """Close a run. It takes in the runs before it that are as short: so there are few, and no hash is stored again often."""
        pieces = [bytes(self._done)]
        self._done.clear()
        while self._sealed and self._sealed[-1].batch.num_rows * MARK_BYTES <= sum(map(len, pieces)):
            pieces.insert(0, self._sealed.pop().batch.column(0).buffers()[1])
        self._sealed.append(marks_run(b"".join(pieces)))

    def close(self) -> None:
        """Let go of the open splits."""
        while self._turns:
            self._turns.popleft().reader.close()


def _check(name: str, meta: Mapping[str, Json]) -> None:
    """Refuse stored offsets that have not the parts and types of such."""
    match meta:
        case {"rows": int(), "open": dict(opened), "done": str(), "reached": int(), "top": None | int()}:
            damaged = [each for each in opened.values() if not _is_progress(each)]
        case _:
            damaged = [dict(meta)]
    if damaged:
        raise CorruptDataError(f"the offsets of source {name!r} are damaged offsets={damaged[0]!r:.200}")


def _is_progress(value: Json) -> bool:
    match value:
        case [_, None | int()]:
            return True
        case _:
            return False


def resume_offsets(states: Iterable[object]) -> dict[str, Offset]:
    """Where one checkpoint's subtasks of a source would go on, by split.

    One that is missing was not begun, or read to its end, or can't be told: whoever deletes must take it for not begun.
    """
    found: dict[str, Offset] = {}
    for state in states:
        match state:
            case {"open": dict(opened)}:
                found |= {split_id: each[0] for split_id, each in opened.items() if _is_progress(each)}
            case _:
                pass
    return found


def _lowest(split: Split) -> int:
    return BEGINNING_OF_TIME if split.lowest is None else reached(split.lowest)


def mark(split_id: str) -> bytes:
    """A hash of a split's id: who reads it, and whether it was read."""
    return hashlib.blake2b(split_id.encode(), digest_size=MARK_BYTES).digest()


def marks_run(data: bytes) -> Run:
    """Hashes that won't change any more."""
    column = pa.FixedSizeBinaryArray.from_buffers(MARK, len(data) // MARK_BYTES, [None, pa.py_buffer(data)])
    return Run(pa.RecordBatch.from_arrays([column], ["mark"]))


def sealed_marks(runs: Iterable[Run]) -> Iterator[bytes]:
    """The hashes in these runs."""
    for run in runs:
        if run.batch.schema.types != [MARK] or run.batch.column(0).null_count:
            raise CorruptDataError(f"a source's list of what was read has other columns schema={run.batch.schema!s:.100}")
        yield from run.batch.column(0).to_pylist()


def marks(text: Json) -> list[bytes]:
    """The hashes of the splits that were read to their end."""
    try:
        data = base64.b64decode(cast(str, text), validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise CorruptDataError(f"a source's list of what was read is not base64: {error}") from error
    if len(data) % MARK_BYTES:
        raise CorruptDataError(f"a source's list of what was read is cut off bytes={len(data)}")
    return [data[at : at + MARK_BYTES] for at in range(0, len(data), MARK_BYTES)]
