"""What is sent to nodes, and in which effect."""

from __future__ import annotations

from dataclasses import replace

from coordination import CONFIG
from driving import make_ack, make_manifest
from test_attempt import attempt

from tidegate.core.checkpoint import command
from tidegate.core.checkpoint.effects import (
    CheckpointStarted,
    SendAbort,
    SendFinalize,
    SendInject,
    SendPromote,
    SendStarted,
    Stamp,
)

STAMP = Stamp(0, 0, 2, 4)


def test_every_node_hears_of_it_before_any_injects() -> None:
    effects = command.start(attempt(parent=make_manifest(2)), STAMP, CONFIG)
    started = CheckpointStarted(0, 5, 3, 2, 0, 1_000, 300, False)
    assert effects == [
        SendStarted(0, STAMP, started),
        SendStarted(1, STAMP, started),
        SendInject(0, STAMP, 5, 3, False),
        SendInject(1, STAMP, 5, 3, False),
    ]


def test_only_nodes_with_sources_inject() -> None:
    effects = command.start(attempt(sources=frozenset({1})), STAMP, CONFIG)
    assert [o.node for o in effects if isinstance(o, SendInject)] == [1]
    assert [o.node for o in effects if isinstance(o, SendStarted)] == [0, 1]


def test_a_threshold_of_zero_lets_barriers_overtake_from_the_start() -> None:
    effects = command.start(attempt(), STAMP, replace(CONFIG, unaligned_threshold_ms=0))
    assert all(o.unaligned for o in effects if isinstance(o, SendInject))


def test_a_savepoint_is_aligned() -> None:
    first = command.start(attempt(savepoint="s"), STAMP, CONFIG)[0]
    assert isinstance(first, SendStarted)
    assert first.started.aligned and first.started.alignment_timeout_ms is None


def test_a_final_checkpoint_has_no_barrier() -> None:
    effects = command.start(attempt(final=True), STAMP, CONFIG)
    assert effects[2:] == [SendFinalize(0, STAMP, 5, 3), SendFinalize(1, STAMP, 5, 3)]


def test_only_nodes_that_have_not_reported_are_promoted() -> None:
    live = attempt()
    live.prepared(make_ack(0, 5), 110)
    assert command.promote(live, STAMP) == [SendPromote(1, STAMP, 5)]


def test_aborts_go_to_all() -> None:
    assert command.abort({1, 0}, STAMP, 5, "why") == [SendAbort(n, STAMP, 5, "why") for n in (0, 1)]
