"""The driver's side: the log on a store, sinks, gangs, and the leader that puts them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from runtime_jobs import GatedSource, MemorySink, events, once, rows_of
from runtime_world import World

import tidegate as tg
from tidegate.core.checkpoint.budget import PublishBudget
from tidegate.core.checkpoint.manifest import CommittableEntry
from tidegate.core.failure.restart import FailureKind
from tidegate.core.log.view import Damaged, LogEntry, Takeover
from tidegate.errors import CorruptDataError, InvalidUseError, NodeStalled, RetryableError, TidegateError
from tidegate.plan.connector import Committable
from tidegate.runtime.gang import Exit, GangState
from tidegate.runtime.gangs import RETURN_LIMIT_MS
from tidegate.runtime.logstore import LogStore
from tidegate.runtime.sinks import SinkPublisher
from tidegate.store.open import open_store
from tidegate.testing.store import Fault, FaultyStore
from tidegate.wire._gen import control_pb2 as pb

# -- log -----------------------------------------------------------------------------------------------------------


def takeover(slot: int, write_id: str = "a/1") -> LogEntry:
    return Takeover(slot=slot, term=slot, write_id=write_id, leader=write_id.split("/")[0])


def test_an_entry_is_created_once_and_the_loser_is_shown_it() -> None:
    log = LogStore(open_store("memory://"), "w")
    assert log.create(takeover(0)) is None
    found = log.create(takeover(0, "b/1"))
    assert found is not None and found.write_id == "a/1"
    assert log.read() == [takeover(0)]


def test_a_put_that_landed_although_it_was_reported_lost_is_ours() -> None:
    store = FaultyStore(open_store("memory://"))
    log = LogStore(store, "w")
    store.fail_next("create", Fault.LOST_ANSWER)
    with pytest.raises(RetryableError):
        log.create(takeover(0))
    assert log.create(takeover(0)) is None
    assert log.read() == [takeover(0)]


class Lagging:
    """A store that does not show yet what was just created."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_taken_slot_that_cannot_be_read_yet_is_no_answer() -> None:
    log = LogStore(Lagging(open_store("memory://")), "w")
    assert log.create(takeover(0)) is None
    with pytest.raises(RetryableError, match="can't be read yet"):
        log.create(takeover(0, "b/1"))


def test_a_gap_in_the_log_fails_closed() -> None:
    log = LogStore(open_store("memory://"), "w")
    log.create(takeover(0))
    log.create(takeover(2))
    with pytest.raises(TidegateError):
        log.view()


def test_a_torn_entry_hides_the_head_and_keeps_its_slot() -> None:
    store = FaultyStore(open_store("memory://"))
    log = LogStore(store, "w")
    for entry in (takeover(0), takeover(1)):
        log.create(entry)
    path = log.paths.log_entry(1)
    store.truncate(path, 10)
    view = log.view()
    assert view.next_slot == 2 and view.unclear is not None and view.unclear.path == path
    with pytest.raises(CorruptDataError, match="damaged"):
        log.entry(1)
    found = log.create(takeover(1))
    assert isinstance(found, Damaged), "whose it was can't be told, so it is not ours"


def test_two_jobs_in_one_store_do_not_see_each_other() -> None:
    store = open_store("memory://")
    LogStore(store, "a").create(takeover(0))
    assert LogStore(store, "ab").read() == [] and LogStore(store, "b").read() == []


def test_a_missing_and_a_damaged_object_are_distinguished() -> None:
    source = GatedSource(events(2_000), rows_per_poll=10, allowed=600)
    keyed = tg.from_source(source).key_by("key").window(tg.tumbling("1s"))
    pipeline = tg.Pipeline("w", keyed.aggregate(n=tg.count()).write(MemorySink()))
    world = World(pipeline, 2, interval="10ms", unaligned="always", credit_bytes=500)
    world.until(lambda: any(m.objects for m in world.manifests().values()))
    manifest = next(m for m in world.manifests().values() if m.objects)
    log, path = LogStore(world.store, "w"), manifest.objects[0].path
    assert log.fault(manifest) is None
    whole = world.store.get(path)
    world.store.put(path, whole[:-1])
    assert "damaged" in str(log.fault(manifest)) and path in str(log.fault(manifest))
    world.store.delete([path])
    assert "missing" in str(log.fault(manifest))
    world.close()


