"""The small parts of a loop: mailbox, timers, chain, credit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import events

from tidegate.core.barrier.messages import Barrier, CheckpointBarrier, End, Event, Watermark
from tidegate.core.barrier.subtask import Subtask
from tidegate.errors import ProtocolError
from tidegate.runtime.chain import Chain
from tidegate.runtime.link import Intake, Link
from tidegate.runtime.mailbox import Mailbox
from tidegate.runtime.timers import Timers
from tidegate.state.run import Frozen, Restored

BATCH = events(4).to_batches()[0]


# -- mailbox -------------------------------------------------------------------------------------------------------


def test_what_is_posted_is_taken_once_and_in_order() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in range(5):
        mailbox.post(number)
    assert mailbox.take(0) == [0, 1, 2, 3, 4]
    assert mailbox.take(0) == [] and mailbox.take(1) == []


def test_a_post_wakes_whoever_waits_for_ever() -> None:
    mailbox: Mailbox[str] = Mailbox()
    taken: list[str] = []
    waiter = threading.Thread(target=lambda: taken.extend(mailbox.take(None)))
    waiter.start()
    mailbox.post("wake up")
    waiter.join(5)
    assert taken == ["wake up"]


def test_no_post_is_lost_among_many_threads() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    rounds = 2_000

    def post(who: int) -> None:
        for number in range(rounds):
            mailbox.post((who, number))

    threads = [threading.Thread(target=post, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    while len(taken) < 3 * rounds:
        found = mailbox.take(5_000)
        assert found, "a post was lost, or nobody was woken"
        taken += found
    for who in range(3):
        assert [number for w, number in taken if w == who] == list(range(rounds))


# -- timers --------------------------------------------------------------------------------------------------------


def test_timers_run_when_due_in_order_of_time_then_of_asking() -> None:
    timers, story = Timers(), []
    timers.at(20, lambda: story.append("c"))
    timers.at(10, lambda: story.append("a"))
    timers.at(10, lambda: story.append("b"))
    assert timers.wait_ms(4) == 6 and not timers.run_due(9)
    assert timers.run_due(10) and story == ["a", "b"]
    assert timers.wait_ms(25) == 0 and timers.run_due(25) and story == ["a", "b", "c"]
    assert timers.wait_ms(30) is None and not timers.run_due(30)


def test_a_timer_that_sets_itself_again_waits_for_the_next_look() -> None:
    timers, times = Timers(), []

    def again() -> None:
        times.append(1)
        timers.at(0, again)

    timers.at(0, again)
    timers.run_due(5)
    assert len(times) == 1
    timers.run_due(5)
    assert len(times) == 2


# -- chain ---------------------------------------------------------------------------------------------------------


class Tag:
    """Adds to the values it sees, and says what it was told. Emits its own rows before barriers and at the end."""

    def __init__(self, name: str, story: list[str], *, state: bool = False) -> None:
        self.name, self.story, self.state = name, story, state

    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.story.append(f"{self.name}{port}:{batch.num_rows}")
        yield batch
        yield batch.slice(0, 1)

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        self.story.append(f"{self.name}@{timestamp}")
        yield BATCH.slice(0, 2)

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        self.story.append(f"{self.name}|")
        yield BATCH.slice(0, 3)

    def end(self) -> Iterable[pa.RecordBatch]:
        self.story.append(f"{self.name}.")
        return ()

    def freeze(self) -> Frozen | None:
        return Frozen({"name": self.name}) if self.state else None

    def restore(self, pieces: Sequence[Restored]) -> None:
        raise AssertionError("nobody restores a chain as a whole")


def chain_of(*names: str) -> tuple[Chain, list[str]]:
    story: list[str] = []
    return Chain([(name, Tag(name, story, state=name == "b")) for name in names]), story


def test_each_piece_goes_through_all_before_the_next_is_made() -> None:
    chain, story = chain_of("a", "b")
    pieces = iter(chain.process(1, BATCH))
    assert story == [], "nothing happens until somebody asks"
    next(pieces)
    assert story == ["a1:4", "b0:4"]
    assert [piece.num_rows for piece in pieces] == [1, 1, 1]
    assert story == ["a1:4", "b0:4", "b0:1"]


def test_time_reaches_an_operator_after_what_those_upstream_emitted() -> None:
    chain, story = chain_of("a", "b")
    list(chain.watermark(9))
    assert story == ["a@9", "b0:2", "b@9"]


class Owing(Tag):
    """Yields three pieces, one at a time when it is asked to stop."""

    def __init__(self, name: str, story: list[str]) -> None:
        super().__init__(name, story)
        self.stopping, self.has_pending, self.left = False, False, 3

    def watermark(self, timestamp: int) -> Iterable[pa.RecordBatch]:
        self.story.append(f"{self.name}@{timestamp}")
        self.has_pending = True
        while self.left:
            self.left -= 1
            yield BATCH.slice(0, 1)
            if self.stopping:
                return
        self.has_pending = False


def test_time_does_not_pass_an_operator_that_has_pending_output() -> None:
    story: list[str] = []
    chain = Chain([("a", Owing("a", story)), ("b", Tag("b", story))])
    assert not chain.has_pending
    chain.stop(True)
    list(chain.watermark(9))
    assert story == ["a@9", "b0:1"] and chain.has_pending
    chain.stop(False)
    list(chain.watermark(9))
    assert story[2:] == ["a@9", "b0:1", "b0:1", "b@9"] and not chain.has_pending


class Swallow(Tag):
    def process(self, port: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return ()


def test_the_loop_can_look_up_although_nothing_comes_of_a_piece() -> None:
    story: list[str] = []
    chain = Chain([("a", Owing("a", story)), ("b", Swallow("b", story))])
    pieces = iter(chain.watermark(9))
    assert next(pieces).num_rows == 0
    assert story == ["a@9"], "the second piece is not made yet"


def test_rows_before_a_barrier_pass_the_rest_of_the_chain() -> None:
    chain, story = chain_of("a", "b")
    assert sum(piece.num_rows for piece in chain.before_barrier()) == 3 + 1 + 3
    assert story == ["a|", "b0:3", "b|"]


def test_an_empty_chain_passes_batches_on() -> None:
    chain = Chain([])
    assert list(chain.process(0, BATCH)) == [BATCH] and list(chain.watermark(1)) == [] and chain.freeze() == {}


def test_only_operators_with_state_are_frozen() -> None:
    chain, _ = chain_of("a", "b", "c")
    assert chain.freeze() == {"b": Frozen({"name": "b"})}


def test_a_batch_may_enter_after_an_operator() -> None:
    chain, story = chain_of("a", "b", "c")
    list(chain.after(0, BATCH.slice(0, 1)))
    assert story[0] == "b0:1" and not [line for line in story if line.startswith("a")]


# -- credit --------------------------------------------------------------------------------------------------------


class Task:
    """What a link needs of a task."""

    def __init__(self) -> None:
        self.protocol: Subtask[Any] = Subtask([], [0])
        self.performed: list[Any] = []

    def perform(self, effects: list[Any]) -> None:
        self.performed += effects


class Outlet:
    def __init__(self) -> None:
        self.ready = True
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def link_of(window_bytes: int) -> tuple[Link, Task, Outlet]:
    task, outlet = Task(), Outlet()
    return Link(task, 0, outlet, window_bytes), task, outlet  # type: ignore[arg-type]


def test_events_stop_without_credit_and_nothing_else_does() -> None:
    link, task, outlet = link_of(100)
    for message in (Event("a", 60), Event("b", 60), Event("c", 60)):
        task.protocol.emit(0, message)
    assert link.pump() and [m.payload for m in outlet.sent] == ["a", "b"], "the last one may go over the window"
    assert not link.pump()
    link.credited(60)
    assert link.pump() and len(outlet.sent) == 3
    task.protocol.emit(0, Watermark(5))
    task.protocol.emit(0, End())
    assert link.pump() and len(outlet.sent) == 5


def test_a_channel_that_is_not_ready_gets_nothing() -> None:
    link, task, outlet = link_of(100)
    task.protocol.emit(0, Watermark(1))
    outlet.ready = False
    assert not link.pump() and outlet.sent == []


def test_a_flagged_barrier_needs_no_credit() -> None:
    link, task, outlet = link_of(10)
    for message in (Event("a", 60), Event("b", 60)):
        task.protocol.emit(0, message)
    link.pump()
    barrier = CheckpointBarrier.new_unaligned(1, 1)
    for effect in task.protocol.inject(barrier):
        if type(effect).__name__ == "Fire":
            task.protocol.fired(barrier)
    assert link.pump() and isinstance(outlet.sent[-1], Barrier)
    (complete,) = task.performed
    assert [event.payload for event in complete.outputs[0]] == ["b"], "what it passed is recorded"


def test_more_credit_than_was_spent_is_a_bug() -> None:
    link, task, _ = link_of(100)
    task.protocol.emit(0, Event("a", 60))
    link.pump()
    with pytest.raises(ProtocolError):
        link.credited(61)


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 600), st.integers(0, 20))
def test_credit_never_leaks(sizes: list[int], window: int, replayed: int) -> None:
    """All that was sent is returned by the time the receiver rests, whatever was replayed before it."""
    link, task, outlet = link_of(window)
    returned: list[int] = []
    intake = Intake(window, returned.append)
    intake.owes_nothing_for(replayed)
    for _ in range(replayed):
        intake.consumed(50)
    assert returned == [], "nobody paid for what was replayed"
    for size in sizes:
        task.protocol.emit(0, Event("row", size))
    taken = 0
    while taken < len(sizes):
        link.pump()
        assert len(outlet.sent) > taken, "the sender is stuck although the receiver rests"
        for message in outlet.sent[taken:]:
            intake.consumed(message.size_bytes)
        taken = len(outlet.sent)
        intake.settle()
        for size in returned:
            link.credited(size)
        returned.clear()
    assert sum(m.size_bytes for m in outlet.sent) == sum(sizes)
    task.protocol.emit(0, Event("last", window))
    assert link.pump(), "all the credit is there again"


def test_small_consumption_is_gathered_before_it_is_returned() -> None:
    returned: list[int] = []
    intake = Intake(1_000, returned.append)
    for _ in range(9):
        intake.consumed(10)
    assert returned == []
    for _ in range(40):
        intake.consumed(10)
    intake.settle()
    assert sum(returned) == 490 and len(returned) < 10
