"""Control signals: instant ones at once, barriers when all upstreams have delivered them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.barrier.messages import (
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.control.signals import (
    SIGNAL_BYTES,
    BarrierControlSignal,
    BarrierControlSignalKind,
    BarrierProcessor,
    BarrierSignal,
    Carried,
    Channel,
    ControlSignal,
    ControlSourceProcessor,
    ForwardData,
    ForwardSignal,
    Instant,
    InstantControlSignal,
    Stop,
    unpack,
)
from tidegate.errors import (
    BarrierOverlap,
    ChannelFull,
    CorruptDataError,
    DuplicateBarrier,
    InvalidUseError,
    ProtocolError,
    TidegateError,
)
from tidegate.ids import U64_LIMIT

SYNC = BarrierControlSignalKind.SyncTest
GRACEFUL_END = BarrierControlSignalKind.StreamGracefulEnd
FLUSH = Instant(InstantControlSignal.FlushBuffers)
QUICK_END = Instant(InstantControlSignal.StreamQuickEnd)


def sync(number: int) -> BarrierSignal:
    return BarrierSignal(SYNC.with_id(number))


def graceful_end(number: int) -> BarrierSignal:
    return BarrierSignal(GRACEFUL_END.with_id(number))


def in_data(signal: ControlSignal) -> StreamMessage[str]:
    return Control(signal)


def event(name: str) -> StreamMessage[str]:
    return Event(name)


# -- signals -----------------------------------------------------------------------------------------


def test_a_kind_with_a_number_is_a_signal() -> None:
    signal = SYNC.with_id(3)
    assert signal == BarrierControlSignal(SYNC, 3)
    assert signal.key == (3, SYNC)
    assert BarrierSignal(signal).key == (3, SYNC)


@pytest.mark.parametrize(
    ("signal", "is_barrier", "is_terminal"),
    [(FLUSH, False, False), (QUICK_END, False, True), (sync(1), True, False), (graceful_end(1), True, True)],
)
def test_a_signal_says_what_it_is(signal: ControlSignal, is_barrier: bool, is_terminal: bool) -> None:
    assert (signal.is_barrier, signal.is_terminal) == (is_barrier, is_terminal)


def test_instant_signals_have_the_number_0() -> None:
    assert FLUSH.key == (0, InstantControlSignal.FlushBuffers)


@pytest.mark.parametrize("number", [0, -1, U64_LIMIT])
def test_a_number_that_is_none_is_refused(number: int) -> None:
    with pytest.raises(InvalidUseError, match=f"barrier_id={number}"):
        SYNC.with_id(number)


signals = st.sampled_from(list(InstantControlSignal)).map(Instant) | st.builds(
    lambda kind, number: BarrierSignal(kind.with_id(number)),
    st.sampled_from(list(BarrierControlSignalKind)),
    st.integers(1, U64_LIMIT - 1),
)


@given(signals)
def test_a_signal_survives_its_bytes(signal: ControlSignal) -> None:
    assert len(signal.pack()) == SIGNAL_BYTES == 10
    assert unpack(signal.pack()) == signal
    assert ControlSignal.unpack(memoryview(signal.pack())) == signal


def test_the_bytes_of_a_signal_are_fixed() -> None:
    assert graceful_end(0x0102).pack() == bytes.fromhex("01 01 0201000000000000")
    assert QUICK_END.pack() == bytes.fromhex("00 01 0000000000000000")


@given(st.binary(max_size=24) | st.binary(min_size=10, max_size=10))
def test_arbitrary_bytes_give_a_signal_or_our_error(data: bytes) -> None:
    try:
        signal = unpack(data)
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)
    else:
        assert signal.pack() == data


@pytest.mark.parametrize(
    "text",
    [
        "", "00" * 9, "00" * 11, "0009" + "00" * 8, "000101" + "00" * 7,
        "0102" + "00" * 8, "010901" + "00" * 7, "020101" + "00" * 7,
    ],
)  # fmt: skip
def test_unknown_forms_kinds_and_numbers_are_corrupt(text: str) -> None:
    with pytest.raises(CorruptDataError):
        unpack(bytes.fromhex(text))


# -- the head ----------------------------------------------------------------------------------------


def test_one_counter_numbers_both_channels() -> None:
    head = ControlSourceProcessor()
    assert head.send(SYNC, Channel.DATA) == Carried(Channel.DATA, sync(1))
    assert head.send(SYNC, Channel.CONTROL) == Carried(Channel.CONTROL, sync(2))
    assert head.send(InstantControlSignal.FlushBuffers, Channel.CONTROL) == Carried(Channel.CONTROL, FLUSH)
    assert head.next_id == 3
    assert head.send(SYNC, Channel.DATA) == Carried(Channel.DATA, sync(3))


@pytest.mark.parametrize("last", [GRACEFUL_END, InstantControlSignal.StreamQuickEnd])
def test_nothing_follows_a_terminal_signal(last: BarrierControlSignalKind | InstantControlSignal) -> None:
    head = ControlSourceProcessor(next_id=9)
    assert not head.stopped
    head.send(last, Channel.DATA)
    next_id = head.next_id
    for what in (SYNC, InstantControlSignal.FlushBuffers):
        with pytest.raises(InvalidUseError, match=what.name):
            head.send(what, Channel.CONTROL)
    assert head.stopped
    assert head.next_id == next_id


def test_the_counter_never_wraps() -> None:
    head = ControlSourceProcessor(next_id=U64_LIMIT - 1)
    head.send(SYNC, Channel.DATA)
    with pytest.raises(InvalidUseError):
        head.send(SYNC, Channel.DATA)
    for number in (0, U64_LIMIT):
        with pytest.raises(InvalidUseError):
            ControlSourceProcessor(next_id=number)


# -- the fan-in --------------------------------------------------------------------------------------


def test_a_barrier_passes_once_when_all_upstreams_have_delivered_it() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([4, 7, 9])
    assert fan_in.expected_upstreams == 3
    assert fan_in.data(7, in_data(sync(1))) == []
    assert fan_in.data(4, in_data(sync(1))) == []
    assert fan_in.held == {4, 7}
    assert fan_in.data(9, in_data(sync(1))) == [ForwardSignal(Channel.DATA, sync(1))]
    assert fan_in.held == frozenset()


def test_instant_signals_pass_at_once_in_their_channel() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.data(0, in_data(sync(1)))
    assert fan_in.data(0, in_data(FLUSH)) == [ForwardSignal(Channel.DATA, FLUSH)]
    assert fan_in.control(1, FLUSH) == [ForwardSignal(Channel.CONTROL, FLUSH)]


def test_data_after_a_barrier_never_passes_it() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    barrier: StreamMessage[str] = Barrier(CheckpointBarrier(1, 1))
    assert fan_in.data(0, event("a")) == [ForwardData(0, event("a"))]
    fan_in.data(0, in_data(sync(1)))
    mark: StreamMessage[str] = Watermark(5)
    for message in (event("c"), mark, barrier):
        assert fan_in.data(0, message) == []
    assert fan_in.data(1, event("b")) == [ForwardData(1, event("b"))], "the late input goes on"
    assert fan_in.data(1, in_data(sync(1))) == [
        ForwardSignal(Channel.DATA, sync(1)),
        ForwardData(0, event("c")), ForwardData(0, mark), ForwardData(0, barrier),
    ]  # fmt: skip


def test_the_channels_are_aligned_apart() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    assert fan_in.data(0, in_data(sync(1))) == []
    assert fan_in.control(1, sync(2)) == []
    assert fan_in.held == {0}, "a control barrier holds no data"
    assert fan_in.control(0, sync(2)) == [ForwardSignal(Channel.CONTROL, sync(2))]
    assert fan_in.data(1, in_data(sync(1))) == [ForwardSignal(Channel.DATA, sync(1))]


def test_a_different_barrier_while_one_is_pending_is_an_error_and_changes_nothing() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.data(0, in_data(sync(1)))
    for input_id, other in ((1, sync(2)), (1, graceful_end(1)), (0, sync(2))):
        with pytest.raises(BarrierOverlap):
            fan_in.data(input_id, in_data(other))
    assert fan_in.data(1, in_data(sync(1))) == [ForwardSignal(Channel.DATA, sync(1))]


def test_a_second_arrival_from_one_input_is_an_error_and_changes_nothing() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.control(0, sync(1))
    with pytest.raises(DuplicateBarrier):
        fan_in.control(0, sync(1))
    assert fan_in.control(1, sync(1)) == [ForwardSignal(Channel.CONTROL, sync(1))]


def test_a_held_input_that_is_read_on_runs_into_a_limit_and_loses_nothing() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1], hold_max=2)
    fan_in.data(0, in_data(sync(1)))
    fan_in.data(0, event("a"))
    fan_in.data(0, event("b"))
    with pytest.raises(ChannelFull, match="input=0"):
        fan_in.data(0, event("c"))
    assert fan_in.data(1, in_data(sync(1)))[1:] == [ForwardData(0, event("a")), ForwardData(0, event("b"))]
    assert fan_in.data(0, event("c")) == [ForwardData(0, event("c"))]


@pytest.mark.parametrize("channel", list(Channel))
def test_a_terminal_barrier_is_aligned_forwarded_once_and_then_it_stops(channel: Channel) -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    if channel is Channel.DATA:
        fan_in.data(0, in_data(graceful_end(1)))
        fan_in.data(0, event("after the end"))
        assert not fan_in.stopped
        effects, dropped = fan_in.data(1, in_data(graceful_end(1))), 1
    else:
        fan_in.control(0, graceful_end(1))
        assert not fan_in.stopped
        effects, dropped = fan_in.control(1, graceful_end(1)), 0
    assert effects == [ForwardSignal(channel, graceful_end(1)), Stop(dropped)]
    assert fan_in.stopped
    assert fan_in.data(1, event("late")) == []
    assert fan_in.control(0, sync(2)) == []
    assert fan_in.control_ended(1) == []


def test_a_terminal_instant_signal_stops_at_once() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.control(0, sync(1))
    assert fan_in.control(1, QUICK_END) == [ForwardSignal(Channel.CONTROL, QUICK_END), Stop(0)]
    assert fan_in.control_ended(1) == [], "the barrier that was pending is not forwarded after the end"


def test_an_input_that_ends_is_not_waited_for() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.data(0, in_data(sync(1)))
    fan_in.data(0, event("a"))
    assert fan_in.data(1, End()) == [
        ForwardData(1, End()), ForwardSignal(Channel.DATA, sync(1)), ForwardData(0, event("a"))
    ]  # fmt: skip
    assert fan_in.data(0, in_data(sync(2))) == [ForwardSignal(Channel.DATA, sync(2))]


def test_an_end_after_a_barrier_waits_with_the_data() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.data(0, in_data(sync(1)))
    assert fan_in.data(0, End()) == []
    assert fan_in.data(1, in_data(sync(1))) == [ForwardSignal(Channel.DATA, sync(1)), ForwardData(0, End())]
    assert fan_in.data(1, in_data(sync(2))) == [ForwardSignal(Channel.DATA, sync(2))]


def test_a_message_after_an_end_is_an_error() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.data(0, End())
    end: StreamMessage[str] = End()
    for message in (event("a"), in_data(sync(1)), end):
        with pytest.raises(ProtocolError):
            fan_in.data(0, message)
    assert fan_in.data(1, in_data(sync(1))) == [ForwardSignal(Channel.DATA, sync(1))]


def test_a_control_channel_that_ends_is_not_waited_for() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    fan_in.control(0, sync(1))
    assert fan_in.control_ended(1) == [ForwardSignal(Channel.CONTROL, sync(1))]
    assert fan_in.control_ended(1) == []


@pytest.mark.parametrize("upstreams", [[], [1, 1]])
def test_upstreams_are_known_by_identity(upstreams: list[int]) -> None:
    with pytest.raises(InvalidUseError):
        BarrierProcessor(upstreams)


def test_a_hold_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidUseError, match="hold_max"):
        BarrierProcessor([0], hold_max=0)


def test_a_stranger_is_refused() -> None:
    fan_in: BarrierProcessor[str] = BarrierProcessor([0, 1])
    for call in (
        lambda: fan_in.data(2, event("a")),
        lambda: fan_in.control(2, FLUSH),
        lambda: fan_in.control_ended(2),
    ):
        with pytest.raises(ProtocolError, match="input=2"):
            call()


@given(st.data(), st.integers(1, 70))
def test_every_event_stays_on_its_side_of_the_barrier(data: st.DataObject, count: int) -> None:
    """Any number of upstreams; each sends before-N, the barrier, after-N, and they come in any order."""
    fan_in: BarrierProcessor[str] = BarrierProcessor(range(count), hold_max=3)
    scripts = {n: [event(f"before-{n}"), in_data(sync(1)), event(f"after-{n}")] for n in range(count)}
    out: list[object] = []
    order = data.draw(st.permutations([n for n in range(count) for _ in range(3)]))
    for input_id in order:
        out += fan_in.data(input_id, scripts[input_id].pop(0))
    cut = out.index(ForwardSignal(Channel.DATA, sync(1)))
    before = {effect.message.payload for effect in out[:cut]}  # type: ignore[attr-defined]
    after = {effect.message.payload for effect in out[cut + 1 :]}  # type: ignore[attr-defined]
    assert before == {f"before-{n}" for n in range(count)}
    assert after == {f"after-{n}" for n in range(count)}
    assert len(out) == 2 * count + 1
