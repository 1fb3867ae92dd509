"""The head of the pipeline: ids, one order with checkpoints, answers, and what outlives a gang."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.core.control.ask import (
    ControlChanged,
    ControlEffect,
    EmitSignal,
    FetchPayload,
    ReleaseCheckpoint,
    SendInstant,
    SignalAnswer,
    SignalAnswered,
    SignalFailed,
    SignalRequest,
)
from tidegate.core.control.head import ControlSourceProcessor
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import BarrierControlSignalKind, InstantControlSignal, StoredPayload
from tidegate.errors import ChannelFull, InvalidUseError, SignalLost

SYNC = BarrierControlSignalKind.SyncTest
END = BarrierControlSignalKind.StreamGracefulEnd
SET = BarrierControlSignalKind.SetParameter
FLUSH = BarrierControlSignalKind("flush")
TERM = 3
FIRST = TERM << 32 | 1


class Head:
    """A head with two nodes, and what it ordered."""

    def __init__(self, **options: Any) -> None:
        self.head = ControlSourceProcessor(**options)
        self.now_ms = 0
        self.all: list[ControlEffect] = []

    def did(self, effects: list[ControlEffect]) -> list[ControlEffect]:
        self.all += effects
        return effects

    def up(self, *parameters: ParameterEntry, term: int = TERM, nodes: tuple[int, ...] = (0, 1)) -> list[ControlEffect]:
        return self.did(self.head.gang_up(term, nodes, parameters, self.now_ms))

    def ask(self, kind: BarrierControlSignalKind, name: str = "r", **options: Any) -> list[ControlEffect]:
        return self.did(self.head.request(SignalRequest(name, kind, **options), self.now_ms))

    def set(self, value: bytes, parameter: str = "rules", **options: Any) -> list[ControlEffect]:
        version = self.head.next_version(parameter)
        entry = ParameterEntry.of_bytes(parameter, version, value, 0)
        return self.ask(SET, f"{parameter}{version}", payload=value, entry=entry, **options)

    def emitted(self, number: int) -> list[ControlEffect]:
        return self.did([effect for node in (0, 1) for effect in self.head.emitted(node, number, self.now_ms)])

    def seen(self, number: int) -> list[ControlEffect]:
        return self.did([effect for node in (0, 1) for effect in self.head.seen(node, number, self.now_ms)])

    def pass_(self, number: int) -> list[ControlEffect]:
        return [*self.emitted(number), *self.seen(number)]

    def sent(self) -> list[tuple[str, int]]:
        return [(e.signal.kind.name, e.signal.barrier_id) for e in self.all if isinstance(e, EmitSignal | SendInstant)]

    def answered(self) -> list[str]:
        return [effect.request_id for effect in self.all if isinstance(effect, SignalAnswered)]

    def changed(self) -> ControlChanged:
        return [effect for effect in self.all if isinstance(effect, ControlChanged)][-1]


def entry(version: int, value: bytes = b"v", name: str = "rules") -> ParameterEntry:
    return ParameterEntry.of_bytes(name, version, value, 0)


# -- one signal ----------------------------------------------------------------------------------------------


def test_a_signal_is_emitted_by_every_source_and_answered_when_every_node_has_seen_it() -> None:
    head = Head()
    head.up()
    signal = SYNC.with_id(FIRST)
    assert head.ask(SYNC) == [EmitSignal(signal), ControlChanged(pinned=True)]
    head.emitted(FIRST)
    head.now_ms = 4
    assert head.head.seen(0, FIRST, 4) == []
    answer = SignalAnswer(FIRST, "SyncTest", "barrier", {0: 4, 1: 9})
    assert head.head.seen(1, FIRST, 9) == [SignalAnswered("r", answer), ControlChanged()]
    assert head.head.seen(1, FIRST, 9) == [], "once"


def test_numbers_are_of_the_term_and_never_used_twice() -> None:
    head = Head()
    head.up()
    for number in (1, 2):
        head.ask(SYNC)
        head.pass_(TERM << 32 | number)
    head.head.gang_lost("gone")
    head.up()
    head.ask(SYNC)
    head.pass_(TERM << 32 | 3)
    head.head.gang_lost("gone")
    head.up(term=7)
    head.ask(SYNC)
    assert [number for _, number in head.sent()] == [TERM << 32 | 1, TERM << 32 | 2, TERM << 32 | 3, 7 << 32 | 1]


def test_without_a_gang_a_signal_waits_for_the_next() -> None:
    head = Head()
    assert head.ask(SYNC) == []
    head.up()
    assert head.sent() == [("SyncTest", FIRST)]


def test_an_instant_signal_waits_for_nobody() -> None:
    head = Head()
    head.up()
    head.ask(SYNC, "first")
    effects = head.ask(FLUSH, "now", mode="instant", payload=b"x")
    assert effects == [SendInstant(InstantControlSignal(FLUSH, FIRST + 1, b"x"))]
    head.seen(FIRST + 1)
    assert head.answered() == ["now"]


def test_an_instant_signal_is_for_the_gang_that_runs_or_the_next() -> None:
    head = Head()
    head.ask(FLUSH, "first", mode="instant")
    head.ask(SYNC, "second")
    head.up()
    assert head.sent() == [("flush", FIRST), ("SyncTest", FIRST + 1)]


def test_what_was_not_sent_is_answered_by_nobody() -> None:
    head = Head()
    head.up()
    assert [*head.pass_(99), *head.head.fetched(0, 99, "", 0)] == []


# -- one order -----------------------------------------------------------------------------------------------


def test_the_next_signal_goes_when_every_source_has_emitted_the_last() -> None:
    head = Head()
    head.up()
    head.ask(SYNC, "one")
    head.ask(FLUSH, "two")
    assert head.sent() == [("SyncTest", FIRST)]
    assert head.head.emitted(0, FIRST, 0) == []
    head.emitted(FIRST)
    assert head.sent() == [("SyncTest", FIRST), ("flush", FIRST + 1)], "whoever has seen the first or not"
    assert head.emitted(FIRST) == [], "late and doubled words change nothing"


def test_a_checkpoint_waits_until_every_source_has_emitted_the_signal_before_it() -> None:
    head = Head()
    head.up()
    head.ask(SYNC)
    assert head.head.checkpoint(CheckpointBarrier(5, 5)) == []
    assert head.emitted(FIRST)[0] == ReleaseCheckpoint(5)


def test_a_signal_waits_until_every_source_has_emitted_the_checkpoint_before_it() -> None:
    head = Head()
    head.up()
    assert head.head.checkpoint(CheckpointBarrier(5, 5)) == [ReleaseCheckpoint(5)]
    assert head.ask(SYNC) == [ControlChanged(pinned=True)]
    assert head.head.injected(0, 5, 7) == []
    assert head.head.injected(1, 5, 7) == [EmitSignal(SYNC.with_id(FIRST))]
    head.emitted(FIRST)
    head.now_ms = 9
    (answered, _) = head.seen(FIRST)
    assert isinstance(answered, SignalAnswered)
    assert answered.answer.total_ms == 2, "it counts from when it was sent"


def test_a_checkpoint_that_is_given_up_holds_nothing_back() -> None:
    head = Head()
    head.up()
    head.head.checkpoint(CheckpointBarrier(5, 5))
    head.ask(SYNC)
    assert head.head.checkpoint_over(5, 0) == [EmitSignal(SYNC.with_id(FIRST))]
    assert head.head.checkpoint_over(5, 0) == []


def test_a_waiting_checkpoint_that_is_given_up_is_not_released() -> None:
    head = Head()
    head.up()
    head.ask(SYNC)
    head.head.checkpoint(CheckpointBarrier(5, 5))
    head.head.checkpoint_over(5, 0)
    assert head.emitted(FIRST) == []


def test_checkpoints_are_pinned_from_the_order_of_a_signal_until_its_last_answer() -> None:
    head = Head()
    head.up()
    head.ask(SYNC)
    assert head.changed().pinned
    head.emitted(FIRST)
    head.did(head.head.seen(0, FIRST, 0))
    assert head.changed().pinned
    head.did(head.head.seen(1, FIRST, 0))
    assert not head.changed().pinned


def test_too_many_that_wait_are_refused() -> None:
    head = Head(waiting_max=2)
    head.ask(SYNC)
    head.ask(SYNC)
    with pytest.raises(ChannelFull, match="try later"):
        head.ask(SYNC)


# -- the end -------------------------------------------------------------------------------------------------


def test_nothing_follows_the_end_but_checkpoints() -> None:
    head = Head()
    head.up()
    head.ask(END)
    with pytest.raises(InvalidUseError, match="told to end"):
        head.ask(SYNC)
    head.pass_(FIRST)
    assert head.head.checkpoint(CheckpointBarrier(5, 5)) == [ReleaseCheckpoint(5)]


@pytest.mark.parametrize("answered", [False, True])
def test_every_gang_is_told_of_the_end_and_whoever_asked_once(answered: bool) -> None:
    head = Head()
    head.up()
    head.ask(END, "end")
    if answered:
        head.pass_(FIRST)
    assert head.did(head.head.gang_lost("gone")) in ([], [ControlChanged()])
    head.up()
    assert head.sent() == [("StreamGracefulEnd", FIRST), ("StreamGracefulEnd", FIRST + 1)]
    head.pass_(FIRST + 1)
    assert head.answered() == ["end"]


def test_an_end_that_still_waits_is_not_told_twice() -> None:
    head = Head()
    head.ask(END, "end")
    head.up()
    assert head.sent() == [("StreamGracefulEnd", FIRST)]


@pytest.mark.parametrize("options", [{"kind": END}, {"kind": SET, "entry": entry(1)}])
def test_what_takes_effect_between_two_rows_is_no_instant_signal(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError, match="mode='barrier'"):
        Head().ask(**options, mode="instant")


# -- what dies with a gang -----------------------------------------------------------------------------------


def test_a_signal_that_dies_with_its_gang_fails_by_name() -> None:
    head = Head()
    head.up()
    head.ask(FLUSH, "mine")
    head.ask(SYNC, "next")
    failed, changed = head.did(head.head.gang_lost("node 1 is gone"))
    assert isinstance(failed, SignalFailed) and isinstance(failed.error, SignalLost)
    assert (failed.request_id, "node 1 is gone" in str(failed.error), f"id={FIRST}" in str(failed.error)) == ("mine", True, True)
    assert changed == ControlChanged()
    head.up()
    assert head.sent()[-1] == ("SyncTest", FIRST + 1), "what had not been sent goes to the next gang"


def test_a_checkpoint_that_ends_with_its_gang_releases_nothing() -> None:
    head = Head()
    head.up()
    head.head.checkpoint(CheckpointBarrier(5, 5))
    head.ask(END)
    head.did(head.head.gang_lost("gone"))
    assert head.head.checkpoint_over(5, 0) == []


def test_late_words_of_a_lost_gang_change_nothing() -> None:
    head = Head()
    head.up()
    head.ask(FLUSH)
    head.did(head.head.gang_lost(""))
    head.up()
    assert head.pass_(FIRST) == []


# -- payloads in the store -----------------------------------------------------------------------------------

STORED = StoredPayload("job/shared/x", 100_000, 7, "ab" * 32)


def test_every_node_has_a_stored_payload_before_the_signal_is_emitted() -> None:
    head = Head()
    head.up()
    head.did(head.head.reserve(STORED.path))
    assert head.changed().objects == {STORED.path}
    (fetch,) = head.ask(FLUSH, stored=STORED)
    assert isinstance(fetch, FetchPayload)
    assert head.head.released(STORED.path) == [], "the request keeps it now"
    head.ask(SYNC, "next")
    assert head.head.fetched(0, FIRST, "", 0) == []
    assert not head.changed().pinned
    (emit, changed) = head.did(head.head.fetched(1, FIRST, "", 0))
    assert isinstance(emit, EmitSignal) and isinstance(changed, ControlChanged) and changed.pinned
    assert head.head.fetched(1, FIRST, "", 0) == []
    head.pass_(FIRST)
    assert head.changed().objects == frozenset()
    assert head.sent() == [("flush", FIRST), ("SyncTest", FIRST + 1)], "in the order of the requests"


def test_a_payload_that_a_node_cannot_read_fails_the_signal_and_the_next_goes() -> None:
    head = Head()
    head.up()
    head.ask(FLUSH, "bad", stored=STORED)
    head.ask(SYNC, "next")
    failed = head.did(head.head.fetched(1, FIRST, "it is damaged", 0))[0]
    assert isinstance(failed, SignalFailed)
    assert "node 1 can't read the payload: it is damaged" in str(failed.error)
    assert head.sent() == [("SyncTest", FIRST + 1)]


# -- parameters ----------------------------------------------------------------------------------------------


def test_a_parameter_is_set_when_a_manifest_has_it() -> None:
    head = Head()
    head.up()
    head.set(b"v1")
    assert head.changed().parameters == (entry(1, b"v1"),), "every checkpoint triggered from now on has it"
    head.pass_(FIRST)
    assert (head.answered(), head.head.unsaved) == ([], True)
    head.did(head.head.committed(()))
    assert head.answered() == []
    head.did(head.head.committed([entry(1, b"v1")]))
    assert (head.answered(), head.head.unsaved) == (["rules1"], False)
    head.did(head.head.committed([entry(1, b"v1")]))
    assert head.answered() == ["rules1"]
    assert head.head.versions == {"rules": 1}


def test_a_manifest_may_be_in_the_log_before_the_last_node_is_heard() -> None:
    head = Head()
    head.up()
    head.set(b"v1")
    head.did(head.head.committed([entry(1, b"v1")]))
    assert head.answered() == []
    head.pass_(FIRST)
    assert head.answered() == ["rules1"]


def test_without_checkpoints_a_parameter_is_set_when_all_have_seen_it() -> None:
    head = Head(saves=False)
    head.up()
    head.set(b"v1")
    head.pass_(FIRST)
    assert head.answered() == ["rules1"]
    assert not head.head.unsaved


def test_the_next_gang_is_told_in_order_what_its_checkpoint_lacks() -> None:
    head = Head()
    head.up()
    head.set(b"v1")
    head.pass_(FIRST)
    head.did(head.head.committed([entry(1, b"v1")]))
    head.set(b"v2")
    head.set(b"w1", "other")
    head.pass_(FIRST + 1)
    head.pass_(FIRST + 2)
    head.set(b"v3")
    head.did(head.head.gang_lost("gone"))
    before = len(head.sent())
    head.up(entry(1, b"v1"))
    for number in range(FIRST + 4, FIRST + 7):
        head.pass_(number)
    signals = [e.signal for e in head.all if isinstance(e, EmitSignal)][before:]
    assert [(s.parameter.name, s.parameter.version, s.payload) for s in signals if s.parameter] == [
        ("rules", 2, b"v2"),
        ("other", 1, b"w1"),
        ("rules", 3, b"v3"),
    ]
    assert head.head.versions == {"rules": 3, "other": 1}
    head.did(head.head.committed([entry(3, b"v3"), entry(1, b"w1", "other")]))
    assert head.answered() == ["rules1", "rules2", "other1", "rules3"]


def test_what_an_older_checkpoint_lacks_is_set_again_although_it_was_saved_once() -> None:
    head = Head()
    head.up()
    for number in (1, 2):
        head.set(b"v%d" % number)
        head.pass_(FIRST + number - 1)
        head.did(head.head.committed([entry(number, b"v%d" % number)]))
    head.did(head.head.gang_lost("its newest checkpoint is damaged"))
    head.up()
    head.pass_(FIRST + 2)
    assert head.sent()[2:] == [("SetParameter", FIRST + 2)], "the last value of each is enough"
    assert head.answered() == ["rules1", "rules2"]


def test_a_restored_version_counts_on_from_there() -> None:
    head = Head()
    head.up(entry(4))
    assert head.head.next_version("rules") == 5
    assert head.changed().parameters == (entry(4),)


def test_a_value_whose_payload_was_being_fetched_is_fetched_again_by_the_next_gang() -> None:
    head = Head()
    head.up()
    stored = ParameterEntry("rules", 1, STORED.path, STORED.size_bytes, STORED.crc32c)
    head.ask(SET, "rules1", stored=STORED, entry=stored)
    head.did(head.head.gang_lost("gone"))
    effects = head.up()
    assert [type(effect) for effect in effects] == [FetchPayload, ControlChanged], "whoever leads now is told of it anew"
    assert head.changed().objects == {STORED.path}
    for node in (0, 1):
        head.did(head.head.fetched(node, FIRST + 1, "", 0))
    head.pass_(FIRST + 1)
    head.did(head.head.committed([stored]))
    assert head.answered() == ["rules1"]
    assert head.changed().objects == {STORED.path}, "a manifest of this gang may still need it"
