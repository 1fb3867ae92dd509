"""Two drivers that both believe to lead: the first is paused at a write, the second takes over, then the first goes on.

Every write of the first one is numbered: to the store (log, base, trim, hint, heartbeat, state, garbage, spool) and to the
directories of its sinks (owner, claim, stage, merge, show, hide, cut, sweep). It stands still right before such a write, or right
after it, while the second commits; then it goes on to its end. Nothing waits for real time.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runtime_jobs import events
from runtime_world import World

import tidegate as tg
from tidegate.connectors import dataframe, owner
from tidegate.connectors.dataframe import DataFrameStreamSource
from tidegate.connectors.framespool import BatchAppender, Chunk, Spool, write_chunks
from tidegate.connectors.parquet_sink import ParquetSink
from tidegate.core.checkpoint.coordinate import DistributedCheckpointCoordinator
from tidegate.core.log.entries import decode_entry
from tidegate.core.log.view import Commit
from tidegate.errors import TidegateError
from tidegate.plan.capabilities import OnFailure
from tidegate.runtime.election import StoreElection
from tidegate.runtime.leadersetup import LeaderSetup
from tidegate.runtime.lifecycle import Spools, with_stored_sources
from tidegate.runtime.logstore import LogStore, objects_fault
from tidegate.runtime.sinks import SinkPublisher
from tidegate.store import open as stores
from tidegate.store.objects import new_memory_store

ROWS, BATCH = 1_200, 150
TABLE = events(ROWS, keys=ROWS)
REPLACED = re.compile(r"another (driver|run) has taken|this place over|is running|newer run")
REFUSED = re.compile(r"another start has been taking this directory|no longer retained")
WAIT_S = 15.0
KINDS = (
    r"create w/log", r"delete w/log", r"put w/_latest", r"put w/leader", r"delete w/leader", r"put w/checkpoints",
    r"delete w/checkpoints", r"put w/spool", r"create w/spool", r"delete w/spool.*batches", r"delete w/spool.*chunks",
    r"replace rows/_owner", r"pwrite", r"rename rows/part-\S+parquet", r"rename rows/_hidden", r"rest\.cut", r"\.hide$",
    r"mkdir rows/_merging", r"rename rows/_merging/\S+pending", r"unlink rows/_merging", r"rmdir rows/_merging",
    r"unlink rows/_pending",
)  # fmt: skip
"""The log and its base and trim, hint, heartbeat, state and garbage, spool; owner, show, hide, cut, merge, sweep."""


class Writes:
    """Counts the writes of whoever is watched, and stops it at one of them: the whole process, as SIGSTOP would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watching = False
        self.seen: list[str] = []
        self.stop_at: tuple[int, str] | None = None
        self.paused, self.go_on = threading.Event(), threading.Event()

    def around(self, kind: str, write: Callable[[], Any]) -> Any:
        """Do this write."""
        if not self.watching:
            return write()
        number = len(self.seen)
        self.seen.append(kind)
        self._reached(number, "before")
        try:
            return write()
        finally:
            self._reached(number, "after")

    def _reached(self, number: int, when: str) -> None:
        if self.stop_at == (number, when):
            self.watching = False
            self.paused.set()
            assert self.go_on.wait(WAIT_S), "nobody let it go on"


class NumberedStore:
    """A store in memory whose writes are numbered, each deleted object by itself."""

    def __init__(self, name: str, writes: Writes) -> None:
        self._store, self._writes = new_memory_store(name), writes
        self.commits: list[Commit] = []
        """Whatever was ever committed, trimmed or not."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    def put(self, path: str, *pieces: Any) -> None:
        self._writes.around(f"put {kind_of(path)}", lambda: self._store.put(path, *pieces))

    def create(self, path: str, data: bytes) -> bool:
        created: bool = self._writes.around(f"create {kind_of(path)}", lambda: self._store.create(path, data))
        if created and "/log/" in path:
            entry = decode_entry(data, path, int(re.findall(r"(\d+)", path)[-1]))
            self.commits += [entry] if isinstance(entry, Commit) else []
        return created

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._writes.around(f"delete {kind_of(path)}", lambda path=path: self._store.delete([path]))


def files(committable: Any) -> Any:
    """The files of a Parquet sink's committable."""
    return committable["files"]


