"""Barrier commands and the injector (F-DCKP-001, schedule 1)."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.barrier import inject
from tidegate.core.barrier.inject import (
    PENDING_MAX,
    BarrierInjectorConfig,
    CheckpointBarrierInjector,
    InjectBarrierCommand,
    PackedBarrierCmd,
    Refused,
    Superseded,
)
from tidegate.core.barrier.messages import CheckpointBarrier
from tidegate.errors import (
    BarrierInjectionFailed,
    ChannelFull,
    EpochMismatch,
    InvalidUseError,
    ProtocolError,
    TidegateError,
)
from tidegate.ids import EPOCH_LIMIT, U64_LIMIT

COMMANDS_ONLY = BarrierInjectorConfig(periodic_interval_ms=None, source_id="orders")


def counter(start: int = 1) -> Callable[[], int]:
    numbers = itertools.count(start)
    return lambda: next(numbers)


def on_command(dead_through: int = 0) -> CheckpointBarrierInjector:
    return CheckpointBarrierInjector(COMMANDS_ONLY, dead_through=dead_through)


def periodic(interval_ms: int = 100) -> CheckpointBarrierInjector:
    config = BarrierInjectorConfig(periodic_interval_ms=interval_ms)
    return CheckpointBarrierInjector(config, allocate=counter())


def emit(injector: CheckpointBarrierInjector, now_ms: int = 0) -> CheckpointBarrier:
    barrier = injector.poll_barrier(now_ms)
    assert barrier is not None
    injector.emitted(barrier)
    return barrier


# -- the packed command ------------------------------------------------------------------------------


@given(st.integers(1, U64_LIMIT - 1), st.integers(0, EPOCH_LIMIT - 1), st.booleans())
def test_packed_barrier_cmd_round_trip(checkpoint_id: int, epoch: int, unaligned: bool) -> None:
    packed = PackedBarrierCmd.new(checkpoint_id, epoch, unaligned)
    assert (packed.checkpoint_id, packed.epoch, packed.is_unaligned) == (checkpoint_id, epoch, unaligned)
    assert PackedBarrierCmd(int(packed)) == packed
    assert packed < 1 << 128


def test_packed_barrier_cmd_empty_sentinel() -> None:
    assert PackedBarrierCmd.EMPTY == 0
    assert PackedBarrierCmd.EMPTY.is_empty
    assert not PackedBarrierCmd.new(1, 0).is_empty


def test_packed_barrier_cmd_epoch_48bit_max() -> None:
    packed = PackedBarrierCmd.new(1, EPOCH_LIMIT - 1)
    assert packed.epoch == EPOCH_LIMIT - 1
    assert packed.checkpoint_id == 1
    with pytest.raises(InvalidUseError):
        PackedBarrierCmd.new(1, EPOCH_LIMIT)


def test_the_bits_of_a_packed_command_are_fixed() -> None:
    assert PackedBarrierCmd.new(5, 3, unaligned=True) == (5 << 64) + (3 << 16) + (1 << 15)


@given(st.integers(-(1 << 130), 1 << 130) | st.integers(0, 1 << 128).map(lambda raw: raw & ~0x7FFF))
def test_an_arbitrary_number_is_a_command_or_our_error(raw: int) -> None:
    try:
        packed = PackedBarrierCmd(raw)
    except TidegateError as error:
        assert isinstance(error, InvalidUseError)
    else:
        assert packed.is_empty or packed.barrier().checkpoint_id == raw >> 64


@pytest.mark.parametrize("raw", [1, 1 << 14, 1 << 16, (5 << 64) + 1, -1, 1 << 128])
def test_a_number_with_reserved_bits_or_without_an_id_is_no_command(raw: int) -> None:
    with pytest.raises(InvalidUseError):
        PackedBarrierCmd(raw)


@pytest.mark.parametrize(("checkpoint_id", "epoch"), [(0, 1), (-1, 1), (U64_LIMIT, 1), (1, EPOCH_LIMIT), (1, -1)])
def test_a_command_with_impossible_numbers_is_refused(checkpoint_id: int, epoch: int) -> None:
    with pytest.raises(InvalidUseError):
        InjectBarrierCommand(checkpoint_id, epoch)


# -- the timer ---------------------------------------------------------------------------------------


def test_injector_periodic_fires_after_interval() -> None:
    injector = periodic(interval_ms=100)
    assert injector.poll_barrier(99) is None
    assert emit(injector, 100) == CheckpointBarrier(1, 1)
    assert injector.poll_barrier(199) is None
    assert emit(injector, 200) == CheckpointBarrier(2, 2)


def test_injector_periodic_does_not_fire_early() -> None:
    config = BarrierInjectorConfig(periodic_interval_ms=100)
    injector = CheckpointBarrierInjector(config, allocate=counter(), now_ms=5_000)
    for now_ms in (5_000, 5_001, 5_099):
        assert injector.poll_barrier(now_ms) is None
    assert injector.poll_barrier(5_100) is not None


def test_injector_increments_epoch_on_periodic() -> None:
    config = BarrierInjectorConfig(periodic_interval_ms=10)
    injector = CheckpointBarrierInjector(config, allocate=counter(50), epoch=7)
    assert [emit(injector, now_ms) for now_ms in (10, 20, 30)] == [
        CheckpointBarrier(50, 8), CheckpointBarrier(51, 9), CheckpointBarrier(52, 10)
    ]  # fmt: skip
    assert injector.current_epoch == 10


def test_a_periodic_barrier_that_failed_uses_up_its_id_and_not_its_epoch() -> None:
    injector = periodic(interval_ms=10)
    barrier = injector.poll_barrier(10)
    assert barrier == CheckpointBarrier(1, 1)
    injector.failed(barrier, "closed")
    assert emit(injector, 20) == CheckpointBarrier(2, 1)


def test_injector_coordinator_trigger_overrides_periodic() -> None:
    injector = periodic(interval_ms=100)
    injector.coordinator_handle().inject(InjectBarrierCommand(9, 4))
    assert emit(injector, 150) == CheckpointBarrier(9, 4)
    assert injector.poll_barrier(249) is None, "a command starts the timer anew"


def test_a_timer_whose_ids_do_not_grow_is_an_error_and_changes_nothing() -> None:
    config = BarrierInjectorConfig(periodic_interval_ms=10)
    injector = CheckpointBarrierInjector(config, allocate=lambda: 3, dead_through=3)
    with pytest.raises(EpochMismatch):
        injector.poll_barrier(10)
    assert (injector.held, injector.highest, injector.barriers_injected) == (None, 3, 0)


def test_a_timer_needs_ids_and_a_positive_interval() -> None:
    assert BarrierInjectorConfig() == BarrierInjectorConfig(periodic_interval_ms=10_000, source_id="")
    with pytest.raises(InvalidUseError, match="allocate"):
        CheckpointBarrierInjector()
    for interval_ms in (0, -5):
        with pytest.raises(InvalidUseError, match="positive"):
            BarrierInjectorConfig(periodic_interval_ms=interval_ms)


def test_without_a_timer_time_alone_injects_nothing() -> None:
    assert on_command().poll_barrier(1 << 62) is None


# -- commands ----------------------------------------------------------------------------------------


def test_injector_coordinator_handle_inject() -> None:
    """From another thread; the barrier comes out whole, in the mode asked for."""
    injector = on_command()
    handle = injector.coordinator_handle()
    thread = threading.Thread(target=handle.inject, args=(InjectBarrierCommand(5, 2, is_unaligned=True),))
    thread.start()
    thread.join()
    assert emit(injector) == CheckpointBarrier.new_unaligned(5, 2)
    assert injector.poll_barrier(0) is None


def test_injector_duplicate_coordinator_signal_latest_wins() -> None:
    """The commands that lose are reported: the coordinator must learn that their barriers never come."""
    injector = on_command()
    handle = injector.coordinator_handle()
    for checkpoint_id in (1, 2, 3):
        handle.inject(InjectBarrierCommand(checkpoint_id, 1))
    assert emit(injector) == CheckpointBarrier(3, 1)
    assert injector.take_reports() == [Superseded(1, by=2), Superseded(2, by=3)]
    assert injector.take_reports() == []


def test_a_late_command_never_displaces_a_newer_one() -> None:
    injector = on_command()
    handle = injector.coordinator_handle()
    handle.inject(InjectBarrierCommand(2, 1))
    handle.inject(InjectBarrierCommand(1, 1))
    assert emit(injector) == CheckpointBarrier(2, 1)
    (report,) = injector.take_reports()
    assert isinstance(report, Refused)
    assert report.checkpoint_id == 1
    assert isinstance(report.error, EpochMismatch)


def test_a_command_that_comes_while_one_is_taken_is_not_lost() -> None:
    """The gap between looking and clearing, in which a command could be overwritten, does not exist."""
    injector = on_command()
    handle = injector.coordinator_handle()
    handle.inject(InjectBarrierCommand(1, 1))
    first = injector.poll_barrier(0)
    handle.inject(InjectBarrierCommand(2, 2))
    assert first == CheckpointBarrier(1, 1)
    injector.emitted(first)
    assert emit(injector) == CheckpointBarrier(2, 2)
    assert injector.take_reports() == []


@pytest.mark.parametrize("epoch", [1, 5, 99])
def test_an_id_at_or_below_the_highest_taken_is_refused_whatever_its_epoch(epoch: int) -> None:
    injector = on_command()
    handle = injector.coordinator_handle()
    handle.inject(InjectBarrierCommand(4, 5))
    emit(injector)
    for checkpoint_id in (3, 4):
        with pytest.raises(EpochMismatch, match="highest=4"):
            handle.inject(InjectBarrierCommand(checkpoint_id, epoch))
    assert injector.poll_barrier(0) is None
    handle.inject(InjectBarrierCommand(5, 5))
    assert emit(injector) == CheckpointBarrier(5, 5)


def test_ids_that_were_dead_before_the_start_are_refused() -> None:
    with pytest.raises(EpochMismatch):
        on_command(dead_through=8).coordinator_handle().inject(InjectBarrierCommand(8, 1))


def test_a_command_that_died_while_it_waited_is_reported() -> None:
    injector = on_command()
    injector.coordinator_handle().inject(InjectBarrierCommand(4, 1))
    assert injector.abort(4) is None
    assert injector.poll_barrier(0) is None
    assert [report.checkpoint_id for report in injector.take_reports()] == [4]


def test_too_many_waiting_commands_are_refused_and_none_is_lost() -> None:
    injector = on_command()
    handle = injector.coordinator_handle()
    for checkpoint_id in range(1, PENDING_MAX + 1):
        handle.inject(InjectBarrierCommand(checkpoint_id, 1))
    with pytest.raises(ChannelFull):
        handle.inject(InjectBarrierCommand(PENDING_MAX + 1, 1))
    assert emit(injector).checkpoint_id == PENDING_MAX
    assert len(injector.take_reports()) == PENDING_MAX - 1


def test_reports_that_nobody_takes_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "REPORTS_MAX", 2)
    injector = on_command()
    handle = injector.coordinator_handle()
    for checkpoint_id in range(1, 6):
        handle.inject(InjectBarrierCommand(checkpoint_id, 1))
    emit(injector)
    assert injector.take_reports() == [Superseded(3, by=4), Superseded(4, by=5)]
    assert injector.reports_lost == 2


def test_inject_poll_concurrent_consistency() -> None:
    """Two threads, no lock: every barrier is whole, and no command is lost without a report."""
    injector = on_command()
    handle = injector.coordinator_handle()
    last = 20_000

    def send() -> None:
        for checkpoint_id in range(1, last + 1):
            command = InjectBarrierCommand(checkpoint_id, checkpoint_id * 3, checkpoint_id % 2 == 1)
            while True:
                try:
                    handle.inject(command)
                    break
                except ChannelFull:
                    continue

    sender = threading.Thread(target=send)
    sender.start()
    emitted, skipped = [], 0
    while not emitted or emitted[-1] != last:
        barrier = injector.poll_barrier(0)
        if barrier is None:
            continue
        assert barrier.epoch == barrier.checkpoint_id * 3
        assert barrier.is_unaligned == (barrier.checkpoint_id % 2 == 1)
        injector.emitted(barrier)
        emitted.append(barrier.checkpoint_id)
        skipped += len(injector.take_reports())
    sender.join()
    assert emitted == sorted(set(emitted))
    assert len(emitted) + skipped == last


# -- holding -----------------------------------------------------------------------------------------


def test_a_taken_barrier_is_returned_again_until_it_is_on_all_outputs() -> None:
    injector = on_command()
    handle = injector.coordinator_handle()
    handle.inject(InjectBarrierCommand(1, 1))
    barrier = injector.poll_barrier(0)
    handle.inject(InjectBarrierCommand(2, 2))
    assert barrier is not None
    assert injector.poll_barrier(1) is barrier
    assert injector.held is barrier
    assert injector.barriers_injected == 0
    injector.emitted(barrier.as_unaligned())
    assert injector.poll_barrier(2) == CheckpointBarrier(2, 2)


def test_injector_barriers_injected_counter() -> None:
    """Barriers count when they are on all outputs, not when they are taken."""
    injector = on_command()
    handle = injector.coordinator_handle()
    for checkpoint_id in (1, 2, 3):
        handle.inject(InjectBarrierCommand(checkpoint_id, 1))
        emit(injector)
    handle.inject(InjectBarrierCommand(4, 1))
    injector.poll_barrier(0)
    assert injector.barriers_injected == 3


def test_a_closed_output_fails_this_barrier_and_not_the_next() -> None:
    injector = on_command()
    handle = injector.coordinator_handle()
    handle.inject(InjectBarrierCommand(1, 1))
    barrier = injector.poll_barrier(0)
    assert barrier is not None
    error = injector.failed(barrier, "output 3 is closed")
    assert isinstance(error, BarrierInjectionFailed)
    assert error.checkpoint_id == 1
    assert "output 3 is closed source=orders" in str(error)
    assert injector.poll_barrier(0) is None
    with pytest.raises(EpochMismatch):
        handle.inject(InjectBarrierCommand(1, 1))
    handle.inject(InjectBarrierCommand(2, 1))
    assert emit(injector).checkpoint_id == 2


def test_an_answer_for_a_barrier_that_is_not_held_changes_nothing() -> None:
    injector = on_command()
    with pytest.raises(ProtocolError):
        injector.emitted(CheckpointBarrier(1, 1))
    injector.coordinator_handle().inject(InjectBarrierCommand(2, 1))
    held = injector.poll_barrier(0)
    for answer in (injector.emitted, lambda barrier: injector.failed(barrier, "")):
        with pytest.raises(ProtocolError):
            answer(CheckpointBarrier(1, 1))
    assert injector.held is held
    assert injector.barriers_injected == 0


def test_an_abort_drops_the_held_barrier_at_or_below_it() -> None:
    injector = on_command()
    injector.coordinator_handle().inject(InjectBarrierCommand(5, 1))
    held = injector.poll_barrier(0)
    assert injector.abort(4) is None
    assert injector.held is held
    error = injector.abort(6)
    assert error is not None
    assert error.checkpoint_id == 5
    assert injector.poll_barrier(0) is None
    assert injector.abort(5) is None
    assert injector.highest == 6, "an older abort brings nothing back to life"


def test_an_abort_of_the_held_id_itself_drops_it() -> None:
    injector = on_command()
    injector.coordinator_handle().inject(InjectBarrierCommand(5, 1))
    injector.poll_barrier(0)
    assert injector.abort(5) is not None
    assert injector.held is None


@pytest.mark.parametrize("checkpoint_id", [0, -1, U64_LIMIT])
def test_an_abort_of_what_is_no_id_changes_nothing(checkpoint_id: int) -> None:
    injector = on_command()
    with pytest.raises(InvalidUseError):
        injector.abort(checkpoint_id)
    assert injector.highest == 0


# -- the hot path ------------------------------------------------------------------------------------


def test_injector_poll_barrier_fast_path_no_alloc() -> None:
    """Ten thousand polls that find nothing: at no moment is even a kilobyte more in use than before."""
    injector = periodic(interval_ms=1_000)
    injector.poll_barrier(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in itertools.repeat(None, 10_000):
            injector.poll_barrier(0)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000
    assert peak - before < 1_000
