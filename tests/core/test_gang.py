"""The gang: who belongs to it, whether it is there, and how it is ended."""

from __future__ import annotations

import pytest

from tidegate.core.checkpoint.effects import StartGang, StopGang
from tidegate.core.checkpoint.events import GangRunning, NodeDrained
from tidegate.core.checkpoint.gang import Gang
from tidegate.errors import ProtocolError

BOTH = frozenset({0, 1})


def running() -> Gang:
    gang = Gang()
    assert gang.start(3, None) == StartGang(3, None)
    gang.joined(GangRunning(3, BOTH, frozenset({0})))
    gang.up()
    return gang


def test_a_gang_is_there_from_its_start_and_this_leader_has_had_one_from_then_on() -> None:
    gang = Gang()
    assert not gang.is_alive and not gang.has_started_one and gang.why == "leader elected"
    gang.start(0, None)
    assert gang.is_alive and gang.has_started_one


def test_a_gang_of_an_earlier_leader_counts_as_started() -> None:
    gang = Gang()
    gang.adopt()
    assert gang.is_alive and gang.has_started_one


@pytest.mark.parametrize("nodes", [(frozenset(), frozenset()), (BOTH, frozenset({7}))])
def test_a_gang_has_nodes_and_its_sources_are_on_them(nodes: tuple[frozenset[int], frozenset[int]]) -> None:
    with pytest.raises(ProtocolError, match="gang=3"):
        Gang.check(GangRunning(3, *nodes))
    Gang.check(GangRunning(3, BOTH, BOTH))


def test_whoever_is_not_named_any_more_has_left() -> None:
    gang = running()
    assert gang.joined(GangRunning(3, frozenset({1, 2}), frozenset())) == {0}
    assert gang.nodes == {1, 2} and gang.sources == frozenset()


def test_a_gang_is_drained_when_every_node_is() -> None:
    gang = running()
    gang.node_drained(NodeDrained(0, 3))
    assert not gang.is_drained
    gang.node_drained(NodeDrained(1, 3))
    assert gang.is_drained
    gang.up()
    assert not gang.is_drained, "the next gang has to read to the end itself"


def test_a_stranger_is_never_drained() -> None:
    with pytest.raises(ProtocolError, match="node=9"):
        running().node_drained(NodeDrained(9, 3))


def test_a_gang_is_told_once_to_stop_and_the_next_one_again() -> None:
    gang = running()
    gang.why = "stop requested"
    assert gang.stop(3) == StopGang(3, "stop requested")
    assert gang.stop(3) is None
    gang.start(4, None)
    assert gang.stop(4) == StopGang(4, "stop requested")
