"""What comes together with a change of the leader: stops, orders on their way, gangs that run or do not, and lines that break."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_jobs import GatedSource, Jobs, MemorySink, counts, events, expected_counts, failure, found_counts, until
from test_failover_phases import Halting

import tidegate as tg
from tidegate.core.failure.election import LeaderBeat
from tidegate.errors import FencedError, RetryableError
from tidegate.runtime.gang import Exit, GangState, LocalHost
from tidegate.runtime.gangs import Gangs, GangSetup
from tidegate.runtime.leaderline import LeaderLine
from tidegate.runtime.remotedriver import RemoteDriver
from tidegate.runtime.report import Totals
from tidegate.runtime.timers import Timers
from tidegate.wire._gen import control_pb2 as pb

# -- a driver and its gangs --------------------------------------------------------------------------------------------


class Launches:
    """A launcher whose gangs end when the test says so."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled = 0
        self.end: Callable[[Exit | None], None]

    def start(self, launch: Any, on_exit: Callable[[Exit | None], None]) -> None:
        self.started.append(launch)
        self.end = on_exit

    def cancel(self) -> None:
        self.cancelled += 1

    def running(self) -> int | None:
        return None

    def join(self, timeout_s: float) -> bool:
        return True


def host() -> tuple[LocalHost, Launches, list[tuple[int, Any]]]:
    launches = Launches()
    return LocalHost(launches, lambda gang, url: gang), launches, []  # type: ignore[arg-type, return-value]


def test_a_gang_starts_only_after_the_one_of_a_leader_that_was_replaced_has_ended() -> None:
    local, launches, ended = host()
    local.start(3, None, lambda why: ended.append((3, why)))
    local.start(8, None, lambda why: ended.append((8, why)))
    assert launches.started == [3] and launches.cancelled == 1
    launches.end(None)
    assert launches.started == [3, 8] and ended == [(3, None)] and local.gang == 8


def test_a_late_order_of_a_leader_that_was_replaced_starts_nothing() -> None:
    local, launches, _ = host()
    local.start(8, None, lambda why: None)
    with pytest.raises(FencedError, match="a newer gang was started here"):
        local.start(5, None, lambda why: None)
    assert launches.started == [8] and not launches.cancelled


def test_a_gang_that_waits_can_be_watched_and_cancelled() -> None:
    local, launches, ended = host()
    local.start(3, None, lambda why: None)
    local.start(8, None, lambda why: None)
    local.watch(8, lambda why: ended.append((8, why)))
    assert not ended
    local.cancel()
    assert ended[0][1].text == "it was cancelled before it could start"
    launches.end(None)
    assert launches.started == [3]


# -- a leader and the driver that it has elsewhere ---------------------------------------------------------------------


class Stream:
    """A line on which nothing comes back."""

    def __init__(self, hello: pb.Hello) -> None:
        self.hello, self.heartbeat, self.sent = hello, pb.Heartbeat(), []

    def send(self, message: pb.CoordinatorMessage) -> None:
        self.sent.append(pb.CoordinatorMessage.FromString(message.SerializeToString()))

    def verbs(self) -> list[str]:
        return [message.call.verb for message in self.sent if message.WhichOneof("body") == "call"]


def gangs(driver: Any, **setup: Any) -> Gangs:
    owner: Any = SimpleNamespace(job="w", term=5, gang_runs=lambda gang: None, handle=lambda event: None, adopted=lambda: None)
    made = GangSetup(host=driver, publisher=driver, parallelism=2, **setup)
    clock: Any = SimpleNamespace(now_ms=lambda: 0)
    return Gangs(made, owner, clock=clock, timers=Timers(), post=lambda act: act())


def test_a_leader_that_ends_waits_for_no_answer_of_its_driver() -> None:
    """It used to stand by again only when the order had run out of time, after two minutes."""
    driver = RemoteDriver({})
    driver.attach(Stream(pb.Hello(attendant=pb.DRIVER)))
    refused: list[Exception] = []

    def publish() -> None:
        try:
            driver.publish([])
        except RetryableError as error:
            refused.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: driver._calls is not None and driver._calls._open)
    driver.close()
    thread.join(5)
    assert not thread.is_alive() and "leads no more" in str(refused[0])


def test_a_driver_whose_line_broke_is_asked_again_whether_its_gang_runs() -> None:
    """What it said of the gang's end was lost with the line, and nobody would ever hear of it."""
    driver = RemoteDriver({})
    mine = gangs(driver)
    driver.on_change = mine.driver_changed
    mine.gang = GangState(4, 2, None, 5)
    again = Stream(pb.Hello(attendant=pb.DRIVER))
    driver.attach(again)
    assert again.verbs() == ["watch"]


def test_a_node_that_leaves_for_a_later_leader_stops_nobody() -> None:
    """The leader before may not know yet that it was replaced: it used to stop the nodes that had not left."""
    mine = gangs(RemoteDriver({}))
    gang = mine.gang = GangState(4, 2, None, 5)
    streams = [Stream(pb.Hello(node=node, gang=4)) for node in (0, 1)]
    for stream in streams:
        mine.joined(stream)
    mine.said(streams[0], pb.NodeMessage(term=9, stopped=pb.Stopped()), None)
    mine.left(streams[0], None)
    assert not gang.stopping and all(message.WhichOneof("body") != "stop" for message in streams[1].sent)
    mine._check_moved(gang)  # nobody has taken over after all
    assert gang.stopping


