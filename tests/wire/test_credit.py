"""Credits: the balance, the overdraft of one message, and that coalesced returns never stop a channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidUseError, ProtocolError
from tidegate.wire.credit import CreditPool, CreditReturn, CreditWindow


def test_a_window_allows_messages_while_the_balance_is_positive() -> None:
    window = CreditWindow(10)
    window.spend(4)
    assert window.may_send and window.balance_bytes == 6
    window.spend(6)
    assert not window.may_send


def test_one_message_may_overdraw_and_no_second() -> None:
    window = CreditWindow(10)
    window.spend(100)
    assert window.balance_bytes == -90
    with pytest.raises(ProtocolError):
        window.spend(1)
    assert window.balance_bytes == -90


def test_credit_says_when_sending_becomes_possible() -> None:
    window = CreditWindow(10)
    window.spend(20)
    assert window.credited(10) is False
    assert window.credited(1) is True
    assert window.credited(9) is False
    assert window.balance_bytes == 10


@pytest.mark.parametrize("size", [0, -1, 6])
def test_a_wrong_credit_is_a_protocol_error_and_changes_nothing(size: int) -> None:
    window = CreditWindow(10)
    window.spend(5)
    with pytest.raises(ProtocolError):
        window.credited(size)
    assert window.balance_bytes == 5


def test_credit_comes_back_a_quarter_of_the_window_at_a_time() -> None:
    returns = CreditReturn(100)
    assert returns.consumed(24) == 0
    assert returns.held_bytes == 24
    assert returns.consumed(1) == 25
    assert returns.consumed(3) == 0
    assert returns.flush() == 3
    assert returns.flush() == 0


def test_a_pool_is_shared_evenly_and_no_channel_gets_nothing() -> None:
    assert CreditPool(100).share(3) == 33
    assert CreditPool(2).share(5) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: CreditWindow(0),
        lambda: CreditReturn(-1),
        lambda: CreditPool(0),
        lambda: CreditPool(1).share(0),
        lambda: CreditWindow(1).spend(-1),
        lambda: CreditReturn(1).consumed(-1),
    ],
)
def test_senseless_sizes_are_refused(call) -> None:
    with pytest.raises(InvalidUseError):
        call()


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60))
def test_a_sender_whose_messages_are_all_consumed_can_always_send(window_bytes: int, steps) -> None:
    window, returns = CreditWindow(window_bytes), CreditReturn(window_bytes)
    queued: list[int] = []
    for size, consume in steps:
        if window.may_send:
            window.spend(size)
            queued.append(size)
        if consume and queued and (back := returns.consumed(queued.pop(0))):
            window.credited(back)
        assert sum(queued) + window.balance_bytes + returns.held_bytes == window_bytes
    for size in queued:
        if back := returns.consumed(size):
            window.credited(back)
    assert window.may_send
