"""What can go wrong around the leader: at its end, while it waits, and with what it leaves to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from runtime_jobs import GatedSource, MemorySink, events, once, rows_of
from runtime_world import World, WorldGang

import tidegate as tg
from tidegate.core.checkpoint.events import LogRead
from tidegate.core.checkpoint.mode import Mode
from tidegate.core.failure.restart import RestartPolicy, Restarts
from tidegate.core.log import entries
from tidegate.core.log.view import LogView
from tidegate.errors import JobFailedError, RetryableError
from tidegate.runtime.gang import GangState
from tidegate.runtime.leader import STOP_LIMIT_MS
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.threads import ThreadPools
from tidegate.spark.gang import STOPPED, SparkGang
from tidegate.store.open import open_store
from tidegate.wire._gen import control_pb2 as pb
from tidegate.wire.line import ControlSettings


def plain(source: GatedSource, sink: MemorySink) -> tg.Pipeline:
    return tg.Pipeline("w", tg.from_source(source).write(sink))


def world_of(allowed: int | None = 300, **options: Any) -> tuple[World, GatedSource, MemorySink]:
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=allowed), MemorySink()
    return World(plain(source, sink), 2, **options), source, sink


def run_out(world: World) -> None:
    while world.step():
        pass


# -- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["cancel", "join", "on_end"])
def test_whoever_waits_for_the_end_is_told_although_winding_up_fails(broken: str) -> None:
    """Spark's driver may be gone by then: every call to it raises."""
    world, _, _ = world_of(interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    waiting = world.leader.request_checkpoint()

    def gone(*args: Any) -> Any:
        raise ConnectionRefusedError("the JVM is gone")

    launcher: WorldGang = world.leader._setup.gangs.host._launcher  # type: ignore[attr-defined]
    if broken == "on_end":
        world.leader.on_end = gone
    else:
        launcher.join = lambda timeout_s: False  # type: ignore[method-assign]
        setattr(launcher, broken, gone)
    world.leader.fail("on purpose")
    run_out(world)
    assert world.leader.ended.is_set() and world.leader.status == "FAILED"
    assert isinstance(waiting.exception(0), JobFailedError)


def test_a_cancel_that_comes_with_or_after_the_end_is_answered() -> None:
    world, _, _ = world_of(interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    world.leader.fail("on purpose")
    with_the_end = world.leader.cancel_checkpoint(7)
    run_out(world)
    after = world.leader.cancel_checkpoint(7)
    assert with_the_end.done() and after.done()
    assert isinstance(after.exception(), JobFailedError)


def test_a_drain_asked_for_between_two_gangs_drains_the_next() -> None:
    """Else the job would end without the rows that were read and not yet committed."""
    world, source, _ = world_of(interval="1h")
    world.until(lambda: source.emitted == 300)
    world.kill_node(0)
    world.until(lambda: world.leader.status == "RESTARTING" and world.leader._gang is None)
    source.allow()
    world.leader.stop(drain=True)
    world.finish()
    assert world.leader.status == "FINISHED"


def test_a_gang_that_is_lost_after_the_final_checkpoint_does_not_fail_the_job() -> None:
    """Nothing is left to do for it, so it does not matter that no more restarts are allowed."""
    world, source, sink = world_of(None)
    world.leader._gangs.restarts = Restarts(RestartPolicy(limit=0, user_error_limit=0))
    sink.on_commit = once(RetryableError("not now"), lambda epoch: world.leader._machine.mode is Mode.FINISHING)
    world.until(lambda: world.leader._machine.mode is Mode.FINISHING)
    world.kill_node(0)
    world.kill_node(1)
    world.finish()
    assert sink.rows() == rows_of(source.table)


# -- what is left to others ----------------------------------------------------------------------------------------


def test_what_cannot_be_swept_is_left_and_the_gang_starts() -> None:
    world, source, sink = world_of()
    swept: list[int] = []

    def sweep(gang: int, keep: Any) -> None:
        swept.append(gang)
        raise RetryableError("the directory can't be listed")

    sink.sweep = sweep  # type: ignore[attr-defined]
    world.until(lambda: source.emitted == 300)
    world.kill_node(0)
    source.allow()
    world.finish()
    assert swept and sink.rows() == rows_of(source.table)


def test_garbage_is_collected_one_round_at_a_time() -> None:
    """A store that is slower to list than the job commits must not pile up rounds (I11)."""
    world, _, _ = world_of(600)
    garbage = world.leading.threads.executor("garbage")
    garbage.run_one = lambda: None  # type: ignore[attr-defined]
    world.until(lambda: world.leader._outcomes.committed >= 12)
    assert len(garbage.waiting) == 1  # type: ignore[attr-defined]


def test_the_leader_does_not_keep_the_complete_log_in_memory() -> None:
    world, _, _ = world_of(600, retain=2)
    world.until(lambda: world.leader._outcomes.committed >= 6)
    world.kill_leader()
    world.lead()
    world.until(lambda: world.leader.status == "RUNNING")
    assert len(world.leader._machine.log.held()) <= 3
    assert not world.leader.opening.read.entries


def test_what_a_commit_costs_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that commits every second has millions of entries after a month."""
    world, _, _ = world_of(600, retain=2)
    world.until(lambda: world.leader._outcomes.committed >= 25)
    walked: list[int] = []
    lineage = LogView.lineage

    def counted(self: LogView) -> Iterator[int]:
        for epoch in lineage(self):
            walked.append(epoch)
            yield epoch

    monkeypatch.setattr(LogView, "lineage", counted)
    before = world.leader._outcomes.committed
    world.until(lambda: world.leader._outcomes.committed > before)
    assert 0 < len(walked) < 12


def test_a_checkpoint_that_is_stored_can_also_be_sent_to_the_nodes_that_restore_it() -> None:
    assert ControlSettings().max_message_bytes > entries.ENTRY_BYTES_MAX


def test_the_death_of_sparks_driver_process_is_reported() -> None:
    """Every call into a JVM that is gone raises; the leader must hear of the exit all the same."""

    class Context:
        master = "local[2]"

        def __getattr__(self, name: str) -> Any:
            raise ConnectionRefusedError("the JVM is gone")

    class Session:
        sparkContext = Context()

    heard: list[Any] = []
    gang = SparkGang(Session(), 2)  # type: ignore[arg-type]
    launch = world_of()[0]._launch(3)
    gang._run("group", launch, heard.append)
    gang.cancel()
    gang.start(launch, heard.append)
    assert gang.join(5) and heard == [STOPPED, STOPPED]


@pytest.mark.parametrize("verb", ["list", "delete", "put"])
@pytest.mark.parametrize("error", [FileNotFoundError("no such bucket now"), RetryableError("503")])
def test_garbage_and_hints_that_fail_do_not_fail_the_job(verb: str, error: Exception) -> None:
    """Both are only tidiness: the next commit does them again."""
    store: Any = open_store("memory://")
    real = getattr(store, verb)
    failures: list[str] = []

    def fails(path: Any, *rest: Any) -> Any:
        if verb == "put" and not str(path).endswith("_latest"):
            return real(path, *rest)
        if "/log" in str(path):
            return real(path, *rest)
        failures.append(str(path))
        raise error

    setattr(store, verb, fails)
    world, source, sink = world_of(600, store=store, unaligned="always", credit_bytes=600)
    world.until(lambda: world.leader._outcomes.committed >= 5 and failures)
    source.allow()
    world.finish()
    assert sink.rows() == rows_of(source.table)


# -- functions that never return -----------------------------------------------------------------------------------


def test_a_job_whose_sink_never_answers_can_be_stopped() -> None:
    """What it has not published is in the log, and the next start publishes it."""
    world, source, sink = world_of()
    world.until(lambda: sink.rows())
    shown = len(sink.rows())
    sink.on_commit = lambda epoch: (_ for _ in ()).throw(RetryableError("the directory is not reachable"))
    source.allow(100)
    world.until(lambda: world.leader._machine.publishing.backlog > 2)
    begun = world.clock.at_ms
    world.leader.stop()
    run_out(world)
    assert world.leader.status == "FAILED" and "next start" in str(world.leader.error)
    assert world.clock.at_ms - begun <= STOP_LIMIT_MS + 5_000 and len(sink.rows()) == shown
    sink.on_commit = lambda epoch: None
    source.allow()
    world.lead()
    world.finish()
    assert sink.rows() == rows_of(source.table)


def test_threads_that_do_not_return_are_left_after_a_while() -> None:
    stuck, begun = threading.Event(), threading.Event()
    pools = ThreadPools("review", close_limit_s=0.05)

    def never() -> None:
        begun.set()
        stuck.wait(10)

    pools.executor("a").submit(never)
    dropped = pools.executor("a").submit(never)
    assert begun.wait(5)
    closing = threading.Thread(target=pools.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive() and dropped.cancelled() and not stuck.is_set()
    stuck.set()


# -- late and large ------------------------------------------------------------------------------------------------


def test_a_node_that_joins_a_gang_that_is_already_over_is_sent_home() -> None:
    """Else it would wait for a welcome that never comes, or be welcomed to peers that are gone, until force ends it."""

    class Line:
        def __init__(self, node: int) -> None:
            self.hello = pb.Hello(node=node, gang=3, address=f"host:{node}", pid=1, host="host")
            self.heard: list[str] = []

        heartbeat = pb.Heartbeat()

        def send(self, message: pb.CoordinatorMessage) -> None:
            self.heard.append(str(message.WhichOneof("body")))

    gang, first, late = GangState(3, 2, None), Line(0), Line(1)
    gang.join(first.hello, first)
    gang.stop("another node failed")
    assert not gang.join(late.hello, late)
    assert first.heard == late.heard == ["stop"] and gang.node_of(late) is None


def test_the_story_of_a_start_does_not_spell_out_the_complete_log() -> None:
    """The text of every manifest that ever was may be larger than memory."""
    world, _, _ = world_of(600)
    world.until(lambda: world.leader._outcomes.committed >= 3)
    entries = tuple(LogStore(world.store, "w").read())
    assert len(entries) >= 4 and len(repr(LogRead(entries))) < 200
