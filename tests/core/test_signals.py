"""What a control signal is, and its bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.control.signals import (
    INLINE_PAYLOAD_BYTES,
    BarrierControlSignal,
    BarrierControlSignalKind,
    ControlSignal,
    InstantControlSignal,
    ParameterVersion,
    StoredPayload,
    unpack,
)
from tidegate.errors import CorruptDataError, InvalidUseError, TidegateError

SYNC = BarrierControlSignalKind.SyncTest
END = BarrierControlSignalKind.StreamGracefulEnd
SET = BarrierControlSignalKind.SetParameter
FLUSH = BarrierControlSignalKind("flush")
STORED = StoredPayload("job/shared/x", 100_000, 7, "ab" * 32)

SIGNALS: list[ControlSignal] = [
    SYNC.with_id(1),
    END.with_id((1 << 64) - 1),
    BarrierControlSignal(FLUSH, 5, b"payload"),
    BarrierControlSignal(FLUSH, 5, b"", STORED),
    BarrierControlSignal(SET, 9, b"J1", None, ParameterVersion("rules", 3)),
    InstantControlSignal(FLUSH, 6, b"x" * INLINE_PAYLOAD_BYTES),
]


def framed(header: dict[str, Any], form: int = 1, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<BI", form, len(text)) + text + payload


HEADER: dict[str, Any] = {"barrier_id": 1, "kind": "SyncTest", "stored": None, "parameter": None}


def test_a_kind_with_a_number_is_a_signal() -> None:
    signal = SYNC.with_id(7)
    assert (signal.kind, signal.barrier_id, signal.key) == (SYNC, 7, (7, SYNC))


@pytest.mark.parametrize(
    ("kind", "is_terminal", "is_users"), [(SYNC, False, False), (END, True, False), (SET, False, False), (FLUSH, False, True)]
)
def test_a_kind_says_what_it_is(kind: BarrierControlSignalKind, is_terminal: bool, is_users: bool) -> None:
    assert (kind.is_terminal, kind.is_users) == (is_terminal, is_users)


def test_only_barrier_signals_are_aligned() -> None:
    assert [signal.is_barrier for signal in SIGNALS] == [True] * 5 + [False]
    assert [signal.is_terminal for signal in SIGNALS] == [False, True, False, False, False, False]


@pytest.mark.parametrize("name", ["", "1st", "a b", "x" * 65, "ü"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidUseError, match="kind of signal"):
        BarrierControlSignalKind(name)


@pytest.mark.parametrize(
    "change",
    [
        {"barrier_id": 0},
        {"barrier_id": 1 << 64},
        {"payload": b"x" * (INLINE_PAYLOAD_BYTES + 1)},
        {"payload": b"x", "stored": STORED},
        {"parameter": ParameterVersion("rules", 1)},
        {"kind": SET},
    ],
)
def test_what_no_head_makes_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidUseError):
        replace(SYNC.with_id(1), **change)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_survives_its_bytes(signal: ControlSignal) -> None:
    again = unpack(signal.pack())
    assert again == signal
    assert type(again) is type(signal)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_signal_or_our_error(data: bytes) -> None:
    try:
        assert unpack(unpack(data).pack()) == unpack(data)
    except TidegateError as error:
        assert isinstance(error, CorruptDataError)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x00",
        framed(HEADER, form=2),
        struct.pack("<BI", 1, 5_000) + b"x" * 5_000,
        struct.pack("<BI", 1, 50) + b"{}",
        framed(HEADER | {"barrier_id": 0}),
        framed(HEADER | {"kind": "no kind"}),
        framed(HEADER | {"more": 1}),
        framed(HEADER, payload=b"x" * (INLINE_PAYLOAD_BYTES + 1)),
    ],
)
def test_forms_lengths_kinds_and_numbers_that_are_none_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        unpack(data)