# -- sinks ---------------------------------------------------------------------------------------------------------


class Noted(MemorySink):
    """Writes down who was called with which epoch."""

    def __init__(self, name: str, story: list[str]) -> None:
        super().__init__(name)
        self.story = story

    def commit(self, epoch: int, committables: Sequence[Committable]) -> None:
        self.story.append(f"{self.name}{epoch}:{','.join(str(one['n']) for one in committables)}")

    def hide(self, committables: Sequence[Committable]) -> None:
        self.story.append(f"hide {self.name}:{','.join(str(one['n']) for one in committables)}")

    def sweep(self, gang: int, keep: Sequence[Committable]) -> None:
        self.story.append(f"sweep {self.name} below {gang} but {[one['n'] for one in keep]}")


def publisher() -> tuple[SinkPublisher, list[str]]:
    story: list[str] = []
    stream = tg.from_source(GatedSource(events(10)))
    outputs = [stream.write(Noted(name, story)).named(name) for name in ("a", "b")]
    return SinkPublisher(tg.Pipeline("w", *outputs).physical(1)), story


def entry(operator: str, epoch: int, n: int, *, checkpoint_id: int = 1, subtask: int = 0) -> CommittableEntry:
    return CommittableEntry(operator, subtask, 0, checkpoint_id, {"n": n}, epoch)


def test_epochs_are_published_in_order_each_by_all_sinks_before_the_next() -> None:
    made, story = publisher()
    made.publish([entry("b", 7, 1), entry("a", 9, 2), entry("a", 7, 3, subtask=1), entry("a", 7, 4), entry("b", 9, 5)])
    assert story == ["a7:4,3", "b7:1", "a9:2", "b9:5"]


class Gathering(Noted):
    """Takes several epochs at once."""

    publish_budget = PublishBudget(1, 1_000)

    def gather(self, committables: Sequence[Committable]) -> Gathering:
        self.story.append(f"{self.name} gathers {','.join(str(one['n']) for one in committables)}")
        return self

    def show(self) -> None:
        self.story.append(f"{self.name} shows")

    def release(self) -> None:
        self.story.append(f"{self.name} releases")


def test_sinks_that_gather_show_all_their_epochs_one_right_after_the_other() -> None:
    story: list[str] = []
    stream = tg.from_source(GatedSource(events(10)))
    sinks = [Gathering("a", story), Noted("b", story), Gathering("c", story)]
    made = SinkPublisher(tg.Pipeline("w", *(stream.write(sink).named(sink.name) for sink in sinks)).physical(1))
    assert made.budgets() == {"a": Gathering.publish_budget, "c": Gathering.publish_budget}
    made.publish([entry("c", 7, 1), entry("a", 9, 2), entry("a", 7, 3), entry("b", 7, 4), entry("b", 9, 5)])
    assert story[:2] == ["b7:4", "b9:5"]
    assert story[2:] == ["a gathers 3,2", "c gathers 1", "a shows", "c shows", "a releases", "c releases"]


def test_committables_of_an_unknown_sink_stop_the_start() -> None:
    made, _ = publisher()
    with pytest.raises(InvalidUseError, match="no such sink"):
        made.publish([entry("c", 1, 1)])


def test_each_sink_hides_and_sweeps_its_own() -> None:
    made, story = publisher()
    made.hide([entry("b", 1, 1), entry("a", 2, 2), entry("b", 3, 3)])
    made.sweep(5, [entry("a", 1, 1)])
    assert story == ["hide b:1,3", "hide a:2", "sweep a below 5 but [1]", "sweep b below 5 but []"]


def test_one_sink_that_cannot_hide_is_enough() -> None:
    class Plain:
        name = "plain"

        def writer(self, context: Any) -> Any:
            raise NotImplementedError

        def commit(self, epoch: int, committables: Any) -> None: ...

        def abort(self, committables: Any) -> None: ...

    stream = tg.from_source(GatedSource(events(10)))
    both = tg.Pipeline("w", stream.write(MemorySink("m")).named("a"), stream.write(Plain()).named("b"))
    assert not SinkPublisher(both.physical(1)).can_hide
    assert SinkPublisher(tg.Pipeline("w", stream.write(MemorySink("m"))).physical(1)).can_hide


# -- gangs ---------------------------------------------------------------------------------------------------------