def kind_of(path: str) -> str:
    """What a path is for, without its numbers and tokens."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "#", path)


FILE_WRITES = ("rename", "replace", "unlink", "rmdir", "mkdir", "pwrite", "link")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Writes]]:
    """The files' writes are told to the last of these."""
    told: list[Writes] = []

    def numbered(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def write(*args: Any, **options: Any) -> Any:
            path = str(tmp_path / "0/note") if name == "pwrite" else str(args[1 if name in MOVES else 0])
            # A start tries first whether it can write at all, and makes sure of directories that are there: that changes nothing.
            idle = "_probe" in path or (name == "mkdir" and "_merging/" not in path)
            if not told or idle or not path.startswith(str(tmp_path)):
                return real(*args, **options)
            return told[-1].around(f"{name} {kind_of(os.path.relpath(path, told[-1].root))}", lambda: real(*args, **options))

        return write

    monkeypatch.setattr(owner, "TAKING_LIMIT_S", 0.02)
    monkeypatch.setattr(dataframe, "LOOK_INTERVAL_S", 0.0)  # by the world's steps alone
    for name in FILE_WRITES:
        monkeypatch.setattr(os, name, numbered(name))
    yield told


MOVES = ("rename", "replace", "link")


class Feed:
    """The driver's end of the stream: micro-batches as Spark would repeat them after a restart."""

    streaming = True

    def fill(self, place: str, spool: Spool, schema: pa.Schema, event_time: str | None) -> list[Chunk]:
        raise NotImplementedError

    def feed(self, place: str, spool: Spool, schema: pa.Schema, event_time: str | None, on_failure: OnFailure) -> Any:
        raise NotImplementedError


class Driver(World):
    """A driver as ``launch_job`` makes one: it takes over, takes the sinks, feeds the spool, and then starts its gang."""

    def __init__(self, url: str, out: Path, seed: int, restore: Any = "latest", retain: int = 3) -> None:
        self._url, self._restore = url, restore
        self.refused = ""
        self.prepared = False
        super().__init__(job(out), 2, seed=seed, interval="30ms", store=stores.open_store(url), retain=retain)

    def setup(self, restore: Any, name: str) -> LeaderSetup:
        made = super().setup(self._restore, name)
        publisher = made.publisher
        assert isinstance(publisher, SinkPublisher)
        config = replace(made.coordinator.config, base_every=3, publish_budgets=publisher.budgets())
        machine = DistributedCheckpointCoordinator(made.coordinator.shape, config, leader=name, host="here", pid=1)
        return replace(made, coordinator=machine, hold=True, election=StoreElection(self.store, self.plan.job))

    def prepare(self) -> None:
        """The second half of a start, as far as it comes."""
        try:
            while not self.leader._taken_over.is_set() and self.step():
                pass
            decision = self.leader.take()
            self.plan = with_stored_sources(self.plan, self._url, fresh=False, manifest=getattr(decision, "manifest", None))
            self.feed(1)
            self.leader.proceed(decision, Spools.of(self.plan, None))
            self.prepared = True
        except TidegateError as error:
            self.refused = str(error)
            self.leader.stop()

    def feed(self, upto: int, *, end: bool = False) -> None:
        """Have these micro-batches in the spool."""
        source: Any = next(s.source for stage in self.plan.stages for s in stage.operators if hasattr(s, "source"))
        appender = BatchAppender(self.store, source._where)
        for number in range(upto):
            if appender.wants(number):
                appender.append(number, [chunk for lane in (0, 1) for chunk in self._chunks(source._where, number, lane)])
        if end:
            appender.finish()

    def _chunks(self, spool: Spool, number: int, lane: int) -> list[Chunk]:
        rows = TABLE.slice(number * BATCH + lane * BATCH // 2, BATCH // 2).to_batches()
        return list(write_chunks(self.store, spool, number, lane, rows, TABLE.schema, "ts"))

    @property
    def committed(self) -> int:
        return self.leader._outcomes.committed

    def commits(self, more: int) -> None:
        """Step until so many more are committed."""
        goal = self.committed + more
        self.until(lambda: self.committed >= goal)

    def go_on(self, commits: int, until: Callable[[], bool] = lambda: True) -> bool:
        """Step until that is committed and so, or this driver has ended: False then."""
        goal = self.committed + commits
        while (self.committed < goal or not until()) and self.step():
            pass
        return self.leading.alive

    @property
    def says(self) -> str:
        return f"{self.refused} {self.leader.error or ''}"


def job(out: Path) -> tg.Pipeline:
    """Rows of a spool as they come, merged as they are shown; and state that is large enough to be kept in objects."""
    source = DataFrameStreamSource(Feed(), TABLE.schema, event_time="ts", out_of_orderness="0s", name="df")
    rows = tg.from_source(source)
    counted = rows.key_by("key").window(tg.tumbling("10h")).aggregate(n=tg.count())
    shown = ParquetSink(str(out / "rows"), durable=False, publish_every="1200ms")
    return tg.Pipeline("w", rows.write(shown), counted.write(ParquetSink(str(out / "counts"), durable=False)))


@dataclass
class Story:
    """One replay."""

    out: Path
    writes: Writes
    store: NumberedStore
    url: str

    def history(self) -> int:
        """A driver that has committed a little and was killed; gives the epoch to go back to."""
        world = Driver(self.url, self.out, seed=1, retain=20)
        world.prepare()
        for upto in (2, 3, 4):
            world.feed(upto)
            world.commits(2)
        head = world.leader._machine.log.head
        assert head is not None and head.committables
        world.until(lambda: world.leader._machine.is_public(head.epoch))
        world.kill_leader()
        world.leader.publisher.release()
        manifests = world.manifests()
        return max(epoch for epoch, each in manifests.items() if each.committables != head.committables)

    def first(self, epoch: int, made: list[Driver]) -> None:
        """The driver that is paused: it goes back to an older epoch, commits, loses its gang, and commits again."""
        self.writes.watching = True
        world = Driver(self.url, self.out, seed=2, restore=epoch)
        made.append(world)
        world.prepare()
        if world.prepared:
            self.script(world)
        self.writes.watching = False
        while world.refused and world.step():
            pass

    def script(self, world: Driver) -> None:
        for upto in (5, 6):
            world.feed(upto)
            if not world.go_on(2):
                return
        world.feed(7)
        if not world.go_on(0, until=self.is_staging):
            return
        world.kill_node(0)
        world.go_on(3)

    def is_staging(self) -> bool:
        """A sink has staged rows that no checkpoint names yet."""
        named = {
            file["pending"] for each in self.store.commits for c in each.manifest.committables for file in files(c.committable)
        }
        return any(path.name not in named for path in self.out.glob("rows/_pending/*.pending"))

    def visible(self) -> list[int]:
        """The times of all rows that a reader sees."""
        return [t for file in (self.out / "rows").glob("*.parquet") for t in pq.read_table(file).column("ts").to_pylist()]

    def look(self) -> None:
        """What must hold at any time, whoever writes."""
        epochs = [entry.manifest.epoch for entry in self.store.commits]
        assert len(set(epochs)) == len(epochs), "two manifests for an epoch"
        ids = [entry.manifest.checkpoint_id for entry in self.store.commits]
        assert len(set(ids)) == len(ids), "an id twice"
        seen = self.visible()
        assert len(set(seen)) == len(seen), "rows are shown twice"
        for manifest in LogStore(self.store, "w").view().restorables():  # type: ignore[arg-type]
            assert objects_fault(self.store, manifest) is None, "a live object was deleted"  # type: ignore[arg-type]


def begun(told: list[Writes], tmp_path: Path, number: int) -> tuple[Story, int]:
    writes, name = Writes(tmp_path / str(number)), f"two-leaders-{uuid4().hex}"
    store = NumberedStore(name, writes)
    stores._memories[name] = store  # type: ignore[assignment]
    story = Story(tmp_path / str(number), writes, store, f"memory://{name}")
    shutil.rmtree(story.out, ignore_errors=True)
    story.out.mkdir()
    told[:] = [writes]
    return story, story.history()


def ended(story: Story) -> None:
    stores._memories.pop(story.url.removeprefix("memory://"))
    shutil.rmtree(story.out)


def enumerate_writes(told: list[Writes], tmp_path: Path) -> list[str]:
    story, epoch = begun(told, tmp_path, 0)
    made: list[Driver] = []
    story.first(epoch, made)
    made[0].close()
    made[0].leader.publisher.release()
    ended(story)
    return story.writes.seen


def replayed(told: list[Writes], tmp_path: Path, number: int, when: str) -> None:
    """Pause the first driver there, have another take over, let the first go on, and look at everything."""
    story, epoch = begun(told, tmp_path, number)
    story.writes.stop_at = (number, when)
    made: list[Driver] = []
    thread = threading.Thread(target=story.first, args=(epoch, made))
    thread.start()
    assert story.writes.paused.wait(WAIT_S), "the first driver never came there"
    second = Driver(story.url, story.out, seed=3)
    second.prepare()
    if second.prepared:
        second.feed(8)
        second.commits(4)
    story.look()
    story.writes.go_on.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    made[0].go_on(4)
    story.look()
    finish(story, made[0], second)
    assert sorted(story.visible()) == TABLE.column("ts").to_pylist()
    counted = pq.read_table(story.out / "counts")
    assert sorted(counted.column("key").to_pylist()) == sorted(TABLE.column("key").to_pylist())
    ended(story)


def finish(story: Story, first: Driver, second: Driver) -> None:
    """One of them leads, by the log, and ends the job. The other one says why it does not."""
    loser, winner = (first, second) if first.leader.term < second.leader.term else (second, first)
    loser.go_on(99)
    assert not loser.leading.alive and REPLACED.search(loser.says), (loser.leader.status, loser.says)
    if not winner.prepared:  # it could not start beside one that stood still: now it can
        winner.go_on(99)
        assert REFUSED.search(winner.says), winner.says
        winner = Driver(story.url, story.out, seed=4)
        winner.prepare()
    winner.feed(8, end=True)
    winner.finish()
    story.look()


def chosen(seen: list[str], when: str) -> list[int]:
    """Of every kind of write the first and the last one; right after a write, where the next one may be near, the last."""
    first, last = {seen.index(kind) for kind in seen}, {len(seen) - 1 - seen[::-1].index(kind) for kind in seen}
    return sorted(first | last if when == "before" else last)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_was_paused_at_any_kind_of_write_changes_nothing_when_it_goes_on(
    writes: list[Writes], tmp_path: Path, when: str
) -> None:
    seen = enumerate_writes(writes, tmp_path)
    missing = [kind for kind in KINDS if not any(re.search(kind, each) for each in seen)]
    assert not missing, "the story must have them all"
    for number in chosen(seen, when):
        try:
            replayed(writes, tmp_path, number, when)
        except BaseException as error:
            raise AssertionError(f"paused {when} write {number}: {seen[number]}") from error


def test_one_that_was_replaced_before_it_took_its_sinks_says_so(writes: list[Writes], tmp_path: Path) -> None:
    """It used to say that the checkpoint it was told to go back to is damaged: the second driver had collected it."""
    seen = enumerate_writes(writes, tmp_path)
    taken_over = next(number for number, kind in enumerate(seen) if number and kind.startswith("create w/log"))
    replayed(writes, tmp_path, taken_over, "after")


ALL = "TIDEGATE_ALL_PHASES" in os.environ
AFTER = pytest.param("after", marks=pytest.mark.skipif(not ALL, reason="another minute: set TIDEGATE_ALL_PHASES=1"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", AFTER])
def test_a_driver_that_was_paused_at_any_write_changes_nothing_when_it_goes_on(
    writes: list[Writes], tmp_path: Path, when: str
) -> None:
    failures = []
    for number, kind in enumerate(enumerate_writes(writes, tmp_path)):
        try:
            replayed(writes, tmp_path, number, when)
        except BaseException as error:
            failures.append(f"paused {when} write {number} {kind}: {error!r}")
    assert not failures, "\n".join(failures)
