"""Who may take a sink, and when the sinks must have seen more than the log: tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_view import commit, takeover
from torn import torn

from tidegate.core.log.owner import (
    Claim,
    Denied,
    Holder,
    Outrun,
    Owner,
    Seen,
    Take,
    judge,
    replaced,
    sinks_newer,
)
from tidegate.core.log.view import LogView

ME = Owner(sink="s", job="j", log="l/1", term=5, run="me", host="h", pid=1, since="now", store="file:///s")
FORMER = replace(ME, run="you", term=3)
OTHER = replace(FORMER, log="k/1")


def verdict(owner: Owner, *, alive: bool = False, idle: bool = False, **claim: Any) -> Any:
    return judge(Claim(mine=ME, **claim), Holder(owner, alive), idle=idle)


def test_what_nobody_has_is_taken() -> None:
    assert judge(Claim(mine=ME), None, idle=True) == Take(set_aside=False)


@pytest.mark.parametrize("alive", [False, True])
def test_a_later_term_of_the_same_log_takes_over(alive: bool) -> None:
    assert verdict(FORMER, alive=alive) == Take(set_aside=False)


def test_a_log_whose_first_entry_can_not_be_read_goes_by_names() -> None:
    assert verdict(replace(FORMER, log="")) == Take(set_aside=False)
    assert judge(Claim(mine=replace(ME, log="")), Holder(OTHER, alive=False), idle=False) == Take(set_aside=False)


def test_a_leader_that_was_overtaken_before_it_took_the_sink_is_told() -> None:
    newer = replace(FORMER, term=8)
    assert verdict(newer, alive=True, seen="somebody else") == Outrun(replaced(newer))


def test_a_log_that_was_rolled_back_beneath_a_running_job_has_to_wait_for_it() -> None:
    newer = replace(FORMER, term=8)
    assert isinstance(verdict(newer, alive=True, seen="you"), Denied)
    assert verdict(newer, alive=False, seen="you") == Take(set_aside=False)


def test_another_sink_of_the_same_log_needs_to_be_told() -> None:
    assert isinstance(verdict(replace(FORMER, sink="t")), Denied)
    assert verdict(replace(FORMER, sink="t"), take=True) == Take(set_aside=False)


@pytest.mark.parametrize("take", [False, True])
def test_a_run_of_another_log_is_not_driven_out(take: bool) -> None:
    found = verdict(OTHER, alive=True, take=take)
    assert isinstance(found, Denied) and "host=h pid=1 since=now" in found.why


@pytest.mark.parametrize(
    ("owner", "idle", "take", "may"),
    [
        (OTHER, False, False, False),
        (OTHER, False, True, True),
        (OTHER, True, False, True),
        (replace(OTHER, store=None), False, False, True),
        (replace(OTHER, job="another", store=None), True, False, False),
        (replace(OTHER, job="another"), True, True, True),
    ],
)
def test_a_dead_run_of_another_log_may_have_rows_on_their_way(owner: Owner, idle: bool, take: bool, may: bool) -> None:
    found = verdict(owner, idle=idle, take=take)
    assert found == Take(set_aside=True) if may else isinstance(found, Denied)


# -- sinks and log -----------------------------------------------------------------------------------------------------


def view() -> LogView:
    """A log with the epochs 1 and 2, whose checkpoints have the same numbers."""
    return LogView([takeover(0), commit(1), commit(2, 1)])


def test_sinks_that_have_seen_what_the_log_has_are_not_newer() -> None:
    assert sinks_newer(view(), Seen(2, 2)) is None
    assert sinks_newer(LogView(), Seen()) is None


def test_an_epoch_or_a_checkpoint_that_the_log_lacks_is_lost() -> None:
    assert "epoch 3" in str(sinks_newer(view(), Seen(3, 0)))
    assert "0000000000000003" in str(sinks_newer(view(), Seen(2, 3)))
    assert sinks_newer(LogView(), Seen(1, 0)) is not None


def test_a_damaged_commit_explains_a_checkpoint_that_the_log_lacks() -> None:
    found = LogView([takeover(0), commit(1), commit(2, 1), torn(commit(3, 2))])
    assert sinks_newer(found, Seen(3, 3)) is None
    assert sinks_newer(found, Seen(4, 3)) is not None