class Line:
    def __init__(self, node: int, gang: int = 3) -> None:
        self.hello = pb.Hello(node=node, gang=gang, address=f"host:{node}", pid=1, host="host")
        self.heard: list[str] = []
        self.heartbeat = pb.Heartbeat()

    def send(self, message: pb.CoordinatorMessage) -> None:
        self.heard.append(str(message.WhichOneof("body")))


def test_a_gang_is_complete_when_every_node_has_joined_once() -> None:
    gang = GangState(3, 2, None)
    first, twice, foreign, late, second = Line(0), Line(0), Line(1, gang=2), Line(2), Line(1)
    assert not gang.join(first.hello, first)
    for stranger in (twice, foreign, late):
        assert not gang.join(stranger.hello, stranger) and stranger.heard == ["stop"]
    assert gang.join(second.hello, second)
    gang.welcome()
    gang.stop("over")
    gang.stop("over")
    assert first.heard == second.heard == ["welcome", "stop"]
    assert gang.node_of(second) == 1 and gang.node_of(twice) is None


def test_what_a_gang_is_told_says_term_and_gang_and_what_it_says_is_asked_for_them() -> None:
    gang, told = GangState(3, 1, None, term=2), []
    line = Line(0)
    line.send = told.append  # type: ignore[method-assign, assignment]
    assert gang.join(line.hello, line)
    assert not gang.is_stale(pb.NodeMessage(gang=3)), "it was not welcomed yet"
    gang.welcome()
    gang.tell(0, pb.CoordinatorMessage(abort=pb.Abort(checkpoint_id=1)))
    gang.stop("over")
    assert [(each.term, each.gang) for each in told] == [(2, 3)] * 3
    assert not gang.is_stale(pb.NodeMessage(term=2, gang=3))
    for term, number in ((1, 3), (3, 3), (0, 3), (2, 2)):
        assert gang.is_stale(pb.NodeMessage(term=term, gang=number))


def failed(kind: FailureKind, message: str = "x") -> pb.Failed:
    words = {"error_type": kind.name, "message": message, "traceback": "its own traceback", "where": "f.py:3"}
    return pb.Failed(gang=3, kind=pb.CauseKind.Name(int(kind)), **words)  # type: ignore[arg-type]


def joined(size: int) -> GangState:
    gang = GangState(3, size, None)
    for node in range(size):
        line = Line(node)
        gang.join(line.hello, line)
    return gang


def test_the_cause_is_the_first_that_is_more_than_the_loss_of_a_peer() -> None:
    gang = joined(3)
    gang.failed(0, failed(FailureKind.PEER_LOST, "the channel was lost"))
    assert gang.cause is not None and gang.cause.node == 0 and not gang.cause.comes_again
    gang.failed(1, failed(FailureKind.USER_FUNCTION, "no such country"))
    gang.failed(2, failed(FailureKind.TRANSIENT, "another"))
    gang.lost(2, RetryableError("the node left without a word"))
    cause = gang.exited(None)
    assert cause.comes_again and "no such country" in cause.text and cause.traceback == "its own traceback"
    assert cause.text.startswith("node 1 of gang 3 on host (pid 1)")


def test_a_process_that_is_gone_is_named_although_its_peers_spoke_first() -> None:
    gang = joined(2)
    gang.failed(0, failed(FailureKind.PEER_LOST, "the channel 0:1>0 to node 1 was lost"))
    gang.stop("another node failed")
    gang.lost(1, RetryableError("the node left without a word"))
    gang.lost(0, None)
    cause = gang.exited(Exit(FailureKind.PEER_LOST, "failed: a channel"))
    assert (cause.kind, cause.node) == (FailureKind.LOST, 1) and "node 1 of gang 3" in cause.text


def test_nodes_that_were_ended_by_force_are_nobodys_cause() -> None:
    gang = joined(2)
    gang.failed(0, failed(FailureKind.PEER_LOST))
    gang.forced = True
    gang.lost(1, RetryableError("the stream broke"))
    assert gang.exited(None).node == 0


def test_a_gang_whose_nodes_all_returned_is_lost_too() -> None:
    assert "every node returned" in joined(1).exited(None).text
    assert joined(1).exited(Exit(FailureKind.SETUP, "no module")).kind is FailureKind.SETUP


