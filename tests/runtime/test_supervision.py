"""A thread that dies takes the job with it, and says so; one that only waits does not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from runtime_jobs import GatedSource, MemorySink, events, rows_of, until
from runtime_world import World

import tidegate as tg
from tidegate.connectors.framespool import CREATE_TRIES, Spool
from tidegate.core.failure.restart import FailureKind
from tidegate.errors import InvalidUseError, RetryableError, StorageRefused, StorageUnavailable, ThreadDied
from tidegate.runtime.activity import Activity, told
from tidegate.runtime.failure import kind_of, last_words
from tidegate.runtime.threads import ThreadPools
from tidegate.spark.dataframe import StreamFeed
from tidegate.supervise import guarded, only_logged, supervised

SOON_S = 1.0


class Exits(BaseException):
    """Not even an ``Exception``."""


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), SystemExit(3), Exits("x"), RecursionError("deep")])
def test_whatever_a_thread_dies_of_is_told_within_a_second(error: BaseException) -> None:
    deaths: list[ThreadDied] = []

    def work() -> None:
        raise error

    thread = supervised("tidegate-test", work, deaths.append)
    thread.start()
    thread.join(SOON_S)
    (death,) = deaths
    assert death.__cause__ is error and "thread=tidegate-test" in str(death) and thread.daemon


def test_a_thread_that_returns_is_nobodys_business() -> None:
    guarded("t", lambda: None, lambda death: pytest.fail(str(death)))()


def test_who_can_not_be_told_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(death: ThreadDied) -> None:
        raise OSError("nobody is there")

    guarded("t", lambda: 1 // 0, deaf)()  # type: ignore[arg-type,return-value]
    guarded("t", lambda: 1 // 0, only_logged)()  # type: ignore[arg-type,return-value]
    assert "nobody could be told" in caplog.text and caplog.text.count("a thread died of ZeroDivisionError") >= 2


# -- on a node ---------------------------------------------------------------------------------------------------------


def died_of(error: BaseException) -> ThreadDied:
    death = ThreadDied(f"the reader of a channel died of {error!r}")
    death.__cause__ = error
    return death


@pytest.mark.parametrize("how", ["a channel's reader", "the acceptor", "the control line's reader"])
def test_a_network_thread_that_dies_is_the_jobs_cause_and_the_job_recovers(how: str) -> None:
    source, sink = GatedSource(events(1_000), rows_per_poll=10, allowed=300), MemorySink()
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("1s")).aggregate(n=tg.count())
    world = World(tg.Pipeline("w", keyed.write(sink)), 2)
    world.until(lambda: source.emitted == 300)
    node, death = world.lines[1].node, died_of(MemoryError("800000 bytes"))
    match how:
        case "a channel's reader":
            node.closed(next(iter(node._assembly.inbound)), death)
        case "the acceptor":
            node.broken(death)
        case _:
            node.control_lost(death)
    world.until(lambda: world.gangs == 2)
    cause = world.leader.cause or ""
    assert "node 1 of gang 0" in cause and "MemoryError('800000 bytes')" in cause
    source.allow()
    world.finish()
    assert world.leader.status == "FINISHED"


def over(world: World) -> None:
    while world.step():
        pass


def test_a_leader_whose_thread_dies_has_failed_and_whoever_waits_is_told() -> None:
    source = GatedSource(events(100), allowed=0)
    world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 1)
    world.leader.died(died_of(Exits("x")))
    assert world.leader.ended.is_set() and world.leader.status == "FAILED" and "Exits" in str(world.leader.error)
    over(world)


def test_a_dead_thread_of_the_control_line_fails_the_job() -> None:
    source = GatedSource(events(100), allowed=0)
    world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 1)
    world.leader.broken(died_of(MemoryError("watch")))
    over(world)
    assert world.leader.status == "FAILED" and "the control line" in str(world.leader.error)


# -- what a node does --------------------------------------------------------------------------------------------------


def test_a_heartbeat_says_what_runs_and_what_ran_last() -> None:
    activity, inside, go = Activity(), threading.Event(), threading.Event()
    pools = ThreadPools("test", activity=activity)
    first: list[str] = []
    activity.on_first = lambda: first.append(told(activity.heartbeat()) or "")
    assert told(activity.heartbeat()) is None
    slow = pools.executor("map-slow").submit(lambda: (inside.set(), go.wait(10)))
    assert inside.wait(10)
    assert (told(activity.heartbeat()) or "").startswith("in map_batches 'slow' for 0.")
    go.set()
    slow.result(10)
    pools.executor("sink-s").submit(int).result(10)
    until(lambda: told(activity.heartbeat()) == "between calls, the last of sink 's', map_batches 'slow'")
    pools.executor("map-slow").submit(int).result(10)
    assert len(first) == 2 and first[0].startswith("in map_batches 'slow'"), "it is said before the first call, and only then"
    pools.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RetryableError("503"), FailureKind.TRANSIENT),
        (OSError("disk"), FailureKind.TRANSIENT),
        (StorageUnavailable("full"), FailureKind.STORAGE_UNAVAILABLE),
        (StorageRefused("read-only"), FailureKind.STORAGE_REFUSED),
        (died_of(MemoryError()), FailureKind.TRANSIENT),
        (died_of(KeyError("x")), FailureKind.DEFECT),
        (ThreadDied("bare"), FailureKind.DEFECT),
        (InvalidUseError("x"), FailureKind.DEFECT),
    ],
)
def test_the_kind_of_a_failure_is_that_of_its_exception(error: Exception, kind: FailureKind) -> None:
    assert kind_of(error) is kind


def test_last_words_are_cut_to_what_the_line_carries() -> None:
    words = last_words(1, ValueError("x" * 1_000_000))
    assert len(words.message) < 70_000 and words.ByteSize() < 200_000


# -- the feeder of a streaming DataFrame -------------------------------------------------------------------------------


class Query:
    """Spark's side: a query that ends at once, or dies."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.writeStream = self

    def foreachBatch(self, function: Any) -> Query:
        return self

    def option(self, *setting: Any) -> Query:
        return self

    def trigger(self, **setting: Any) -> Query:
        return self

    def start(self) -> Query:
        return self

    def awaitTermination(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None: ...


def feed(query: Query, url: str, heard: list[str]) -> StreamFeed:
    columns = (pa.schema([]), None)
    return StreamFeed(query, {"availableNow": True}, url, Spool("j/spool/s", 0), heard.append, columns)  # type: ignore[arg-type]


def test_a_store_that_does_not_answer_at_the_end_of_a_query_is_waited_for(tmp_path: Any) -> None:
    heard: list[str] = []
    feeding = feed(Query(), str(tmp_path), heard)
    store: Any = feeding._appender._store
    create, refused = store.create, [0]

    def refuse(path: str, data: bytes) -> Any:
        refused[0] += 1
        if refused[0] <= CREATE_TRIES:
            raise RetryableError("503 slow down")
        return create(path, data)

    store.create = refuse
    feeding.start()
    until(lambda: feeding._appender.ended, "the end in the spool")
    feeding.stop()
    assert refused[0] > CREATE_TRIES and heard == []


@pytest.mark.parametrize("error", [Exits("the query's thread was taken away"), MemoryError("spool")])
def test_a_feeder_that_dies_fails_the_job_within_a_second(tmp_path: Any, error: BaseException) -> None:
    heard: list[str] = []
    feeding = feed(Query(error if isinstance(error, Exits) else None), str(tmp_path), heard)
    if not isinstance(error, Exits):
        feeding._appender._store.create = lambda *_: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    began = time.monotonic()
    feeding.start()
    until(lambda: heard, "the job's failure")
    assert time.monotonic() - began < SOON_S and type(error).__name__ in heard[0]
    feeding.stop()


def test_rows_are_the_same_whatever_died() -> None:
    """A channel that dies in the middle of the data costs a restart and no row."""
    source, sink = GatedSource(events(1_000), rows_per_poll=10, allowed=500), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    world.until(lambda: source.emitted == 500)
    world.lines[0].node.broken(died_of(RuntimeError("can't start new thread")))
    world.until(lambda: world.gangs == 2)
    source.allow()
    world.finish()
    assert sink.rows() == rows_of(source.table)
