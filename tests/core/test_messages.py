"""Barriers and stream messages (F-DCKP-001)."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.barrier.messages import (
    BARRIER_BYTES,
    Barrier,
    CheckpointBarrier,
    Control,
    End,
    Event,
    StreamMessage,
    Watermark,
)
from tidegate.core.control.signals import Instant, InstantControlSignal
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError
from tidegate.ids import EPOCH_LIMIT, U64_LIMIT

BARRIER = CheckpointBarrier(7, 3)
SIGNAL = Instant(InstantControlSignal.FlushBuffers)

barriers = st.builds(
    CheckpointBarrier,
    st.integers(1, U64_LIMIT - 1),
    st.integers(0, EPOCH_LIMIT - 1),
    st.integers(0, U64_LIMIT - 1),
)


def test_checkpoint_barrier_new_creates_aligned() -> None:
    barrier = CheckpointBarrier(1, 2)
    assert (barrier.checkpoint_id, barrier.epoch, barrier.flags) == (1, 2, 0)
    assert barrier.is_aligned
    assert not barrier.is_unaligned


def test_checkpoint_barrier_new_unaligned_flag() -> None:
    barrier = CheckpointBarrier.new_unaligned(1, 2)
    assert barrier.flags == 1
    assert barrier.is_unaligned
    assert not barrier.is_aligned


def test_checkpoint_barrier_size_is_24_bytes() -> None:
    """The size is that of the packed form; a Python object has a header besides."""
    assert BARRIER_BYTES == 24
    assert len(BARRIER.pack()) == 24


def test_checkpoint_barrier_is_copy() -> None:
    """A barrier is a value: a copy is equal, nobody can change it, so all outputs may share one object."""
    assert copy.copy(BARRIER) == BARRIER
    assert hash(copy.copy(BARRIER)) == hash(BARRIER)
    assert pickle.loads(pickle.dumps(BARRIER)) == BARRIER
    with pytest.raises(dataclasses.FrozenInstanceError):
        BARRIER.epoch = 4  # type: ignore[misc, assignment]


def test_stream_message_is_barrier_returns_true() -> None:
    others: list[StreamMessage[int]] = [Event(1), Watermark(5), Control(SIGNAL), End()]
    barrier: StreamMessage[int] = Barrier(BARRIER)
    assert barrier.is_barrier
    assert not any(message.is_barrier for message in others)


def test_stream_message_as_barrier_returns_some() -> None:
    messages: list[StreamMessage[int]] = [Barrier(BARRIER), Event(1), Watermark(5), Control(SIGNAL), End()]
    assert [message.as_barrier() for message in messages] == [BARRIER, None, None, None, None]


def test_stream_message_map_preserves_barrier() -> None:
    untouched: list[StreamMessage[int]] = [Barrier(BARRIER), Watermark(5), Control(SIGNAL), End()]
    for message in untouched:
        assert message.map(str) is message
    assert Event(41, size_bytes=8).map(lambda number: number + 1) == Event(42, size_bytes=8)


def test_a_message_object_is_small() -> None:
    """The wrapper is slotted: no dict per message, at most 128 bytes besides the payload."""
    for message in (Event(1), Watermark(1), Barrier(BARRIER), Control(SIGNAL), End()):
        assert not hasattr(message, "__dict__")
        assert sys.getsizeof(message) <= 128


def test_a_flagged_barrier_is_the_same_barrier() -> None:
    flagged = CheckpointBarrier(7, 3, 0b100).as_unaligned()
    assert flagged == CheckpointBarrier(7, 3, 0b101)
    assert flagged.as_unaligned() == flagged


def test_the_bytes_of_a_barrier_are_fixed() -> None:
    data = CheckpointBarrier.new_unaligned(0x0102030405060708, 0x0A0B).pack()
    assert data == bytes.fromhex("0807060504030201 0b0a000000000000 0100000000000000")


@given(barriers)
def test_a_barrier_survives_its_bytes(barrier: CheckpointBarrier) -> None:
    assert CheckpointBarrier.unpack(barrier.pack()) == barrier
    assert CheckpointBarrier.unpack(memoryview(barrier.pack())) == barrier


@pytest.mark.parametrize("checkpoint_id", [0, -1, U64_LIMIT])
def test_an_id_that_is_none_is_refused(checkpoint_id: int) -> None:
    with pytest.raises(InvalidUseError, match=f"checkpoint_id={checkpoint_id}"):
        CheckpointBarrier(checkpoint_id, 1)


@pytest.mark.parametrize("epoch", [-1, EPOCH_LIMIT, EPOCH_LIMIT + 1])
def test_an_epoch_beyond_48_bits_is_refused_and_not_truncated(epoch: int) -> None:
    with pytest.raises(InvalidUseError, match=f"epoch={epoch}"):
        CheckpointBarrier(1, epoch)
    assert CheckpointBarrier(1, EPOCH_LIMIT - 1).epoch == EPOCH_LIMIT - 1


@pytest.mark.parametrize("flags", [-1, U64_LIMIT])
def test_flags_beyond_64_bits_are_refused(flags: int) -> None:
    with pytest.raises(InvalidUseError, match="flags="):
        CheckpointBarrier(1, 1, flags)


@given(st.binary(max_size=64) | st.binary(min_size=24, max_size=24))
def test_arbitrary_bytes_give_a_barrier_or_our_error(data: bytes) -> None:
    try:
        barrier = CheckpointBarrier.unpack(data)
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)
    else:
        assert barrier.pack() == data


@pytest.mark.parametrize("data", [b"", bytes(23), bytes(25), bytes(24)])
def test_short_long_and_empty_barriers_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        CheckpointBarrier.unpack(data)