def test_a_node_that_was_not_welcomed_yet_starts_from_the_savepoint_like_the_others() -> None:
    """The head of a log without commits is nothing: it used to start without state, beside nodes that had some."""
    manifest: Any = SimpleNamespace(epoch=7, checkpoint_id=70, to_json=lambda: b"savepoint")
    driver = RemoteDriver({})
    mine = gangs(driver, savepoint=SimpleNamespace(manifest=manifest, url="file:///s"))
    driver.on_change = mine.driver_changed
    mine.adopt(0, None)
    driver.attach(Stream(pb.Hello(attendant=pb.DRIVER)))
    streams = [Stream(pb.Hello(node=0, rejoins=True)), Stream(pb.Hello(node=1))]
    for stream in streams:
        mine.joined(stream)
    assert [m.adopted.epoch for m in streams[0].sent if m.WhichOneof("body") == "adopted"] == [-1], "it is of another log"
    assert [m.welcome.restore for m in streams[1].sent if m.WhichOneof("body") == "welcome"] == [b"savepoint"]


def test_a_gang_that_comes_back_to_its_driver_counts_on_from_where_it_started() -> None:
    """Its rows used to be added to those up to the last checkpoint, which were among them."""
    totals = Totals()
    totals.started(0, None)
    ack: Any = SimpleNamespace(gang=0, node=0, checkpoint_id=11, rows_out=1_000)
    totals.prepared(ack)
    totals.committed(11, 1)
    totals.adopted(0)
    assert totals._out[0] == {}


# -- lines -------------------------------------------------------------------------------------------------------------


class Found:
    """An election with one leader."""

    def __init__(self, beat: LeaderBeat) -> None:
        self.beat = beat

    def newest(self) -> LeaderBeat:
        return self.beat


class Listener:
    def __init__(self) -> None:
        self.lost: list[Exception] = []
        self.over: list[Exception] = []

    def control_message(self, message: pb.CoordinatorMessage) -> None: ...

    def leader_found(self, beat: LeaderBeat) -> None: ...

    def leader_lost(self, reason: Exception) -> None:
        self.lost.append(reason)

    def control_lost(self, reason: Exception) -> None:
        self.over.append(reason)


BEAT = LeaderBeat(
    term=3, sequence=1, leader="l", role="coordinator", host="h", pid=1, process="", since_ms=0, address="there", gang=0,
    status="RUNNING", has_driver=True,
)  # fmt: skip


def test_a_stranger_at_the_port_of_a_leader_that_is_gone_ends_no_node() -> None:
    """It has another key, and a node used to take that for the last word of its own leader."""
    tries: list[str] = []
    client: Any = SimpleNamespace(silent_s=0.0, send=lambda message: None, close=lambda grace_s=0.0: None)

    def connect(address: str, said: Any, lost: Any) -> Any:
        tries.append(address)
        if address == "here":
            said(pb.CoordinatorMessage(term=2))
        threading.Thread(target=lost, args=(FencedError("the peer does not know the job's secret"),)).start()
        return client

    listener = Listener()
    line = LeaderLine(listener, connect, "here", election=Found(BEAT), gang=lambda: 0, grace_s=60)  # type: ignore[arg-type]
    until(lambda: tries.count("there") >= 2, "another try")
    assert listener.lost and not listener.over
    line.close()


# -- whole jobs --------------------------------------------------------------------------------------------------------


def begun(jobs: Jobs, **options: Any) -> tuple[Any, GatedSource, MemorySink]:
    source, sink = GatedSource(events(20_000), rows_per_poll=20, allowed=500), MemorySink()
    pipeline = tg.Pipeline("w", counts(tg.from_source(source)).write(sink))
    job = jobs.start(pipeline, interval="100ms", leader_timeout_ms=900, **options)
    until(lambda: job.metrics()["checkpoints_committed"] >= 2)
    return job, source, sink


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_that_a_leader_heard_and_did_not_live_to_do_is_done_by_the_next(jobs: Jobs, drain: bool) -> None:
    job, _, _ = begun(jobs)
    one = Halting(jobs.store, "w")
    point = "stop"
    one.leader.stop = lambda drain=False: one.at(point)  # answered, and then nothing
    one.halt(point, "killed")
    stopped = threading.Thread(target=job.stop, kwargs={"drain": drain})
    stopped.start()
    stopped.join(30)
    one.close()
    assert not stopped.is_alive() and job.status == ("FINISHED" if drain else "STOPPED")


def test_a_driver_that_follows_a_coordinator_says_so_when_another_driver_replaces_both(jobs: Jobs) -> None:
    """It used to stay RUNNING for ever, with nothing to run."""
    job, source, sink = begun(jobs)
    one = Halting(jobs.store, "w")
    second = jobs.start(
        tg.Pipeline("w", counts(tg.from_source(source)).write(sink)), interval="100ms", contend="takeover", leader_timeout_ms=900
    )
    assert "another driver has taken over this job" in failure(job)
    source.allow()
    assert second.await_termination(30)
    one.close()
    assert found_counts(sink) == expected_counts(source.table)
