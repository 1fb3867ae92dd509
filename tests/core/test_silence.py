"""When a peer that says nothing counts as standing still."""

from __future__ import annotations

from tidegate.core.failure.silence import Silence

LIMIT_MS, LOOK_MS = 10_000, 500


def looked(silence: Silence, start_ms: int, stop_ms: int, step_ms: int = LOOK_MS) -> int | None:
    """The time at which a watcher that looks at every step counts the peer as lost."""
    return next((now for now in range(start_ms + step_ms, stop_ms, step_ms) if silence.look(now)), None)


def test_a_silent_peer_is_given_up_within_the_limit() -> None:
    found = looked(Silence(LIMIT_MS, LOOK_MS, 0), 0, 60_000)
    assert found is not None and LIMIT_MS - LOOK_MS <= found <= LIMIT_MS


def test_a_peer_that_speaks_is_never_given_up() -> None:
    silence = Silence(LIMIT_MS, LOOK_MS, 0)
    for now in range(0, 100_000, LOOK_MS):
        silence.heard(now)
        assert not silence.look(now)


def test_where_heartbeats_came_late_before_the_limit_is_longer() -> None:
    """A starved machine: a gap of 4 s makes a silence of 16 s believable."""
    silence = Silence(LIMIT_MS, LOOK_MS, 0)
    silence.heard(4_000)
    assert silence.limit_ms == 16_000
    found = looked(silence, 4_000, 60_000)
    assert found is not None and found > 4_000 + 15_000


def test_the_limit_grows_no_further_than_six_times() -> None:
    silence = Silence(LIMIT_MS, LOOK_MS, 0)
    silence.heard(50_000)
    assert silence.limit_ms == 60_000


def test_a_late_heartbeat_is_forgotten_after_a_minute() -> None:
    silence = Silence(LIMIT_MS, LOOK_MS, 0)
    silence.heard(4_000)
    for now in range(4_000, 70_000, LOOK_MS):
        silence.heard(now)
    assert silence.limit_ms == LIMIT_MS


def test_time_that_the_watcher_itself_did_not_see_does_not_count() -> None:
    """It stood still for a minute: what its peer said meanwhile lies unread."""
    silence = Silence(LIMIT_MS, LOOK_MS, 0)
    assert not silence.look(60_000)
    assert silence.lasted_ms(60_000) == 60_000
    silence.heard(60_001)
    assert not silence.look(60_500)