def test_a_node_that_stands_still_is_named_with_what_it_was_doing() -> None:
    gang = joined(2)
    doing = [pb.Doing(what="map_batches 'spin'", for_ms=300, running=True)]
    gang.members[1].connection.heartbeat = pb.Heartbeat(doing=doing)  # type: ignore[misc]
    gang.lost(1, NodeStalled("it has said nothing for 10.0 s"))
    text = gang.exited(None).text
    assert "node 1 of gang 3 on host (pid 1) stands still: it has said nothing for 10.0 s" in text
    assert "in map_batches 'spin' for 0.3 s" in text and "stall_timeout" in text
    assert gang.stands_still and not gang.all_left


def test_a_function_that_merely_runs_long_is_named_once() -> None:
    gang = joined(1)
    doing = [pb.Doing(what="map_batches 'slow'", for_ms=12_000, running=True), pb.Doing(what="sink 's'", for_ms=99_000)]
    gang.members[0].connection.heartbeat = pb.Heartbeat(doing=doing)  # type: ignore[misc]
    assert [what for _, what, _ in gang.long_calls(10_000)] == ["map_batches 'slow'"]
    assert list(gang.long_calls(10_000)) == []


# -- leader --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["is killed", "fails"])
def test_nodes_that_do_not_return_are_ended_by_force(how: str) -> None:
    """The nodes have no channel between them, and the other one never hears that it is to stop."""
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=200), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2)
    world.until(lambda: source.emitted == 200)
    world.passes = lambda way, node, message: way == "up" or message.WhichOneof("body") != "stop"
    begun = world.clock.at_ms
    if how == "fails":
        source.on_poll = once(OSError("on purpose"))
        source.allow(100)
    else:
        world.kill_node(0)
    world.until(lambda: world.gangs == 2)
    assert world.clock.at_ms >= begun + RETURN_LIMIT_MS
    world.passes = lambda way, node, message: True
    source.allow()
    world.finish()
    assert sink.rows() == rows_of(source.table)


def test_a_request_is_answered_when_the_job_ends() -> None:
    source = GatedSource(events(200), rows_per_poll=10)
    world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 2, interval="1h")
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    future = world.leader.request_checkpoint()
    world.until(lambda: "prepared" in [kind for _, kind in world.said])
    world.leader.stop()
    while world.step():
        pass
    assert future.done() and future.exception() is not None
    with pytest.raises(InvalidUseError, match="has ended"):
        world.leader.request_checkpoint()


def test_a_cancelled_checkpoint_leaves_the_job_running() -> None:
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=300), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, interval="1h")
    world.until(lambda: world.leader.status == "RUNNING")
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    future = world.leader.request_checkpoint()
    world.until(lambda: world.leader._machine.attempt is not None)
    attempt = world.leader._machine.attempt
    assert attempt is not None
    cancelled = world.leader.cancel_checkpoint(attempt.checkpoint_id)
    world.until(future.done)
    assert cancelled.result(0) is None and "cancelled" in str(future.exception())
    unknown = world.leader.cancel_checkpoint(attempt.checkpoint_id)
    world.until(unknown.done)
    assert "not in flight" in str(unknown.exception())
    world.passes = lambda way, node, message: True
    source.allow()
    world.finish()
    assert sink.rows() == rows_of(source.table)


def test_a_checkpoint_that_nobody_answers_times_out_on_the_nodes_too() -> None:
    source, sink = GatedSource(events(2_000), rows_per_poll=10, allowed=300), MemorySink()
    world = World(tg.Pipeline("w", tg.from_source(source).write(sink)), 2, interval="50ms", timeout="200ms")
    world.passes = lambda way, node, message: way == "down" or message.WhichOneof("body") != "prepared"
    world.until(lambda: len([r for r in world.leader.checkpoints() if r["status"] == "aborted"]) >= 2)
    world.passes = lambda way, node, message: True
    source.allow()
    world.finish()
    assert sink.rows() == rows_of(source.table)


def test_the_same_seed_tells_the_same_story() -> None:
    """Else no failing seed could be replayed."""
    stories = []
    for _ in range(2):
        source = GatedSource(events(300), rows_per_poll=10, fed=True)
        world = World(tg.Pipeline("w", tg.from_source(source).write(MemorySink())), 3, seed=7)
        world.finish()
        stories.append((world.steps, world.said, world.clock.at_ms))
    assert stories[0] == stories[1]
