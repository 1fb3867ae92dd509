"""What a leader does by itself, for every mode and everything that may be in the way."""

from __future__ import annotations

from itertools import product

import pytest

from tidegate.core.checkpoint.mode import Mode
from tidegate.core.checkpoint.progress import Standing, Step, next_step

FLAGS = ("writing", "publishing", "backlog", "finished", "stopping")


def every(mode: Mode) -> list[Standing]:
    return [Standing(mode=mode, **dict(zip(FLAGS, given, strict=True))) for given in product((False, True), repeat=len(FLAGS))]


@pytest.mark.parametrize("mode", sorted(set(Mode) - {Mode.RECOVERING, Mode.FINISHING, Mode.ENDING, Mode.SETTLING}, key=str))
def test_in_most_modes_a_leader_waits_for_facts(mode: Mode) -> None:
    assert {next_step(at) for at in every(mode)} == {None}


def test_recovered_sinks_let_a_gang_start_unless_the_job_is_done_or_to_be_stopped() -> None:
    for at in every(Mode.RECOVERING):
        wanted = Step.FINISH if at.finished else Step.STOP if at.stopping else Step.START_GANG
        assert next_step(at) is (None if at.backlog else wanted)


def test_a_job_is_finished_when_its_sinks_show_everything() -> None:
    for at in every(Mode.FINISHING):
        assert next_step(at) is (None if at.backlog else Step.FINISH)


def test_a_gang_is_stopped_when_no_put_is_open() -> None:
    for at in every(Mode.ENDING):
        assert next_step(at) is (None if at.writing else Step.STOP_GANG)


def test_after_a_gang_the_log_is_looked_at_or_the_job_stopped_when_nothing_is_unanswered() -> None:
    for at in every(Mode.SETTLING):
        waits = at.writing or at.publishing or (at.stopping and at.backlog)
        assert next_step(at) is (None if waits else Step.STOP if at.stopping else Step.CONFIRM)
