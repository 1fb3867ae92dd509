"""Hypothesis picks what happens in the small world: two leaders, lost and late puts, restarts, collection,
restores.

Every step is checked by the world's named checks; at the end a good world must make progress and show every
row once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coordination import Action, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tidegate.core.checkpoint.mode import Mode
from tidegate.core.log.view import Restore

PICKS = st.integers(0, 1_000)
FAR = 6  # commits in one run; more of the same take time and show nothing new
TALLY: Counter[str] = Counter()


def happens(name: str, *actions: str) -> Any:
    """A rule that performs one of these actions. It is chosen only where the world offers one: no step is wasted."""

    def act(self: TwoLeaders, pick: int) -> None:
        offered = [action for action in self.offered if action.name in actions]
        offered[pick % len(offered)].act()

    act.__name__ = name
    is_offered = precondition(lambda self: any(action.name in actions for action in self.offered))
    return is_offered(rule(pick=PICKS)(act))


class TwoLeaders(RuleBasedStateMachine):
    """Each rule is something that happens to the leaders and their world."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.offered: list[Action] = []

    @initialize(moments=st.integers(0, 16))
    def a_first_leader(self, moments: int) -> None:
        self.get_on(0, moments)

    @invariant()
    def look_around(self) -> None:
        self.offered = self.world.actions()

    mail_arrives = happens("mail_arrives", "deliver", "deliver twice")
    a_put_is_answered = happens("a_put_is_answered", "put answered")
    a_put_goes_wrong = happens("a_put_goes_wrong", "put lost", "put landed, answer lost", "put late", "put unreadable")
    a_late_put_lands = happens("a_late_put_lands", "land late", "read log")
    a_sink_answers = happens("a_sink_answers", "publish")
    a_start_is_decided = happens("a_start_is_decided", "resolve", "adopt")
    a_checkpoint_is_asked_for = happens("a_checkpoint_is_asked_for", "request")
    rows_are_read = happens("rows_are_read", "read rows")
    garbage_is_collected = happens("garbage_is_collected", "list", "delete")

    def get_on(self, pick: int, moments: int) -> None:
        leaders = self.world.active() or [self.world.elect()]
        for _ in range(moments):
            reign = leaders[pick % len(leaders)]
            if reign in self.world.active():
                self.world.go_well(reign)

    @rule(pick=PICKS, moments=st.integers(1, 8))
    def a_leader_gets_on(self, pick: int, moments: int) -> None:
        """Without stretches in which things work, nothing would ever be committed."""
        self.get_on(pick, moments)

    @precondition(lambda self: self.world.commits_landed < FAR)
    @rule(pick=PICKS)
    def one_leader_gets_far(self, pick: int) -> None:
        self.get_on(pick, 16)

    @precondition(lambda self: self.world.running())
    @rule(pick=PICKS, moments=st.integers(0, 8))
    def a_gang_is_lost(self, pick: int, moments: int) -> None:
        """Often it is started again at once, else few runs would come to a restore."""
        gang = self.world.running()[0]
        self.world.kill(gang.number, "node lost")
        self.get_on(pick, moments)

    @rule(step_ms=st.sampled_from([10, 60, 350, 1_100]))
    def time_passes(self, step_ms: int) -> None:
        self.world.tick(step_ms)

    @precondition(lambda self: len(self.world.active()) < 2)
    @rule()
    def another_leader_is_elected(self) -> None:
        self.world.elect()

    @precondition(lambda self: any(r.machine.mode is not Mode.TAKING_OVER for r in self.world.active()))
    @rule(pick=PICKS, moments=st.integers(0, 8))
    def a_leader_dies(self, pick: int, moments: int) -> None:
        """If all died before they had taken over, as most would, nothing else would be seen."""
        leaders = self.world.active()
        self.world.crash(leaders[pick % len(leaders)], with_gang=pick % 2 == 0)
        self.get_on(pick, moments)

    @rule(pick=PICKS)
    def input_ends(self, pick: int) -> None:
        running = self.world.running()
        if running and pick % 5 == 0:
            self.world.drain(running[pick % len(running)])

    def teardown(self) -> None:
        """Counted before the world is made to end well: that alone takes two commits and a restore."""
        TALLY["commits"] += self.world.commits_landed
        TALLY["restores"] += sum(isinstance(entry, Restore) for entry in self.world.log())
        self.world.settle()


def test_two_leaders_keep_every_invariant_and_do_commit() -> None:
    """A machine that never gets as far as a commit proves nothing, so that is counted too."""
    TALLY.clear()
    ways = settings(max_examples=90, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(TwoLeaders, settings=ways)
    assert TALLY["commits"] >= 80 and TALLY["restores"] >= 80, TALLY
