"""What the head is asked for and what it answers."""

from __future__ import annotations

from tidegate.core.control.ask import SignalAnswer, SignalRequest
from tidegate.core.control.parameters import ParameterEntry
from tidegate.core.control.signals import BarrierControlSignalKind, ParameterVersion


def test_a_request_that_sets_a_parameter_says_which_and_to_which_version() -> None:
    entry = ParameterEntry.of_bytes("rules", 3, b"value", 7)
    assert SignalRequest("r1", BarrierControlSignalKind.SetParameter, entry=entry).parameter == ParameterVersion("rules", 3)
    assert SignalRequest("r1", BarrierControlSignalKind.SyncTest).parameter is None


def test_an_answer_takes_as_long_as_its_slowest_node() -> None:
    assert SignalAnswer(1, "SyncTest", "barrier", {0: 3, 1: 9}).total_ms == 9
