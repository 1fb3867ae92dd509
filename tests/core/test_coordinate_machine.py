"""Hypothesis picks what happens in the small world: two leaders, lost and late puts, restarts, collection,
restores.

Every step is checked by the world's named checks; at the end a good world must make progress and show every
row once.
"""

from __future__ import annotations

from collections import Counter

from coordination import World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tidegate.core.log import Restore

PICKS = st.integers(0, 1_000)
TALLY: Counter[str] = Counter()


class TwoLeaders(RuleBasedStateMachine):
    """Each rule performs one action of its kind, if the world offers one."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize()
    def a_first_leader(self) -> None:
        self.world.elect()

    def act(self, pick: int, *names: str) -> None:
        offered = [action for action in self.world.actions() if action.name in names]
        if offered:
            offered[pick % len(offered)].act()

    @rule(pick=PICKS)
    def mail_arrives(self, pick: int) -> None:
        self.act(pick, "deliver", "deliver", "deliver twice")

    @rule(pick=PICKS, moments=st.integers(1, 8))
    def a_leader_gets_on(self, pick: int, moments: int) -> None:
        """Without stretches in which things work, nothing would ever be committed."""
        leaders = self.world.active()
        for _ in range(moments if leaders else 0):
            reign = leaders[pick % len(leaders)]
            if reign in self.world.active():
                self.world.go_well(reign)

    @rule(pick=PICKS)
    def one_leader_gets_far(self, pick: int) -> None:
        self.a_leader_gets_on(pick, 16)

    @rule(pick=PICKS)
    def a_put_is_answered(self, pick: int) -> None:
        self.act(pick, "put answered")

    @rule(pick=PICKS)
    def a_put_goes_wrong(self, pick: int) -> None:
        self.act(pick, "put lost", "put landed, answer lost", "put late", "put unreadable")

    @rule(pick=PICKS)
    def a_late_put_lands(self, pick: int) -> None:
        self.act(pick, "land late", "read log")

    @rule(pick=PICKS)
    def a_sink_answers(self, pick: int) -> None:
        self.act(pick, "publish")

    @rule(pick=PICKS)
    def a_start_is_decided(self, pick: int) -> None:
        self.act(pick, "resolve", "adopt")

    @rule(pick=PICKS)
    def a_checkpoint_is_asked_for(self, pick: int) -> None:
        self.act(pick, "request")

    @rule(pick=PICKS)
    def rows_are_read(self, pick: int) -> None:
        self.act(pick, "read rows")

    @rule(pick=PICKS)
    def garbage_is_collected(self, pick: int) -> None:
        self.act(pick, "list", "delete")

    @rule(step_ms=st.sampled_from([10, 60, 350, 1_100]))
    def time_passes(self, step_ms: int) -> None:
        self.world.tick(step_ms)

    @precondition(lambda self: len(self.world.active()) < 2)
    @rule()
    def another_leader_is_elected(self) -> None:
        self.world.elect()

    @rule(pick=PICKS)
    def disaster(self, pick: int) -> None:
        self.act(pick, "crash", "crash all", "lose the gang")

    @rule(pick=PICKS)
    def input_ends(self, pick: int) -> None:
        if pick % 5 == 0:
            self.act(pick, "drain")

    def teardown(self) -> None:
        self.world.settle()
        TALLY["commits"] += self.world.commits_landed - 2
        TALLY["restores"] += sum(isinstance(entry, Restore) for entry in self.world.log())


def test_two_leaders_keep_every_invariant_and_do_commit() -> None:
    """A machine that never gets as far as a commit proves nothing, so that is counted too."""
    TALLY.clear()
    ways = settings(
        max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(TwoLeaders, settings=ways)
    assert TALLY["commits"] >= 40 and TALLY["restores"] >= 20, TALLY
